//! Setting a queue pair up: making it, and taking it through its states towards a peer.

use super::completion::CompletionQueue;
use super::device::Domain;
use super::queue_pair::QueuePair;
use super::receive_queue::SharedReceiveQueue;
use super::{VerbsError, checked, last_error};
use crate::queue_pair::{SendQueue, State, Step};
use lanner_shared::wire::join_rdma::EndpointBody;
use rdma_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
};
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

/// READs that a queue pair answers at a time, and has under way, at most. More keeps more state in the device and brings nothing once the
/// link is full: 16 of 264 B are what a round trip of 2 us takes in at 17 Gb/s, and longer ones fill it sooner.
pub const MOST_READS: u8 = 128;
/// 4.096 us times 2 to this: 67 ms until a packet without an answer is sent again.
const TIMEOUT: u8 = 14;
/// So often, then the peer is taken to have gone: after half a second, or four times that on devices that round up. Not 7, which Soft-RoCE
/// takes for "for ever".
const RETRIES: u8 = 6;
/// A peer without room for a message is asked again for ever; how long that may go on is for the time-outs of calls to say.
const ENDLESS: u8 = 7;
/// A sender that found no room waits 0.08 ms.
const NO_ROOM_PAUSE: u8 = 6;

/// What a peer has to know of this side, and this side of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of the queue pair, of 24 bits.
    pub queue_pair: u32,
    /// Number of its first packet, of 24 bits. Random, so that packets of an earlier life are no packets of this one.
    pub first_packet: u32,
    /// Address of its port.
    pub gid: [u8; 16],
    /// Address within an InfiniBand subnet; 0 on Ethernet.
    pub local_id: u16,
    /// The largest packet: 1 for 256 bytes, … 5 for 4096.
    pub mtu: u8,
    /// READs that it answers at a time.
    pub reads_answered: u8,
}

impl From<EndpointBody> for Endpoint {
    fn from(body: EndpointBody) -> Endpoint {
        Endpoint {
            queue_pair: body.queue_pair.get(),
            first_packet: body.first_packet.get(),
            gid: body.gid,
            local_id: body.local_id.get(),
            mtu: body.mtu,
            reads_answered: body.reads_answered,
        }
    }
}

impl From<Endpoint> for EndpointBody {
    fn from(endpoint: Endpoint) -> EndpointBody {
        EndpointBody {
            queue_pair: endpoint.queue_pair.into(),
            first_packet: endpoint.first_packet.into(),
            gid: endpoint.gid,
            local_id: endpoint.local_id.into(),
            mtu: endpoint.mtu,
            reads_answered: endpoint.reads_answered,
            features: 0.into(),
        }
    }
}

/// What a queue pair is to be like.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairOptions<'a> {
    /// Posts under way at a time, at most.
    pub sends: u32,
    /// Receives of its own; 0 where it shares a queue.
    pub receives: u32,
    /// Bytes that are sent without being registered, if the device can do that.
    pub inline_bytes: u32,
    /// Local segments of a work request.
    pub segments: u32,
    /// The shared queue that it receives from.
    pub shared: Option<&'a Arc<SharedReceiveQueue>>,
    /// Whether its peer may read registered memory.
    pub answers_reads: bool,
    /// This machine's address of the connection that it's made for, whose GID it gets if the device has it.
    pub address: Option<IpAddr>,
}

impl QueuePair {
    /// A queue pair of `domain` that takes receives already. `first_packet` should be random. System calls; not for the data path.
    ///
    /// # Errors
    /// What the library says.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        options: QueuePairOptions<'_>,
        first_packet: u32,
    ) -> Result<QueuePair, VerbsError> {
        let device = &domain.device;
        let queue = options.sends.clamp(1, device.limits.queue.max(1));
        let segments = options.segments.clamp(1, device.limits.segments.max(1));
        // SAFETY: null pointers and zeros are valid in all fields.
        let mut attributes: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        attributes.send_cq = completions.raw();
        attributes.recv_cq = completions.raw();
        attributes.srq = options.shared.map_or(std::ptr::null_mut(), |shared| shared.raw());
        attributes.qp_type = ibv_qp_type::IBV_QPT_RC;
        attributes.cap = ibv_qp_cap {
            max_send_wr: queue,
            max_recv_wr: options.receives,
            max_send_sge: segments,
            max_recv_sge: 1,
            max_inline_data: options.inline_bytes,
        };
        // SAFETY: domain, completion queue and shared queue live as long as the queue pair, which holds on to them.
        let mut raw = unsafe { (device.library.create_qp)(domain.raw.as_ptr(), &raw mut attributes) };
        if raw.is_null() && options.inline_bytes > 0 {
            // A device that can't send so much inline.
            attributes.cap.max_inline_data = 0;
            // SAFETY: as above.
            raw = unsafe { (device.library.create_qp)(domain.raw.as_ptr(), &raw mut attributes) };
        }
        let raw = NonNull::new(raw).ok_or_else(|| last_error("ibv_create_qp"))?;
        let selection = &device.selection;
        let mut pair = QueuePair {
            domain: domain.clone(),
            completions: completions.clone(),
            shared: options.shared.cloned(),
            raw,
            state: State::Reset,
            // What was asked for; the device may have more room, never less.
            queue: SendQueue::new(queue),
            inline_bytes: attributes.cap.max_inline_data,
            segments: segments as usize,
            first_packet: first_packet & 0xff_ffff,
            gid: options
                .address
                .map_or((selection.gid_index, selection.gid), |address| selection.gid_for(address)),
            requests: Vec::new(),
            scatter: Vec::new(),
        };
        pair.initialise(options.answers_reads)?;
        Ok(pair)
    }

    /// What the peer has to know.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        let device = &self.domain.device;
        Endpoint {
            queue_pair: self.number(),
            first_packet: self.first_packet,
            gid: self.gid.1,
            local_id: device.local_id,
            mtu: device.mtu,
            reads_answered: device.limits.reads_answered.min(MOST_READS),
        }
    }

    fn initialise(&mut self, answers_reads: bool) -> Result<(), VerbsError> {
        let state = self.state.after(Step::Initialise)?;
        let mut attributes = attributes(ibv_qp_state::IBV_QPS_INIT);
        attributes.port_num = self.domain.device.selection.port;
        attributes.qp_access_flags =
            if answers_reads { ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 } else { 0 };
        self.modify(
            &mut attributes,
            ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
                | ibv_qp_attr_mask::IBV_QP_PORT
                | ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
        )?;
        self.state = state;
        Ok(())
    }

    /// Tells the queue pair who its peer is, and lets it send.
    ///
    /// # Errors
    /// [`VerbsError::Peer`] for what can't be a peer, or what the library says: mostly that no route leads to the peer's GID.
    pub fn meet(&mut self, peer: &Endpoint) -> Result<(), VerbsError> {
        let device = self.domain.device.clone();
        if peer.queue_pair >> 24 != 0 || peer.first_packet >> 24 != 0 {
            return Err(VerbsError::Peer("a number of more than 24 bits"));
        }
        if !(1..=5).contains(&peer.mtu) {
            return Err(VerbsError::Peer("an MTU that there isn't"));
        }
        let state = self.state.after(Step::Meet)?;
        let mut to_receive = attributes(ibv_qp_state::IBV_QPS_RTR);
        to_receive.path_mtu = ibv_mtu::Type::from(peer.mtu.min(device.mtu));
        to_receive.dest_qp_num = peer.queue_pair;
        to_receive.rq_psn = peer.first_packet;
        to_receive.max_dest_rd_atomic = device.limits.reads_answered.min(MOST_READS);
        to_receive.min_rnr_timer = NO_ROOM_PAUSE;
        to_receive.ah_attr = ibv_ah_attr {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: peer.gid },
                flow_label: 0,
                sgid_index: self.gid.0,
                hop_limit: 64,
                traffic_class: 0,
            },
            dlid: peer.local_id,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: 1,
            port_num: device.selection.port,
        };
        self.modify(
            &mut to_receive,
            ibv_qp_attr_mask::IBV_QP_AV
                | ibv_qp_attr_mask::IBV_QP_PATH_MTU
                | ibv_qp_attr_mask::IBV_QP_DEST_QPN
                | ibv_qp_attr_mask::IBV_QP_RQ_PSN
                | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        self.state = state;
        let state = self.state.after(Step::Start)?;
        let mut to_send = attributes(ibv_qp_state::IBV_QPS_RTS);
        to_send.sq_psn = self.first_packet;
        to_send.timeout = TIMEOUT;
        to_send.retry_cnt = RETRIES;
        to_send.rnr_retry = ENDLESS;
        to_send.max_rd_atomic = peer.reads_answered.min(device.limits.reads_started).min(MOST_READS);
        self.modify(
            &mut to_send,
            ibv_qp_attr_mask::IBV_QP_SQ_PSN
                | ibv_qp_attr_mask::IBV_QP_TIMEOUT
                | ibv_qp_attr_mask::IBV_QP_RETRY_CNT
                | ibv_qp_attr_mask::IBV_QP_RNR_RETRY
                | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )?;
        self.state = state;
        Ok(())
    }

    fn modify(&mut self, attributes: &mut ibv_qp_attr, what: ibv_qp_attr_mask) -> Result<(), VerbsError> {
        let mask = (what | ibv_qp_attr_mask::IBV_QP_STATE).0 as i32;
        // SAFETY: the queue pair lives as long as `self`, and the attributes are read by the call only.
        let status = unsafe { (self.domain.device.library.modify_qp)(self.raw.as_ptr(), attributes, mask) };
        checked("ibv_modify_qp", status)
    }
}

pub(super) fn attributes(state: ibv_qp_state::Type) -> ibv_qp_attr {
    // SAFETY: zeros are valid in all fields; those that matter are named in the mask of the call.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}
