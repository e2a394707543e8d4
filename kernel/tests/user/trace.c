// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * What the module tells of its work: tracepoints that fire with the values of the call,
 * and the files of debugfs.
 */
#include "../nvidia_p2p_stand_in.h"
#include "test.h"

#define TRACING	"/sys/kernel/debug/tracing/"
#define STALLS	TRACING "events/dmaplane/dmaplane_flow_stall/enable"
#define DEBUGFS	"/sys/kernel/debug/dmaplane/"

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_TRUNC);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static char *text_of(const char *file)
{
	static char text[256 << 10];
	size_t n = 0;
	ssize_t got;
	int fd = open(file, O_RDONLY);

	CHECK(fd >= 0);
	while ((got = read(fd, text + n, sizeof(text) - 1 - n)) > 0)
		n += got;
	CHECK(got == 0 && close(fd) == 0);
	text[n] = 0;
	return text;
}

/* What a process did that every tracepoint tells of. */
struct done {
	uint32_t channel, pin;
};

static struct done work(int dev)
{
	struct dmaplane_gpu_pin_params pin = { .gpu_va = STAND_IN_VA, .size = STAND_IN_PAGE };
	struct dmaplane_bench_params bench = { .msg_size = 512,
					       .iterations = 50,
					       .queue_depth = 8 };
	struct dmaplane_flow_params flow = { .max_credits = 1, .high_watermark = 1 };
	struct dmaplane_write_imm_params w = { .length = 77, .imm_data = 5 << 16 | 9 };
	struct dmaplane_submit_params s = { .entry = { .payload = 41 } };
	struct dmaplane_complete_params c;
	struct dmaplane_channel_params ch;
	struct dmaplane_post_recv_params r;
	struct dmaplane_gpu_dma_params dma = { .size = 4096 };
	struct dmaplane_mr_params mr;

	CHECK(ioctl(dev, DMAPLANE_CREATE_CHANNEL, &ch) == 0);
	CHECK(ioctl(dev, DMAPLANE_SUBMIT, &s) == 0 && ioctl(dev, DMAPLANE_COMPLETE, &c) == 0);
	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
	dma.host_handle = make_buffer(dev, DMAPLANE_BUF_PAGES, 123456);
	bench.mr_id = register_mr(dev, dma.host_handle, RW, &mr);
	CHECK(ioctl(dev, DMAPLANE_CONFIGURE_FLOW, &flow) == 0 &&
	      ioctl(dev, DMAPLANE_STREAMING_BENCH, &bench) == 0);
	r = (struct dmaplane_post_recv_params){ .mr_id = mr.mr_id };
	w.local_mr_id = mr.mr_id;
	w.remote_addr = mr.addr;
	w.remote_rkey = mr.rkey;
	CHECK(ioctl(dev, DMAPLANE_RDMA_POST_RECV, &r) == 0 &&
	      ioctl(dev, DMAPLANE_RDMA_WRITE_IMM, &w) == 0);
	CHECK(ioctl(dev, DMAPLANE_GPU_PIN, &pin) == 0);
	dma.gpu_handle = pin.handle;
	CHECK(ioctl(dev, DMAPLANE_GPU_DMA_TO_HOST, &dma) == 0);
	return (struct done){ .channel = ch.channel_id, .pin = pin.handle };
}

static void traced(const char *told, const char *event, const char *values)
{
	char line[128];

	snprintf(line, sizeof(line), "dmaplane_%s: %s", event, values);
	if (!strstr(told, line))
		FAIL("no '%s'", line);
}

TEST(every_tracepoint_fires)
{
	int dev = open_device();
	struct done done;
	char values[64];
	const char *told;

	put(TRACING "trace", "");
	put(TRACING "events/dmaplane/enable", "1");
	/* There may be any number of stalls, which would push out the rest. */
	put(STALLS, "0");
	done = work(dev);
	put(TRACING "events/dmaplane/enable", "0");
	told = text_of(TRACING "trace");
	snprintf(values, sizeof(values), "channel=%u payload=41\n", done.channel);
	traced(told, "ring_submit", values);
	snprintf(values, sizeof(values), "channel=%u payload=42\n", done.channel);
	traced(told, "ring_complete", values);
	traced(told, "buf_alloc", "buf=1 type=1 size=123456 node_asked=-1 ");
	traced(told, "rdma_post", "qp=");
	traced(told, "rdma_completion", "status=0 bytes=512 ");
	traced(told, "rdma_write_imm", "imm=0x00050009 bytes=77 status=0\n");
	snprintf(values, sizeof(values), "handle=%u va=0x%lx ", done.pin,
		 (unsigned long)STAND_IN_VA);
	traced(told, "gpu_pin", values);
	snprintf(values, sizeof(values), "handle=%u to_host=1 bytes=4096 ", done.pin);
	traced(told, "gpu_dma", values);
	put(TRACING "trace", "");
	put(STALLS, "1");
	work(open_device());
	put(STALLS, "0");
	traced(text_of(TRACING "trace"), "flow_stall", "in_flight=1 credits=1\n");
	put(TRACING "trace", "");
}

/* A number in a file of debugfs. */
static uint64_t told(const char *file, const char *name)
{
	char line[64];
	const char *at;

	snprintf(line, sizeof(line), "%s ", name);
	at = strstr(text_of(file), line);
	if (!at)
		FAIL("%s has no '%s'", file, name);
	return strtoull(at + strlen(line), NULL, 10);
}

/* Totals are those of the calls, and go up with the work. */
TEST(debugfs_tells_what_calls_tell)
{
	struct dmaplane_buf_stats buffers;
	struct dmaplane_flow_stats flow;
	struct dmaplane_rdma_stats rdma;
	struct dmaplane_gpu_stats gpu;
	int dev = open_device();
	uint64_t before = told(DEBUGFS "histogram", "count");

	work(dev);
	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &buffers) == 0 &&
	      ioctl(dev, DMAPLANE_GET_FLOW_STATS, &flow) == 0);
	CHECK(ioctl(dev, DMAPLANE_GET_RDMA_STATS, &rdma) == 0 &&
	      ioctl(dev, DMAPLANE_GET_GPU_STATS, &gpu) == 0);
	CHECK(told(DEBUGFS "stats", "buffers_created") == buffers.buffers_created);
	CHECK(told(DEBUGFS "flow", "stalls") == flow.credit_stalls && flow.credit_stalls);
	CHECK(told(DEBUGFS "rdma", "sends") == rdma.sends_posted &&
	      told(DEBUGFS "rdma", "bytes_sent") == rdma.bytes_sent);
	CHECK(told(DEBUGFS "gpu", "gpu_pins") == gpu.pins_total && gpu.pins_total);
	CHECK(told(DEBUGFS "histogram", "count") == before + 51);
}

TEST(debugfs_tells_of_each_buffer)
{
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, 123456);
	char line[64];

	snprintf(line, sizeof(line), "\n%u 0 pages 123456 -1 ", id);
	CHECK(strstr(text_of(DEBUGFS "buffers"), line));
}
