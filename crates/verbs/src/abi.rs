//! The parts of `infiniband/verbs.h` that we use: types, constants, structures.
//!
//! The names are those of verbs. rdma-core has kept these layouts since the first `libibverbs.so.1`, and adds new fields
//! behind them. `tests/abi.c` checks the same numbers against the installed header.
#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{align_of, offset_of, size_of};

/// Structures of the library of which rgaps has only pointers.
pub(crate) enum ibv_device {}
pub(crate) enum ibv_pd {}

pub(crate) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const IBV_ACCESS_REMOTE_WRITE: c_int = 2;

pub(crate) const IBV_PORT_ACTIVE: c_int = 4;

pub(crate) const IBV_QPT_RC: c_int = 2;

pub(crate) const IBV_QPS_INIT: c_int = 1;
pub(crate) const IBV_QPS_RTR: c_int = 2;
pub(crate) const IBV_QPS_RTS: c_int = 3;
pub(crate) const IBV_QPS_ERR: c_int = 6;

pub(crate) const IBV_QP_STATE: c_int = 1;
pub(crate) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(crate) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(crate) const IBV_QP_PORT: c_int = 1 << 5;
pub(crate) const IBV_QP_AV: c_int = 1 << 7;
pub(crate) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(crate) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(crate) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(crate) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(crate) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(crate) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(crate) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(crate) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(crate) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(crate) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(crate) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(crate) const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(crate) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const IBV_SEND_INLINE: c_uint = 1 << 3;

pub(crate) const IBV_WC_RECV_RDMA_WITH_IMM: c_int = 129;

pub(crate) const IBV_EVENT_CQ_ERR: c_int = 0;
pub(crate) const IBV_EVENT_QP_FATAL: c_int = 1;
pub(crate) const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub(crate) const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub(crate) const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub(crate) const IBV_EVENT_PORT_ERR: c_int = 10;
pub(crate) const IBV_EVENT_GID_CHANGE: c_int = 18;

macro_rules! structures {
    ($($(#[$meta:meta])* $name:ident [$size:literal] {
        $($field:ident: $type:ty = $offset:literal,)*
    })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() <= 8);
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    )*};
}

type unused = usize;

structures! {
    ibv_context_ops [256] {
        compat: [unused; 7] = 0,
        memory_windows: [unused; 3] = 56,
        compat_create_cq: unused = 80,
        poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int = 88,
        req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int = 96,
        compat_queues: [unused; 12] = 104,
        post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int = 200,
        post_recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int = 208,
        compat_rest: [unused; 5] = 216,
    }
    /// The beginning of the structure, which the library allocates.
    ibv_context [272] {
        device: *mut ibv_device = 0,
        ops: ibv_context_ops = 8,
        cmd_fd: c_int = 264,
        async_fd: c_int = 268,
    }
    ibv_sge [16] {
        addr: u64 = 0,
        length: u32 = 8,
        lkey: u32 = 12,
    }
    ibv_send_wr [128] {
        wr_id: u64 = 0,
        next: *mut ibv_send_wr = 8,
        sg_list: *mut ibv_sge = 16,
        num_sge: c_int = 24,
        opcode: c_int = 28,
        send_flags: c_uint = 32,
        imm_data: u32 = 36,
        remote_addr: u64 = 40,
        rkey: u32 = 48,
        rest: [u32; 19] = 52,
    }
    ibv_recv_wr [32] {
        wr_id: u64 = 0,
        next: *mut ibv_recv_wr = 8,
        sg_list: *mut ibv_sge = 16,
        num_sge: c_int = 24,
        rest: u32 = 28,
    }
    ibv_wc [48] {
        wr_id: u64 = 0,
        status: c_uint = 8,
        opcode: c_int = 12,
        vendor_err: u32 = 16,
        byte_len: u32 = 20,
        imm_data: u32 = 24,
        qp_num: u32 = 28,
        src_qp: u32 = 32,
        wc_flags: c_uint = 36,
        rest: [u32; 2] = 40,
    }
    ibv_mr [48] {
        context: *mut ibv_context = 0,
        pd: *mut ibv_pd = 8,
        addr: *mut c_void = 16,
        length: usize = 24,
        handle: u32 = 32,
        lkey: u32 = 36,
        rkey: u32 = 40,
    }
    /// The beginning of the structure, which the library allocates.
    ibv_qp [64] {
        context: *mut ibv_context = 0,
        qp_context: *mut c_void = 8,
        pd: *mut ibv_pd = 16,
        send_cq: *mut ibv_cq = 24,
        recv_cq: *mut ibv_cq = 32,
        srq: *mut c_void = 40,
        handle: u32 = 48,
        qp_num: u32 = 52,
        state: c_int = 56,
        qp_type: c_int = 60,
    }
    /// The beginning of the structure, which the library allocates.
    ibv_cq [32] {
        context: *mut ibv_context = 0,
        channel: *mut ibv_comp_channel = 8,
        cq_context: *mut c_void = 16,
        handle: u32 = 24,
        cqe: c_int = 28,
    }
    ibv_comp_channel [16] {
        context: *mut ibv_context = 0,
        fd: c_int = 8,
        refcnt: c_int = 12,
    }
    ibv_qp_cap [20] {
        max_send_wr: u32 = 0,
        max_recv_wr: u32 = 4,
        max_send_sge: u32 = 8,
        max_recv_sge: u32 = 12,
        max_inline_data: u32 = 16,
    }
    ibv_qp_init_attr [64] {
        qp_context: *mut c_void = 0,
        send_cq: *mut ibv_cq = 8,
        recv_cq: *mut ibv_cq = 16,
        srq: *mut c_void = 24,
        cap: ibv_qp_cap = 32,
        qp_type: c_int = 52,
        sq_sig_all: c_int = 56,
    }
    ibv_global_route [24] {
        dgid: [u64; 2] = 0,
        flow_label: u32 = 16,
        sgid_index: u8 = 20,
        hop_limit: u8 = 21,
        traffic_class: u8 = 22,
    }
    ibv_ah_attr [32] {
        grh: ibv_global_route = 0,
        dlid: u16 = 24,
        sl: u8 = 26,
        src_path_bits: u8 = 27,
        static_rate: u8 = 28,
        is_global: u8 = 29,
        port_num: u8 = 30,
    }
    ibv_qp_attr [144] {
        qp_state: c_int = 0,
        cur_qp_state: c_int = 4,
        path_mtu: c_int = 8,
        path_mig_state: c_int = 12,
        qkey: u32 = 16,
        rq_psn: u32 = 20,
        sq_psn: u32 = 24,
        dest_qp_num: u32 = 28,
        qp_access_flags: c_int = 32,
        cap: ibv_qp_cap = 36,
        ah_attr: ibv_ah_attr = 56,
        alt_ah_attr: ibv_ah_attr = 88,
        pkey_index: u16 = 120,
        alt_pkey_index: u16 = 122,
        en_sqd_async_notify: u8 = 124,
        sq_draining: u8 = 125,
        max_rd_atomic: u8 = 126,
        max_dest_rd_atomic: u8 = 127,
        min_rnr_timer: u8 = 128,
        port_num: u8 = 129,
        timeout: u8 = 130,
        retry_cnt: u8 = 131,
        rnr_retry: u8 = 132,
        alt_port_num: u8 = 133,
        alt_timeout: u8 = 134,
        rate_limit: u32 = 136,
    }
    ibv_port_attr [52] {
        state: c_int = 0,
        max_mtu: c_int = 4,
        active_mtu: c_int = 8,
        rest: [u32; 10] = 12,
    }
    ibv_device_attr [232] {
        names: [u64; 14] = 0,
        max_qp_wr: c_int = 112,
        middle: [c_int; 4] = 116,
        max_cqe: c_int = 132,
        rest: [u64; 12] = 136,
    }
    ibv_async_event [16] {
        element: *mut c_void = 0,
        event_type: c_int = 8,
        rest: c_int = 12,
    }
}

/// A structure of zeros and null pointers.
///
/// # Safety
/// Zeros are a value of `T`: `T` has no references, functions or enums.
pub(crate) unsafe fn zeroed<T: Copy>() -> T {
    // SAFETY: our caller promises that zeros are a value of `T`.
    unsafe { std::mem::zeroed() }
}
