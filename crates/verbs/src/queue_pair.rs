//! A queue pair of libibverbs with its completion queue and completion channel.

use crate::abi::*;
use crate::error::VerbsError;
use crate::fabric::{Completion, Depths, QueueAddress, QueuePair, Work};
use crate::receiving::RECEIVE;
use crate::status::Status;
use crate::verbs::{checked, failed, set_nonblocking, Opened};
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The most works or receives that one call of verbs posts; more take several calls.
const POSTED_AT_ONCE: usize = 64;
/// The most completions that one call takes.
const POLLED_AT_ONCE: usize = 32;

/// How long the device waits for an answer of the peer's device: 4.096 us times 2 to the power of this, which is 67 ms.
const TIMEOUT: u8 = 14;
/// The field `retry_cnt` has 3 bits.
const RETRIES_MAX: u8 = 7;
/// How often the device tries again when the peer's device has no receive ready. Credits guarantee that one is posted;
/// the peer's device may see it a moment later.
const RETRIES_NOT_READY: u8 = 6;
/// How long the device waits before such a retry: the code of 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
/// The most routers that a packet of RoCE v2 passes.
const HOP_LIMIT: u8 = 64;

pub(crate) struct LibraryPair {
    pair: NonNull<ibv_qp>,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    depths: Depths,
    first_packet: u32,
    /// Calls of `arm` since the last `woken`. Each causes at most one event; several calls may share one.
    events_due: AtomicU32,
    sends: Mutex<Box<Sends>>,
    receives: Mutex<Box<[ibv_recv_wr; POSTED_AT_ONCE]>>,
    opened: Arc<Opened>,
}

/// Work requests, which `new` links once. Each post writes only the fields that differ.
struct Sends {
    requests: [ibv_send_wr; POSTED_AT_ONCE],
    pieces: [ibv_sge; POSTED_AT_ONCE],
}

// SAFETY: verbs' functions may be called from any thread, and the pointers to verbs' objects are only passed to them. Pointers
// between work requests point into the same box.
unsafe impl Send for LibraryPair {}
// SAFETY: verbs' functions may be called from several threads at a time. The boxes of work requests are behind mutexes.
unsafe impl Sync for LibraryPair {}

impl LibraryPair {
    pub(crate) fn new(opened: &Arc<Opened>, wanted: Depths) -> Result<Self, VerbsError> {
        let table = opened.table();
        let context = opened.context.as_ptr();
        let completions = wanted.completions.min(opened.completions_max);
        // SAFETY: `opened` keeps the context open. Each step takes the objects of the steps before, which live: a step that fails destroys
        // them, the newest first (`Undo`), and else `made` keeps them, and `drop` destroys them in the same order.
        unsafe {
            let channel = NonNull::new((table.ibv_create_comp_channel)(context));
            let channel = channel.ok_or_else(|| failed("ibv_create_comp_channel"))?;
            let undo_channel = Undo(|| (table.ibv_destroy_comp_channel)(channel.as_ptr()));
            set_nonblocking(channel.as_ref().fd, "fcntl of completions")?;
            let slots = c_int::try_from(completions).unwrap_or(c_int::MAX);
            let queue = (table.ibv_create_cq)(context, slots, null_mut(), channel.as_ptr(), 0);
            let queue = NonNull::new(queue).ok_or_else(|| failed("ibv_create_cq"))?;
            let undo_queue = Undo(|| (table.ibv_destroy_cq)(queue.as_ptr()));
            let (pair, cap) = create(opened, queue, wanted)?;
            // `Opened::event_of` reads it for an event of the completion queue.
            (*queue.as_ptr()).cq_context = pair.as_ref().qp_num as usize as *mut c_void;
            std::mem::forget((undo_channel, undo_queue));
            let ops = opened.context.as_ref().ops;
            let made = Self {
                pair,
                queue,
                channel,
                post_send: ops.post_send,
                post_recv: ops.post_recv,
                poll_cq: ops.poll_cq,
                req_notify_cq: ops.req_notify_cq,
                depths: Depths {
                    sends: cap.max_send_wr,
                    receives: cap.max_recv_wr,
                    completions: u32::try_from(queue.as_ref().cqe).unwrap_or(0),
                    inline_bytes: cap.max_inline_data,
                },
                // Random, so that the peer's device takes no packet of an earlier connection for one of this.
                first_packet: RandomState::new().build_hasher().finish() as u32 & 0xff_ffff,
                events_due: AtomicU32::new(0),
                sends: Mutex::new(Sends::new()),
                receives: Mutex::new(receives()),
                opened: Arc::clone(opened),
            };
            // From here on, dropping `made` destroys all three.
            made.initialise()?;
            Ok(made)
        }
    }

    fn modify(&self, mut attributes: ibv_qp_attr, mask: c_int) -> Result<(), VerbsError> {
        let modify = self.opened.table().ibv_modify_qp;
        // SAFETY: `new` made the queue pair, which lives until `drop` destroys it. `attributes` are ours, and complete.
        let code = unsafe { modify(self.pair.as_ptr(), &mut attributes, mask) };
        checked("ibv_modify_qp", code)
    }

    fn initialise(&self) -> Result<(), VerbsError> {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: self.opened.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE,
            // SAFETY: all fields of `ibv_qp_attr` are integers, for which zeros are values.
            ..unsafe { zeroed() }
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask)
    }
}

/// A drop guard: destroys an object when a later step fails.
struct Undo<F: Fn() -> c_int>(F);

impl<F: Fn() -> c_int> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Creates a queue pair, with fewer inline bytes than wanted if the device refuses them.
///
/// # Safety
/// The completion queue is of `opened`'s context, and outlives the queue pair.
unsafe fn create(
    opened: &Opened,
    queue: NonNull<ibv_cq>,
    wanted: Depths,
) -> Result<(NonNull<ibv_qp>, ibv_qp_cap), VerbsError> {
    let mut inline_bytes = wanted.inline_bytes;
    loop {
        let mut attributes = ibv_qp_init_attr {
            send_cq: queue.as_ptr(),
            recv_cq: queue.as_ptr(),
            cap: ibv_qp_cap {
                max_send_wr: wanted.sends.min(opened.works_max),
                max_recv_wr: wanted.receives.min(opened.works_max),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            // SAFETY: all fields of `ibv_qp_init_attr` are integers, and pointers that may be null.
            ..unsafe { zeroed() }
        };
        // SAFETY: `opened` keeps the domain, and our caller promises that the queue is of the same context and outlives the queue pair. The
        // library reads `attributes`, which are ours, and writes the capacities there.
        let pair =
            unsafe { (opened.table().ibv_create_qp)(opened.domain.as_ptr(), &mut attributes) };
        match NonNull::new(pair) {
            Some(pair) => return Ok((pair, attributes.cap)),
            // Devices differ in how many bytes they take inline, and do not report the limit.
            None if inline_bytes > 0 => inline_bytes /= 2,
            None => return Err(failed("ibv_create_qp")),
        }
    }
}

impl Sends {
    fn new() -> Box<Self> {
        // SAFETY: all fields of both structures are integers, and pointers that may be null.
        let (request, piece): (ibv_send_wr, ibv_sge) = unsafe { (zeroed(), zeroed()) };
        let mut sends = Box::new(Self {
            requests: [request; POSTED_AT_ONCE],
            pieces: [piece; POSTED_AT_ONCE],
        });
        let Self { requests, pieces } = &mut *sends;
        let (requests, pieces) = (requests.as_mut_ptr(), pieces.as_mut_ptr());
        for index in 0..POSTED_AT_ONCE {
            // SAFETY: `index` is inside both arrays, which are in the box that nobody else has yet, and stay where they are when the box
            // moves. `post` replaces the `next` of the last request that it posts, so nobody follows the pointer behind the array.
            unsafe {
                let request = &mut *requests.add(index);
                request.sg_list = pieces.add(index);
                request.next = requests.wrapping_add(index + 1);
            }
        }
        sends
    }

    fn fill(&mut self, index: usize, work: &Work) {
        self.pieces[index] = ibv_sge {
            addr: work.local as u64,
            length: work.bytes,
            lkey: work.local_key,
        };
        let request = &mut self.requests[index];
        request.wr_id = work.number;
        request.num_sge = c_int::from(work.bytes > 0);
        request.opcode = match work.immediate {
            Some(_) => IBV_WR_RDMA_WRITE_WITH_IMM,
            None => IBV_WR_RDMA_WRITE,
        };
        request.imm_data = work.immediate.unwrap_or(0).to_be();
        request.remote_addr = work.remote;
        request.rkey = work.remote_key;
        request.send_flags = match work.signalled {
            true => IBV_SEND_SIGNALED,
            false => 0,
        };
        if work.inline {
            request.send_flags |= IBV_SEND_INLINE;
        }
    }
}

fn receives() -> Box<[ibv_recv_wr; POSTED_AT_ONCE]> {
    // SAFETY: all fields of `ibv_recv_wr` are integers, and pointers that may be null.
    let mut receives = Box::new([unsafe { zeroed::<ibv_recv_wr>() }; POSTED_AT_ONCE]);
    let first = receives.as_mut_ptr();
    for (index, receive) in receives.iter_mut().enumerate() {
        receive.next = first.wrapping_add(index + 1);
    }
    receives
}

fn completion(wc: &ibv_wc) -> Completion {
    let status = Status::from_code(wc.status);
    match (status, wc.wr_id) {
        (Status::Success, RECEIVE) => Completion::Received {
            // Only a misbehaving peer causes another operation here. No notice has this immediate data, so the channel ends.
            immediate: match wc.opcode {
                IBV_WC_RECV_RDMA_WITH_IMM => u32::from_be(wc.imm_data),
                _ => u32::MAX,
            },
            bytes: wc.byte_len,
        },
        (Status::Success, number) => Completion::Sent { number },
        (status, number) => Completion::Failed {
            number,
            status,
            vendor: wc.vendor_err,
        },
    }
}

impl QueuePair for LibraryPair {
    fn depths(&self) -> Depths {
        self.depths
    }

    fn address(&self) -> QueueAddress {
        QueueAddress {
            gid: self.opened.address.gid,
            // SAFETY: `new` made the queue pair, which lives until `drop` destroys it, and whose number never changes.
            number: unsafe { self.pair.as_ref().qp_num },
            first_packet: self.first_packet,
            mtu: self.opened.mtu,
        }
    }

    fn connect(&self, peer: &QueueAddress, retries: u8) -> Result<(), VerbsError> {
        let word =
            |at: usize| u64::from_ne_bytes(peer.gid[at..at + 8].try_into().expect("8 bytes"));
        let mut ready = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: c_int::from(peer.mtu.min(self.opened.mtu)),
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet & 0xff_ffff,
            max_dest_rd_atomic: 1,
            min_rnr_timer: NOT_READY_TIMER,
            // SAFETY: all fields of `ibv_qp_attr` are integers, for which zeros are values.
            ..unsafe { zeroed() }
        };
        ready.ah_attr.is_global = 1;
        ready.ah_attr.port_num = self.opened.port;
        ready.ah_attr.grh.dgid = [word(0), word(8)];
        ready.ah_attr.grh.sgid_index = self.opened.address.index;
        ready.ah_attr.grh.hop_limit = HOP_LIMIT;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(ready, mask)?;
        let send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: retries.min(RETRIES_MAX),
            rnr_retry: RETRIES_NOT_READY,
            sq_psn: self.first_packet,
            max_rd_atomic: 1,
            // SAFETY: all fields of `ibv_qp_attr` are integers, for which zeros are values.
            ..unsafe { zeroed() }
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(send, mask)
    }

    unsafe fn post(&self, works: &[Work]) -> Result<(), VerbsError> {
        let mut sends = self.sends.lock().expect("nobody panics with it");
        for works in works.chunks(POSTED_AT_ONCE) {
            for (index, work) in works.iter().enumerate() {
                sends.fill(index, work);
            }
            let first = sends.requests.as_mut_ptr();
            let mut bad = null_mut();
            // SAFETY: the requests are linked within their box, which the mutex gives us alone, and end at the last of these;
            // `new` made the queue pair, which lives until `drop` destroys it. The library reads inline bytes before it
            // returns. Devices read other bytes until the work completes, and `post`'s caller keeps them until then.
            let code = unsafe {
                let last = first.add(works.len() - 1);
                let next = std::mem::replace(&mut (*last).next, null_mut());
                let code = (self.post_send)(self.pair.as_ptr(), first, &mut bad);
                (*last).next = next;
                code
            };
            checked("ibv_post_send", code)?;
        }
        Ok(())
    }

    fn post_receives(&self, mut count: u32, number: u64) -> Result<(), VerbsError> {
        let mut receives = self.receives.lock().expect("nobody panics with it");
        while count > 0 {
            let now = count.min(POSTED_AT_ONCE as u32);
            for receive in &mut receives[..now as usize] {
                receive.wr_id = number;
            }
            let first = receives.as_mut_ptr();
            let mut bad = null_mut();
            // SAFETY: the requests are linked within their box, which the mutex gives us alone, and end at the last of these;
            // `new` made the queue pair, which lives until `drop` destroys it. Receives have no memory.
            let code = unsafe {
                let last = first.add(now as usize - 1);
                let next = std::mem::replace(&mut (*last).next, null_mut());
                let code = (self.post_recv)(self.pair.as_ptr(), first, &mut bad);
                (*last).next = next;
                code
            };
            checked("ibv_post_recv", code)?;
            count -= now;
        }
        Ok(())
    }

    fn poll(&self, into: &mut [Completion]) -> Result<usize, VerbsError> {
        // SAFETY: all fields of `ibv_wc` are integers, for which zeros are values.
        let mut found = [unsafe { zeroed::<ibv_wc>() }; POLLED_AT_ONCE];
        let most = into.len().min(POLLED_AT_ONCE) as c_int;
        // SAFETY: `new` made the queue, which lives until `drop` destroys it. `found` has room for `POLLED_AT_ONCE`
        // completions, and `most` is no more.
        let count = unsafe { (self.poll_cq)(self.queue.as_ptr(), most, found.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| VerbsError::Call {
            call: "ibv_poll_cq",
            errno: -count,
        })?;
        for (slot, wc) in into.iter_mut().zip(&found[..count]) {
            *slot = completion(wc);
        }
        Ok(count)
    }

    fn arm(&self) -> Result<(), VerbsError> {
        self.events_due.fetch_add(1, SeqCst);
        // SAFETY: `new` made the queue, which lives until `drop` destroys it.
        checked("ibv_req_notify_cq", unsafe {
            (self.req_notify_cq)(self.queue.as_ptr(), 0)
        })
    }

    fn completions_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has opened the descriptor and closes it when `drop` destroys the channel, after the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    fn woken(&self) -> Result<(), VerbsError> {
        let table = self.opened.table();
        let (mut queue, mut context) = (null_mut(), null_mut());
        let due = self.events_due.load(SeqCst);
        let mut count = 0;
        // SAFETY: `new` made the channel for this one queue; both live until `drop` destroys them. `new` made the
        // descriptor non-blocking, so the call returns. Each event is acknowledged, or destroying the queue would
        // wait for it.
        unsafe {
            while count < due
                && (table.ibv_get_cq_event)(self.channel.as_ptr(), &mut queue, &mut context) == 0
            {
                count += 1;
            }
            if count > 0 {
                (table.ibv_ack_cq_events)(self.queue.as_ptr(), count);
            }
        }
        // An event of these calls that fires later stays until the next `arm` and `woken`: one wake-up too many, and none lost.
        self.events_due.fetch_sub(due, SeqCst);
        Ok(())
    }

    fn fail(&self) -> Result<(), VerbsError> {
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_ERR,
            // SAFETY: all fields of `ibv_qp_attr` are integers, for which zeros are values.
            ..unsafe { zeroed() }
        };
        self.modify(attributes, IBV_QP_STATE)
    }
}

impl Drop for LibraryPair {
    fn drop(&mut self) {
        let table = self.opened.table();
        // SAFETY: `new` made all three, and this is the only place that destroys them: the queue pair before its queue, and that before
        // its channel, as verbs demands. `opened` keeps their context until this returns.
        unsafe {
            (table.ibv_destroy_qp)(self.pair.as_ptr());
            (table.ibv_destroy_cq)(self.queue.as_ptr());
            (table.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
