//! Benches: one for each claim in the README, and comparisons with peers. `cargo bench -p lanner-benches` runs those of parts;
//! the scripts in this folder compare whole servers.
