//! Calls of keys of which every server's are a call of their own, under way at the same time: one that fails takes no other's answers along.

use super::keys::{Answers, KeysCall};
use super::{Call, Exchange, give_up};
use crate::client::ClientInner;
use crate::lane::Lane;
use lanner_shared::{KeyHash, Result, key};
use smallvec::SmallVec;
use std::task::Poll;

/// The calls, one for each server that is asked.
pub(crate) struct EachServer<'a, K, A> {
    /// Those first that this thread is connected to: connecting may take long, and the others are answered meanwhile.
    servers: SmallVec<[OfServer<'a, K, A>; 2]>,
    is_sorted: bool,
}

struct OfServer<'a, K, A> {
    /// Places of its keys in the batch, ascending.
    indices: Vec<u32>,
    call: KeysCall<'a, K, A>,
    /// Whether the thread has to connect for a frame.
    is_unconnected: bool,
    /// What became of it, once that's known.
    end: Option<Result<()>>,
}

impl<K: AsRef<[u8]>, A: Answers> OfServer<'_, K, A> {
    fn note_connections(&mut self, lane: &mut Lane) {
        let is_unconnected = &mut self.is_unconnected;
        self.call.each_exchange(&mut |exchange| {
            *is_unconnected |= lane.open_connection(exchange.route).is_none();
        });
    }
}

impl<'a, K: AsRef<[u8]>, A: Answers> EachServer<'a, K, A> {
    /// Asks about the keys of `batch`. `answers` makes what takes the answers of a server.
    pub fn new(
        client: &ClientInner,
        batch: &'a [K],
        answers: impl Fn() -> A,
    ) -> Result<EachServer<'a, K, A>> {
        let mut of_servers: SmallVec<[(u16, Vec<u32>); 2]> = SmallVec::new();
        for (index, key) in batch.iter().enumerate() {
            let server = client.route(KeyHash::of(key::checked(key.as_ref(), index)?)).server;
            match of_servers.iter_mut().find(|(other, _)| *other == server) {
                Some((_, indices)) => indices.push(index as u32),
                None => of_servers.push((server, vec![index as u32])),
            }
        }
        let call = |(_, indices): (u16, Vec<u32>)| {
            let call = KeysCall::of_some(client, batch, &indices, answers())?;
            Ok(OfServer { indices, call, is_unconnected: false, end: None })
        };
        let servers = of_servers.into_iter().map(call).collect::<Result<_>>()?;
        Ok(EachServer { servers, is_sorted: false })
    }

    /// What was answered about each key. `end` is what the call as a whole has ended with: the outcome of what no server had answered by then.
    pub fn into_outcomes<T: Clone>(
        self,
        end: Result<()>,
        answer: impl Fn(&A, usize) -> Result<T>,
    ) -> Vec<Result<T>> {
        let count = self.servers.iter().map(|server| server.indices.len()).sum();
        let mut outcomes = vec![None; count];
        for server in self.servers {
            let end = server.end.unwrap_or_else(|| end.clone());
            for index in server.indices.iter().map(|index| *index as usize) {
                outcomes[index] = Some(end.clone().and_then(|()| answer(&server.call.answers, index)));
            }
        }
        // Every key is a server's, so none is left out.
        outcomes.into_iter().flatten().collect()
    }
}

impl<K: AsRef<[u8]>, A: Answers> Call for EachServer<'_, K, A> {
    fn poll(&mut self, lane: &mut Lane, client: &ClientInner) -> Poll<Result<()>> {
        if !self.is_sorted {
            self.servers.iter_mut().for_each(|server| server.note_connections(lane));
            self.servers.sort_by_key(|server| server.is_unconnected);
            self.is_sorted = true;
        }
        let mut is_done = true;
        for server in self.servers.iter_mut().filter(|server| server.end.is_none()) {
            match server.call.poll(lane, client) {
                Poll::Pending => is_done = false,
                Poll::Ready(end) => {
                    if end.is_err() {
                        give_up(lane, &mut server.call);
                    }
                    server.end = Some(end);
                }
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn each_exchange(&mut self, act: &mut dyn FnMut(&mut Exchange)) {
        let waiting = self.servers.iter_mut().filter(|server| server.end.is_none());
        waiting.for_each(|server| server.call.each_exchange(act));
    }
}
