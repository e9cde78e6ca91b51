//! The body of a reply whose status isn't 0: the numbers of the error.

use super::body::BodyReader;
use super::header::Header;
use crate::error::{Error, Result, WireError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// The numbers of a [`WireError`]; its code is the header's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorBody {
    /// In the order of the error's fields.
    pub numbers: [le::U64; 4],
}

const _: () = assert!(size_of::<ErrorBody>() == 32);

impl From<WireError> for ErrorBody {
    fn from(wire: WireError) -> ErrorBody {
        ErrorBody { numbers: wire.numbers.map(le::U64::new) }
    }
}

/// Appends the frame that answers `request` with `error`.
pub fn append_reply(frame: &mut Vec<u8>, request: &Header, error: &Error, boot: u32, version: u8) {
    let wire = error.to_wire();
    let start = super::body::begin(frame);
    super::body::append(frame, &ErrorBody::from(wire));
    let header = Header { status: wire.code, count: 0, ..request.reply(boot) };
    super::body::finish(frame, start, header, version);
}

/// The error in the body of a reply with this `status`.
pub fn decode(status: u16, body: &[u8]) -> Result<Error> {
    let mut reader = BodyReader::new(body);
    let numbers = reader.value::<ErrorBody>()?.numbers.map(le::U64::get);
    reader.end()?;
    Ok(Error::from_wire(WireError { code: status, numbers }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Bound;
    use crate::key::ShardId;
    use crate::wire::{Opcode, header::HEADER_BYTES};

    #[test]
    fn an_error_reply_carries_the_error_and_the_request_id() {
        let request = Header::request(Opcode::Get, ShardId(3), 77, 5);
        let error = Error::OutOfBounds { index: 4, bound: Bound::Value, end: 10, length: 9 };
        let mut frame = Vec::new();
        append_reply(&mut frame, &request, &error, 9, 1);
        let header = Header::decode(frame[..HEADER_BYTES].try_into().unwrap(), 1).unwrap();
        assert_eq!((header.request_id, header.boot, header.status), (77, 9, 6));
        assert_eq!(decode(header.status, &frame[HEADER_BYTES..]), Ok(error));
        assert!(decode(header.status, &frame[HEADER_BYTES + 1..]).is_err());
    }
}
