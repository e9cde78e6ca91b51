//! Chains of KV-cache blocks: how much of one is there, and storing one. How their keys become keys of the store is
//! [`lanner_shared::chain`]'s part.

use crate::call::match_chain::MatchCall;
use crate::call::put::{Chain, PutCall, PutOptions};
use crate::call::run;
use crate::client::Client;
use crate::snapshot::Snapshot;
use lanner_shared::chain::{self, GROUP_BLOCKS, GroupPrefix, StoredKey};
use lanner_shared::wire::put::PutMode;
use lanner_shared::{Error, Result};

impl Client {
    /// How many leading blocks of the chain `keys` are there, as a snapshot of exactly those, leased and ready to read: block *i*
    /// is its key *i*. One round trip, to all shards at the same time. A gap counts as the end, whatever lies
    /// behind it. An empty snapshot says that not even the first block is there. Counts as an access of each block found. Blocks of a
    /// server that can't be reached aren't there, as long as another one answers.
    ///
    /// # Errors
    /// `InvalidArgument` or `InvalidKey` for what is no chain ([`chain::checked`]); what the servers say, and what stands in the way to all.
    pub fn match_chain<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Snapshot> {
        let mut matches = self.match_chains(&[keys])?;
        matches.pop().ok_or_else(|| Error::InvalidArgument("no chain".into()))
    }

    /// [`Client::match_chain`] of several chains in one round trip. One snapshot for each, in their order.
    ///
    /// # Errors
    /// As for [`Client::match_chain`].
    pub fn match_chains<K: AsRef<[u8]>>(&self, chains: &[&[K]]) -> Result<Vec<Snapshot>> {
        let mut call = MatchCall::new(&self.inner, chains)?;
        run(&self.inner, &mut call)?;
        call.into_snapshots(self)
    }

    /// Stores the blocks of the chain `keys` from block `from` on, one for each of `values`. Blocks that are there already are
    /// left as they are: their outcome is `AlreadyExists`, which for a cache is as good as stored. One outcome for each
    /// value, in their order.
    ///
    /// # Errors
    /// `InvalidArgument` or `InvalidKey` for what is no chain, and for more values than keys; then nothing was stored.
    pub fn put_chain<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keys: &[K],
        from: usize,
        values: &[V],
        options: PutOptions<'_>,
    ) -> Result<Vec<Result<()>>> {
        chain::checked(keys)?;
        if from.checked_add(values.len()).is_none_or(|end| end > keys.len()) {
            let text =
                format!("{} values from block {from} on, of a chain of {} keys", values.len(), keys.len());
            return Err(Error::InvalidArgument(text.into()));
        }
        let stored = stored_keys(keys);
        let items: Vec<(&[u8], &[u8])> =
            stored[from..].iter().zip(values).map(|(key, value)| (&key[..], value.as_ref())).collect();
        let chain = Chain { keys: &stored, from };
        let mut call = PutCall::new(&self.inner, &items, PutMode::Put, options)?.of_chain(chain);
        run(&self.inner, &mut call)?;
        Ok(call.outcomes)
    }
}

/// The keys under which the blocks of a chain are stored.
#[must_use]
pub fn stored_keys<K: AsRef<[u8]>>(keys: &[K]) -> Vec<StoredKey> {
    let of_group = |blocks: &[K]| {
        let prefix = GroupPrefix::of(blocks[0].as_ref());
        blocks.iter().map(|key| prefix.stored_key(key.as_ref())).collect::<Vec<_>>()
    };
    keys.chunks(GROUP_BLOCKS).flat_map(of_group).collect()
}
