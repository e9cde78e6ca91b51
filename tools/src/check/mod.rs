//! What `lanner check` knows: [`probes`] look at the machine and gather [`facts::Facts`], [`judge`] turns facts and
//! [`needs::Needs`] into findings, [`show`] prints them. Only the probes touch the world, so that the judgement on a machine that
//! nobody here has (two NUMA nodes, a container's seccomp filter, a dead InfiniBand port) can be tested.

pub mod facts;
pub mod judge;
pub mod needs;
pub mod probes;
pub mod show;
