//! How far a long step has got, on standard error while a person looks at it. Where standard error is a file or a pipe nothing
//! is printed, so that logs stay readable.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar for one step; gone when dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Begins a step of `length` units under the name that people see.
    #[must_use]
    pub fn new(name: impl Into<String>, length: u64) -> Progress {
        // indicatif hides a bar on a standard error that isn't a terminal by itself.
        Progress::on(ProgressDrawTarget::stderr(), name.into(), length)
    }

    /// A step that nobody looks at.
    #[must_use]
    pub fn hidden() -> Progress {
        Progress::on(ProgressDrawTarget::hidden(), String::new(), 0)
    }

    fn on(target: ProgressDrawTarget, name: String, length: u64) -> Progress {
        let style = ProgressStyle::with_template("{msg:28} {bar:32} {percent:>3} %  {elapsed} of {duration}")
            .expect("a constant template that is valid");
        Progress(ProgressBar::with_draw_target(Some(length), target).with_style(style).with_message(name))
    }

    /// So many units are done.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
