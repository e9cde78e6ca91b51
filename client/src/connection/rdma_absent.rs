//! In place of `rdma` in a build without that feature: a link that there never is.

/// Forgets the devices that there never are.
pub(crate) fn forget() {}

/// The link that there never is.
pub(crate) mod link {
    use super::registration::Region;
    use crate::connection::Broken;
    use std::io::{self, Read, Write};
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    /// Has no values.
    #[derive(Debug)]
    pub(crate) enum RdmaLink {}

    /// Has no values.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum ListId {}

    /// Where no list ever is.
    #[allow(dead_code, reason = "what there is with RDMA")]
    pub(crate) enum Whereabouts {
        UnderWay,
        Read,
        Forgotten,
    }

    /// Nobody ever reads.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct ReaderId;

    /// Has no values.
    pub(crate) enum ListBuilder<'a> {
        #[expect(dead_code, reason = "ties the lifetime")]
        Never(&'a mut RdmaLink),
    }

    impl RdmaLink {
        pub fn poll(&mut self) -> Result<(), Broken> {
            match *self {}
        }

        pub fn completed(&self) -> u64 {
            match *self {}
        }

        pub fn timed_out(&self) {
            match *self {}
        }

        pub fn look_after_device(&mut self, _: lanner_shared::time::Instant) {
            match *self {}
        }

        pub fn is_peer_there(&self) -> bool {
            match *self {}
        }

        pub fn prepare_to_sleep(&mut self) -> bool {
            match *self {}
        }

        pub fn wake_sources(&self) -> [BorrowedFd<'_>; 2] {
            match *self {}
        }

        pub fn after_sleep(&mut self) -> bool {
            match *self {}
        }

        pub fn new_reader(&mut self) -> ReaderId {
            match *self {}
        }

        pub fn give_up(&mut self, _: ReaderId) {
            match *self {}
        }

        pub fn begin_list<'a>(
            &'a mut self,
            _: ReaderId,
            _: Option<&'a Arc<Region>>,
            _: lanner_shared::time::Instant,
        ) -> Option<ListBuilder<'a>> {
            match *self {}
        }

        pub fn whereabouts(&self, _: ListId) -> Whereabouts {
            match *self {}
        }

        pub fn copy_out(&self, _: ListId, _: usize, _: &mut [u8]) {
            match *self {}
        }

        pub fn give_back(&mut self, _: ListId) {
            match *self {}
        }
    }

    impl ListBuilder<'_> {
        pub fn push(&mut self, _: u64, _: u64, _: Option<u64>) -> u64 {
            match self {
                ListBuilder::Never(link) => match **link {},
            }
        }

        pub fn post(self) -> Result<Option<ListId>, Broken> {
            match self {
                ListBuilder::Never(link) => match *link {},
            }
        }
    }

    impl Read for RdmaLink {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            match *self {}
        }
    }

    impl Write for RdmaLink {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            match *self {}
        }

        fn flush(&mut self) -> io::Result<()> {
            match *self {}
        }
    }
}

/// The registrations that there never are.
pub(crate) mod registration {
    use super::link::RdmaLink;
    use lanner_shared::Result;
    use lanner_shared::wire::put_offered::ValueOffer;
    use std::sync::Arc;

    /// Has no values.
    #[derive(Debug)]
    pub(crate) enum Region {}

    /// The offer that is never made.
    pub(crate) struct Offer {
        pub value: ValueOffer,
        pub region: Arc<Region>,
    }

    /// Nothing that's registered.
    #[derive(Debug)]
    pub(crate) struct Registrations;

    impl Registrations {
        /// # Safety
        /// None is needed here.
        pub unsafe fn new(_: *mut u8, _: usize) -> Registrations {
            Registrations
        }

        pub fn register(&self, link: &RdmaLink) -> Result<()> {
            match *link {}
        }

        pub fn region(&self, link: &RdmaLink) -> Option<Arc<Region>> {
            match *link {}
        }

        pub fn offset_of(&self, _: &[u8]) -> Option<u64> {
            None
        }

        pub fn look_after_devices(&self) {}

        pub fn let_go_of_what_has_gone(&self) {}

        pub fn offer(&self, link: &RdmaLink, _: &[u8]) -> Option<Offer> {
            match *link {}
        }

        pub fn is_empty(&self) -> bool {
            true
        }
    }
}

/// The joining that never succeeds.
pub(crate) mod join {
    use super::link::RdmaLink;
    use crate::connection::backoff::Backoff;
    use crate::connection::tcp::TcpTransport;
    use lanner_rdma::choice::RdmaChoice;
    use lanner_shared::time::Instant;
    use lanner_shared::wire::hello::Welcome;
    use lanner_shared::{Error, Result};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::Duration;

    /// Has no values.
    #[derive(Debug)]
    pub(crate) enum Domain {}

    pub(crate) fn open_domain(_: &RdmaChoice, _: &TcpStream) -> Result<Arc<Domain>> {
        Err(Error::System { what: "RDMA unavailable".into(), reason: lanner_rdma::NOT_IN_BUILD.into() })
    }

    pub(crate) fn is_there(domain: &Arc<Domain>) -> bool {
        match **domain {}
    }

    pub(crate) fn forget_domain(domain: &Arc<Domain>) {
        match **domain {}
    }

    /// Has no values.
    #[derive(Debug)]
    pub(crate) enum Probe {}

    /// Only ever one that has failed.
    #[allow(dead_code, reason = "what there is with RDMA")]
    pub(crate) enum Probed {
        Works(Box<TcpTransport<RdmaLink>>),
        UnderWay(Probe),
        Failed(Error),
    }

    impl Probe {
        pub fn look(self, _: Instant) -> Probed {
            match self {}
        }

        pub fn wait(self, _: Duration) -> Probed {
            match self {}
        }

        pub fn failure(&self, _: &str) -> Error {
            match *self {}
        }
    }

    /// Always empty.
    #[derive(Debug, Default)]
    pub(crate) struct Probes {}

    impl Probes {
        pub fn keep(&mut self, _: u16, probe: Probe) {
            match probe {}
        }

        pub fn take(&mut self, _: u16, _: [u8; 16]) -> Option<Probe> {
            None
        }

        pub fn clear(&mut self) {}
    }

    pub(crate) fn join(
        domain: &Arc<Domain>,
        _: TcpStream,
        _: &Welcome,
        _: Arc<Backoff>,
        _: Instant,
        _: Instant,
    ) -> Result<Probe> {
        match **domain {}
    }
}
