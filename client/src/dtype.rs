//! Types of tensor elements: a name and a size. What the elements mean is their owner's affair.

use lanner_shared::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 64-bit floating point.
    Float64,
    /// 32-bit floating point.
    Float32,
    /// IEEE 754 half precision.
    Float16,
    /// The upper half of a 32-bit floating-point number.
    Bfloat16,
    /// 8-bit floating point, 4 bits of exponent.
    Float8E4m3,
    /// 8-bit floating point, 5 bits of exponent.
    Float8E5m2,
    /// 64-bit integer.
    Int64,
    /// 32-bit integer.
    Int32,
    /// 16-bit integer.
    Int16,
    /// 8-bit integer.
    Int8,
    /// 8-bit unsigned integer.
    Uint8,
    /// One byte, 0 or 1.
    Bool,
}

/// All of them, with their names as PyTorch writes them and their sizes in bytes.
const ALL: [(Dtype, &str, u64); 12] = [
    (Dtype::Float64, "float64", 8),
    (Dtype::Float32, "float32", 4),
    (Dtype::Float16, "float16", 2),
    (Dtype::Bfloat16, "bfloat16", 2),
    (Dtype::Float8E4m3, "float8_e4m3fn", 1),
    (Dtype::Float8E5m2, "float8_e5m2", 1),
    (Dtype::Int64, "int64", 8),
    (Dtype::Int32, "int32", 4),
    (Dtype::Int16, "int16", 2),
    (Dtype::Int8, "int8", 1),
    (Dtype::Uint8, "uint8", 1),
    (Dtype::Bool, "bool", 1),
];

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> u64 {
        ALL.iter().find(|(dtype, ..)| *dtype == self).map_or(1, |(.., bytes)| *bytes)
    }

    /// Its name, as PyTorch writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(dtype, ..)| *dtype == self).map_or("", |(_, name, _)| name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dtype> {
        let found = ALL.iter().find(|(_, name, _)| *name == text);
        found.map(|(dtype, ..)| *dtype).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|(_, name, _)| *name).collect();
            Error::InvalidArgument(format!("'{text}' is no dtype; there are {}", names.join(", ")).into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dtype_is_known_by_its_name_and_has_a_size() {
        for (dtype, name, bytes) in ALL {
            assert_eq!((name.parse(), dtype.name(), dtype.bytes()), (Ok(dtype), name, bytes));
        }
        assert!("float7".parse::<Dtype>().unwrap_err().to_string().contains("float8_e5m2"));
    }
}
