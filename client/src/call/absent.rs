//! Which keys of a batch are certainly absent, by the filters that this thread's connections have mapped: no server takes part.
//!
//! Called by `exists` of many keys. What always holds: a key whose `put` has returned, to whomever this caller heard from, isn't called
//! absent. The filter is the live one, not a copy, and a server that has gone (another may have taken its place, with other keys)
//! is found out before an answer counts.

use crate::client::ClientInner;
use crate::lane::{Lane, Route};
use crate::mapping::Mapping;
use lanner_shared::filter::{LOOKS_UNDER_WAY, Look};
use lanner_shared::{KeyHash, Result, key};
use smallvec::SmallVec;
use std::sync::Arc;

/// With fewer keys a round trip is as quick, and the server counts them.
pub(crate) const FEWEST_KEYS: usize = 16;

/// What the filters say of a batch.
pub(crate) enum Verdict {
    /// There is no filter in reach.
    Nothing,
    /// All keys are absent but, perhaps, those at these places.
    AbsentBut(Vec<u32>),
}

/// The filter of each shard that a key of the batch belongs to; `None` where this thread reaches the shard over TCP.
type Filters = SmallVec<[(Route, Option<Arc<Mapping>>); 8]>;

/// Asks the filters about `batch`. Connects where this thread has no connection yet.
pub(crate) fn look<K: AsRef<[u8]>>(client: &ClientInner, lane: &mut Lane, batch: &[K]) -> Result<Verdict> {
    let (mut filters, mut possible) = (Filters::new(), Vec::new());
    for (chunk_index, chunk) in batch.chunks(LOOKS_UNDER_WAY).enumerate() {
        let first = chunk_index * LOOKS_UNDER_WAY;
        let mut looks = [(0, Look::default()); LOOKS_UNDER_WAY];
        for ((index, key), look) in chunk.iter().enumerate().zip(&mut looks) {
            let hash = KeyHash::of(key::checked(key.as_ref(), first + index)?);
            let at = filter_of(client, lane, client.route(hash), &mut filters)?;
            if let Some(filter) = filters[at].1.as_ref().and_then(|mapping| mapping.filter()) {
                *look = (at, filter.begin(hash));
            }
        }
        for (index, (at, look)) in looks.iter().enumerate().take(chunk.len()) {
            let filter = filters[*at].1.as_ref().and_then(|mapping| mapping.filter());
            if filter.is_none_or(|filter| filter.end(*look)) {
                possible.push((first + index) as u32);
            }
        }
    }
    let is_certain = filters.iter().all(|(route, mapping)| {
        mapping.is_none()
            || lane.connection(client, *route).is_ok_and(|connection| connection.is_peer_there())
    });
    Ok(if is_certain && possible.len() < batch.len() {
        Verdict::AbsentBut(possible)
    } else {
        Verdict::Nothing
    })
}

/// The place in `filters` of the filter of `route`.
#[inline]
fn filter_of(client: &ClientInner, lane: &mut Lane, route: Route, filters: &mut Filters) -> Result<usize> {
    if let Some(at) = filters.iter().position(|(known, _)| *known == route) {
        return Ok(at);
    }
    let mapping = lane.connection(client, route)?.mapping().cloned();
    filters.push((route, mapping));
    Ok(filters.len() - 1)
}
