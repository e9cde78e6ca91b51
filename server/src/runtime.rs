//! The one place that names glommio: an executor for each core, pinned to it, whose one task is the pump.
//!
//! The data path doesn't use glommio's sockets or files: the pump has an io_uring of its own, measured to be two to three
//! times as quick in a round trip (DESIGN section 10, where the traps that the settings below avoid are listed too).

use glommio::{LocalExecutorBuilder, Placement};

/// Registered memory of an executor. It isn't used for anything here, and glommio's default of 10 MiB doesn't fit the usual
/// limit on locked memory.
pub const EXECUTOR_IO_MEMORY_BYTES: usize = 1 << 20;

/// A core's thread.
pub struct CoreThread(glommio::ExecutorJoinHandle<()>);

/// Starts an executor on `cpu` and runs what `task` makes there.
///
/// # Errors
/// What stands in the way, with its cure.
pub fn spawn_on<F>(
    cpu: usize,
    name: &str,
    task: impl FnOnce() -> F + Send + 'static,
) -> Result<CoreThread, String>
where
    F: Future<Output = ()> + 'static,
{
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .name(name)
        .io_memory(EXECUTOR_IO_MEMORY_BYTES)
        .spawn(task)
        .map(CoreThread)
        .map_err(|error| format!("no executor can be started on core {cpu}: {error}; 'lanner check' says what io_uring and the limit on locked memory lack"))
}

impl CoreThread {
    /// Waits for the core's task to end.
    ///
    /// # Errors
    /// What the executor says.
    pub fn join(self) -> Result<(), String> {
        self.0.join().map_err(|error| error.to_string())
    }
}
