//! A connection over RDMA, the client's side: frames in messages, and one-sided reads of the segment.
//!
//! [`link::RdmaLink`] is a stream of bytes, so that the code that frames a socket's bytes frames these too; [`super::reader`] cuts a call's ranges
//! into lists of READs; [`join`] makes a link out of a TCP connection.
//!
//! The device writes to the link's own buffers only, so a call may be dropped or forgotten at any time; but for calls of
//! [`crate::Registered`], which nobody can drop or forget while they run ([`registration`]).

pub(crate) mod join;
pub(crate) mod link;
pub(crate) mod registration;

/// The devices' part of [`crate::forget_lanes`].
pub(crate) fn forget() {
    join::forget_domains();
    registration::forget_buffers();
}
