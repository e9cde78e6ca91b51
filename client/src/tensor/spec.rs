//! What a sharded tensor looks like: its description, checked, and the text in which it's stored.

use super::error::{TensorError, TensorResult};
use crate::dtype::Dtype;
use std::fmt;

/// The most dimensions. Far beyond any model's.
const MAX_DIMENSIONS: usize = 16;
/// The most parts.
const MAX_PARTS: usize = 4096;

/// The description of a sharded tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name: part of its keys. The same name is the same tensor.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape as a whole.
    pub shape: Vec<u64>,
    /// The axis along which it's cut.
    pub split_axis: usize,
    /// The length of each part along that axis, in order.
    pub part_lengths: Vec<u64>,
}

impl TensorSpec {
    /// A tensor cut into `parts` parts of equal length, or, where that doesn't go, of which the first are longer by one.
    ///
    /// # Errors
    /// What is wrong with it, also that there can't be so many parts.
    pub fn evenly(
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        split_axis: usize,
        parts: usize,
    ) -> TensorResult<TensorSpec> {
        if !(1..=MAX_PARTS).contains(&parts) {
            let problem = format!("{parts} parts: a tensor has 1 to {MAX_PARTS}");
            return Err(TensorError::Spec { name: name.to_owned(), problem });
        }
        let length = shape.get(split_axis).copied().unwrap_or(0);
        let starts = |part: usize| even_start(length, parts as u64, part as u64);
        let part_lengths = (0..parts).map(|part| starts(part + 1) - starts(part)).collect();
        let spec =
            TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec(), split_axis, part_lengths };
        spec.check()?;
        Ok(spec)
    }

    /// Whether there can be such a tensor.
    pub(super) fn check(&self) -> TensorResult<()> {
        let wrong = |problem: String| Err(TensorError::Spec { name: self.name.clone(), problem });
        if self.name.is_empty() || self.name.len() > 512 {
            return wrong("a name has 1 to 512 bytes".into());
        }
        if self.shape.is_empty() || self.shape.len() > MAX_DIMENSIONS || self.shape.contains(&0) {
            return wrong(format!(
                "shape {:?}: 1 to {MAX_DIMENSIONS} dimensions of at least 1 each",
                self.shape
            ));
        }
        if self.split_axis >= self.shape.len() {
            return Err(no_axis(&self.name, self.split_axis, &self.shape));
        }
        if self.part_lengths.is_empty() || self.part_lengths.len() > MAX_PARTS {
            return wrong(format!("{} parts: a tensor has 1 to {MAX_PARTS}", self.part_lengths.len()));
        }
        if let Some(part) = self.part_lengths.iter().position(|length| *length == 0) {
            return wrong(format!(
                "part {part} of {} has a length of 0 along axis {}; each has 1 or more",
                self.part_lengths.len(),
                self.split_axis
            ));
        }
        if self.total_bytes().is_none() {
            return wrong(format!("shape {:?} has more bytes than can be counted", self.shape));
        }
        let (expected, got) = (
            self.shape[self.split_axis],
            self.part_lengths.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)),
        );
        if expected != got {
            return Err(TensorError::PartsDontAddUp {
                name: self.name.clone(),
                axis: self.split_axis,
                expected,
                got,
            });
        }
        Ok(())
    }

    /// Bytes of the whole tensor; `None` if they can't be counted.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.dtype.bytes(), |bytes, length| bytes.checked_mul(*length))
    }

    /// Bytes of a part; 0 if there is no such part.
    #[must_use]
    pub fn part_bytes(&self, part: usize) -> u64 {
        let length = self.part_lengths.get(part).copied().unwrap_or(0);
        let whole = self.shape.get(self.split_axis).copied().unwrap_or(1).max(1);
        self.total_bytes().unwrap_or(0) / whole * length
    }

    /// The key of a part.
    #[must_use]
    pub fn part_key(&self, part: usize) -> String {
        format!("tensor:{}:p{part}", self.name)
    }

    /// The key of the description of the tensor of this name.
    #[must_use]
    pub fn description_key(name: &str) -> String {
        format!("tensor:{name}")
    }

    /// The epoch group of the tensor's parts.
    pub(super) fn group(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        name[..name.len().min(lanner_shared::wire::put::MAX_GROUP_BYTES)].to_vec()
    }

    /// The description behind the name, as it's stored.
    pub(super) fn parse(name: &str, text: &str) -> TensorResult<TensorSpec> {
        let unreadable = || TensorError::Spec {
            name: name.to_owned(),
            problem: format!(
                "its description can't be read: '{}'",
                text.chars().take(100).collect::<String>()
            ),
        };
        let mut fields = text.split(' ');
        let mut field =
            |label: &str| fields.next().and_then(|field| field.strip_prefix(label)).ok_or_else(unreadable);
        let numbers = |list: &str| {
            list.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| unreadable())
        };
        let spec = TensorSpec {
            name: name.to_owned(),
            dtype: field("dtype=")?.parse().map_err(|_| unreadable())?,
            shape: numbers(field("shape=")?)?,
            split_axis: field("axis=")?.parse().map_err(|_| unreadable())?,
            part_lengths: numbers(field("parts=")?)?,
        };
        spec.check()?;
        Ok(spec)
    }
}

pub(super) fn no_axis(name: &str, axis: usize, shape: &[u64]) -> TensorError {
    let problem = format!("there is no axis {axis} in shape {shape:?}; axes are counted from 0");
    TensorError::Spec { name: name.to_owned(), problem }
}

/// Where part `part` of a length cut evenly into `count` begins: the first `length % count` are longer by one.
pub(super) fn even_start(length: u64, count: u64, part: u64) -> u64 {
    length / count * part + part.min(length % count)
}

/// As it's stored, without the name: `dtype=float16 shape=4,8 axis=0 parts=2,2`.
impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let (shape, parts) = (list(&self.shape), list(&self.part_lengths));
        write!(f, "dtype={} shape={shape} axis={} parts={parts}", self.dtype, self.split_axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_storage() {
        let spec = TensorSpec::evenly("w", Dtype::Bfloat16, &[10, 3], 0, 4).unwrap();
        assert_eq!(spec.part_lengths, [3, 3, 2, 2]);
        assert_eq!(spec.to_string(), "dtype=bfloat16 shape=10,3 axis=0 parts=3,3,2,2");
        assert_eq!(TensorSpec::parse("w", &spec.to_string()), Ok(spec.clone()));
        assert_eq!((0..4).map(|part| spec.part_bytes(part)).sum::<u64>(), 60);
        for text in
            ["", "dtype=bfloat16", "dtype=x shape=1 axis=0 parts=1", "dtype=int8 shape=2 axis=0 parts=1"]
        {
            assert!(TensorSpec::parse("w", text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_no_tensor_can_be_is_refused() {
        let good = TensorSpec::evenly("w", Dtype::Int8, &[4, 2], 0, 2).unwrap();
        assert_eq!(good.check(), Ok(()));
        // So many that a list of them couldn't be made, or wouldn't be read.
        for parts in [0, 5, 10_000_000, usize::MAX] {
            let refused = TensorSpec::evenly("w", Dtype::Int8, &[4, 2], 0, parts).unwrap_err().to_string();
            assert!(refused.len() < 100, "{refused}");
        }
        let short = TensorSpec { part_lengths: vec![2, 1], ..good.clone() };
        let expected = TensorError::PartsDontAddUp { name: "w".into(), axis: 0, expected: 4, got: 3 };
        assert_eq!(short.check(), Err(expected));
        for bad in [
            TensorSpec { name: String::new(), ..good.clone() },
            TensorSpec { shape: vec![], ..good.clone() },
            TensorSpec { shape: vec![4, 0], ..good.clone() },
            TensorSpec { split_axis: 2, ..good.clone() },
            TensorSpec { part_lengths: vec![4, 0], ..good.clone() },
            TensorSpec { part_lengths: vec![1; MAX_PARTS + 1], ..good.clone() },
            TensorSpec { shape: vec![u64::MAX, 2], ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(TensorError::Spec { .. })), "{bad:?}");
        }
    }
}
