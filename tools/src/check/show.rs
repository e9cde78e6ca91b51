//! Findings for people (a table, then what to do) and for programs (a JSON list).

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};

use super::judge::{Finding, Verdict, can_run};

/// Prints the findings as a table that fits `width` columns, and below it every reason with its command. Commands stand on lines of
/// their own and are never broken, so that they can be copied.
///
/// # Errors
/// What `output` refuses.
pub fn as_table(findings: &[Finding], width: u16, output: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    for finding in findings {
        table.add_row([finding.verdict.label(), finding.what.as_str(), finding.found.as_str()]);
    }
    for line in table.lines() {
        writeln!(output, "{}", line.trim_end())?;
    }
    for verdict in [Verdict::Missing, Verdict::SlowerWithout] {
        let matching: Vec<_> = findings.iter().filter(|finding| finding.verdict == verdict).collect();
        if !matching.is_empty() {
            writeln!(output, "\n{}:", heading(verdict))?;
        }
        for finding in matching {
            write_wrapped(output, &format!("{}: {}", finding.what, finding.why), usize::from(width))?;
            if !finding.mend.is_empty() {
                writeln!(output, "      {}", finding.mend)?;
            }
        }
    }
    let conclusion =
        if can_run(findings) { "Lanner can run here." } else { "Lanner can't run here with these flags." };
    writeln!(output, "\n{conclusion}")
}

/// Prints the findings as a JSON list.
///
/// # Errors
/// What `output` refuses.
pub fn as_json(findings: &[Finding], output: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *output, findings)?;
    writeln!(output)
}

fn heading(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Missing => "Missing",
        Verdict::SlowerWithout => "Slower without",
        Verdict::Ok => "In order",
    }
}

/// Writes `text` as a list entry, broken between words where a line would be longer than `width`.
fn write_wrapped(output: &mut impl Write, text: &str, width: usize) -> io::Result<()> {
    let mut line = String::from("  -");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > width
            && !line.trim_start_matches([' ', '-']).is_empty()
        {
            writeln!(output, "{line}")?;
            line = String::from("   ");
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(output, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict) -> Finding {
        Finding {
            what: "huge pages, node 0".into(),
            found: "0 of 2 MiB reserved, 0 free, 512 wanted".into(),
            verdict,
            why: "reads from tables of several GB take longer on small pages".into(),
            mend:
                "echo 512 | sudo tee /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
                    .into(),
        }
    }

    fn table(findings: &[Finding], width: u16) -> String {
        let mut output = Vec::new();
        as_table(findings, width, &mut output).expect("a vector takes everything");
        String::from_utf8(output).expect("text")
    }

    /// Shows that prose is broken at the terminal's width and a command never is.
    #[test]
    fn commands_survive_a_narrow_terminal() {
        let finding = finding(Verdict::SlowerWithout);
        let text = table(std::slice::from_ref(&finding), 50);
        assert!(text.contains(&finding.mend), "{text}");
        for line in text.lines().filter(|line| !line.contains("echo")) {
            assert!(line.chars().count() <= 50, "{line:?} is too long in\n{text}");
        }
    }

    /// Shows that the last line answers the question.
    #[test]
    fn the_conclusion_depends_on_what_is_missing() {
        assert!(table(&[finding(Verdict::SlowerWithout)], 100).ends_with("Lanner can run here.\n"));
        assert!(table(&[finding(Verdict::Missing)], 100).ends_with("can't run here with these flags.\n"));
    }

    /// Shows the JSON that scripts read: a list, verdicts in kebab case.
    #[test]
    fn json_is_a_list_of_findings() {
        let mut output = Vec::new();
        as_json(&[finding(Verdict::SlowerWithout)], &mut output).expect("a vector takes everything");
        let value: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
        assert_eq!(value[0]["verdict"], "slower-without");
        assert_eq!(value[0]["what"], "huge pages, node 0");
    }
}
