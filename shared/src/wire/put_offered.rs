//! `put_offered`: a `put` whose value doesn't follow: it lies in registered memory of the client's, and the server READs it from there.
//!
//! ```text
//! body:  │ ValueOffer │ the body of a put │          payload: none
//! ```
//!
//! For connections over RDMA only, and for servers that said [`super::join_rdma::FEATURE_READS_VALUES`]. From the request until its answer
//! the client leaves the bytes as they are and the memory registered; if it can't wait for the answer it ends its queue pair first. The
//! server answers once it has read the last byte, or once it's sure that it will read no more.

use super::body::BodyReader;
use super::put::{self, PutRequest};
use crate::error::{Error, Malformation, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian as le};

/// Where a value lies at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ValueOffer {
    /// Address of its first byte, in the client's process.
    pub address: le::U64,
    /// Its length in bytes; not 0.
    pub value_bytes: le::U64,
    /// The key that READs of it carry.
    pub key: le::U32,
    /// Zero.
    pub reserved: le::U32,
}

const _: () = {
    assert!(size_of::<ValueOffer>() == 24);
    assert!(std::mem::offset_of!(ValueOffer, key) == 16);
};

/// Appends the body.
pub fn append(frame: &mut Vec<u8>, offer: &ValueOffer, put: &PutRequest<'_>) {
    super::body::append(frame, offer);
    put::append(frame, put);
}

/// The offer and the `put` in `body`.
///
/// # Errors
/// `Malformed`.
pub fn decode(body: &[u8]) -> Result<(ValueOffer, PutRequest<'_>)> {
    let mut reader = BodyReader::new(body);
    let offer: ValueOffer = reader.value()?;
    let (address, bytes) = (offer.address.get(), offer.value_bytes.get());
    if offer.reserved.get() != 0 || bytes == 0 || address.checked_add(bytes).is_none() {
        return Err(Error::Malformed { reason: Malformation::Field, detail: bytes });
    }
    Ok((offer, put::decode(&body[size_of::<ValueOffer>()..])?))
}

#[cfg(test)]
mod tests {
    use super::super::put::{Pin, PutMode};
    use super::*;
    use proptest::prelude::*;

    const OFFER: ValueOffer = ValueOffer {
        address: le::U64::new(0x0807_0605_0403_0201),
        value_bytes: le::U64::new(0x0f0e_0d0c_0b0a_0910),
        key: le::U32::new(0x1413_1211),
        reserved: le::U32::ZERO,
    };
    const PUT: PutRequest<'_> = PutRequest {
        key: b"key",
        mode: PutMode::Upsert,
        pin: Pin::None,
        ttl_seconds: 3,
        group: b"gr",
        chain: None,
    };

    #[test]
    fn golden_bytes() {
        let mut frame = Vec::new();
        append(&mut frame, &OFFER, &PUT);
        let golden =
            b"\x01\x02\x03\x04\x05\x06\x07\x08\x10\x09\x0a\x0b\x0c\x0d\x0e\x0f\x11\x12\x13\x14\0\0\0\0\
            \x01\x00\x02\x00\x03\x00\x00\x00gr\x03\x00key";
        assert_eq!(frame, golden);
        assert_eq!(decode(&frame), Ok((OFFER, PUT)));
        (0..frame.len()).for_each(|length| assert!(decode(&frame[..length]).is_err(), "{length}"));
    }

    #[test]
    fn an_offer_of_nothing_or_beyond_all_memory_is_refused() {
        let one = le::U64::new(1);
        for wrong in [
            ValueOffer { value_bytes: le::U64::ZERO, ..OFFER },
            ValueOffer { reserved: le::U32::new(1), ..OFFER },
            ValueOffer { address: le::U64::new(u64::MAX), value_bytes: one, ..OFFER },
        ] {
            let mut frame = Vec::new();
            append(&mut frame, &wrong, &PUT);
            assert!(decode(&frame).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes: Vec<u8>) {
            if let Ok((offer, put)) = decode(&bytes) {
                let mut again = Vec::new();
                append(&mut again, &offer, &put);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
