//! Faults that tests plant to see that a checker finds them (feature `planted-faults`). Without the feature each is `false`
//! at compile time.

#[cfg(feature = "planted-faults")]
mod planted {
    use std::cell::Cell;

    thread_local! {
        static RETRIES_CHANGES: Cell<bool> = const { Cell::new(false) };
        static REFRESHES_TOO_LATE: Cell<bool> = const { Cell::new(false) };
        static BEGINS_REPLIES_AGAIN: Cell<bool> = const { Cell::new(false) };
    }

    /// Plants (or removes) the fault that a change whose answer was lost is sent again.
    pub fn plant_retried_changes(planted: bool) {
        RETRIES_CHANGES.set(planted);
    }

    /// Plants (or removes) the fault that a snapshot is used beyond the end of its lease.
    pub fn plant_late_refresh(planted: bool) {
        REFRESHES_TOO_LATE.set(planted);
    }

    /// Plants (or removes) the fault that the rest of a reply which is put by is taken for a whole one.
    pub fn plant_replies_begun_again(planted: bool) {
        BEGINS_REPLIES_AGAIN.set(planted);
    }

    pub(crate) fn begins_replies_again() -> bool {
        BEGINS_REPLIES_AGAIN.get()
    }

    pub(crate) fn retries_changes() -> bool {
        RETRIES_CHANGES.get()
    }

    pub(crate) fn refreshes_too_late() -> bool {
        REFRESHES_TOO_LATE.get()
    }
}

#[cfg(feature = "planted-faults")]
pub(crate) use planted::{begins_replies_again, refreshes_too_late, retries_changes};
#[cfg(feature = "planted-faults")]
pub use planted::{plant_late_refresh, plant_replies_begun_again, plant_retried_changes};

#[cfg(not(feature = "planted-faults"))]
pub(crate) const fn retries_changes() -> bool {
    false
}

#[cfg(not(feature = "planted-faults"))]
pub(crate) const fn refreshes_too_late() -> bool {
    false
}

#[cfg(not(feature = "planted-faults"))]
pub(crate) const fn begins_replies_again() -> bool {
    false
}
