//! Memory that is named by its address, as engines do with pools of pages. Nobody but the caller knows whether it's there: it must stay
//! where it is until the call has returned.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A piece of memory of the caller's.
#[derive(Clone, Copy)]
pub struct Span {
    address: usize,
    bytes: usize,
}

impl Span {
    /// The spans with these addresses and sizes in bytes.
    pub fn all(addresses: &[usize], sizes: &[usize]) -> PyResult<Vec<Span>> {
        if addresses.len() != sizes.len() {
            return Err(PyValueError::new_err(format!(
                "{} addresses and {} sizes; give each address one",
                addresses.len(),
                sizes.len()
            )));
        }
        let span = |(index, (address, bytes)): (usize, (&usize, &usize))| {
            let is_possible =
                *address != 0 && *bytes <= isize::MAX as usize && address.checked_add(*bytes).is_some();
            if !is_possible && *bytes != 0 {
                return Err(PyValueError::new_err(format!(
                    "no memory has {bytes} bytes at address {address} (buffer {index})"
                )));
            }
            Ok(Span { address: *address, bytes: *bytes })
        };
        addresses.iter().zip(sizes).enumerate().map(span).collect()
    }
}

/// The memory of `spans`, to be read.
///
/// # Safety
/// The memory must be there, initialised and unchanged while the result is used.
pub unsafe fn values<'a>(spans: &[Span]) -> Vec<&'a [u8]> {
    let value = |span: &Span| match span.bytes {
        0 => &[][..],
        // SAFETY: not null and not beyond the end of memory (`Span::all`); the rest is what the caller promises.
        bytes => unsafe { std::slice::from_raw_parts(span.address as *const u8, bytes) },
    };
    spans.iter().map(value).collect()
}

/// The memory of `spans`, to be written.
///
/// # Safety
/// The memory must be there and used by nobody else while the result is used, and the spans mustn't overlap.
pub unsafe fn targets<'a>(spans: &[Span]) -> Vec<&'a mut [u8]> {
    let target = |span: &Span| match span.bytes {
        0 => &mut [][..],
        // SAFETY: as for `values`, and nobody else uses it.
        bytes => unsafe { std::slice::from_raw_parts_mut(span.address as *mut u8, bytes) },
    };
    spans.iter().map(target).collect()
}
