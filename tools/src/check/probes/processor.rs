//! Reads what the CPUs are and what they are set to.

use super::text;
use crate::check::facts::Processor;

/// What the CPUs are set to.
#[must_use]
pub fn processor() -> Processor {
    Processor {
        model: model(),
        allowed: u32::try_from(allowed_cpus().len()).unwrap_or(u32::MAX),
        governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        isolated: text("/sys/devices/system/cpu/isolated"),
    }
}

fn model() -> Option<String> {
    let info = text("/proc/cpuinfo")?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The CPUs that this process may run on, ascending.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}
