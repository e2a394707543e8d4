// SPDX-License-Identifier: GPL-2.0 OR MIT
/* GPU calls, on the stand-in for NVIDIA's driver, which init loads. */
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "../nvidia_p2p_stand_in.h"
#include "test.h"

#define STAND_IN	"/dev/nvidia_p2p_stand_in"
#define MODULE		"nvidia_p2p_stand_in"
#define PAGES		(STAND_IN_BYTES / STAND_IN_PAGE)

static int open_stand_in(void)
{
	int fd = open(STAND_IN, O_RDWR);

	CHECK(fd >= 0);
	return fd;
}

static uint32_t pins(int stand_in)
{
	uint32_t n;

	CHECK(ioctl(stand_in, STAND_IN_PINS, &n) == 0);
	return n;
}

static int free_at(int stand_in, uint64_t va)
{
	return ioctl(stand_in, STAND_IN_FREE, &va);
}

static int try_pin(int dev, uint64_t va, uint64_t size, uint32_t *handle)
{
	struct dmaplane_gpu_pin_params p = { .gpu_va = va, .size = size };
	int err = ioctl(dev, DMAPLANE_GPU_PIN, &p);

	if (!err) {
		CHECK(p.num_pages == size / STAND_IN_PAGE && p.bar1_consumed == size);
		*handle = p.handle;
	}
	return err;
}

static uint32_t pin(int dev, uint64_t va, uint64_t size)
{
	uint32_t handle;

	CHECK(try_pin(dev, va, size, &handle) == 0);
	return handle;
}

static int unpin(int dev, uint32_t handle)
{
	struct dmaplane_gpu_unpin_params p = { .handle = handle };

	return ioctl(dev, DMAPLANE_GPU_UNPIN, &p);
}

static int copy(int dev, unsigned long call, uint32_t gpu, uint32_t host, uint64_t offset,
		uint64_t size)
{
	struct dmaplane_gpu_dma_params p = {
		.gpu_handle = gpu, .host_handle = host, .offset = offset, .size = size
	};
	int err = ioctl(dev, call, &p);

	CHECK(err || p.elapsed_ns);
	return err;
}

static int try_gpu_mr(int dev, uint32_t gpu, struct dmaplane_gpu_mr_params *p)
{
	memset(p, 0, sizeof(*p));
	p->gpu_handle = gpu;
	return ioctl(dev, DMAPLANE_GPU_REGISTER_MR, p);
}

static uint32_t gpu_mr(int dev, uint32_t gpu, struct dmaplane_gpu_mr_params *p)
{
	CHECK(try_gpu_mr(dev, gpu, p) == 0);
	CHECK(p->mr_id && p->lkey && p->rkey);
	return p->mr_id;
}

static int deregister(int dev, uint32_t mr)
{
	return ioctl(dev, DMAPLANE_DEREGISTER_MR, &mr);
}

static int gpu_loopback(int dev, uint32_t gpu_mr, uint32_t host_mr, uint32_t size)
{
	struct dmaplane_gpu_loopback_params p = { .gpu_mr_id = gpu_mr,
						  .host_mr_id = host_mr,
						  .size = size };
	int err = ioctl(dev, DMAPLANE_GPU_LOOPBACK, &p);

	CHECK(err || (p.recv_bytes == size && p.latency_ns && !p.status));
	return err;
}

/* For kills.c: something that has to do with GPU memory. */
void gpu_step(int dev, unsigned int *seed)
{
	static __thread struct dmaplane_gpu_mr_params mr;
	static __thread struct dmaplane_mr_params host_mr;
	static __thread uint32_t last, host;
	uint64_t va = STAND_IN_VA + rand_r(seed) % PAGES * STAND_IN_PAGE;
	struct dmaplane_buf_params b;
	int stand_in;

	switch (rand_r(seed) % 10) {
	case 0:
		try_pin(dev, va, STAND_IN_PAGE * (1 + rand_r(seed) % 8), &last);
		break;
	case 1:
		unpin(dev, last - rand_r(seed) % 3);
		break;
	case 2:
		if (try_buffer(dev, DMAPLANE_BUF_PAGES, STAND_IN_PAGE, -1, &b) == 0)
			host = b.buf_id;
		break;
	case 3:
		stand_in = open(STAND_IN, O_RDWR);
		free_at(stand_in, va);
		close(stand_in);
		break;
	case 4:
		try_gpu_mr(dev, last, &mr);
		break;
	case 5:
		deregister(dev, mr.mr_id);
		break;
	case 6:
		host_mr.buf_id = host;
		host_mr.access_flags = RW;
		ioctl(dev, DMAPLANE_REGISTER_MR, &host_mr);
		break;
	case 7:
		gpu_loopback(dev, mr.mr_id, host_mr.mr_id, 1 + rand_r(seed) % 9000);
		break;
	default:
		copy(dev, rand_r(seed) % 2 ? DMAPLANE_GPU_DMA_TO_HOST : DMAPLANE_GPU_DMA_FROM_HOST,
		     last, host, 0, 1 + rand_r(seed) % STAND_IN_PAGE);
	}
}

static void load_stand_in(const char *parameters)
{
	int module = open("/modules/" MODULE ".ko", O_RDONLY);

	CHECK(module >= 0 && syscall(SYS_finit_module, module, parameters, 0) == 0);
	close(module);
}

TEST(gpu_calls_say_that_there_is_none)
{
	struct dmaplane_gpu_mr_params mr;
	struct dmaplane_gpu_stats s;
	uint32_t handle;
	int dev = open_device();

	CHECK(syscall(SYS_delete_module, MODULE, O_NONBLOCK) == 0);
	REFUSED(ENODEV, try_pin(dev, STAND_IN_VA, STAND_IN_PAGE, &handle));
	REFUSED(ENODEV, unpin(dev, 0));
	REFUSED(ENODEV, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, 0, 0, 0, 1));
	REFUSED(ENODEV, copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, 0, 0, 0, 1));
	REFUSED(ENODEV, try_gpu_mr(dev, 0, &mr));
	REFUSED(ENODEV, gpu_loopback(dev, 0, 0, 1));
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &s) == 0 && s.pins_total == s.unpins_total);
	load_stand_in("");
}

/* Soft-RoCE copies by the CPU, which has no address of memory without pages. */
TEST(gpu_memory_without_pages_is_not_registered)
{
	struct dmaplane_gpu_mr_params mr;
	int dev = open_device();
	uint32_t gpu;

	CHECK(syscall(SYS_delete_module, MODULE, O_NONBLOCK) == 0);
	load_stand_in("pages=0");
	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
	gpu = pin(dev, STAND_IN_VA, STAND_IN_PAGE);
	REFUSED(EOPNOTSUPP, try_gpu_mr(dev, gpu, &mr));
	CHECK(unpin(dev, gpu) == 0);
	CHECK(syscall(SYS_delete_module, MODULE, O_NONBLOCK) == 0);
	load_stand_in("");
}

/* From the page before the second half on, which lies in another order behind the BAR. */
TEST(gpu_memory_is_copied_both_ways)
{
	const uint64_t first = PAGES / 2 - 1, bytes = 5 * STAND_IN_PAGE,
		       part = 3 * STAND_IN_PAGE + 777, offset = 4321;
	int dev = open_device(), stand_in = open_stand_in();
	uint32_t from = make_buffer(dev, DMAPLANE_BUF_PAGES, bytes),
		 to = make_buffer(dev, DMAPLANE_BUF_PAGES, bytes);
	uint32_t gpu = pin(dev, STAND_IN_VA + first * STAND_IN_PAGE, bytes);
	uint8_t *behind =
		mmap(NULL, STAND_IN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, stand_in, 0);
	uint8_t *sent = map_buffer(dev, from), *back = map_buffer(dev, to);
	struct dmaplane_gpu_stats before, after;
	uint64_t i;

	CHECK(behind != MAP_FAILED && pins(stand_in) == 1);
	for (i = 0; i < bytes; i++)
		sent[i] = i * 31 + (i >> 12) + 1;
	for (i = 0; i < 5; i++)
		memset(behind + STAND_IN_BEHIND(first + i) * STAND_IN_PAGE, 0, STAND_IN_PAGE);
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &before) == 0);
	CHECK(copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, gpu, from, offset, part) == 0);
	for (i = 0; i < bytes; i++) {
		uint64_t at = STAND_IN_BEHIND(first + i / STAND_IN_PAGE) * STAND_IN_PAGE +
			      i % STAND_IN_PAGE;
		bool inside = i >= offset && i < offset + part;

		if (behind[at] != (inside ? sent[i] : 0))
			FAIL("byte %lu is %u", i, behind[at]);
	}
	CHECK(copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu, to, offset, part) == 0);
	CHECK(!memcmp(back + offset, sent + offset, part) && !back[offset - 1] &&
	      !back[offset + part]);
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &after) == 0);
	CHECK(after.dma_h2g_bytes == before.dma_h2g_bytes + part &&
	      after.dma_g2h_bytes == before.dma_g2h_bytes + part);
	CHECK(unpin(dev, gpu) == 0 && pins(stand_in) == 0);
	REFUSED(ENOENT, unpin(dev, gpu));
}

TEST(gpu_bad_arguments_pin_nothing)
{
	int dev = open_device(), stand_in = open_stand_in(), i;
	uint32_t host = make_buffer(dev, DMAPLANE_BUF_PAGES, 8192), gpu, handle;
	struct dmaplane_gpu_bench_params b = { .host_handle = host, .size = 4096 };

	REFUSED(EINVAL, try_pin(dev, STAND_IN_VA + 1, STAND_IN_PAGE, &handle));
	REFUSED(EINVAL, try_pin(dev, STAND_IN_VA, STAND_IN_PAGE - 1, &handle));
	REFUSED(EINVAL, try_pin(dev, STAND_IN_VA, 0, &handle));
	REFUSED(EINVAL, try_pin(dev, STAND_IN_VA, (1UL << 30) + STAND_IN_PAGE, &handle));
	REFUSED(EINVAL, try_pin(dev, ~(STAND_IN_PAGE - 1), STAND_IN_PAGE, &handle));
	/* The driver's own answer. */
	REFUSED(EINVAL, try_pin(dev, STAND_IN_VA + STAND_IN_BYTES, STAND_IN_PAGE, &handle));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_GPU_PIN, NULL));
	CHECK(pins(stand_in) == 0);
	gpu = pin(dev, STAND_IN_VA, STAND_IN_PAGE);
	REFUSED(ENOENT, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu + 1, host, 0, 1));
	REFUSED(ENOENT, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu, host + 1, 0, 1));
	REFUSED(EINVAL, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu, host, 0, 0));
	REFUSED(EINVAL, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu, host, 8192, 1));
	REFUSED(EINVAL, copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, gpu, host, 1, 8192));
	REFUSED(EINVAL, copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, gpu, host, ~0UL, 2));
	b.gpu_handle = gpu;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_GPU_BENCH, &b));
	b.iterations = 3;
	CHECK(ioctl(dev, DMAPLANE_GPU_BENCH, &b) == 0);
	for (i = 1; i < 64; i++)
		pin(dev, STAND_IN_VA, STAND_IN_PAGE);
	REFUSED(ENOSPC, try_pin(dev, STAND_IN_VA, STAND_IN_PAGE, &handle));
	CHECK(pins(stand_in) == 64);
	/* What is pinned keeps the driver. */
	REFUSED(EAGAIN, syscall(SYS_delete_module, MODULE, O_NONBLOCK));
	close(dev);
	CHECK(pins(stand_in) == 0);
}

TEST(gpu_memory_that_its_program_frees_is_gone)
{
	int dev = open_device(), stand_in = open_stand_in();
	uint32_t host = make_buffer(dev, DMAPLANE_BUF_PAGES, STAND_IN_PAGE);
	uint32_t one = pin(dev, STAND_IN_VA, STAND_IN_PAGE),
		 other = pin(dev, STAND_IN_VA + STAND_IN_PAGE, STAND_IN_PAGE);
	struct dmaplane_gpu_stats before, after;

	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &before) == 0);
	CHECK(free_at(stand_in, STAND_IN_VA + 5) == 0 && pins(stand_in) == 1);
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &after) == 0 &&
	      after.callbacks_fired == before.callbacks_fired + 1);
	REFUSED(EIO, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, one, host, 0, 100));
	CHECK(copy(dev, DMAPLANE_GPU_DMA_TO_HOST, other, host, 0, 100) == 0);
	CHECK(unpin(dev, one) == 0 && unpin(dev, other) == 0 && pins(stand_in) == 0);
}

TEST(gpu_pins_end_with_a_killed_process)
{
	int dev = open_device(), stand_in = open_stand_in(), ready[2];
	char c;
	pid_t child;

	CHECK(pipe(ready) == 0);
	child = fork();
	if (!child) {
		int own = open_device();

		pin(own, STAND_IN_VA, STAND_IN_BYTES);
		CHECK(write(ready[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(ready[0], &c, 1) == 1 && pins(stand_in) == 1);
	kill(child, SIGKILL);
	CHECK(waitpid(child, NULL, 0) == child);
	EVENTUALLY(pins(stand_in) == 0);
	close(dev);
}

/*
 * One process pins, copies and unpins; another frees the memory meanwhile, so each may be
 * what ends a pin.
 */
TEST(gpu_memory_is_freed_while_it_is_used_and_unpinned)
{
	int stand_in = open_stand_in(), i;
	pid_t frees = fork(), uses;

	if (!frees) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			free_at(stand_in, STAND_IN_VA);
	}
	uses = fork();
	if (!uses) {
		int dev = open_device();
		uint32_t host = make_buffer(dev, DMAPLANE_BUF_PAGES, STAND_IN_PAGE), gpu;

		for (i = 0; i < 2000; i++) {
			if (try_pin(dev, STAND_IN_VA, STAND_IN_PAGE, &gpu))
				FAIL("pin %d: errno %d", i, errno);
			if (copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, gpu, host, 0, 5000))
				CHECK(errno == EIO);
			CHECK(unpin(dev, gpu) == 0);
		}
		_exit(0);
	}
	reap(uses);
	kill(frees, SIGKILL);
	CHECK(waitpid(frees, NULL, 0) == frees && pins(stand_in) == 0);
}

/*
 * A context, pinned memory of which a part lies in another order behind the BAR, and a
 * region over each side.
 */
#define FIRST	(PAGES / 2 - 1)
#define NPAGES	5
#define BYTES	(NPAGES * STAND_IN_PAGE)
#define VA	(STAND_IN_VA + FIRST * STAND_IN_PAGE)

struct rig {
	int dev, stand_in;
	uint8_t *behind, *host;
	uint32_t gpu;
	struct dmaplane_mr_params host_mr;
	struct dmaplane_gpu_mr_params mr;
};

static struct rig rig_new(void)
{
	struct rig g = { .dev = open_device(), .stand_in = open_stand_in() };
	uint32_t buf = make_buffer(g.dev, DMAPLANE_BUF_PAGES, BYTES);

	g.behind = mmap(NULL, STAND_IN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, g.stand_in, 0);
	CHECK(g.behind != MAP_FAILED && setup_rdma(g.dev, RDMA_DEVICE) == 0);
	g.host = map_buffer(g.dev, buf);
	register_mr(g.dev, buf, RW, &g.host_mr);
	g.gpu = pin(g.dev, VA, BYTES);
	gpu_mr(g.dev, g.gpu, &g.mr);
	return g;
}

/* A byte of the pin, by its place. */
static uint8_t *behind_at(struct rig *g, uint64_t i)
{
	return g->behind + STAND_IN_BEHIND(FIRST + i / STAND_IN_PAGE) * STAND_IN_PAGE +
	       i % STAND_IN_PAGE;
}

static uint8_t byte_of(uint64_t i, uint8_t round)
{
	return i * 31 + (i >> 12) + round;
}

TEST(gpu_memory_is_sent_by_rdma)
{
	static const uint64_t sizes[] = { 1, 4096, STAND_IN_PAGE + 777, BYTES };
	struct dmaplane_gpu_stats before, after;
	struct rig g = rig_new();
	struct dmaplane_gpu_mr_params other;
	uint64_t i;
	uint8_t n;

	for (n = 0; n < sizeof(sizes) / sizeof(*sizes); n++) {
		for (i = 0; i < BYTES; i++)
			*behind_at(&g, i) = byte_of(i, n + 1);
		memset(g.host, 0, BYTES);
		CHECK(gpu_loopback(g.dev, g.mr.mr_id, g.host_mr.mr_id, sizes[n]) == 0);
		for (i = 0; i < BYTES; i++)
			if (g.host[i] != (i < sizes[n] ? byte_of(i, n + 1) : 0))
				FAIL("byte %lu of %lu is %u", i, sizes[n], g.host[i]);
	}
	CHECK(ioctl(g.dev, DMAPLANE_GET_GPU_STATS, &before) == 0);
	gpu_mr(g.dev, g.gpu, &other);
	CHECK(ioctl(g.dev, DMAPLANE_GET_GPU_STATS, &after) == 0);
	CHECK(after.gpu_mrs_registered == before.gpu_mrs_registered + 1);
	CHECK(gpu_loopback(g.dev, other.mr_id, g.host_mr.mr_id, 100) == 0);
	CHECK(deregister(g.dev, g.mr.mr_id) == 0);
	REFUSED(ENOENT, gpu_loopback(g.dev, g.mr.mr_id, g.host_mr.mr_id, 100));
	CHECK(gpu_loopback(g.dev, other.mr_id, g.host_mr.mr_id, 100) == 0);
}

static int write_gpu(struct rig *g, uint64_t offset, uint32_t length)
{
	struct dmaplane_post_recv_params r = { .mr_id = g->host_mr.mr_id };
	struct dmaplane_write_imm_params w = { .local_mr_id = g->host_mr.mr_id,
					       .length = length,
					       .remote_addr = VA + offset,
					       .remote_rkey = g->mr.rkey };

	CHECK(ioctl(g->dev, DMAPLANE_RDMA_POST_RECV, &r) == 0);
	return ioctl(g->dev, DMAPLANE_RDMA_WRITE_IMM, &w);
}

/* By its own addresses, and never past its end. */
TEST(gpu_memory_is_written_by_rdma)
{
	const uint64_t offset = STAND_IN_PAGE - 5, part = 2 * STAND_IN_PAGE;
	struct rig g = rig_new();
	uint64_t i;

	for (i = 0; i < BYTES; i++) {
		g.host[i] = byte_of(i, 7);
		*behind_at(&g, i) = 0;
	}
	CHECK(write_gpu(&g, offset, part) == 0);
	for (i = 0; i < BYTES; i++)
		if (*behind_at(&g, i) !=
		    (i >= offset && i < offset + part ? byte_of(i - offset, 7) : 0))
			FAIL("byte %lu is %u", i, *behind_at(&g, i));
	REFUSED(EIO, write_gpu(&g, BYTES - 4, 5));
	REFUSED(EIO, write_gpu(&g, -1, 1));
	CHECK(write_gpu(&g, BYTES - 5, 5) == 0);
}

TEST(gpu_regions_are_checked)
{
	struct rig g = rig_new();
	struct dmaplane_gpu_mr_params p, more;
	uint32_t host = g.host_mr.mr_id;
	int none = open_device(), i;

	REFUSED(ENOTCONN, try_gpu_mr(none, g.gpu, &p));
	CHECK(setup_rdma(none, RDMA_DEVICE) == 0);
	/* Another file's. */
	REFUSED(ENOENT, try_gpu_mr(none, g.gpu, &p));
	REFUSED(ENOENT, gpu_loopback(none, g.mr.mr_id, host, 1));
	REFUSED(EFAULT, ioctl(g.dev, DMAPLANE_GPU_REGISTER_MR, NULL));
	REFUSED(EINVAL, gpu_loopback(g.dev, g.mr.mr_id, host, 0));
	REFUSED(EINVAL, gpu_loopback(g.dev, g.mr.mr_id, host, BYTES + 1));
	REFUSED(EINVAL, gpu_loopback(g.dev, host, host, 1));
	REFUSED(EINVAL, gpu_loopback(g.dev, g.mr.mr_id, g.mr.mr_id, 1));
	REFUSED(ENOENT, gpu_loopback(g.dev, g.mr.mr_id, 999, 1));
	for (i = 2; i < 64; i++)
		gpu_mr(g.dev, g.gpu, &p);
	REFUSED(ENOSPC, try_gpu_mr(g.dev, g.gpu, &more));
	CHECK(deregister(g.dev, p.mr_id) == 0);
	gpu_mr(g.dev, g.gpu, &p);
}

/* The pin stays until handle and regions are gone, in whatever order. */
TEST(gpu_regions_keep_the_pin)
{
	struct rig g = rig_new();
	struct dmaplane_gpu_mr_params p;

	CHECK(unpin(g.dev, g.gpu) == 0 && pins(g.stand_in) == 1);
	REFUSED(ENOENT, try_gpu_mr(g.dev, g.gpu, &p));
	CHECK(gpu_loopback(g.dev, g.mr.mr_id, g.host_mr.mr_id, 4096) == 0);
	CHECK(deregister(g.dev, g.mr.mr_id) == 0 && pins(g.stand_in) == 0);
	g.gpu = pin(g.dev, VA, BYTES);
	gpu_mr(g.dev, g.gpu, &p);
	gpu_mr(g.dev, g.gpu, &g.mr);
	CHECK(deregister(g.dev, p.mr_id) == 0 && unpin(g.dev, g.gpu) == 0 && pins(g.stand_in) == 1);
	CHECK(ioctl(g.dev, DMAPLANE_TEARDOWN_RDMA) == 0 && pins(g.stand_in) == 0);
	g.gpu = pin(g.dev, VA, BYTES);
	CHECK(setup_rdma(g.dev, RDMA_DEVICE) == 0);
	gpu_mr(g.dev, g.gpu, &p);
	/* A mapping holds the file. */
	CHECK(munmap(g.host, BYTES) == 0 && close(g.dev) == 0 && pins(g.stand_in) == 0);
}

TEST(gpu_regions_end_when_their_program_frees_the_memory)
{
	struct rig g = rig_new();
	struct dmaplane_gpu_mr_params p;
	struct dmaplane_loopback_params l = { .mr_id = g.host_mr.mr_id, .size = 4096 };
	uint64_t i;

	for (i = 0; i < BYTES; i++) {
		*behind_at(&g, i) = 3;
		g.host[i] = 5;
	}
	CHECK(free_at(g.stand_in, VA) == 0 && pins(g.stand_in) == 0);
	REFUSED(EIO, gpu_loopback(g.dev, g.mr.mr_id, g.host_mr.mr_id, 4096));
	REFUSED(EIO, write_gpu(&g, 0, 4096));
	REFUSED(EIO, try_gpu_mr(g.dev, g.gpu, &p));
	for (i = 0; i < BYTES; i++)
		CHECK(*behind_at(&g, i) == 3 && g.host[i] == 5);
	/* The pair works again, and so does memory that is pinned anew. */
	CHECK(ioctl(g.dev, DMAPLANE_LOOPBACK_TEST, &l) == 0);
	gpu_mr(g.dev, pin(g.dev, VA, BYTES), &p);
	CHECK(gpu_loopback(g.dev, p.mr_id, g.host_mr.mr_id, 4096) == 0);
	CHECK(deregister(g.dev, g.mr.mr_id) == 0 && unpin(g.dev, g.gpu) == 0);
}

/* One process registers, sends and unregisters; another frees the memory meanwhile. */
TEST(gpu_memory_is_freed_while_it_is_registered_and_sent)
{
	int stand_in = open_stand_in(), i;
	pid_t frees = fork(), uses;

	if (!frees) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			free_at(stand_in, STAND_IN_VA);
	}
	uses = fork();
	if (!uses) {
		int dev = open_device();
		struct dmaplane_mr_params host;
		struct dmaplane_gpu_mr_params mr;
		uint32_t gpu;

		CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
		register_mr(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, STAND_IN_PAGE), RW, &host);
		for (i = 0; i < 500; i++) {
			gpu = pin(dev, STAND_IN_VA, STAND_IN_PAGE);
			if (try_gpu_mr(dev, gpu, &mr) == 0) {
				if (gpu_loopback(dev, mr.mr_id, host.mr_id, STAND_IN_PAGE))
					CHECK(errno == EIO);
				CHECK(deregister(dev, mr.mr_id) == 0);
			} else {
				CHECK(errno == EIO);
			}
			CHECK(unpin(dev, gpu) == 0);
		}
		_exit(0);
	}
	reap(uses);
	kill(frees, SIGKILL);
	CHECK(waitpid(frees, NULL, 0) == frees && pins(stand_in) == 0);
}
