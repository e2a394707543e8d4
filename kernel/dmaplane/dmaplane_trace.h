/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM dmaplane

#if !defined(DMAPLANE_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define DMAPLANE_TRACE_H

#include <linux/tracepoint.h>

DECLARE_EVENT_CLASS(dmaplane_ring,
	TP_PROTO(u32 channel, u64 payload),
	TP_ARGS(channel, payload),
	TP_STRUCT__entry(
		__field(u32, channel)
		__field(u64, payload)
	),
	TP_fast_assign(
		__entry->channel = channel;
		__entry->payload = payload;
	),
	TP_printk("channel=%u payload=%llu", __entry->channel, __entry->payload)
);

DEFINE_EVENT(dmaplane_ring, dmaplane_ring_submit,
	TP_PROTO(u32 channel, u64 payload), TP_ARGS(channel, payload));
DEFINE_EVENT(dmaplane_ring, dmaplane_ring_complete,
	TP_PROTO(u32 channel, u64 payload), TP_ARGS(channel, payload));

TRACE_EVENT(dmaplane_buf_alloc,
	TP_PROTO(u32 id, u32 type, u64 size, int asked, int actual),
	TP_ARGS(id, type, size, asked, actual),
	TP_STRUCT__entry(
		__field(u32, id)
		__field(u32, type)
		__field(u64, size)
		__field(int, asked)
		__field(int, actual)
	),
	TP_fast_assign(
		__entry->id = id;
		__entry->type = type;
		__entry->size = size;
		__entry->asked = asked;
		__entry->actual = actual;
	),
	TP_printk("buf=%u type=%u size=%llu node_asked=%d node_actual=%d",
		  __entry->id, __entry->type, __entry->size, __entry->asked, __entry->actual)
);

TRACE_EVENT(dmaplane_rdma_post,
	TP_PROTO(u32 qp, u32 opcode, u32 bytes),
	TP_ARGS(qp, opcode, bytes),
	TP_STRUCT__entry(
		__field(u32, qp)
		__field(u32, opcode)
		__field(u32, bytes)
	),
	TP_fast_assign(
		__entry->qp = qp;
		__entry->opcode = opcode;
		__entry->bytes = bytes;
	),
	TP_printk("qp=%u opcode=%u bytes=%u", __entry->qp, __entry->opcode, __entry->bytes)
);

TRACE_EVENT(dmaplane_rdma_completion,
	TP_PROTO(u32 status, u32 bytes, u64 ns),
	TP_ARGS(status, bytes, ns),
	TP_STRUCT__entry(
		__field(u32, status)
		__field(u32, bytes)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->status = status;
		__entry->bytes = bytes;
		__entry->ns = ns;
	),
	TP_printk("status=%u bytes=%u ns=%llu", __entry->status, __entry->bytes, __entry->ns)
);

TRACE_EVENT(dmaplane_rdma_write_imm,
	TP_PROTO(u32 imm, u32 bytes, u32 status),
	TP_ARGS(imm, bytes, status),
	TP_STRUCT__entry(
		__field(u32, imm)
		__field(u32, bytes)
		__field(u32, status)
	),
	TP_fast_assign(
		__entry->imm = imm;
		__entry->bytes = bytes;
		__entry->status = status;
	),
	TP_printk("imm=0x%08x bytes=%u status=%u", __entry->imm, __entry->bytes, __entry->status)
);

TRACE_EVENT(dmaplane_gpu_pin,
	TP_PROTO(u32 handle, u64 va, u64 size, u32 pages),
	TP_ARGS(handle, va, size, pages),
	TP_STRUCT__entry(
		__field(u32, handle)
		__field(u64, va)
		__field(u64, size)
		__field(u32, pages)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->va = va;
		__entry->size = size;
		__entry->pages = pages;
	),
	TP_printk("handle=%u va=0x%llx size=%llu pages=%u",
		  __entry->handle, __entry->va, __entry->size, __entry->pages)
);

TRACE_EVENT(dmaplane_gpu_dma,
	TP_PROTO(u32 handle, bool to_host, u64 bytes, u64 ns),
	TP_ARGS(handle, to_host, bytes, ns),
	TP_STRUCT__entry(
		__field(u32, handle)
		__field(bool, to_host)
		__field(u64, bytes)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->handle = handle;
		__entry->to_host = to_host;
		__entry->bytes = bytes;
		__entry->ns = ns;
	),
	TP_printk("handle=%u to_host=%d bytes=%llu ns=%llu",
		  __entry->handle, __entry->to_host, __entry->bytes, __entry->ns)
);

TRACE_EVENT(dmaplane_flow_stall,
	TP_PROTO(u32 in_flight, u32 credits),
	TP_ARGS(in_flight, credits),
	TP_STRUCT__entry(
		__field(u32, in_flight)
		__field(u32, credits)
	),
	TP_fast_assign(
		__entry->in_flight = in_flight;
		__entry->credits = credits;
	),
	TP_printk("in_flight=%u credits=%u", __entry->in_flight, __entry->credits)
);

#endif /* DMAPLANE_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE dmaplane_trace
#include <trace/define_trace.h>
