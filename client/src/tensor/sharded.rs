//! Writing the parts of a tensor, and reading slices of it.

use super::error::{TensorError, TensorResult};
use super::layout::{Layout, Slice};
use super::spec::{TensorSpec, even_start, no_axis};
use crate::call::put::PutOptions;
use crate::client::Client;
use crate::registered::Registered;
use crate::snapshot::ranges::Range;
use crate::snapshot::{Freshness, Snapshot};
use lanner_shared::Error;

/// A tensor in the store.
#[derive(Clone, Debug)]
pub struct ShardedTensor {
    client: Client,
    spec: TensorSpec,
}

impl ShardedTensor {
    /// Announces a tensor to the store; its parts are written by their owners. Does nothing if the same tensor was
    /// announced before, so that every rank may do it.
    ///
    /// # Errors
    /// What is wrong with `spec`; [`TensorError::Dtype`] or [`TensorError::Differs`] if the name stands for another tensor.
    pub fn create(client: Client, spec: TensorSpec) -> TensorResult<ShardedTensor> {
        spec.check()?;
        let key = TensorSpec::description_key(&spec.name);
        match client.put(key.as_bytes(), spec.to_string().as_bytes()) {
            Ok(()) => Ok(ShardedTensor { client, spec }),
            Err(Error::AlreadyExists { .. }) => ShardedTensor::open_as(client, spec),
            Err(error) => Err(error.into()),
        }
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`TensorError::NoTensor`].
    pub fn open(client: Client, name: &str) -> TensorResult<ShardedTensor> {
        let text = match client.get(TensorSpec::description_key(name).as_bytes()) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(Error::NotFound { .. }) => return Err(TensorError::NoTensor { name: name.to_owned() }),
            Err(error) => return Err(error.into()),
        };
        let spec = TensorSpec::parse(name, &text)?;
        Ok(ShardedTensor { client, spec })
    }

    /// The tensor of `expected`'s name, if it's stored as `expected`.
    ///
    /// # Errors
    /// [`TensorError::NoTensor`], [`TensorError::Dtype`], [`TensorError::Differs`].
    pub fn open_as(client: Client, expected: TensorSpec) -> TensorResult<ShardedTensor> {
        let found = ShardedTensor::open(client, &expected.name)?;
        let name = expected.name.clone();
        if found.spec.dtype != expected.dtype {
            return Err(TensorError::Dtype { name, expected: expected.dtype, stored: found.spec.dtype });
        }
        if found.spec != expected {
            return Err(TensorError::Differs {
                name,
                expected: expected.to_string(),
                stored: found.spec.to_string(),
            });
        }
        Ok(found)
    }

    /// What the tensor looks like.
    #[must_use]
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Stores a part, row-major, in place of the one that may be there.
    ///
    /// # Errors
    /// [`TensorError::NoPart`], [`TensorError::PartSize`]; what the store says.
    pub fn write_part(&self, part: usize, bytes: &[u8]) -> TensorResult<()> {
        let (expected, got) = (self.spec.part_bytes(part), bytes.len() as u64);
        let count = self.spec.part_lengths.len();
        if part >= count {
            return Err(TensorError::NoPart { name: self.spec.name.clone(), part, count });
        }
        if expected != got {
            return Err(TensorError::PartSize { name: self.spec.name.clone(), part, expected, got });
        }
        let group = self.spec.group();
        let options = PutOptions { group: &group, ..PutOptions::default() };
        Ok(self.client.upsert_with(self.spec.part_key(part).as_bytes(), bytes, options)?)
    }

    /// Removes the tensor and its parts; whether there was one.
    ///
    /// # Errors
    /// What the store says.
    pub fn remove(self) -> TensorResult<bool> {
        let parts = self.spec.part_lengths.len();
        let keys: Vec<String> = std::iter::once(TensorSpec::description_key(&self.spec.name))
            .chain((0..parts).map(|part| self.spec.part_key(part)))
            .collect();
        Ok(self.client.remove_batch(&keys)?.contains(&true))
    }

    /// The whole tensor.
    ///
    /// # Errors
    /// None in practice: the whole of a tensor lies within it.
    pub fn whole(&self) -> TensorResult<TensorSlice> {
        self.slice(0, 0, self.spec.shape[0])
    }

    /// The part `index` of the tensor cut evenly into `count` parts along `axis`: what a rank of a tensor-parallel group of
    /// that size holds, whatever group wrote it.
    ///
    /// # Errors
    /// [`TensorError::NoPart`]; as for [`ShardedTensor::slice`].
    pub fn partition(&self, axis: usize, count: usize, index: usize) -> TensorResult<TensorSlice> {
        if index >= count {
            return Err(TensorError::NoPart { name: self.spec.name.clone(), part: index, count });
        }
        let length = self.length_along(axis)?;
        let (count, index) = (count as u64, index as u64);
        self.slice(axis, even_start(length, count, index), even_start(length, count, index + 1))
    }

    fn length_along(&self, axis: usize) -> TensorResult<u64> {
        let (name, shape) = (&self.spec.name, &self.spec.shape);
        shape.get(axis).copied().ok_or_else(|| no_axis(name, axis, shape))
    }

    /// The indices `start..end` along `axis`. Computes which bytes of which parts that is; reads nothing yet.
    ///
    /// # Errors
    /// [`TensorError::OutOfBounds`], also for a slice of nothing; [`TensorError::TooManyPieces`].
    pub fn slice(&self, axis: usize, start: u64, end: u64) -> TensorResult<TensorSlice> {
        let length = self.length_along(axis)?;
        if start >= end || end > length {
            let (name, shape) = (self.spec.name.clone(), self.spec.shape.clone());
            return Err(TensorError::OutOfBounds { name, axis, start, end, shape });
        }
        let layout = Layout::of(&self.spec, Slice { axis, start, end })?;
        let keys = layout.parts.iter().map(|part| self.spec.part_key(*part)).collect();
        Ok(TensorSlice { tensor: self.clone(), layout, keys, snapshot: None })
    }
}

/// A slice of a tensor, ready to be read again and again.
#[derive(Debug)]
pub struct TensorSlice {
    tensor: ShardedTensor,
    layout: Layout,
    keys: Vec<String>,
    snapshot: Option<Snapshot>,
}

impl TensorSlice {
    /// Its indices along the axis that it was cut along.
    #[must_use]
    pub fn indices(&self) -> std::ops::Range<u64> {
        self.layout.slice.start..self.layout.slice.end
    }

    /// Bytes of the slice.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// Reads the slice to `target`, row-major, contiguous and exactly as large. All shards are read in parallel; from the
    /// second read on without asking for anything first, until the leases need to be refreshed.
    ///
    /// # Errors
    /// [`TensorError::Output`], [`TensorError::MissingParts`], [`TensorError::PartSize`]; what the store says. After an
    /// error the buffer's contents are of no meaning.
    pub fn read_into(&mut self, target: &mut [u8]) -> TensorResult<()> {
        let client = self.tensor.client.clone();
        self.read_with(target.len(), |snapshot, ranges| {
            client.read_ranges_refreshing(snapshot, ranges, target, Freshness::Lease)
        })
    }

    /// [`TensorSlice::read_into`] to a buffer of [`Client::register`], all of it: over RDMA straight to there.
    ///
    /// # Errors
    /// As [`TensorSlice::read_into`].
    pub fn read_into_registered(&mut self, target: &mut Registered<'_>) -> TensorResult<()> {
        self.read_with(target.len(), |snapshot, ranges| {
            target.read_ranges_refreshing(snapshot, ranges, Freshness::Lease)
        })
    }

    /// Reads the slice's ranges to a buffer of so many bytes, by `read`.
    fn read_with(
        &mut self,
        target_bytes: usize,
        read: impl FnOnce(&mut Snapshot, &[Range]) -> Result<(), Error>,
    ) -> TensorResult<()> {
        if target_bytes as u64 != self.layout.bytes {
            return Err(TensorError::Output { expected: self.layout.bytes, got: target_bytes as u64 });
        }
        let mut snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => self.prepare()?,
        };
        match read(&mut snapshot, &self.layout.ranges) {
            Ok(()) => {
                self.snapshot = Some(snapshot);
                Ok(())
            }
            Err(Error::NotFound { .. }) => Err(self.missing_parts()?),
            // A part was replaced by one of another size.
            Err(Error::OutOfBounds { .. }) => self.check_sizes(&snapshot),
            Err(error) => Err(error.into()),
        }
    }

    fn prepare(&self) -> TensorResult<Snapshot> {
        match self.tensor.client.prepare_snapshot(&self.keys) {
            Ok(snapshot) => self.check_sizes(&snapshot).map(|()| snapshot),
            Err(Error::NotFound { .. }) => Err(self.missing_parts()?),
            Err(error) => Err(error.into()),
        }
    }

    fn missing_parts(&self) -> TensorResult<TensorError> {
        let are_there = self.tensor.client.exists_batch(&self.keys)?;
        let missing = self.layout.parts.iter().zip(are_there).filter(|(_, is_there)| !is_there);
        Ok(TensorError::MissingParts {
            name: self.tensor.spec.name.clone(),
            parts: missing.map(|(part, _)| *part).collect(),
            count: self.tensor.spec.part_lengths.len(),
        })
    }

    fn check_sizes(&self, snapshot: &Snapshot) -> TensorResult<()> {
        for (at, part) in self.layout.parts.iter().enumerate() {
            let (expected, got) = (self.tensor.spec.part_bytes(*part), snapshot.value_bytes(at).unwrap_or(0));
            if expected != got {
                return Err(TensorError::PartSize {
                    name: self.tensor.spec.name.clone(),
                    part: *part,
                    expected,
                    got,
                });
            }
        }
        Ok(())
    }
}
