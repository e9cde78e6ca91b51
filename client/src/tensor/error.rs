//! What can be wrong with a sharded tensor.

use crate::dtype::Dtype;
use lanner_shared::Error;
use thiserror::Error as ThisError;

pub(super) type TensorResult<T> = Result<T, TensorError>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TensorError {
    /// A description that no tensor has.
    #[error("tensor {name}: {problem}")]
    Spec {
        /// Its name.
        name: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The parts' lengths along the split axis don't add up to the tensor's.
    #[error("tensor {name}: the parts have {got} along axis {axis} in all, the tensor {expected}")]
    PartsDontAddUp {
        /// Its name.
        name: String,
        /// The split axis.
        axis: usize,
        /// The tensor's length along it.
        expected: u64,
        /// The sum of the parts'.
        got: u64,
    },
    /// The stored tensor's elements are of another type.
    #[error("tensor {name} is stored as {stored}, not {expected}")]
    Dtype {
        /// Its name.
        name: String,
        /// What was expected.
        expected: Dtype,
        /// What is stored.
        stored: Dtype,
    },
    /// The stored tensor has another shape or is cut otherwise.
    #[error("tensor {name} is stored as {stored}, not {expected}")]
    Differs {
        /// Its name.
        name: String,
        /// What was expected.
        expected: String,
        /// What is stored.
        stored: String,
    },
    /// Nothing is stored under the name.
    #[error("there is no tensor {name}; create it first")]
    NoTensor {
        /// The name.
        name: String,
    },
    /// Parts that the read needs aren't there.
    #[error("tensor {name}: missing part(s) {parts:?} of {count}; write them, or wait for their owners to")]
    MissingParts {
        /// Its name.
        name: String,
        /// Which.
        parts: Vec<usize>,
        /// Of how many.
        count: usize,
    },
    /// A part that there isn't.
    #[error("tensor {name}: there is no part {part} of {count}; parts are counted from 0")]
    NoPart {
        /// Its name.
        name: String,
        /// Which.
        part: usize,
        /// How many there are.
        count: usize,
    },
    /// A part of another size than its shape calls for.
    #[error("tensor {name}, part {part}: {got} bytes, its shape calls for {expected}")]
    PartSize {
        /// Its name.
        name: String,
        /// Which.
        part: usize,
        /// What its shape calls for.
        expected: u64,
        /// What it has.
        got: u64,
    },
    /// A slice in too many pieces.
    #[error(
        "tensor {name}: a slice of {pieces} pieces; at most {limit} can be read at a time, so take a smaller one"
    )]
    TooManyPieces {
        /// Its name.
        name: String,
        /// Pieces that lie apart from each other in the parts.
        pieces: u64,
        /// The most.
        limit: u64,
    },
    /// A slice that isn't in the tensor, or has nothing in it.
    #[error(
        "tensor {name}: {start}..{end} along axis {axis} is empty or out of bounds; the shape is {shape:?}"
    )]
    OutOfBounds {
        /// Its name.
        name: String,
        /// The axis.
        axis: usize,
        /// First index.
        start: u64,
        /// Behind the last.
        end: u64,
        /// The tensor's shape.
        shape: Vec<u64>,
    },
    /// The caller's buffer isn't exactly as large as the slice.
    #[error("the slice has {expected} bytes, the buffer {got}")]
    Output {
        /// Bytes of the slice.
        expected: u64,
        /// Bytes of the buffer.
        got: u64,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] Error),
}
