//! Memory that is named by its address, as engines do with pools of pages. Nobody but the caller knows whether it's there: it must stay
//! where it is until the call has returned.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::borrow::Cow;

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

/// The pieces of memory that one value lies in, in order.
pub struct Parts(Vec<Span>);

impl Parts {
    /// The parts of each value.
    pub fn all(addresses: &[Vec<usize>], sizes: &[Vec<usize>]) -> PyResult<Vec<Parts>> {
        if addresses.len() != sizes.len() {
            let text = format!("{} lists of addresses and {} of sizes", addresses.len(), sizes.len());
            return Err(PyValueError::new_err(text));
        }
        addresses.iter().zip(sizes).map(|(addresses, sizes)| Span::all(addresses, sizes).map(Parts)).collect()
    }

    fn bytes(&self) -> usize {
        self.0.iter().fold(0, |sum: usize, span| sum.saturating_add(span.bytes))
    }

    /// The value, put together unless it lies in one piece.
    ///
    /// # Safety
    /// As for [`values`].
    pub unsafe fn value<'a>(&self) -> Cow<'a, [u8]> {
        // SAFETY: what the caller promises.
        let pieces = unsafe { values(&self.0) };
        match pieces.as_slice() {
            [piece] => Cow::Borrowed(piece),
            pieces => Cow::Owned(pieces.concat()),
        }
    }
}

/// Lets `read` fill memory for each of `parts`, and spreads what came over the parts of those that have more than one. No value has more
/// than `most_bytes`, so nor has the memory that it's put together in, whatever sizes the caller names.
///
/// # Safety
/// As for [`targets`], for all parts together.
pub unsafe fn read_parts<E>(
    parts: &[Parts],
    most_bytes: usize,
    read: impl FnOnce(&mut [&mut [u8]]) -> Result<Vec<Result<u64, E>>, E>,
) -> Result<Vec<Result<u64, E>>, E> {
    let scratch_bytes = |parts: &Parts| if parts.0.len() == 1 { 0 } else { parts.bytes().min(most_bytes) };
    let mut scratches: Vec<Vec<u8>> = parts.iter().map(|parts| vec![0; scratch_bytes(parts)]).collect();
    let target = |(parts, scratch): (&Parts, &mut Vec<u8>)| match parts.0.as_slice() {
        [span] => *span,
        _ => Span { address: scratch.as_mut_ptr() as usize, bytes: scratch.len() },
    };
    let spans: Vec<Span> = parts.iter().zip(&mut scratches).map(target).collect();
    // SAFETY: what the caller promises; the scratches are neither moved nor touched otherwise while `read` has them.
    let outcomes = read(&mut unsafe { targets(&spans) })?;
    for ((parts, scratch), outcome) in parts.iter().zip(&scratches).zip(&outcomes) {
        let Ok(bytes) = outcome else { continue };
        let mut rest = &scratch[..scratch.len().min(*bytes as usize)];
        // SAFETY: what the caller promises; the targets of one value at a time.
        for piece in unsafe { targets(&parts.0) } {
            let (now, later) = rest.split_at(rest.len().min(piece.len()));
            piece[..now.len()].copy_from_slice(now);
            rest = later;
        }
    }
    Ok(outcomes)
}
