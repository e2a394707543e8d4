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

static int copy(int dev, unsigned long call, uint32_t gpu, uint32_t host, uint64_t offset, uint64_t size)
{
	struct dmaplane_gpu_dma_params p = { .gpu_handle = gpu, .host_handle = host, .offset = offset, .size = size };
	int err = ioctl(dev, call, &p);

	CHECK(err || p.elapsed_ns);
	return err;
}

/* For kills.c: something that has to do with GPU memory. */
void gpu_step(int dev, unsigned int *seed)
{
	static __thread uint32_t last, host;
	uint64_t va = STAND_IN_VA + rand_r(seed) % PAGES * STAND_IN_PAGE;
	struct dmaplane_buf_params b;
	int stand_in;

	switch (rand_r(seed) % 6) {
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
	default:
		copy(dev, rand_r(seed) % 2 ? DMAPLANE_GPU_DMA_TO_HOST : DMAPLANE_GPU_DMA_FROM_HOST, last, host, 0,
		     1 + rand_r(seed) % STAND_IN_PAGE);
	}
}

TEST(gpu_calls_say_that_there_is_none)
{
	struct dmaplane_gpu_mr_params mr = {};
	struct dmaplane_gpu_stats s;
	uint32_t handle;
	int dev = open_device(), module;

	CHECK(syscall(SYS_delete_module, MODULE, O_NONBLOCK) == 0);
	REFUSED(ENODEV, try_pin(dev, STAND_IN_VA, STAND_IN_PAGE, &handle));
	REFUSED(ENODEV, unpin(dev, 0));
	REFUSED(ENODEV, copy(dev, DMAPLANE_GPU_DMA_TO_HOST, 0, 0, 0, 1));
	REFUSED(ENODEV, copy(dev, DMAPLANE_GPU_DMA_FROM_HOST, 0, 0, 0, 1));
	REFUSED(ENODEV, ioctl(dev, DMAPLANE_GPU_REGISTER_MR, &mr));
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &s) == 0 && s.pins_total == s.unpins_total);
	module = open("/modules/" MODULE ".ko", O_RDONLY);
	CHECK(module >= 0 && syscall(SYS_finit_module, module, "", 0) == 0);
	/* Kernel verbs cannot register what has no pages of the host. */
	REFUSED(EOPNOTSUPP, ioctl(dev, DMAPLANE_GPU_REGISTER_MR, &mr));
}

/* From the page before the second half on, which lies in another order behind the BAR. */
TEST(gpu_memory_is_copied_both_ways)
{
	const uint64_t first = PAGES / 2 - 1, bytes = 5 * STAND_IN_PAGE, part = 3 * STAND_IN_PAGE + 777, offset = 4321;
	int dev = open_device(), stand_in = open_stand_in();
	uint32_t from = make_buffer(dev, DMAPLANE_BUF_PAGES, bytes), to = make_buffer(dev, DMAPLANE_BUF_PAGES, bytes);
	uint32_t gpu = pin(dev, STAND_IN_VA + first * STAND_IN_PAGE, bytes);
	uint8_t *behind = mmap(NULL, STAND_IN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, stand_in, 0);
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
		uint64_t at = STAND_IN_BEHIND(first + i / STAND_IN_PAGE) * STAND_IN_PAGE + i % STAND_IN_PAGE;
		bool inside = i >= offset && i < offset + part;

		if (behind[at] != (inside ? sent[i] : 0))
			FAIL("byte %lu is %u", i, behind[at]);
	}
	CHECK(copy(dev, DMAPLANE_GPU_DMA_TO_HOST, gpu, to, offset, part) == 0);
	CHECK(!memcmp(back + offset, sent + offset, part) && !back[offset - 1] && !back[offset + part]);
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &after) == 0);
	CHECK(after.dma_h2g_bytes == before.dma_h2g_bytes + part && after.dma_g2h_bytes == before.dma_g2h_bytes + part);
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
	uint32_t one = pin(dev, STAND_IN_VA, STAND_IN_PAGE), other = pin(dev, STAND_IN_VA + STAND_IN_PAGE, STAND_IN_PAGE);
	struct dmaplane_gpu_stats before, after;

	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &before) == 0);
	CHECK(free_at(stand_in, STAND_IN_VA + 5) == 0 && pins(stand_in) == 1);
	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &after) == 0 && after.callbacks_fired == before.callbacks_fired + 1);
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

/* One process pins, copies and unpins; another frees the memory meanwhile, so each may be what ends a pin. */
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
