//! `query`: where the objects of a batch of keys lie; grants a lease on each object found.
//!
//! The request is [`super::keys`], the reply a [`super::Descriptor`] for each key in the order of the request. A key that
//! stands twice is answered twice.

use super::Descriptor;
use super::body::BodyReader;
use crate::error::Result;

/// The descriptors in the body of a reply for `count` keys.
pub fn decode_reply(body: &[u8], count: usize) -> Result<&[Descriptor]> {
    let mut reader = BodyReader::new(body);
    let descriptors = reader.values::<Descriptor>(count)?;
    reader.end()?;
    Ok(descriptors)
}
