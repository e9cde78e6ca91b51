//! Keeps a limit's turns apart from the product's: a server that polls adaptively spins on for a moment after its last work, on the very
//! CPU that the limit's answering thread needs.

use std::thread;
use std::time::Duration;

use crate::bench::workload::Workload;
use crate::exit::Failure;

/// Several times as long as a server spins before it sleeps (1 ms).
const QUIET: Duration = Duration::from_millis(4);

/// A limit whose turns begin when the server has fallen asleep.
pub struct AfterQuiet<W>(pub W);

impl<W: Workload> Workload for AfterQuiet<W> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn prepare(&mut self) -> Result<u64, Failure> {
        self.0.prepare()
    }

    fn begin_turn(&mut self) -> Result<(), Failure> {
        thread::sleep(QUIET);
        self.0.begin_turn()
    }

    fn round(&mut self) -> Result<u64, Failure> {
        self.0.round()
    }

    fn end_turn(&mut self) {
        self.0.end_turn();
    }
}
