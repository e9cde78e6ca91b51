//! From facts and needs to findings: pure, so that any machine can be judged that someone can describe. A file for each matter.

mod io_uring;
mod limits;
mod memory;
mod ports;
mod processor;
mod rdma;

#[cfg(test)]
mod machines;

use serde::Serialize;

use super::facts::{Attempt, Facts};
use super::needs::Needs;

/// What a finding means for someone who wants to run Lanner here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Lanner runs, but slower or with less than it could have.
    SlowerWithout,
    /// Lanner can't run with these flags.
    Missing,
}

impl Verdict {
    /// The verdict as people read it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::SlowerWithout => "slower without",
            Verdict::Missing => "missing",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// What was found.
    pub found: String,
    /// What that means.
    pub verdict: Verdict,
    /// Why it matters, or what would change; empty where all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The command that mends it, to be typed as it stands; empty where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mend: String,
}

impl Finding {
    fn ok(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding {
            what: what.into(),
            found: found.into(),
            verdict: Verdict::Ok,
            why: String::new(),
            mend: String::new(),
        }
    }

    fn slower_without(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::SlowerWithout, ..Finding::ok(what, found) }
    }

    fn missing(what: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { verdict: Verdict::Missing, ..Finding::ok(what, found) }
    }

    fn because(mut self, why: impl Into<String>) -> Finding {
        self.why = why.into();
        self
    }

    fn mended_by(mut self, command: impl Into<String>) -> Finding {
        self.mend = command.into();
        self
    }
}

/// Judges a machine: the findings in the order in which a person would mend them.
#[must_use]
pub fn judge(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![kernel(facts), io_uring::io_uring(&facts.io_uring), shared_memory(facts)];
    findings.extend(limits::limits(facts, needs));
    findings.extend(memory::memory(facts, needs));
    findings.extend(processor::processor(&facts.processor));
    findings.extend(ports::ports(facts));
    findings.extend(rdma::rdma(&facts.rdma, needs));
    findings
}

/// True unless something is missing that Lanner can't do without.
#[must_use]
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Missing)
}

fn kernel(facts: &Facts) -> Finding {
    let (major, minor) = super::needs::KERNEL;
    if version(&facts.kernel_release).is_some_and(|found| found >= (major, minor)) {
        return Finding::ok("kernel", &facts.kernel_release);
    }
    Finding::missing("kernel", &facts.kernel_release)
        .because(format!("the data path needs Linux {major}.{minor} or newer (io_uring with DEFER_TASKRUN)"))
        .mended_by("sudo apt-get install -y linux-image-$(dpkg --print-architecture) && sudo reboot")
}

/// Major and minor number of a kernel release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn shared_memory(facts: &Facts) -> Finding {
    let what = "shared memory";
    match &facts.shared_memory {
        Attempt::Worked => Finding::ok(what, "sealed; a client's write mapping is refused"),
        Attempt::Refused { step, errno } => Finding::slower_without(what, format!("{step}: {}", errno_text(*errno)))
            .because("without it, clients on this host use TCP, some 50 times slower; a sandbox that filters system calls has to allow memfd_create and fcntl")
            .mended_by("docker run --security-opt seccomp=unconfined …"),
        Attempt::Wrong { seen } => Finding::slower_without(what, seen)
            .because("segments can't be protected from clients here, so the server will offer TCP only"),
    }
}

/// An error number as the C library words it.
fn errno_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use machines::{check, needs, small_server, verdict_of};

    /// Shows that an ordinary server can run Lanner, and what it would gain by.
    #[test]
    fn an_ordinary_server_can_run_lanner() {
        let findings = judge(&small_server(), &needs());
        assert!(can_run(&findings), "{findings:#?}");
        let slower: Vec<_> = findings
            .iter()
            .filter(|f| f.verdict == Verdict::SlowerWithout)
            .map(|f| f.what.as_str())
            .collect();
        assert_eq!(slower, ["huge pages, node 0", "RDMA devices"]);
    }

    /// Shows that whoever reads a bad verdict is told why, and whoever reads a good one isn't bothered.
    #[test]
    fn every_bad_finding_gives_a_reason_and_no_good_one_does() {
        for (name, facts) in machines::all() {
            for finding in judge(&facts, &needs()) {
                let bad = finding.verdict != Verdict::Ok;
                assert_eq!(bad, !finding.why.is_empty(), "{name}: {finding:#?}");
                assert!(bad || finding.mend.is_empty(), "{name}: {finding:#?}");
            }
        }
    }

    /// Shows where the limit on the kernel lies, and that a release we can't read counts as too old.
    #[test]
    fn the_kernel_has_to_be_6_1() {
        for (release, wanted) in [
            ("6.1.0-18-amd64", Verdict::Ok),
            ("6.18.44-custom", Verdict::Ok),
            ("10.0", Verdict::Ok),
            ("6.0.19", Verdict::Missing),
            ("5.15.0-91-generic", Verdict::Missing),
            ("unknown", Verdict::Missing),
        ] {
            let facts = Facts { kernel_release: release.into(), ..small_server() };
            assert_eq!(verdict_of(&facts, "kernel"), wanted, "{release}");
        }
    }

    /// Shows that a machine whose seals don't hold is told that it will do without shared memory, not that it can't run.
    #[test]
    fn shared_memory_that_cannot_be_sealed_is_not_offered() {
        let seen = Attempt::Wrong { seen: "a client's write mapping was allowed".into() };
        let facts = Facts { shared_memory: seen, ..small_server() };
        check(&facts, "shared memory", Verdict::SlowerWithout, "TCP only");
    }
}
