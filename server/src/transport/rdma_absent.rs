//! In place of `rdma` in a build without that feature: a transport that there never is.

use super::{Core, Transport};
use crate::pump::mail::NewConnection;
use crate::pump::ring::Completion;
use crate::shard::Shard;
use lanner_rdma::selection::Selection;

/// Has no values.
#[derive(Debug)]
pub enum Rdma {}

impl Rdma {
    /// Says that this build can't.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &Selection, _: &mut [Shard], _: u32) -> Result<Rdma, String> {
        Err(lanner_rdma::NOT_IN_BUILD.to_owned())
    }

    /// Never called.
    pub fn start(&mut self, _: &mut Core) {
        match *self {}
    }

    /// Never called.
    pub fn adopt(&mut self, _: &mut Core, _: NewConnection) {
        match *self {}
    }

    /// Never called.
    pub fn look_after(&mut self, _: &mut Core) {
        match *self {}
    }

    /// Never called.
    pub fn is_closed(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn has_work_when_armed(&mut self) -> bool {
        match *self {}
    }
}

impl Transport for Rdma {
    fn poll(&mut self, _: &mut Core) -> bool {
        match *self {}
    }

    fn completed(&mut self, _: &mut Core, _: Completion) {
        match *self {}
    }

    fn tick(&mut self, _: &mut Core) {
        match *self {}
    }

    fn has_work(&self) -> bool {
        match *self {}
    }

    fn connections(&self) -> usize {
        match *self {}
    }
}
