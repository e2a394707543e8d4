// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Any call of both devices with any argument, for a time. Debian's kernels
 * tell no coverage (kcov), so what counts is how many of the calls succeeded
 * at least once: one that never does was not tested beyond its checks.
 */
#include <pthread.h>
#include <time.h>

#include "test.h"

#define THREADS 3
/* A process, with what it has open, is killed after this: some calls take as long as they are told to. */
#define CHILD_MS 1500

static const unsigned long calls[] = {
	DMAPLANE_CREATE_CHANNEL, DMAPLANE_SUBMIT, DMAPLANE_COMPLETE, DMAPLANE_GET_STATS,
	DMAPLANE_CREATE_BUFFER, DMAPLANE_DESTROY_BUFFER, DMAPLANE_GET_MMAP_INFO, DMAPLANE_GET_BUF_STATS,
	DMAPLANE_EXPORT_DMABUF, DMAPLANE_GET_DMABUF_STATS, DMAPLANE_SETUP_RDMA, DMAPLANE_TEARDOWN_RDMA,
	DMAPLANE_REGISTER_MR, DMAPLANE_DEREGISTER_MR, DMAPLANE_LOOPBACK_TEST, DMAPLANE_PINGPONG_BENCH,
	DMAPLANE_STREAMING_BENCH, DMAPLANE_GET_RDMA_STATS, DMAPLANE_CONFIGURE_FLOW, DMAPLANE_SUSTAINED_STREAM,
	DMAPLANE_QDEPTH_SWEEP, DMAPLANE_GET_FLOW_STATS, DMAPLANE_QUERY_NUMA_TOPO, DMAPLANE_NUMA_BENCH,
	DMAPLANE_GPU_PIN, DMAPLANE_GPU_UNPIN, DMAPLANE_GPU_DMA_TO_HOST, DMAPLANE_GPU_DMA_FROM_HOST,
	DMAPLANE_GPU_BENCH, DMAPLANE_GPU_REGISTER_MR, DMAPLANE_GPU_LOOPBACK, DMAPLANE_GET_GPU_STATS,
	DMAPLANE_GET_HISTOGRAM, DMAPLANE_RDMA_WRITE_IMM, DMAPLANE_RDMA_POST_RECV, DMAPLANE_RDMA_POLL_RECV,
	DMAPLANE_RDMA_INIT_PEER, DMAPLANE_RDMA_CONNECT_PEER, DMAPLANE_RDMA_REMOTE_SEND, DMAPLANE_RDMA_REMOTE_RECV,
	DMAPLANE_RDMA_DESTROY_PEER,
	DMAPLANE_POOL_GET_VERSION, DMAPLANE_POOL_SET_QUOTA, DMAPLANE_POOL_GET_REALM, DMAPLANE_POOL_ALLOC,
	DMAPLANE_POOL_REVOKE, DMAPLANE_POOL_INFO, DMAPLANE_POOL_ADOPT,
};

#define CALLS (sizeof(calls) / sizeof(*calls))

/* Of all processes. */
struct counts {
	long made;
	long succeeded[CALLS];
};

static struct counts *counts;
static int fuzzed;

static uint32_t any_word(unsigned int *seed)
{
	uint32_t r = rand_r(seed);

	switch (r % 8) {
	case 0 ... 3:
		return r >> 16 & 7;
	case 4:
		return 0;
	case 5:
		return r >> 12 & 0xffff;
	case 6:
		return 1U << (r >> 8 & 31);
	default:
		return ~0U - (r >> 20);
	}
}

/* Mostly small numbers, which come further, and zeros after some of them, where fields are reserved. */
static void any_words(unsigned int *seed, uint32_t *words, size_t n)
{
	size_t used = rand_r(seed) % 4 ? (size_t)rand_r(seed) % 8 : n, i;

	for (i = 0; i < n; i++)
		words[i] = i < used ? any_word(seed) : 0;
	if (rand_r(seed) % 4 == 0)
		strcpy((char *)words, RDMA_DEVICE);
}

/* Where an argument may lie: as it should, or in a place that cannot be read, or written, or not to its end. */
static void *any_place(unsigned int *seed, uint32_t *words)
{
	static char *page;
	char *fresh, *none = NULL;

	if (!__atomic_load_n(&page, __ATOMIC_ACQUIRE)) {
		fresh = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mprotect(fresh, 4096, PROT_READ);
		munmap(fresh + 2 * 4096, 4096);
		__atomic_compare_exchange_n(&page, &none, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
	switch (rand_r(seed) % 32) {
	case 0:
		return NULL;
	case 1:
		return page + rand_r(seed) % 4096;
	case 2:
		return page + 2 * 4096 - rand_r(seed) % 64;
	case 3:
		return (void *)(0xffff888000000000UL + rand_r(seed));
	case 4:
		return (void *)(uintptr_t)rand_r(seed);
	case 5:
		return (char *)words + rand_r(seed) % 8;
	default:
		return words;
	}
}

void any_call(int dev, int pool, unsigned int *seed)
{
	uint32_t words[512];
	size_t which = rand_r(seed) % CALLS;
	unsigned long call = calls[which];
	int fd = _IOC_TYPE(call) == DMAPLANE_POOL_MAGIC ? pool : dev;

	/* It needs no argument, and without a pair most others go nowhere. */
	if (call == DMAPLANE_TEARDOWN_RDMA && rand_r(seed) % 32)
		return;
	any_words(seed, words, sizeof(words) / sizeof(*words));
	switch (rand_r(seed) % 32) {
	case 0:
		ioctl(fd, (unsigned int)rand_r(seed) * 2654435761U, words);
		break;
	case 1:
		ioctl(fd, _IOC(_IOC_DIR(call), _IOC_TYPE(call), _IOC_NR(call), rand_r(seed) % 2048), words);
		break;
	case 2:
		ioctl(fd, _IOC(rand_r(seed) % 4, _IOC_TYPE(call), rand_r(seed) % 256, _IOC_SIZE(call)), words);
		break;
	default:
		if (ioctl(fd, call, any_place(seed, words)) == 0 && counts)
			__atomic_add_fetch(&counts->succeeded[which], 1, __ATOMIC_RELAXED);
	}
	if (counts)
		__atomic_add_fetch(&counts->made, 1, __ATOMIC_RELAXED);
}

/* What the calls handed out may be anything: mapped, closed, or given to the other device. */
static void any_use(unsigned int *seed)
{
	int fd = 3 + rand_r(seed) % 12;
	off_t offset = (off_t)(rand_r(seed) % 16) << 12;
	size_t bytes = 4096 * (1 + rand_r(seed) % 600);
	void *at;

	if (rand_r(seed) % 4 == 0 && fd > 4) {
		close(fd);
		return;
	}
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, rand_r(seed) % 8 ? MAP_SHARED : MAP_PRIVATE, fd, offset);
	if (at == MAP_FAILED)
		return;
	/* A system call, which gets an error where the memory was revoked. */
	if (read(fuzzed, at, 64) < 0)
		munmap(at, 4096);
	munmap(at, bytes);
}

static void *worker(void *arg)
{
	unsigned int seed = (uintptr_t)arg;

	/* The first two descriptors after those of every program. */
	for (;;) {
		any_call(3, 4, &seed);
		if (rand_r(&seed) % 4 == 0)
			any_use(&seed);
	}
	return NULL;
}

/* What random calls seldom get together: buffers, a pair with regions, a channel, a quota. */
static void begin_with_something(void)
{
	struct dmaplane_pool_quota q = { .bytes = 16 * MIB };
	struct dmaplane_channel_params c;
	struct dmaplane_buf_params p;
	int i;

	setup_rdma(3, RDMA_DEVICE);
	for (i = 0; i < 6; i++) {
		struct dmaplane_mr_params mr = { .access_flags = RW };

		if (try_buffer(3, DMAPLANE_BUF_PAGES, 4096 << i, -1, &p) == 0) {
			mr.buf_id = p.buf_id;
			ioctl(3, DMAPLANE_REGISTER_MR, &mr);
		}
	}
	ioctl(3, DMAPLANE_CREATE_CHANNEL, &c);
	ioctl(4, DMAPLANE_POOL_SET_QUOTA, &q);
}

static void fuzz_until_killed(unsigned int seed)
{
	pthread_t t;
	int i;

	CHECK(open(DEVICE, O_RDWR) == 3 && open(POOL, O_RDWR) == 4);
	fuzzed = fcntl(open("/dev/zero", O_RDONLY), F_DUPFD, 100);
	if (seed % 4)
		begin_with_something();
	for (i = 1; i < THREADS; i++)
		pthread_create(&t, NULL, worker, (void *)(uintptr_t)(seed + i));
	worker((void *)(uintptr_t)seed);
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns how many processes ended other than by the kill. */
int fuzz(int seconds, unsigned int seed)
{
	long end = now_ms() + seconds * 1000L, succeeded = 0;
	int failed = 0, status;
	size_t i;

	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(counts != MAP_FAILED);
	while (now_ms() < end) {
		unsigned int begin = rand_r(&seed);
		pid_t child;

		child = fork();
		if (!child)
			fuzz_until_killed(begin);
		usleep(CHILD_MS * 1000);
		kill(child, SIGKILL);
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
			printf("# processes of seed %u: one had ended\n", begin);
			failed++;
		}
	}
	for (i = 0; i < CALLS; i++) {
		succeeded += counts->succeeded[i] != 0;
		if (!counts->succeeded[i])
			printf("# never succeeded: %02lx %02lx\n", _IOC_TYPE(calls[i]), _IOC_NR(calls[i]));
	}
	printf("# %ld random calls in %d s; %ld of %zu kinds succeeded at least once\n", counts->made, seconds, succeeded, CALLS);
	return failed;
}
