// SPDX-License-Identifier: GPL-2.0 OR MIT
/* RDMA on Soft-RoCE: contexts, memory regions, messages with credits, writes with notices. */
#include "test.h"

/* A device with a context, a buffer of `size` that is mapped, and a region over it. */
struct rig {
	int dev;
	uint32_t buf;
	unsigned char *at;
	struct dmaplane_mr_params mr;
};

static struct rig rig_new(uint64_t size, uint32_t access)
{
	struct rig g = { .dev = open_device() };

	CHECK(setup_rdma(g.dev, RDMA_DEVICE) == 0);
	g.buf = make_buffer(g.dev, DMAPLANE_BUF_PAGES, size);
	g.at = map_buffer(g.dev, g.buf);
	register_mr(g.dev, g.buf, access, &g.mr);
	return g;
}

static void fill(unsigned char *at, size_t n, unsigned int seed)
{
	while (n--)
		*at++ = (seed = seed * 1103515245 + 12345) >> 16;
}

TEST(rdma_setup_is_checked)
{
	struct dmaplane_rdma_setup p = { .ib_dev_name = RDMA_DEVICE, .port = 1, .cq_depth = 16,
					 .max_send_wr = 32, .max_recv_wr = 16 };
	int dev = open_device();

	REFUSED(ENODEV, setup_rdma(dev, "nosuch0"));
	REFUSED(ENODEV, setup_rdma(dev, ""));
	/* Completions of 32 sends do not fit in 16. */
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_SETUP_RDMA, &p));
	p.cq_depth = ~0U;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_SETUP_RDMA, &p));
	p.cq_depth = 32;
	p.port = 9;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_SETUP_RDMA, &p));
	memset(p.ib_dev_name, 'x', sizeof(p.ib_dev_name));
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_SETUP_RDMA, &p));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_SETUP_RDMA, NULL));
	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_TEARDOWN_RDMA));
	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
	REFUSED(EBUSY, setup_rdma(dev, RDMA_DEVICE));
	CHECK(ioctl(dev, DMAPLANE_TEARDOWN_RDMA) == 0);
	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
}

TEST(a_user_has_at_most_64_contexts)
{
	struct dmaplane_rdma_setup p = {
		.ib_dev_name = RDMA_DEVICE, .cq_depth = 1, .max_send_wr = 1, .max_recv_wr = 1
	};
	int devs[64], i, other = open_device();

	for (i = 0; i < 64; i++) {
		devs[i] = open_device();
		CHECK(ioctl(devs[i], DMAPLANE_SETUP_RDMA, &p) == 0);
	}
	REFUSED(ENOSPC, ioctl(other, DMAPLANE_SETUP_RDMA, &p));
	CHECK(ioctl(devs[5], DMAPLANE_TEARDOWN_RDMA) == 0);
	CHECK(ioctl(other, DMAPLANE_SETUP_RDMA, &p) == 0);
}

/* Frames to any address take CAP_NET_RAW; those to the device's own do not. */
TEST(peers_elsewhere_need_a_right)
{
	struct dmaplane_rdma_peer_info peer, elsewhere;
	int dev = open_device();

	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0 && ioctl(dev, DMAPLANE_RDMA_INIT_PEER, &peer) == 0);
	elsewhere = peer;
	elsewhere.mac[5] ^= 1;
	CHECK(ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &elsewhere) == 0);
	CHECK(ioctl(dev, DMAPLANE_RDMA_DESTROY_PEER) == 0);
	CHECK(setresuid(1000, 1000, 1000) == 0);
	CHECK(ioctl(dev, DMAPLANE_RDMA_INIT_PEER, &peer) == 0);
	REFUSED(EPERM, ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &elsewhere));
	CHECK(ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &peer) == 0);
}

TEST(rdma_calls_need_a_context)
{
	struct dmaplane_loopback_params p = { .mr_id = 1, .size = 1 };
	struct dmaplane_flow_params flow = { 4, 3, 1, 0 };
	struct dmaplane_mr_params mr = {};
	int dev = open_device();

	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_LOOPBACK_TEST, &p));
	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_REGISTER_MR, &mr));
	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_CONFIGURE_FLOW, &flow));
	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_RDMA_DESTROY_PEER));
}

TEST(mr_arguments_are_checked)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_mr_params p = { .buf_id = g.buf, .access_flags = 8 };
	struct dmaplane_loopback_params l = { .mr_id = g.mr.mr_id };
	uint32_t id = g.mr.mr_id;

	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_REGISTER_MR, &p));
	p.access_flags = 1;
	p.buf_id = 999;
	REFUSED(ENOENT, ioctl(g.dev, DMAPLANE_REGISTER_MR, &p));
	REFUSED(EFAULT, ioctl(g.dev, DMAPLANE_REGISTER_MR, NULL));
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
	l.size = MIB + 1;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
	l.size = ~0U;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
	CHECK(ioctl(g.dev, DMAPLANE_DEREGISTER_MR, &id) == 0);
	REFUSED(ENOENT, ioctl(g.dev, DMAPLANE_DEREGISTER_MR, &id));
	l.size = 64;
	REFUSED(ENOENT, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
	/* Without a right to write, nothing is received. */
	l.mr_id = register_mr(g.dev, g.buf, 0, &p);
	CHECK(!p.rkey);
	REFUSED(EACCES, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
}

TEST(mrs_are_at_most_64)
{
	struct rig g = rig_new(4096, RW);
	struct dmaplane_mr_params p;
	uint32_t id = g.mr.mr_id;
	int i;

	for (i = 1; i < 64; i++)
		register_mr(g.dev, g.buf, 1, &p);
	p.access_flags = 1;
	REFUSED(ENOSPC, ioctl(g.dev, DMAPLANE_REGISTER_MR, &p));
	CHECK(ioctl(g.dev, DMAPLANE_DEREGISTER_MR, &id) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_REGISTER_MR, &p) == 0);
}

TEST(loopback_carries_every_byte)
{
	static const uint32_t sizes[] = { 1, 7, 4096, 65536, 1000001 };
	struct rig g = rig_new(2 * MIB, RW);
	unsigned int i;

	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct dmaplane_loopback_params p = { .mr_id = g.mr.mr_id, .size = sizes[i] };

		fill(g.at, MIB, i + 1);
		memset(g.at + MIB, 0, MIB);
		CHECK(ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &p) == 0);
		CHECK(p.status == 0 && p.latency_ns > 0);
		CHECK(!memcmp(g.at, g.at + MIB, sizes[i]));
		CHECK(!g.at[MIB + sizes[i]]);
	}
}

TEST(loopback_over_coherent_and_large_buffers)
{
	struct dmaplane_mr_params mr;
	struct dmaplane_loopback_params p = { .size = 100000 };
	int dev = open_device();

	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
	p.mr_id = register_mr(dev, make_buffer(dev, DMAPLANE_BUF_COHERENT, MIB), 1, &mr);
	CHECK(ioctl(dev, DMAPLANE_LOOPBACK_TEST, &p) == 0);
	p.mr_id = register_mr(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, 64 * MIB + 4096), 1, &mr);
	CHECK(ioctl(dev, DMAPLANE_LOOPBACK_TEST, &p) == 0);
}

/*
 * The region keeps the buffer, in either order; a buffer of which only a region is left is
 * still written.
 */
TEST(mr_keeps_its_buffer)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_loopback_params p = { .mr_id = g.mr.mr_id, .size = 4096 };
	uint32_t id = g.mr.mr_id;

	CHECK(munmap(g.at, MIB) == 0);
	CHECK(destroy(g.dev, g.buf) == 0);
	CHECK(live().buffers == 1);
	CHECK(ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &p) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_DEREGISTER_MR, &id) == 0);
	CHECK(live().buffers == 0);
	g.buf = make_buffer(g.dev, DMAPLANE_BUF_PAGES, MIB);
	register_mr(g.dev, g.buf, RW, &g.mr);
	CHECK(ioctl(g.dev, DMAPLANE_TEARDOWN_RDMA) == 0);
	CHECK(live().mrs == 0);
	CHECK(destroy(g.dev, g.buf) == 0);
}

/* The handle, a mapping, a dma-buf, an importer, a region: in each of the 120 orders. */
enum { HANDLE, MAP, FD, IMPORT, REGION, USERS };

/* With a context, for all orders. */
static int ordered;

static void region_in_order(const int *order)
{
	struct dmaplane_mr_params mr;
	struct dmaplane_loopback_params l = { .size = 4096 };
	uint32_t id = make_buffer(ordered, DMAPLANE_BUF_PAGES, MIB);
	uint64_t *at = map_buffer(ordered, id);
	struct importer_map map;
	int fd = export_buffer(ordered, id), im = import_buffer(fd, 0, &map), i;
	bool gone[USERS] = {};

	l.mr_id = register_mr(ordered, id, RW, &mr);
	at[7] = 0xfeed;
	for (i = 0; i < USERS; i++) {
		bool held = !gone[MAP] || !gone[FD] || !gone[IMPORT];

		CHECK(live().buffers == 1);
		gone[order[i]] = true;
		if (order[i] == MAP)
			munmap(at, MIB);
		else if (order[i] == FD)
			close(fd);
		else if (order[i] == IMPORT)
			close(im);
		else if (order[i] == REGION)
			CHECK(ioctl(ordered, DMAPLANE_DEREGISTER_MR, &l.mr_id) == 0);
		else if (!held)
			EVENTUALLY(destroy(ordered, id) == 0);
		else
			REFUSED(EBUSY, destroy(ordered, id));
		/* Whoever is left reads what was written, and what the region's device copies. */
		if (!gone[REGION])
			CHECK(ioctl(ordered, DMAPLANE_LOOPBACK_TEST, &l) == 0);
		CHECK(gone[MAP] ||
		      (at[7] == 0xfeed && (gone[REGION] || at[MIB / 16 + 7] == 0xfeed)));
		CHECK(gone[IMPORT] || device_reads(im, 56) == 0xfeed);
	}
	/* A handle that was refused to go is still there. */
	destroy(ordered, id);
	EVENTUALLY(live().buffers == 0 && live().dmabufs == 0 && live().mrs == 0);
}

TEST(users_of_a_region_go_in_any_order)
{
	ordered = open_device();
	CHECK(setup_rdma(ordered, RDMA_DEVICE) == 0);
	in_every_order(USERS, region_in_order);
}

TEST(pingpong_and_streaming_measure)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_bench_params p = {
		.mr_id = g.mr.mr_id, .msg_size = 1024, .iterations = 200, .queue_depth = 16
	};
	struct dmaplane_hist_params h = { .reset = 1 };
	uint64_t in_buckets = 0;
	int i;

	CHECK(ioctl(g.dev, DMAPLANE_PINGPONG_BENCH, &p) == 0);
	CHECK(p.total_ns && p.avg_latency_ns && p.p99_latency_ns >= p.avg_latency_ns / 2 &&
	      p.mr_reg_ns);
	CHECK(ioctl(g.dev, DMAPLANE_GET_HISTOGRAM, &h) == 0);
	CHECK(h.count == 400 && h.min_ns <= h.p50_ns && h.p50_ns <= h.p99_ns &&
	      h.p99_ns <= h.p999_ns && h.p999_ns <= h.max_ns);
	CHECK(h.min_ns <= h.avg_ns && h.avg_ns <= h.max_ns);
	for (i = 0; i < DMAPLANE_HIST_BUCKETS; i++)
		in_buckets += h.buckets[i];
	CHECK(in_buckets == 400);
	CHECK(ioctl(g.dev, DMAPLANE_STREAMING_BENCH, &p) == 0);
	CHECK(p.throughput_mbps || p.total_ns > 200 * 1024 * 1000UL);
	CHECK(ioctl(g.dev, DMAPLANE_GET_HISTOGRAM, &h) == 0);
	CHECK(h.count == 200);
	p.queue_depth = 65;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_STREAMING_BENCH, &p));
	p.queue_depth = 0;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_STREAMING_BENCH, &p));
	p.queue_depth = 1;
	p.iterations = 0;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_STREAMING_BENCH, &p));
	p.iterations = ~0U;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_STREAMING_BENCH, &p));
}

TEST(flow_is_bounded_by_the_queues)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_flow_params p = { 65, 60, 1, 0 };

	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &p));
	p = (struct dmaplane_flow_params){ 0, 0, 0, 0 };
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &p));
	p = (struct dmaplane_flow_params){ 4, 5, 1, 0 };
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &p));
	p = (struct dmaplane_flow_params){ 4, 2, 2, 0 };
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &p));
	p = (struct dmaplane_flow_params){ 64, 64, 32, 0 };
	CHECK(ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &p) == 0);
}

TEST(sustained_stream_stalls_but_never_overflows)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_flow_params flow = { 4, 3, 1, 0 };
	struct dmaplane_sustained_params p = {
		.mr_id = g.mr.mr_id, .msg_size = 4096, .queue_depth = 32, .duration_secs = 2
	};
	struct dmaplane_flow_stats before, now;

	CHECK(ioctl(g.dev, DMAPLANE_GET_FLOW_STATS, &before) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_CONFIGURE_FLOW, &flow) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p) == 0);
	CHECK(p.total_ops && p.total_bytes == p.total_ops * 4096);
	CHECK(p.stall_count && !p.cq_overflow_count && !p.status);
	CHECK(p.min_window_mbps <= p.max_window_mbps);
	CHECK(ioctl(g.dev, DMAPLANE_GET_FLOW_STATS, &now) == 0);
	CHECK(now.credit_stalls - before.credit_stalls == p.stall_count);
	CHECK(now.high_watermark_events > before.high_watermark_events);
	CHECK(now.low_watermark_events > before.low_watermark_events);
	CHECK(now.total_sustained_ops - before.total_sustained_ops == p.total_ops);
	p.duration_secs = 0;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p));
}

TEST(sweep_finds_a_depth)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_sweep_params *p = calloc(1, sizeof(*p));
	uint32_t i;

	p->mr_id = g.mr.mr_id;
	p->msg_size = 1024;
	p->iterations = 50;
	p->min_qdepth = 1;
	p->max_qdepth = 16;
	p->step = 5;
	CHECK(ioctl(g.dev, DMAPLANE_QDEPTH_SWEEP, p) == 0);
	CHECK(p->nr_points == 4 && p->saturation_qdepth >= 1 && p->saturation_qdepth <= 16);
	for (i = 0; i < 4; i++)
		CHECK(p->avg_latency_ns[i] && p->p99_latency_ns[i]);
	p->max_qdepth = 65;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_QDEPTH_SWEEP, p));
	p->max_qdepth = 64;
	p->step = 1;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_QDEPTH_SWEEP, p));
	p->step = 0;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_QDEPTH_SWEEP, p));
}

static int post_recv(int dev, uint32_t mr, uint32_t size, uint32_t peer)
{
	struct dmaplane_post_recv_params p = { .mr_id = mr, .size = size, .use_peer_qp = peer };

	return ioctl(dev, DMAPLANE_RDMA_POST_RECV, &p);
}

static int poll_recv(int dev, uint32_t peer, uint32_t timeout_ms,
		     struct dmaplane_poll_recv_params *p)
{
	memset(p, 0, sizeof(*p));
	p->use_peer_qp = peer;
	p->timeout_ms = timeout_ms;
	return ioctl(dev, DMAPLANE_RDMA_POLL_RECV, p);
}

TEST(write_imm_places_and_notifies)
{
	struct rig g = rig_new(4 * MIB, RW);
	struct dmaplane_write_imm_params w = { .local_mr_id = g.mr.mr_id,
					       .length = MIB,
					       .local_offset = 4096,
					       .remote_addr = g.mr.addr + 2 * MIB,
					       .remote_rkey = g.mr.rkey,
					       .imm_data = 7 << 16 | 3 };
	struct dmaplane_poll_recv_params p;

	fill(g.at, 2 * MIB, 9);
	/* Every notice needs a receive. */
	REFUSED(ENOBUFS, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	REFUSED(ETIMEDOUT, poll_recv(g.dev, 0, 1, &p));
	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w) == 0);
	CHECK(w.status == 0 && w.elapsed_ns);
	/* Also one that is not polled yet is used up. */
	REFUSED(ENOBUFS, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	CHECK(poll_recv(g.dev, 0, 60000, &p) == 0);
	CHECK(p.status == 0 && p.imm_data == (7 << 16 | 3) && p.byte_len == MIB && p.wc_flags);
	CHECK(!memcmp(g.at + 4096, g.at + 2 * MIB, MIB));
	REFUSED(ENOBUFS, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
}

TEST(write_imm_is_bounded)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_write_imm_params w = { .local_mr_id = g.mr.mr_id,
					       .length = 4096,
					       .remote_addr = g.mr.addr,
					       .remote_rkey = g.mr.rkey };
	struct dmaplane_mr_params other;
	uint32_t id;

	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	w.local_offset = MIB - 4095;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	w.local_offset = ~0UL;
	REFUSED(EINVAL, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	w.local_offset = 0;
	/* What lies behind the region, a wrong key, a key without the right, a stale key. */
	w.remote_addr = g.mr.addr + MIB - 4095;
	REFUSED(EIO, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	CHECK(w.status);
	w.remote_addr = g.mr.addr;
	w.remote_rkey = g.mr.rkey ^ 0x10000;
	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	REFUSED(EIO, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	register_mr(g.dev, g.buf, DMAPLANE_ACCESS_LOCAL_WRITE | DMAPLANE_ACCESS_REMOTE_READ,
		    &other);
	w.remote_addr = other.addr;
	w.remote_rkey = other.rkey;
	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	REFUSED(EIO, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	id = register_mr(g.dev, g.buf, RW, &other);
	w.remote_addr = other.addr;
	w.remote_rkey = other.rkey;
	CHECK(ioctl(g.dev, DMAPLANE_DEREGISTER_MR, &id) == 0);
	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	REFUSED(EIO, ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	/* And all is well afterwards. */
	w.remote_addr = g.mr.addr;
	w.remote_rkey = g.mr.rkey;
	CHECK(post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	CHECK(ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w) == 0);
}

TEST(receives_are_bounded)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_loopback_params l = { .mr_id = g.mr.mr_id, .size = 64 };
	int i;

	REFUSED(EINVAL, post_recv(g.dev, g.mr.mr_id, MIB + 1, 0));
	REFUSED(ENOENT, post_recv(g.dev, 99, 1, 0));
	REFUSED(ENOTCONN, post_recv(g.dev, g.mr.mr_id, 64, 1));
	for (i = 0; i < 64; i++)
		CHECK(post_recv(g.dev, g.mr.mr_id, 64, 0) == 0);
	REFUSED(ENOSPC, post_recv(g.dev, g.mr.mr_id, 64, 0));
	/* They would take the message. */
	REFUSED(EBUSY, ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l));
}

static void exchange(int socket, int dev, struct dmaplane_mr_params *mr,
		     struct dmaplane_mr_params *theirs)
{
	struct dmaplane_rdma_peer_info mine, peer;

	CHECK(ioctl(dev, DMAPLANE_RDMA_INIT_PEER, &mine) == 0);
	CHECK(mine.qp_num);
	CHECK(write(socket, &mine, sizeof(mine)) == sizeof(mine) &&
	      write(socket, mr, sizeof(*mr)) == sizeof(*mr));
	CHECK(read(socket, &peer, sizeof(peer)) == sizeof(peer) &&
	      read(socket, theirs, sizeof(*theirs)) == sizeof(*theirs));
	CHECK(ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &peer) == 0);
	REFUSED(EISCONN, ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &peer));
}

/*
 * Chunks as of a KV cache, each with a notice, from one process to another; then messages
 * both ways.
 */
TEST(peers_of_two_processes_transfer)
{
	enum { CHUNKS = 32, CHUNK = 65536 };
	struct dmaplane_rdma_remote_xfer_params x = { .size = 1000 };
	struct dmaplane_mr_params theirs;
	struct dmaplane_poll_recv_params p;
	int pair[2], i;
	pid_t child;
	char byte;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	if (!child) {
		struct rig g = rig_new(2 * MIB, RW);

		fill(g.at, 2 * MIB, 4);
		exchange(pair[1], g.dev, &g.mr, &theirs);
		CHECK(read(pair[1], &byte, 1) == 1);
		for (i = 0; i < CHUNKS; i++) {
			struct dmaplane_write_imm_params w = { .local_mr_id = g.mr.mr_id,
							       .length = CHUNK,
							       .local_offset = i * CHUNK,
							       .remote_addr =
								       theirs.addr + i * CHUNK,
							       .remote_rkey = theirs.rkey,
							       .imm_data = i << 16 | i,
							       .use_peer_qp = 1 };

			CHECK(ioctl(g.dev, DMAPLANE_RDMA_WRITE_IMM, &w) == 0);
		}
		x.mr_id = g.mr.mr_id;
		CHECK(ioctl(g.dev, DMAPLANE_RDMA_REMOTE_SEND, &x) == 0);
		/* Until the other has what it is to have. */
		CHECK(read(pair[1], &byte, 1) == 1);
		_exit(0);
	} else {
		struct rig g = rig_new(2 * MIB, RW);
		unsigned char *expected = malloc(2 * MIB);

		fill(expected, 2 * MIB, 4);
		exchange(pair[0], g.dev, &g.mr, &theirs);
		for (i = 0; i < CHUNKS; i++)
			CHECK(post_recv(g.dev, g.mr.mr_id, 0, 1) == 0);
		CHECK(write(pair[0], "x", 1) == 1);
		for (i = 0; i < CHUNKS; i++) {
			CHECK(poll_recv(g.dev, 1, 60000, &p) == 0);
			CHECK(p.imm_data == (uint32_t)(i << 16 | i) && p.byte_len == CHUNK);
		}
		CHECK(!memcmp(g.at, expected, CHUNKS * CHUNK));
		memset(g.at, 0, 2000);
		x.mr_id = g.mr.mr_id;
		CHECK(ioctl(g.dev, DMAPLANE_RDMA_REMOTE_RECV, &x) == 0);
		CHECK(!memcmp(g.at, expected, 1000) && !g.at[1000]);
		CHECK(write(pair[0], "x", 1) == 1);
		CHECK(ioctl(g.dev, DMAPLANE_RDMA_DESTROY_PEER) == 0);
		REFUSED(ENOTCONN, ioctl(g.dev, DMAPLANE_RDMA_DESTROY_PEER));
	}
	reap(child);
}

static uint64_t sends(int dev)
{
	struct dmaplane_rdma_stats s;

	CHECK(ioctl(dev, DMAPLANE_GET_RDMA_STATS, &s) == 0);
	return s.sends_posted;
}

TEST(rdma_bench_can_be_killed)
{
	struct rig g = rig_new(MIB, RW);
	uint64_t before = sends(g.dev);
	pid_t child = fork();
	int status;

	if (!child) {
		struct dmaplane_sustained_params p = { .mr_id = g.mr.mr_id,
						       .msg_size = 4096,
						       .queue_depth = 32,
						       .duration_secs = 3600 };

		ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p);
		_exit(1);
	}
	EVENTUALLY(sends(g.dev) > before);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
}

/* A call that waits for a message which never comes. */
TEST(rdma_poll_can_be_killed)
{
	struct dmaplane_poll_recv_params p;
	struct rig g = rig_new(4096, RW);
	int go[2], status;
	pid_t child;
	char byte;

	CHECK(pipe(go) == 0 && post_recv(g.dev, g.mr.mr_id, 0, 0) == 0);
	child = fork();
	if (!child) {
		CHECK(write(go[1], "x", 1) == 1);
		poll_recv(g.dev, 0, 3600 * 1000, &p);
		_exit(1);
	}
	CHECK(read(go[0], &byte, 1) == 1);
	/* The pair is still there for others meanwhile. */
	REFUSED(ETIMEDOUT, poll_recv(g.dev, 0, 50, &p));
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
}

/* Teardown by one thread ends what another does; here, another process with the same file. */
TEST(teardown_ends_a_running_stream)
{
	struct rig g = rig_new(MIB, RW);
	uint64_t before = sends(g.dev);
	pid_t child = fork();

	if (!child) {
		struct dmaplane_sustained_params p = { .mr_id = g.mr.mr_id,
						       .msg_size = 4096,
						       .queue_depth = 32,
						       .duration_secs = 3600 };

		REFUSED(ENODEV, ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p));
		_exit(0);
	}
	EVENTUALLY(sends(g.dev) > before);
	CHECK(ioctl(g.dev, DMAPLANE_TEARDOWN_RDMA) == 0);
	reap(child);
	CHECK(setup_rdma(g.dev, RDMA_DEVICE) == 0);
}

/* Streams until the device is removed: the init script does that once the file is there. */
int hold(void)
{
	struct rig g = rig_new(MIB, RW);
	struct dmaplane_sustained_params p = {
		.mr_id = g.mr.mr_id, .msg_size = 4096, .queue_depth = 32, .duration_secs = 3600
	};

	CHECK(close(open("/tmp/streaming", O_CREAT | O_RDWR, 0600)) == 0);
	REFUSED(ENODEV, ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p));
	REFUSED(ENOTCONN, ioctl(g.dev, DMAPLANE_SUSTAINED_STREAM, &p));
	REFUSED(ENODEV, setup_rdma(g.dev, RDMA_DEVICE));
	return 0;
}
