//! Judges what the CPUs are set to; none of it is a condition, all of it shows in the tail.

use super::Finding;
use crate::check::facts::Processor;

/// From this many CPUs on, some can be kept for shards alone.
const ENOUGH_TO_ISOLATE: u32 = 8;

/// The findings on CPUs, governor and isolation.
pub fn processor(facts: &Processor) -> Vec<Finding> {
    vec![cpus(facts), governor(facts), isolation(facts)]
}

fn cpus(facts: &Processor) -> Finding {
    let what = "CPUs";
    let model = facts.model.as_deref().unwrap_or("unknown model");
    let found = format!("{} to run on, {model}", facts.allowed);
    if facts.allowed >= 2 {
        return Finding::ok(what, found);
    }
    Finding::slower_without(what, found)
        .because(
            "a shard that polls and a client that polls share one CPU: each waits for the other's time slice",
        )
        .mended_by("lanner-server --poll adaptive")
}

fn governor(facts: &Processor) -> Finding {
    let what = "CPU frequency governor";
    match facts.governor.as_deref() {
        None => Finding::ok(what, "none to set (usual in a virtual machine)"),
        Some("performance") => Finding::ok(what, "performance"),
        Some(other) => Finding::slower_without(what, other)
            .because("a CPU that has to speed up first answers the first requests late")
            .mended_by("echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    }
}

fn isolation(facts: &Processor) -> Finding {
    let what = "isolated CPUs";
    match facts.isolated.as_deref() {
        None => Finding::ok(what, "the system doesn't tell"),
        Some("") if facts.allowed < ENOUGH_TO_ISOLATE => Finding::ok(what, "none (too few CPUs to keep some apart)"),
        Some("") => Finding::slower_without(what, "none")
            .because("other programs interrupt the shards, which shows from p99.9 on; the cores of shards can be kept apart at boot")
            .mended_by("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&isolcpus=2-5 nohz_full=2-5 /' /etc/default/grub && sudo update-grub && sudo reboot"),
        Some(list) => Finding::ok(what, list),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::machines::{check, small_server};
    use crate::check::facts::{Facts, Processor};

    fn with(change: impl Fn(&mut Processor)) -> Facts {
        let mut facts = small_server();
        change(&mut facts.processor);
        facts
    }

    /// Shows that each setting is judged by itself, and that a small machine isn't told to isolate CPUs it doesn't have.
    #[test]
    fn settings_that_show_in_the_tail_are_named() {
        check(&with(|cpu| cpu.allowed = 1), "CPUs", Verdict::SlowerWithout, "--poll adaptive");
        let powersave = with(|cpu| cpu.governor = Some("powersave".into()));
        check(&powersave, "CPU frequency governor", Verdict::SlowerWithout, "tee /sys/devices/system/cpu");
        check(&with(|cpu| cpu.isolated = Some(String::new())), "isolated CPUs", Verdict::Ok, "too few");
        let large = with(|cpu| (cpu.allowed, cpu.isolated) = (64, Some(String::new())));
        check(&large, "isolated CPUs", Verdict::SlowerWithout, "isolcpus=");
        check(&with(|cpu| cpu.isolated = Some("2-5".into())), "isolated CPUs", Verdict::Ok, "2-5");
    }
}
