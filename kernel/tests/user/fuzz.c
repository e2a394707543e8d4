// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Any call of both devices with any argument, for a time. How many of the
 * calls succeeded at least once is counted: one that never does was not
 * tested beyond its checks. On a kernel that tells coverage (kcov; Debian's
 * do not), arguments that reach new points of the module are kept and
 * varied, and the functions that no call reached are named.
 */
#include <linux/kcov.h>
#include <pthread.h>
#include <time.h>

#include "../nvidia_p2p_stand_in.h"
#include "test.h"

#define THREADS 3
/*
 * A process, with what it has open, is killed after this: some calls take as long as they
 * are told to.
 */
#define CHILD_MS 1500

static const unsigned long calls[] = {
	DMAPLANE_CREATE_CHANNEL, DMAPLANE_SUBMIT, DMAPLANE_COMPLETE, DMAPLANE_GET_STATS,
	DMAPLANE_CREATE_BUFFER, DMAPLANE_DESTROY_BUFFER, DMAPLANE_GET_MMAP_INFO,
	DMAPLANE_GET_BUF_STATS, DMAPLANE_EXPORT_DMABUF, DMAPLANE_GET_DMABUF_STATS,
	DMAPLANE_SETUP_RDMA, DMAPLANE_TEARDOWN_RDMA, DMAPLANE_REGISTER_MR, DMAPLANE_DEREGISTER_MR,
	DMAPLANE_LOOPBACK_TEST, DMAPLANE_PINGPONG_BENCH, DMAPLANE_STREAMING_BENCH,
	DMAPLANE_GET_RDMA_STATS, DMAPLANE_CONFIGURE_FLOW, DMAPLANE_SUSTAINED_STREAM,
	DMAPLANE_QDEPTH_SWEEP, DMAPLANE_GET_FLOW_STATS, DMAPLANE_QUERY_NUMA_TOPO,
	DMAPLANE_NUMA_BENCH, DMAPLANE_GPU_PIN, DMAPLANE_GPU_UNPIN, DMAPLANE_GPU_DMA_TO_HOST,
	DMAPLANE_GPU_DMA_FROM_HOST, DMAPLANE_GPU_BENCH, DMAPLANE_GPU_REGISTER_MR,
	DMAPLANE_GPU_LOOPBACK, DMAPLANE_GET_GPU_STATS, DMAPLANE_GET_HISTOGRAM,
	DMAPLANE_RDMA_WRITE_IMM, DMAPLANE_RDMA_POST_RECV, DMAPLANE_RDMA_POLL_RECV,
	DMAPLANE_RDMA_INIT_PEER, DMAPLANE_RDMA_CONNECT_PEER, DMAPLANE_RDMA_REMOTE_SEND,
	DMAPLANE_RDMA_REMOTE_RECV, DMAPLANE_RDMA_DESTROY_PEER,
	DMAPLANE_POOL_GET_VERSION, DMAPLANE_POOL_SET_QUOTA, DMAPLANE_POOL_GET_REALM,
	DMAPLANE_POOL_ALLOC, DMAPLANE_POOL_REVOKE, DMAPLANE_POOL_INFO, DMAPLANE_POOL_ADOPT,
};

#define CALLS (sizeof(calls) / sizeof(*calls))

#define KCOV		"/sys/kernel/debug/kcov"
#define COVER_WORDS	(32 << 10)
/* Twice as many as the module has points, or more. */
#define POINTS		(1 << 15)
#define KEPT_MAX	4096
#define KEPT_WORDS	32

/* Arguments that reached something new. */
struct kept {
	uint32_t which;
	uint32_t words[KEPT_WORDS];
};

/* Of all processes. */
struct counts {
	long made;
	long succeeded[CALLS];
	/* Addresses in the module that calls went through: a set, by open addressing. */
	uint64_t points[POINTS];
	long npoints;
	struct kept kept[KEPT_MAX];
	long nkept;
};

static struct counts *counts;
static int fuzzed;
/*
 * This thread's coverage of the call in progress: how many addresses, and they. Without
 * kcov none.
 */
static __thread uint64_t *cover;

static void cover_begin(void)
{
	void *at;
	int fd = open(KCOV, O_RDWR), high;

	if (fd < 0)
		return;
	/* Where random calls do not find it. */
	high = fcntl(fd, F_DUPFD, 100);
	close(fd);
	CHECK(ioctl(high, KCOV_INIT_TRACE, COVER_WORDS) == 0);
	at = mmap(NULL, COVER_WORDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, high, 0);
	CHECK(at != MAP_FAILED);
	CHECK(ioctl(high, KCOV_ENABLE, KCOV_TRACE_PC) == 0);
	cover = at;
}

/* Whether nobody was there before. */
static bool is_new_point(uint64_t pc)
{
	size_t i = pc * 0x9e3779b97f4a7c15u >> 49;
	uint64_t seen;

	for (;; i = (i + 1) % POINTS) {
		seen = 0;
		if (__atomic_compare_exchange_n(&counts->points[i], &seen, pc, false,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			__atomic_add_fetch(&counts->npoints, 1, __ATOMIC_RELAXED);
			return true;
		}
		if (seen == pc)
			return false;
	}
}

/* Whether this thread went where nobody was before, since it was last asked. */
static bool found_new_points(void)
{
	uint64_t i, n = __atomic_load_n(&cover[0], __ATOMIC_RELAXED);
	bool is_new = false;

	for (i = 0; i < n; i++)
		is_new |= is_new_point(cover[i + 1]);
	__atomic_store_n(&cover[0], 0, __ATOMIC_RELAXED);
	return is_new;
}

static void keep_what_is_new(size_t which, const uint32_t *words)
{
	long at;

	if (!found_new_points())
		return;
	at = __atomic_fetch_add(&counts->nkept, 1, __ATOMIC_RELAXED) % KEPT_MAX;
	counts->kept[at].which = which;
	memcpy(counts->kept[at].words, words, sizeof(counts->kept[at].words));
}

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

/*
 * Mostly small numbers, which come further, and zeros after some of them, where fields are
 * reserved.
 */
static void any_words(unsigned int *seed, uint32_t *words, size_t n)
{
	size_t used = rand_r(seed) % 4 ? (size_t)rand_r(seed) % 8 : n, i;

	for (i = 0; i < n; i++)
		words[i] = i < used ? any_word(seed) : 0;
	if (rand_r(seed) % 4 == 0)
		strcpy((char *)words, RDMA_DEVICE);
}

/*
 * Where an argument may lie: as it should, or in a place that cannot be read, or written,
 * or not to its end.
 */
static void *any_place(unsigned int *seed, uint32_t *words)
{
	static char *page;
	char *fresh, *none = NULL;

	if (!__atomic_load_n(&page, __ATOMIC_ACQUIRE)) {
		fresh = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			     -1, 0);
		mprotect(fresh, 4096, PROT_READ);
		munmap(fresh + 2 * 4096, 4096);
		__atomic_compare_exchange_n(&page, &none, fresh, false, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE);
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

/*
 * Something that was kept, mostly with one word changed. Others may be writing it, which
 * makes it no worse.
 */
static size_t kept_words(unsigned int *seed, uint32_t *words, size_t n)
{
	long nkept = __atomic_load_n(&counts->nkept, __ATOMIC_RELAXED);
	const struct kept *k = &counts->kept[rand_r(seed) % (nkept < KEPT_MAX ? nkept : KEPT_MAX)];

	memset(words, 0, n * sizeof(*words));
	memcpy(words, k->words, sizeof(k->words));
	if (rand_r(seed) % 4)
		words[rand_r(seed) % KEPT_WORDS] = any_word(seed);
	return k->which % CALLS;
}

void any_call(int dev, int pool, unsigned int *seed)
{
	uint32_t words[512], before[KEPT_WORDS];
	size_t which = rand_r(seed) % CALLS;
	bool kept = cover && __atomic_load_n(&counts->nkept, __ATOMIC_RELAXED) && rand_r(seed) % 2;
	unsigned long call;
	int fd;

	if (kept)
		which = kept_words(seed, words, sizeof(words) / sizeof(*words));
	else
		any_words(seed, words, sizeof(words) / sizeof(*words));
	memcpy(before, words, sizeof(before));
	call = calls[which];
	fd = _IOC_TYPE(call) == DMAPLANE_POOL_MAGIC ? pool : dev;

	/* It needs no argument, and without a pair most others go nowhere. */
	if (call == DMAPLANE_TEARDOWN_RDMA && rand_r(seed) % 32)
		return;
	switch (rand_r(seed) % 32) {
	case 0:
		ioctl(fd, (unsigned int)rand_r(seed) * 2654435761U, words);
		break;
	case 1:
		ioctl(fd, _IOC(_IOC_DIR(call), _IOC_TYPE(call), _IOC_NR(call), rand_r(seed) % 2048),
		      words);
		break;
	case 2:
		ioctl(fd,
		      _IOC(rand_r(seed) % 4, _IOC_TYPE(call), rand_r(seed) % 256, _IOC_SIZE(call)),
		      words);
		break;
	default:
		if (ioctl(fd, call, any_place(seed, words)) == 0 && counts)
			__atomic_add_fetch(&counts->succeeded[which], 1, __ATOMIC_RELAXED);
	}
	if (cover)
		keep_what_is_new(which, before);
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
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, rand_r(seed) % 8 ? MAP_SHARED : MAP_PRIVATE,
		  fd, offset);
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

	cover_begin();
	/* The first two descriptors after those of every program. */
	for (;;) {
		any_call(3, 4, &seed);
		if (rand_r(&seed) % 4 == 0) {
			any_use(&seed);
			if (cover)
				found_new_points();
		}
	}
	return NULL;
}

/* What random calls seldom get together: buffers, a pair with regions, a channel, a quota. */
static void begin_with_something(void)
{
	struct dmaplane_gpu_mr_params gpu_mr = {};
	struct dmaplane_gpu_pin_params g = { .gpu_va = STAND_IN_VA, .size = STAND_IN_PAGE };
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
	if (ioctl(3, DMAPLANE_GPU_PIN, &g) == 0) {
		gpu_mr.gpu_handle = g.handle;
		ioctl(3, DMAPLANE_GPU_REGISTER_MR, &gpu_mr);
	}
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

static bool is_covered(uint64_t from, uint64_t to)
{
	size_t i;

	for (i = 0; i < POINTS; i++)
		if (counts->points[i] >= from && counts->points[i] < to)
			return true;
	return false;
}

static int by_address(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/*
 * Names the module's functions that no call reached. What runs when it is loaded, in
 * workers or by KUnit is among them.
 */
static void tell_coverage(void)
{
	static struct { uint64_t at; char name[56]; } of[4096];
	FILE *symbols = fopen("/proc/kallsyms", "r");
	size_t n = 0, i, reached = 0, all = 0;
	char line[256], kind;

	if (!counts->npoints || !symbols)
		return;
	while (n < 4096 && fgets(line, sizeof(line), symbols))
		n += strstr(line, "[dmaplane]") && strncmp(line, "0000000000000000", 16) &&
		     sscanf(line, "%lx %c %55s", &of[n].at, &kind, of[n].name) == 3 &&
		     strchr("tT", kind);
	fclose(symbols);
	qsort(of, n, sizeof(*of), by_address);
	for (i = 0; i < n; i++) {
		uint64_t end = i + 1 < n ? of[i + 1].at : of[i].at + 4096;

		/* What macros and the compiler made is not counted. */
		if (!strncmp(of[i].name, "kunit_", 6) || !strncmp(of[i].name, "trace_", 6) ||
		    !strncmp(of[i].name, "perf_trace_", 11) || of[i].name[0] == '_' ||
		    strchr(of[i].name, '.'))
			continue;
		all++;
		if (is_covered(of[i].at, end))
			reached++;
		else
			printf("# never reached: %s\n", of[i].name);
	}
	printf("# coverage: %ld points, %zu of %zu functions; %ld arguments kept\n",
	       counts->npoints, reached, all, counts->nkept);
}

/* Returns how many processes ended other than by the kill. */
int fuzz(int seconds, unsigned int seed)
{
	long end = now_ms() + seconds * 1000L, succeeded = 0;
	int failed = 0, status;
	size_t i;

	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(counts != MAP_FAILED);
	while (now_ms() < end) {
		unsigned int begin = rand_r(&seed);
		pid_t child;

		child = fork();
		if (!child)
			fuzz_until_killed(begin);
		usleep(CHILD_MS * 1000);
		kill(child, SIGKILL);
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status) ||
		    WTERMSIG(status) != SIGKILL) {
			printf("# processes of seed %u: one had ended\n", begin);
			failed++;
		}
	}
	for (i = 0; i < CALLS; i++) {
		succeeded += counts->succeeded[i] != 0;
		if (!counts->succeeded[i])
			printf("# never succeeded: %02lx %02lx\n", _IOC_TYPE(calls[i]),
			       _IOC_NR(calls[i]));
	}
	tell_coverage();
	printf("# %ld random calls in %d s; %ld of %zu kinds succeeded at least once\n",
	       counts->made, seconds, succeeded, CALLS);
	return failed;
}
