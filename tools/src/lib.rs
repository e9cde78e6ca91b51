//! What the binary `lanner` is made of: its command line, one file for each subcommand in [`commands`], and the machinery behind
//! them. [`check`] looks at the machine and says what it lacks; [`bench`] measures, reports
//! and plots.
//!
//! Absent on purpose: anything of the data path. What talks to a server does so through `lanner-client`.

pub mod bench;
pub mod check;
pub mod cli;
pub mod commands;
pub mod exit;
pub mod rdma_warning;
