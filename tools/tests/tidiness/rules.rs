//! The rules, as pure functions from a file's name and text to the faults in it. Words that are banned everywhere are put together
//! by `concat!`, because these rules read this file too.

/// A file that is longer is cut by what its parts are about.
const MAX_LINES: usize = 700;

/// Files that a program writes.
const GENERATED: &[&str] = &["Cargo.lock"];

/// Endings of files that are data, not text to be read from top to bottom.
const DATA: &[&str] = &[".svg", ".json", ".csv", ".jsonl"];

/// Paths that exist on one person's machine only.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/tmp/tar", "get"),
];

/// Hosts of package registries: a build takes the registry that its user's cargo is set up for.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("deb.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
];

/// Phrases about how the text came to be. Files speak about Lanner.
const ABOUT_THE_WRITING: &[&str] = &[
    concat!("this ses", "sion"),
    concat!("another ses", "sion"),
    concat!("earlier ses", "sion"),
    concat!("a helper ses", "sion"),
    concat!("sub", "agent"),
    concat!("the bri", "ef says"),
    concat!("ai-gener", "ated"),
    concat!("ai assis", "tant"),
];

/// Macros that stand for code that is still to be written.
const UNFINISHED: &[&str] = &[concat!("to", "do!"), concat!("unimple", "mented!")];

/// All faults of one file, each as `name:line: what is wrong`.
pub fn faults_in(name: &str, text: &str) -> Vec<String> {
    if GENERATED.iter().any(|generated| name.ends_with(generated)) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for fault in faults_in_line(name, line) {
            faults.push(format!("{name}:{}: {fault}", index + 1));
        }
    }
    if name.ends_with(".rs") && !text.starts_with("//!") {
        faults.push(format!("{name}:1: does not open with `//!` and what the file is for"));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES && !DATA.iter().any(|ending| name.ends_with(ending)) {
        faults.push(format!(
            "{name}:{lines}: {lines} lines; cut it by what its parts are about (at most {MAX_LINES})"
        ));
    }
    faults
}

/// The faults that a line shows by itself.
fn faults_in_line(name: &str, line: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for path in MACHINE_PATHS.iter().filter(|path| begins_a_path(line, path)) {
        faults.push(format!(
            "`{path}` is a path of one machine; find it from the environment or the file's own place"
        ));
    }
    for host in REGISTRY_HOSTS.iter().filter(|host| line.contains(**host)) {
        faults.push(format!("`{host}` is a registry's host; leave the choice to the user's package client"));
    }
    let lower = line.to_lowercase();
    for phrase in ABOUT_THE_WRITING.iter().filter(|phrase| lower.contains(**phrase)) {
        faults.push(format!("`{phrase}` is about how the text was written; say what holds"));
    }
    for unfinished in
        UNFINISHED.iter().filter(|unfinished| name.ends_with(".rs") && line.contains(**unfinished))
    {
        faults.push(format!(
            "`{unfinished}` stands for code that is missing; leave the feature out or finish it"
        ));
    }
    faults
}

/// True if `path` starts an absolute path in `line`: what stands before it could not be the middle of another path.
fn begins_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || "_-.}/*~".contains(character))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a fault planted in a Rust file that is tidy otherwise.
    fn check(line: &str, wanted: &str) {
        let faults = faults_in("planted.rs", &format!("//! Planted.\n{line}\n"));
        assert_eq!(faults.len(), 1, "{line:?} should have one fault, got {faults:?}");
        assert!(faults[0].starts_with("planted.rs:2: ") && faults[0].contains(wanted), "{faults:?}");
    }

    /// Shows that each banned word is found wherever it stands, by planting every one of them.
    #[test]
    fn every_banned_word_is_found() {
        for path in MACHINE_PATHS {
            check(&format!("let place = \"{path}x\";"), path);
        }
        for host in REGISTRY_HOSTS {
            check(&format!("// see https://{host}/x"), host);
        }
        for phrase in ABOUT_THE_WRITING {
            check(&format!("// As {} showed", phrase.to_uppercase()), phrase);
        }
        for unfinished in UNFINISHED {
            check(&format!("fn f() {{ {unfinished}() }}"), unfinished);
        }
    }

    /// Shows that words which only look like a fault pass: parts of longer paths, and our domain's own sessions.
    #[test]
    fn what_only_looks_like_a_fault_passes() {
        for line in [
            "// net/work/ing",
            "let at = \"$HOME/work/x\";",
            "// a TLS session ends",
            "/sys/devices/system/node",
        ] {
            assert_eq!(faults_in("planted.rs", &format!("//! Planted.\n{line}\n")), Vec::<String>::new());
        }
    }

    /// Shows that a file without an opening sentence is found, and that only Rust files need one.
    #[test]
    fn a_file_that_does_not_say_what_it_is_for_is_found() {
        assert_eq!(faults_in("planted.rs", "use std::fmt;\n").len(), 1);
        assert_eq!(faults_in("planted.toml", "a = 1\n"), Vec::<String>::new());
    }

    /// Shows where the limit on length lies, and that data and generated files have none.
    #[test]
    fn a_long_file_is_found() {
        let fits = "//! Planted.\n".repeat(MAX_LINES);
        let too_long = "//! Planted.\n".repeat(MAX_LINES + 1);
        assert_eq!(faults_in("planted.rs", &fits), Vec::<String>::new());
        assert_eq!(faults_in("planted.rs", &too_long).len(), 1);
        assert_eq!(faults_in("scripts/planted", &too_long).len(), 1);
        assert_eq!(faults_in("plot.svg", &too_long), Vec::<String>::new());
        assert_eq!(faults_in("Cargo.lock", &too_long), Vec::<String>::new());
    }
}
