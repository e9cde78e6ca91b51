//! `touch`: objects that a client has read one-sided, told afterwards so that eviction knows of them.
//!
//! A hint: what is stale by then is passed over. It goes out with the client's next request, or by itself after a while.

use super::body::BodyReader;
use crate::error::Result;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// The most touches that a client puts into one frame: what one message over RDMA holds.
pub const MOST_TOUCHES: usize = 512;

/// An object that was read since the client told of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TouchBody {
    /// The object's slot.
    pub slot: le::U32,
    /// Which of the slot's objects.
    pub generation: le::U32,
}

const _: () = assert!(size_of::<TouchBody>() == 8);

/// The `count` touches in `body`.
///
/// # Errors
/// `Malformed`.
pub fn decode(body: &[u8], count: usize) -> Result<&[TouchBody]> {
    let mut reader = BodyReader::new(body);
    let touches = reader.values(count)?;
    reader.end()?;
    Ok(touches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let touch = TouchBody { slot: 0x0403_0201.into(), generation: 0x0807_0605.into() };
        let golden: Vec<u8> = (1..=8).collect();
        assert_eq!(touch.as_bytes(), golden);
        assert_eq!(decode(&golden, 1), Ok([touch].as_slice()));
        (0..8).for_each(|length| assert!(decode(&golden[..length], 1).is_err(), "{length}"));
        assert!(decode(&golden, 0).is_err() && decode(&golden, 2).is_err());
    }
}
