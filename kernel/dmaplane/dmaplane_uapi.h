/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The interface of /dev/dmaplane: number for number and byte for byte that
 * of the dmaplane paper's artefact, so that programs written for it run
 * unchanged. Padding is named, so that the layout does not depend on the
 * compiler.
 */
#ifndef DMAPLANE_UAPI_H
#define DMAPLANE_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DMAPLANE_RING_ENTRIES	1024
#define DMAPLANE_CHANNELS_MAX	4
#define DMAPLANE_BUFFERS_MAX	64
#define DMAPLANE_MRS_MAX	64
#define DMAPLANE_BUFFER_BYTES_MAX	(1ULL << 30)
#define DMAPLANE_NODES_MAX	8
#define DMAPLANE_HIST_BUCKETS	16
#define DMAPLANE_SWEEP_POINTS	32
#define DMAPLANE_MMAP_SHIFT	12
#define DMAPLANE_NODE_ANY	(-1)

#define DMAPLANE_BUF_COHERENT	0
#define DMAPLANE_BUF_PAGES	1
#define DMAPLANE_BUF_GPU	2

#define DMAPLANE_ACCESS_LOCAL_WRITE	1
#define DMAPLANE_ACCESS_REMOTE_WRITE	2
#define DMAPLANE_ACCESS_REMOTE_READ	4

struct dmaplane_ring_entry {
	__u64 payload;
	__u32 flags;
	__u32 pad;
};

struct dmaplane_submit_params {
	struct dmaplane_ring_entry entry;
};

struct dmaplane_complete_params {
	struct dmaplane_ring_entry entry;
};

struct dmaplane_channel_params {
	__u32 channel_id;
	__u32 pad;
};

struct dmaplane_stats {
	__u64 total_submissions;
	__u64 total_completions;
	__u32 ring_high_watermark;
	__u32 dropped_count;
};

struct dmaplane_buf_params {
	__u32 buf_id;
	__u32 alloc_type;
	__u64 size;
	__s32 numa_node;
	__s32 actual_numa_node;
};

struct dmaplane_mmap_info {
	__u32 buf_id;
	__u32 pad;
	__u64 mmap_offset;
	__u64 mmap_size;
};

struct dmaplane_buf_stats {
	__u64 buffers_created;
	__u64 buffers_destroyed;
	__u64 numa_local_allocs;
	__u64 numa_remote_allocs;
	__u64 numa_anon_allocs;
};

struct dmaplane_export_dmabuf_arg {
	__u32 buf_id;
	__s32 fd;
};

struct dmaplane_dmabuf_stats {
	__u64 dmabufs_exported;
	__u64 dmabufs_released;
	__u64 attachments_total;
	__u64 detachments_total;
	__u64 maps_total;
	__u64 unmaps_total;
};

struct dmaplane_rdma_setup {
	char ib_dev_name[32];
	__u32 port;
	__u32 cq_depth;
	__u32 max_send_wr;
	__u32 max_recv_wr;
	__u32 status;
};

struct dmaplane_mr_params {
	__u32 mr_id;
	__u32 buf_id;
	__u32 access_flags;
	__u32 lkey;
	__u32 rkey;
	__u32 pad;
	__u64 addr;
};

struct dmaplane_loopback_params {
	__u32 mr_id;
	__u32 size;
	__u32 status;
	__u32 pad;
	__u64 latency_ns;
};

struct dmaplane_bench_params {
	__u32 mr_id;
	__u32 msg_size;
	__u32 iterations;
	__u32 queue_depth;
	__u64 total_ns;
	__u64 avg_latency_ns;
	__u64 p99_latency_ns;
	__u64 throughput_mbps;
	__u64 mr_reg_ns;
};

struct dmaplane_rdma_stats {
	__u64 mrs_registered;
	__u64 mrs_deregistered;
	__u64 sends_posted;
	__u64 recvs_posted;
	__u64 completions_polled;
	__u64 completion_errors;
	__u64 bytes_sent;
	__u64 bytes_received;
};

struct dmaplane_flow_params {
	__u32 max_credits;
	__u32 high_watermark;
	__u32 low_watermark;
	__u32 status;
};

struct dmaplane_sustained_params {
	__u32 mr_id;
	__u32 msg_size;
	__u32 queue_depth;
	__u32 duration_secs;
	__u64 total_bytes;
	__u64 total_ops;
	__u64 avg_throughput_mbps;
	__u64 min_window_mbps;
	__u64 max_window_mbps;
	__u64 stall_count;
	__u64 cq_overflow_count;
	__u32 status;
	__u32 pad;
};

struct dmaplane_sweep_params {
	__u32 mr_id;
	__u32 msg_size;
	__u32 iterations;
	__u32 min_qdepth;
	__u32 max_qdepth;
	__u32 step;
	__u64 throughput_mbps[DMAPLANE_SWEEP_POINTS];
	__u64 avg_latency_ns[DMAPLANE_SWEEP_POINTS];
	__u64 p99_latency_ns[DMAPLANE_SWEEP_POINTS];
	__u32 nr_points;
	__u32 saturation_qdepth;
	__u32 status;
	__u32 pad;
};

struct dmaplane_flow_stats {
	__u64 credit_stalls;
	__u64 high_watermark_events;
	__u64 low_watermark_events;
	__u64 cq_overflows;
	__u64 total_sustained_bytes;
	__u64 total_sustained_ops;
};

struct dmaplane_numa_topo {
	__u32 nr_nodes;
	__u32 nr_cpus;
	__u32 node_cpu_count[DMAPLANE_NODES_MAX];
	__u32 node_online[DMAPLANE_NODES_MAX];
	__u64 node_mem_total_kb[DMAPLANE_NODES_MAX];
	__u64 node_mem_free_kb[DMAPLANE_NODES_MAX];
	__u32 distances[DMAPLANE_NODES_MAX][DMAPLANE_NODES_MAX];
};

struct dmaplane_numa_bench_params {
	__u64 buffer_size;
	__u32 iterations;
	__u32 pad;
	__u64 bw_mbps[DMAPLANE_NODES_MAX][DMAPLANE_NODES_MAX];
	__u64 lat_ns[DMAPLANE_NODES_MAX][DMAPLANE_NODES_MAX];
	__u32 nr_nodes;
	__u32 status;
};

struct dmaplane_gpu_pin_params {
	__u64 gpu_va;
	__u64 size;
	__u32 handle;
	__s32 gpu_numa_node;
	__u32 num_pages;
	__u32 pad;
	__u64 bar1_consumed;
};

struct dmaplane_gpu_unpin_params {
	__u32 handle;
};

struct dmaplane_gpu_dma_params {
	__u32 gpu_handle;
	__u32 host_handle;
	__u64 offset;
	__u64 size;
	__u64 elapsed_ns;
	__u64 throughput_mbps;
};

struct dmaplane_gpu_bench_params {
	__u32 gpu_handle;
	__u32 host_handle;
	__u64 size;
	__u32 iterations;
	__u32 pad;
	__u64 h2g_bandwidth_mbps;
	__u64 g2h_bandwidth_mbps;
};

struct dmaplane_gpu_mr_params {
	__u32 gpu_handle;
	__u32 mr_id;
	__u32 lkey;
	__u32 rkey;
};

struct dmaplane_gpu_loopback_params {
	__u32 gpu_mr_id;
	__u32 host_mr_id;
	__u32 size;
	__u32 pad;
	__u64 latency_ns;
	__u32 recv_bytes;
	__u32 status;
};

struct dmaplane_gpu_stats {
	__u64 pins_total;
	__u64 unpins_total;
	__u64 callbacks_fired;
	__u64 dma_h2g_bytes;
	__u64 dma_g2h_bytes;
	__u64 gpu_mrs_registered;
};

struct dmaplane_hist_params {
	__u64 buckets[DMAPLANE_HIST_BUCKETS];
	__u64 count;
	__u64 p50_ns;
	__u64 p99_ns;
	__u64 p999_ns;
	__u64 avg_ns;
	__u64 min_ns;
	__u64 max_ns;
	__u32 reset;
	__u32 pad;
};

struct dmaplane_write_imm_params {
	__u32 local_mr_id;
	__u32 length;
	__u64 local_offset;
	__u64 remote_addr;
	__u32 remote_rkey;
	__u32 imm_data;
	__u32 use_peer_qp;
	__u32 status;
	__u64 elapsed_ns;
};

struct dmaplane_post_recv_params {
	__u32 mr_id;
	__u32 size;
	__u32 use_peer_qp;
	__u32 status;
};

struct dmaplane_poll_recv_params {
	__u32 use_peer_qp;
	__u32 timeout_ms;
	__u32 status;
	__u32 wc_flags;
	__u32 imm_data;
	__u32 byte_len;
	__u64 elapsed_ns;
};

struct dmaplane_rdma_peer_info {
	__u32 qp_num;
	__u16 lid;
	__u16 pad0;
	__u8 gid[16];
	__u8 mac[6];
	__u16 pad1;
	__u32 status;
	__u32 pad2;
};

struct dmaplane_rdma_remote_xfer_params {
	__u32 mr_id;
	__u32 size;
	__u64 elapsed_ns;
	__u64 throughput_mbps;
	__u32 status;
	__u32 pad;
};

#define DMAPLANE_MAGIC 0xE4
#define DMAPLANE_R(nr, arg)	_IOR(DMAPLANE_MAGIC, nr, struct dmaplane_##arg)
#define DMAPLANE_W(nr, arg)	_IOW(DMAPLANE_MAGIC, nr, struct dmaplane_##arg)
#define DMAPLANE_WR(nr, arg)	_IOWR(DMAPLANE_MAGIC, nr, struct dmaplane_##arg)

#define DMAPLANE_CREATE_CHANNEL		DMAPLANE_R(0x01, channel_params)
#define DMAPLANE_SUBMIT			DMAPLANE_W(0x02, submit_params)
#define DMAPLANE_COMPLETE		DMAPLANE_WR(0x03, complete_params)
#define DMAPLANE_GET_STATS		DMAPLANE_R(0x04, stats)
#define DMAPLANE_CREATE_BUFFER		DMAPLANE_WR(0x05, buf_params)
#define DMAPLANE_DESTROY_BUFFER		_IOW(DMAPLANE_MAGIC, 0x06, __u32)
#define DMAPLANE_GET_MMAP_INFO		DMAPLANE_WR(0x08, mmap_info)
#define DMAPLANE_GET_BUF_STATS		DMAPLANE_R(0x09, buf_stats)
#define DMAPLANE_EXPORT_DMABUF		DMAPLANE_WR(0x0A, export_dmabuf_arg)
#define DMAPLANE_GET_DMABUF_STATS	DMAPLANE_R(0x0B, dmabuf_stats)
#define DMAPLANE_SETUP_RDMA		DMAPLANE_WR(0x10, rdma_setup)
#define DMAPLANE_TEARDOWN_RDMA		_IO(DMAPLANE_MAGIC, 0x11)
#define DMAPLANE_REGISTER_MR		DMAPLANE_WR(0x20, mr_params)
#define DMAPLANE_DEREGISTER_MR		_IOW(DMAPLANE_MAGIC, 0x21, __u32)
#define DMAPLANE_LOOPBACK_TEST		DMAPLANE_WR(0x30, loopback_params)
#define DMAPLANE_PINGPONG_BENCH		DMAPLANE_WR(0x31, bench_params)
#define DMAPLANE_STREAMING_BENCH	DMAPLANE_WR(0x32, bench_params)
#define DMAPLANE_GET_RDMA_STATS		DMAPLANE_R(0x33, rdma_stats)
#define DMAPLANE_CONFIGURE_FLOW		DMAPLANE_WR(0x40, flow_params)
#define DMAPLANE_SUSTAINED_STREAM	DMAPLANE_WR(0x41, sustained_params)
#define DMAPLANE_QDEPTH_SWEEP		DMAPLANE_WR(0x42, sweep_params)
#define DMAPLANE_GET_FLOW_STATS		DMAPLANE_R(0x43, flow_stats)
#define DMAPLANE_QUERY_NUMA_TOPO	DMAPLANE_R(0x50, numa_topo)
#define DMAPLANE_NUMA_BENCH		DMAPLANE_WR(0x51, numa_bench_params)
#define DMAPLANE_GPU_PIN		DMAPLANE_WR(0x60, gpu_pin_params)
#define DMAPLANE_GPU_UNPIN		DMAPLANE_W(0x61, gpu_unpin_params)
#define DMAPLANE_GPU_DMA_TO_HOST	DMAPLANE_WR(0x62, gpu_dma_params)
#define DMAPLANE_GPU_DMA_FROM_HOST	DMAPLANE_WR(0x63, gpu_dma_params)
#define DMAPLANE_GPU_BENCH		DMAPLANE_WR(0x64, gpu_bench_params)
#define DMAPLANE_GPU_REGISTER_MR	DMAPLANE_WR(0x65, gpu_mr_params)
#define DMAPLANE_GPU_LOOPBACK		DMAPLANE_WR(0x66, gpu_loopback_params)
#define DMAPLANE_GET_GPU_STATS		DMAPLANE_R(0x67, gpu_stats)
#define DMAPLANE_GET_HISTOGRAM		DMAPLANE_WR(0x70, hist_params)
#define DMAPLANE_RDMA_WRITE_IMM		DMAPLANE_WR(0x80, write_imm_params)
#define DMAPLANE_RDMA_POST_RECV		DMAPLANE_WR(0x81, post_recv_params)
#define DMAPLANE_RDMA_POLL_RECV		DMAPLANE_WR(0x82, poll_recv_params)
#define DMAPLANE_RDMA_INIT_PEER		DMAPLANE_R(0x90, rdma_peer_info)
#define DMAPLANE_RDMA_CONNECT_PEER	DMAPLANE_W(0x91, rdma_peer_info)
#define DMAPLANE_RDMA_REMOTE_SEND	DMAPLANE_WR(0x92, rdma_remote_xfer_params)
#define DMAPLANE_RDMA_REMOTE_RECV	DMAPLANE_WR(0x93, rdma_remote_xfer_params)
#define DMAPLANE_RDMA_DESTROY_PEER	_IO(DMAPLANE_MAGIC, 0x94)

#endif /* DMAPLANE_UAPI_H */
