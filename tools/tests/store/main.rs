//! The binary `lanner` against a real `lanner-server`: what it prints on which stream, and its exit status.

mod bench;
mod commands;
mod support;
mod top;
mod trace;
