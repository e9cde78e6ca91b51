//! Batches of keys with an outcome for each: a server that can't be reached takes only its own keys.

use crate::call::each::EachServer;
use crate::call::keys::{Answers, Descriptors, Flags};
use crate::call::run;
use crate::client::Client;
use lanner_shared::error::WireError;
use lanner_shared::{Error, Result};

impl Client {
    /// [`Client::exists_batch`] with an outcome for each key. Asks the servers about all of them: no filter is looked at.
    ///
    /// # Errors
    /// `InvalidKey` for a key that is none.
    pub fn exists_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<bool>>> {
        let no_flags = || Flags::<false> { flags: vec![false; keys.len()] };
        self.each(keys, no_flags, |answers, index| Ok(answers.flags[index]))
    }

    /// [`Client::remove_batch`] with an outcome for each key.
    ///
    /// # Errors
    /// `InvalidKey` for a key that is none; then nothing was removed.
    pub fn remove_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<bool>>> {
        let no_flags = || Flags::<true> { flags: vec![false; keys.len()] };
        self.each(keys, no_flags, |answers, index| Ok(answers.flags[index]))
    }

    /// [`Client::size_batch`] with an outcome for each key, also of a server that can't be reached.
    ///
    /// # Errors
    /// `InvalidKey` for a key that is none.
    pub fn size_each<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Result<u64>>> {
        self.each(
            keys,
            || Descriptors::for_batch(keys.len()),
            |answers, index| {
                let descriptor = &answers.found[index];
                match descriptor.status.get() {
                    0 => Ok(descriptor.value_bytes.get()),
                    code => Err(Error::from_wire(WireError { code, numbers: [index as u64, 0, 0, 0] })),
                }
            },
        )
    }

    fn each<K: AsRef<[u8]>, A: Answers, T: Clone>(
        &self,
        keys: &[K],
        answers: impl Fn() -> A,
        answer: impl Fn(&A, usize) -> Result<T>,
    ) -> Result<Vec<Result<T>>> {
        let mut call = EachServer::new(&self.inner, keys, answers)?;
        let end = run(&self.inner, &mut call);
        Ok(call.into_outcomes(end, answer))
    }
}
