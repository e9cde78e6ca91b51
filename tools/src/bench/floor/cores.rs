//! Which two CPUs measure: one for who asks, one for who answers. On one node, so that no limit is that of the link between sockets; on
//! two cores, so that they don't share one core's units.

use std::str::FromStr;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::check::probes;
use crate::exit::Failure;

/// The CPUs of asker and answerer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorePair {
    /// Of the thread that measures.
    pub client: usize,
    /// Of the thread or process that answers.
    pub server: usize,
}

impl CorePair {
    /// The best pair that this process may run on.
    ///
    /// # Errors
    /// If there is only one CPU.
    pub fn of_this_machine() -> Result<CorePair, Failure> {
        let nodes = probes::numa_nodes().iter().map(|node| list(&node.cpus)).collect::<Vec<_>>();
        CorePair::choose(&probes::allowed_cpus(), &nodes, siblings).ok_or_else(|| {
            Failure::Machine(
                "measuring takes two CPUs, and this process may run on one only (see `taskset -p $$`)"
                    .to_owned(),
            )
        })
    }

    /// The first two CPUs of one node that are on different cores; failing that, of different cores, or any two. `siblings` gives the
    /// CPUs on the core of a CPU.
    fn choose(
        allowed: &[usize],
        nodes: &[Vec<usize>],
        siblings: impl Fn(usize) -> Vec<usize>,
    ) -> Option<CorePair> {
        let first_two_cores = |cpus: &[usize]| {
            let client = *cpus.first()?;
            let on_its_core = siblings(client);
            let server = *cpus.iter().find(|cpu| **cpu != client && !on_its_core.contains(cpu))?;
            Some(CorePair { client, server })
        };
        let of_node =
            |node: &Vec<usize>| allowed.iter().copied().filter(|cpu| node.contains(cpu)).collect::<Vec<_>>();
        let on_one_node = nodes.iter().find_map(|node| first_two_cores(&of_node(node)));
        let any_two = || Some(CorePair { client: *allowed.first()?, server: *allowed.get(1)? });
        on_one_node.or_else(|| first_two_cores(allowed)).or_else(any_two)
    }

    /// Keeps the calling thread on the client's CPU from now on.
    ///
    /// # Errors
    /// CPUs of which this process may not run on one: the server's, too, is found out before anything is measured.
    pub fn pin_client(&self) -> Result<(), Failure> {
        pin(self.server)?;
        pin(self.client)
    }
}

/// Keeps the calling thread on a CPU.
///
/// # Errors
/// A CPU that doesn't exist or that this process may not run on.
pub fn pin(cpu: usize) -> Result<(), Failure> {
    let refused = |reason: String| {
        Failure::WrongUse(format!(
            "no thread can be put on CPU {cpu}: {reason}; `lanner check` lists the CPUs"
        ))
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused("no such CPU".to_owned()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|errno| refused(errno.to_string()))
}

/// The CPUs on the core of `cpu`, as the kernel says.
fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(path).map_or_else(|_| vec![cpu], |text| list(&text))
}

fn list(text: &str) -> Vec<usize> {
    probes::cpus_in_list(text).into_iter().map(|cpu| cpu as usize).collect()
}

impl FromStr for CorePair {
    type Err = String;

    /// Reads `2,3`: the client's CPU, then the server's.
    fn from_str(text: &str) -> Result<CorePair, String> {
        let numbers =
            text.split_once(',').map(|(client, server)| (client.trim().parse(), server.trim().parse()));
        match numbers {
            Some((Ok(client), Ok(server))) if client != server => Ok(CorePair { client, server }),
            _ => Err("two different CPUs are wanted, the client's and the server's, as in 2,3".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the order of preference on made-up machines: one node, then two cores, then any two.
    #[test]
    fn cores_of_one_node_come_first() {
        let threads_of_two = |cpu: usize| vec![cpu & !1, cpu | 1];
        let alone = |cpu: usize| vec![cpu];
        let pair = |client, server| Some(CorePair { client, server });
        let nodes = [vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
        assert_eq!(CorePair::choose(&[0, 1, 2, 3, 4, 5, 6, 7], &nodes, threads_of_two), pair(0, 2));
        assert_eq!(CorePair::choose(&[3, 4, 5, 6], &nodes, alone), pair(4, 5));
        assert_eq!(CorePair::choose(&[0, 4], &nodes, alone), pair(0, 4));
        assert_eq!(CorePair::choose(&[0, 1], &nodes, threads_of_two), pair(0, 1));
        assert_eq!(CorePair::choose(&[0], &nodes, alone), None);
        assert_eq!(CorePair::choose(&[], &nodes, alone), None);
    }

    /// Shows that a pair is two different numbers.
    #[test]
    fn a_pair_is_read_from_text() {
        assert_eq!("2, 3".parse(), Ok(CorePair { client: 2, server: 3 }));
        for wrong in ["", "1", "1,1", "a,b", "1,2,3"] {
            assert!(wrong.parse::<CorePair>().is_err(), "{wrong:?}");
        }
    }
}
