// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Realms of /dev/dmaplane-pool: quotas, demands, revocation, adoption. */
#include <pthread.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "test.h"

static int open_realm(uint64_t quota)
{
	struct dmaplane_pool_quota q = { .bytes = quota };
	int realm = open(POOL, O_RDWR | O_CLOEXEC);

	CHECK(realm >= 0);
	CHECK(ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q) == 0);
	return realm;
}

static int try_alloc(int realm, uint64_t size, int node, uint32_t flags,
		     struct dmaplane_pool_alloc *p)
{
	*p = (struct dmaplane_pool_alloc){ .size = size, .node = node, .flags = flags };
	return ioctl(realm, DMAPLANE_POOL_ALLOC, p);
}

static int alloc(int realm, uint64_t size)
{
	struct dmaplane_pool_alloc p;

	CHECK(try_alloc(realm, size, DMAPLANE_POOL_NODE_ANY, 0, &p) == 0);
	return p.fd;
}

static uint64_t *map_fd(int fd, uint64_t size)
{
	uint64_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(at != MAP_FAILED);
	return at;
}

static struct dmaplane_pool_realm realm_of(int realm)
{
	struct dmaplane_pool_realm r;

	CHECK(ioctl(realm, DMAPLANE_POOL_GET_REALM, &r) == 0);
	return r;
}

static struct dmaplane_pool_info info_of(int realm, int fd)
{
	struct dmaplane_pool_info i = { .fd = fd };

	CHECK(ioctl(realm, DMAPLANE_POOL_INFO, &i) == 0);
	return i;
}

/* The importers that are left. */
static int take_back(int realm, int fd)
{
	struct dmaplane_pool_revoke p = { .fd = fd };

	CHECK(ioctl(realm, DMAPLANE_POOL_REVOKE, &p) == 0);
	return p.importers;
}

static int adopt(int realm, int fd)
{
	struct dmaplane_pool_adopt p = { .fd = fd };

	return ioctl(realm, DMAPLANE_POOL_ADOPT, &p);
}

static int import_dynamic(int fd)
{
	struct importer_map map = { .fd = fd, .dynamic = 1 };
	int im = open(IMPORTER, O_RDWR | O_CLOEXEC);

	CHECK(im >= 0);
	CHECK(ioctl(im, IMPORTER_MAP, &map) == 0);
	return im;
}

static sigjmp_buf faulted;

static void on_fault(int signal)
{
	siglongjmp(faulted, signal);
}

/* The signal that reading or writing there ends with, or 0. */
static int touch(uint64_t *at, bool write)
{
	int signal;

	sigaction(SIGBUS, &(struct sigaction){ .sa_handler = on_fault }, NULL);
	signal = sigsetjmp(faulted, 1);
	if (signal)
		return signal;
	if (write)
		__atomic_store_n(at, 1, __ATOMIC_RELAXED);
	else
		__atomic_load_n(at, __ATOMIC_RELAXED);
	return 0;
}

TEST(pool_says_its_version)
{
	struct dmaplane_pool_version v;
	int realm = open_realm(0);

	CHECK(ioctl(realm, DMAPLANE_POOL_GET_VERSION, &v) == 0);
	CHECK(v.version == DMAPLANE_POOL_VERSION && v.buffers_max == DMAPLANE_POOL_BUFFERS_MAX);
	CHECK(v.features == (DMAPLANE_POOL_HAS_REVOKE | DMAPLANE_POOL_HAS_ADOPT));
	CHECK(v.bytes_max == DMAPLANE_POOL_BYTES_MAX && !v.reserved);
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_GET_VERSION, NULL));
}

TEST(pool_device_is_not_the_other_one)
{
	int realm = open_realm(MIB), dev = open_device();
	struct dmaplane_pool_realm r;
	struct dmaplane_buf_params p;

	REFUSED(ENOTTY, ioctl(dev, DMAPLANE_POOL_GET_REALM, &r));
	REFUSED(ENOTTY, try_buffer(realm, DMAPLANE_BUF_PAGES, 4096, -1, &p));
	REFUSED(ENOTTY, ioctl(realm, _IO(DMAPLANE_POOL_MAGIC, 7)));
	/* Another size is another number. */
	REFUSED(ENOTTY, ioctl(realm, _IOR(DMAPLANE_POOL_MAGIC, 2, uint64_t), &r));
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, realm, 0) == MAP_FAILED && errno == ENODEV);
	REFUSED(EACCES, open(POOL, O_RDONLY));
	REFUSED(EACCES, open(POOL, O_WRONLY));
	CHECK(setresuid(1000, 1000, 1000) == 0);
	REFUSED(EACCES, open(POOL, O_RDWR));
}

TEST(pool_arguments_of_alloc_are_checked)
{
	struct dmaplane_pool_alloc p, bad = { .size = 4096, .node = -1 };
	struct dmaplane_pool_quota q = { .reserved = 1 };
	int realm = open_realm(64 * MIB), i;

	REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q));
	q = (struct dmaplane_pool_quota){ .bytes = ~0ULL };
	REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q));
	REFUSED(EINVAL, try_alloc(realm, 0, -1, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, DMAPLANE_POOL_BYTES_MAX + 1, -1, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, ~0ULL, -1, 0, &p));
	REFUSED(EDQUOT, try_alloc(realm, DMAPLANE_POOL_BYTES_MAX, -1, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, 4096, -2, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, 4096, 2, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, 4096, 0x7fffffff, 0, &p));
	REFUSED(EINVAL, try_alloc(realm, 4096, -1, DMAPLANE_POOL_HUGE, &p));
	REFUSED(EINVAL, try_alloc(realm, 4096, -1, DMAPLANE_POOL_STRICT_NODE, &p));
	for (i = 2; i < 32; i++)
		REFUSED(EINVAL, try_alloc(realm, 2 * MIB, 0, 1U << i, &p));
	for (i = 0; i < 2; i++) {
		p = bad;
		p.reserved[i] = 1;
		REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_ALLOC, &p));
	}
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_ALLOC, NULL));
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_SET_QUOTA, NULL));
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_GET_REALM, NULL));
	CHECK(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 0);
}

static void refuses(int err, int realm, int fd)
{
	struct dmaplane_pool_revoke r = { .fd = fd };
	struct dmaplane_pool_info i = { .fd = fd };

	REFUSED(err, ioctl(realm, DMAPLANE_POOL_REVOKE, &r));
	REFUSED(err, ioctl(realm, DMAPLANE_POOL_INFO, &i));
	REFUSED(err, adopt(realm, fd));
}

TEST(pool_takes_only_its_own_dmabufs)
{
	int realm = open_realm(MIB), dev = open_device(), fd = alloc(realm, 4096);
	struct dmaplane_pool_revoke r = { .fd = fd, .flags = 1 };
	struct dmaplane_pool_info i = { .fd = fd, .reserved = { 0, 1 } };
	struct dmaplane_pool_adopt a = { .fd = fd, .reserved = 1 };

	refuses(EBADF, realm, -1);
	refuses(EBADF, realm, 1000);
	refuses(EINVAL, realm, realm);
	refuses(EINVAL, realm, export_buffer(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, 4096)));
	REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_REVOKE, &r));
	REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_INFO, &i));
	REFUSED(EINVAL, ioctl(realm, DMAPLANE_POOL_ADOPT, &a));
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_REVOKE, NULL));
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_INFO, NULL));
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_ADOPT, NULL));
	CHECK(touch(map_fd(fd, 4096), true) == 0);
}

TEST(pool_has_a_quota)
{
	struct dmaplane_pool_quota q = {};
	struct dmaplane_pool_alloc p;
	int realm = open(POOL, O_RDWR), other = open_realm(MIB), fd[4], i;

	/* Nothing until somebody says how much; two realms do not know each other. */
	REFUSED(EDQUOT, try_alloc(realm, 1, -1, 0, &p));
	q.bytes = 4 * 4096;
	CHECK(ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q) == 0);
	for (i = 0; i < 4; i++)
		fd[i] = alloc(realm, 4095);
	REFUSED(EDQUOT, try_alloc(realm, 1, -1, 0, &p));
	alloc(other, MIB);
	CHECK(realm_of(realm).used_bytes == 4 * 4096 && realm_of(realm).buffers == 4);
	close(fd[0]);
	EVENTUALLY(realm_of(realm).used_bytes == 3 * 4096 && realm_of(realm).buffers == 3);
	fd[0] = alloc(realm, 4096);
	q.bytes = 4096;
	CHECK(ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q) == 0);
	close(fd[0]);
	EVENTUALLY(realm_of(realm).buffers == 3);
	REFUSED(EDQUOT, try_alloc(realm, 1, -1, 0, &p));
	CHECK(realm_of(realm).quota_bytes == 4096);
	CHECK(touch(map_fd(fd[1], 4096), true) == 0);
}

TEST(pool_buffers_are_at_most_4096)
{
	struct rlimit limit = { 5000, 5000 };
	int realm = open_realm(64 * MIB), fd, i;
	struct dmaplane_pool_alloc p;

	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (i = 0; i < DMAPLANE_POOL_BUFFERS_MAX; i++)
		fd = alloc(realm, 4096);
	REFUSED(ENOSPC, try_alloc(realm, 4096, -1, 0, &p));
	close(fd);
	EVENTUALLY(realm_of(realm).buffers < DMAPLANE_POOL_BUFFERS_MAX);
	alloc(realm, 4096);
}

TEST(pool_memory_is_as_demanded)
{
	struct dmaplane_pool_alloc p;
	struct dmaplane_pool_info i;
	int realm = open_realm(1024 * MIB), node;

	for (node = 0; node < 2; node++) {
		CHECK(try_alloc(realm, 6 * MIB, node,
				DMAPLANE_POOL_HUGE | DMAPLANE_POOL_STRICT_NODE, &p) == 0);
		CHECK(p.actual_node == node && p.nodes == 1ULL << node && p.block_bytes == 2 * MIB);
		i = info_of(realm, p.fd);
		CHECK(i.node == node && i.actual_node == node && i.nodes == p.nodes &&
		      i.block_bytes == p.block_bytes);
		CHECK(i.size == 6 * MIB && i.state == DMAPLANE_POOL_MINE);
		close(p.fd);
	}
	/*
	 * Node 1 has 512 MiB and not all of them; who demands nothing gets pages of node 0
	 * as well.
	 */
	REFUSED(ENOMEM, try_alloc(realm, 520 * MIB, 1, DMAPLANE_POOL_STRICT_NODE, &p));
	REFUSED(ENOMEM,
		try_alloc(realm, 520 * MIB, 1, DMAPLANE_POOL_STRICT_NODE | DMAPLANE_POOL_HUGE, &p));
	CHECK(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 0);
	CHECK(try_alloc(realm, 520 * MIB, 1, 0, &p) == 0);
	CHECK(p.nodes == 3 && p.actual_node == 0);
}

TEST(pool_memory_is_zeroed_and_shared)
{
	int realm = open_realm(8 * MIB), fd = alloc(realm, 5 * MIB + 1), im, i;
	uint64_t size = 5 * MIB + 4096, *at = map_fd(fd, size), *other = map_fd(fd, size);
	struct importer_map map;

	CHECK(lseek(fd, 0, SEEK_END) == (off_t)size && realm_of(realm).used_bytes == size);
	for (i = 0; i < (int)(size / 8); i += 64)
		CHECK(at[i] == 0);
	at[0] = 11;
	at[size / 8 - 1] = 22;
	CHECK(other[0] == 11 && other[size / 8 - 1] == 22);
	im = import_buffer(fd, 1, &map);
	CHECK(map.bytes == size && device_reads(im, size - 8) == 22);
	device_writes(im, 3 * MIB, 33);
	CHECK(at[3 * MIB / 8] == 33);
	im = import_dynamic(fd);
	CHECK(device_reads(im, 3 * MIB) == 33);
	CHECK(info_of(realm, fd).importers == 2 && info_of(realm, fd).mappings == 2);
	close(fd);
	close(realm);
	CHECK(other[3 * MIB / 8] == 33);
}

/*
 * Pieces of mappings, with ends in the middle of what a fault fills at once, some of it
 * there already.
 */
TEST(pool_mapping_fills_in_pieces)
{
	int realm = open_realm(8 * MIB), fd = alloc(realm, 6 * MIB);
	char *at = (char *)map_fd(fd, 6 * MIB), *part;
	size_t i;

	at[3 * MIB] = 1;
	CHECK(madvise(at + 2 * MIB, MIB, MADV_DONTNEED) == 0);
	at[2 * MIB + 4096] = 2;
	CHECK(munmap(at + MIB, 4096) == 0);
	CHECK(mprotect(at + 5 * MIB, 8192, PROT_READ) == 0);
	for (i = 0; i < 6 * MIB; i += 4096) {
		if (i != MIB && i != 5 * MIB && i != 5 * MIB + 4096)
			at[i + 8] = i >> 12;
	}
	part = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 4 * MIB - 4096);
	CHECK(part != MAP_FAILED);
	CHECK(part[8] == (char)((4 * MIB - 4096) >> 12) && part[4096 + 8] == (char)(4 * MIB >> 12));
	CHECK(at[3 * MIB] == 1 && at[2 * MIB + 4096] == 2);
	CHECK(info_of(realm, fd).mappings == 5);
	/* It cannot grow, and nothing beyond the end or private can be mapped. */
	CHECK(mremap(part, 3 * 4096, 4 * 4096, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 6 * MIB) == MAP_FAILED);
	CHECK(mmap(NULL, 6 * MIB + 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	part = mremap(part, 3 * 4096, 4096, 0);
	CHECK(part != MAP_FAILED && part[8] == (char)((4 * MIB - 4096) >> 12));
}

TEST(pool_revoked_memory_is_gone_for_everybody)
{
	int realm = open_realm(4 * MIB), fd = alloc(realm, 4 * MIB), im = import_dynamic(fd);
	uint64_t *at = map_fd(fd, 4 * MIB), *untouched = map_fd(fd, 4 * MIB);
	struct importer_access a = {};
	struct importer_map map = { .fd = fd };
	struct dmaplane_pool_alloc p;
	pid_t child;
	int i;

	CHECK(touch(at, true) == 0);
	REFUSED(EDQUOT, try_alloc(realm, 4096, -1, 0, &p));
	CHECK(take_back(realm, fd) == 0);
	CHECK(touch(at, false) == SIGBUS && touch(at, true) == SIGBUS &&
	      touch(untouched, false) == SIGBUS);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
	REFUSED(ENODEV, ioctl(im, IMPORTER_READ, &a));
	close(im);
	for (i = 0; i < 2; i++) {
		im = open(IMPORTER, O_RDWR);
		map.dynamic = i;
		REFUSED(ENODEV, ioctl(im, IMPORTER_MAP, &map));
	}
	CHECK(info_of(realm, fd).state ==
	      (DMAPLANE_POOL_REVOKED | DMAPLANE_POOL_FREED | DMAPLANE_POOL_MINE));
	CHECK(info_of(realm, fd).importers == 0);
	CHECK(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 1);
	/* It is there for others at once, and the old mappings do not show it. */
	CHECK(live().buffers == 0);
	i = alloc(realm, 4 * MIB);
	*map_fd(i, 4096) = 5;
	child = fork();
	if (!child) {
		CHECK(touch(at, true) == SIGBUS);
		_exit(0);
	}
	reap(child);
	CHECK(take_back(realm, fd) == 0);
	CHECK(adopt(realm, fd) == -1);
}

TEST(pool_revocation_reaches_other_processes)
{
	int realm = open_realm(MIB), fd = alloc(realm, MIB), go[2], done[2];
	uint64_t *at = map_fd(fd, MIB);
	char byte = 0;
	pid_t child;

	CHECK(pipe(go) == 0 && pipe(done) == 0);
	at[9] = 99;
	child = fork();
	if (!child) {
		CHECK(setresuid(1000, 1000, 1000) == 0);
		CHECK(at[9] == 99 && map_fd(fd, MIB)[9] == 99);
		CHECK(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
		/* A system call sees an error, not a signal. */
		REFUSED(EFAULT, write(done[1], at, 1));
		CHECK(touch(at, false) == SIGBUS);
		_exit(0);
	}
	CHECK(read(done[0], &byte, 1) == 1);
	CHECK(info_of(realm, fd).mappings == 3);
	CHECK(take_back(realm, fd) == 0);
	CHECK(write(go[1], &byte, 1) == 1);
	reap(child);
}

TEST(pool_revoked_memory_waits_for_importers)
{
	int realm = open_realm(2 * MIB), fd = alloc(realm, MIB), im[2], i;
	uint64_t *at = map_fd(fd, MIB);
	struct dmaplane_pool_alloc p;
	struct importer_map map;

	at[3] = 33;
	for (i = 0; i < 2; i++)
		im[i] = import_buffer(fd, 0, &map);
	import_dynamic(fd);
	CHECK(take_back(realm, fd) == 2);
	CHECK(touch(at, false) == SIGBUS);
	CHECK(device_reads(im[0], 24) == 33);
	/* Still in use, so still charged. */
	CHECK(info_of(realm, fd).state == (DMAPLANE_POOL_REVOKED | DMAPLANE_POOL_MINE));
	CHECK(realm_of(realm).used_bytes == MIB);
	REFUSED(EDQUOT, try_alloc(realm, MIB + 4096, -1, 0, &p));
	close(im[0]);
	EVENTUALLY(info_of(realm, fd).importers == 1);
	CHECK(take_back(realm, fd) == 1);
	CHECK(device_reads(im[1], 24) == 33);
	CHECK(ioctl(im[1], IMPORTER_UNMAP) == 0);
	CHECK(realm_of(realm).used_bytes == 0 && live().buffers == 0);
}

/* What a pipe got of a page without a copy stays as it was, whoever has the rest now. */
TEST(pool_pinned_page_outlives_revocation)
{
	int realm = open_realm(MIB), fd = alloc(realm, MIB), p[2];
	char *at = (char *)map_fd(fd, MIB), got[16];
	struct iovec io = { at + 4096, sizeof(got) };

	strcpy(at + 4096, "pinned page");
	CHECK(pipe(p) == 0 && vmsplice(p[1], &io, 1, 0) == sizeof(got));
	CHECK(take_back(realm, fd) == 0 && live().buffers == 0);
	memset(map_fd(alloc(realm, MIB), MIB), 0xff, MIB);
	CHECK(read(p[0], got, sizeof(got)) == sizeof(got) && !strcmp(got, "pinned page"));
}

TEST(pool_is_revoked_by_its_realm_only)
{
	int realm = open_realm(MIB), other = open_realm(MIB), fd = alloc(realm, MIB);
	struct dmaplane_pool_revoke p = { .fd = fd };

	REFUSED(EPERM, ioctl(other, DMAPLANE_POOL_REVOKE, &p));
	CHECK(info_of(other, fd).state == 0 && info_of(realm, fd).state == DMAPLANE_POOL_MINE);
	CHECK(touch(map_fd(fd, MIB), true) == 0);
	close(realm);
	REFUSED(EPERM, ioctl(other, DMAPLANE_POOL_REVOKE, &p));
	CHECK(touch(map_fd(fd, MIB), true) == 0);
}

TEST(pool_memory_of_a_closed_realm_is_adopted)
{
	int realm = open_realm(4 * MIB), fd = alloc(realm, MIB), second = alloc(realm, 2 * MIB),
	    gone = alloc(realm, MIB);
	uint64_t *at = map_fd(fd, MIB);
	int next = open_realm(2 * MIB);

	at[0] = 7;
	REFUSED(EBUSY, adopt(realm, fd));
	REFUSED(EBUSY, adopt(next, fd));
	take_back(realm, gone);
	close(realm);
	REFUSED(ENODEV, adopt(next, gone));
	CHECK(adopt(next, fd) == 0);
	CHECK(at[0] == 7 && info_of(next, fd).state == DMAPLANE_POOL_MINE);
	CHECK(realm_of(next).used_bytes == MIB && realm_of(next).buffers == 1);
	REFUSED(EDQUOT, adopt(next, second));
	REFUSED(EBUSY, adopt(next, fd));
	CHECK(take_back(next, fd) == 0 && touch(at, false) == SIGBUS);
	CHECK(adopt(next, second) == 0 && realm_of(next).used_bytes == 2 * MIB);
	close(second);
	EVENTUALLY(realm_of(next).used_bytes == 0);
}

TEST(pool_memory_of_another_user_is_not_adopted)
{
	int realm = open_realm(MIB), fd = alloc(realm, MIB), next;

	CHECK(chmod(POOL, 0666) == 0);
	CHECK(setresuid(1000, 1000, 0) == 0);
	next = open_realm(MIB);
	CHECK(setresuid(0, 0, 0) == 0);
	CHECK(chmod(POOL, 0600) == 0);
	close(realm);
	REFUSED(EPERM, adopt(next, fd));
	CHECK(touch(map_fd(fd, MIB), true) == 0);
}

/* The realm, a descriptor, a mapping, an importer, a revocation: in each of the 120 orders. */
enum { REALM, FD, MAP, IMPORT, REVOKED, USERS };

static void in_order(const int *order)
{
	int realm = open_realm(MIB), fd = alloc(realm, MIB), im, i;
	bool gone[USERS] = {};
	struct importer_map map;
	uint64_t *at = map_fd(fd, MIB);

	im = import_buffer(fd, 0, &map);
	at[7] = 0xfeed;
	for (i = 0; i < USERS; i++) {
		int what = order[i];

		if (what == REALM)
			close(realm);
		else if (what == FD)
			close(fd);
		else if (what == MAP)
			munmap(at, MIB);
		else if (what == IMPORT)
			close(im);
		else if (!gone[REALM] && !gone[FD])
			CHECK(take_back(realm, fd) == !gone[IMPORT]);
		else
			continue;
		gone[what] = true;
		if (!gone[MAP] && gone[REVOKED])
			CHECK(touch(at + 7, false) == SIGBUS);
		else if (!gone[MAP])
			CHECK(at[7] == 0xfeed);
		/* Whoever may have it keeps it; nobody else does. */
		CHECK(gone[IMPORT] || device_reads(im, 56) == 0xfeed);
		if (gone[REVOKED] && gone[IMPORT])
			EVENTUALLY(live().buffers == 0);
		else if (!gone[IMPORT] || !gone[MAP] || !gone[FD])
			CHECK(live().buffers == 1);
	}
	EVENTUALLY(live().buffers == 0 && live().dmabufs == 0);
}

TEST(pool_users_go_in_any_order)
{
	in_every_order(USERS, in_order);
}

static bool stop;

/* Faults all over a mapping that is taken away, by system calls, which get an error for it. */
static void *fault(void *arg)
{
	char *at = arg;
	int zero = open("/dev/zero", O_RDONLY);
	unsigned int seed = (uintptr_t)pthread_self();

	CHECK(zero >= 0);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		size_t page = rand_r(&seed) % 1024;

		if (rand_r(&seed) % 64 == 0)
			madvise(at, 4 * MIB, MADV_DONTNEED);
		if (read(zero, at + page * 4096, 8) != 8)
			CHECK(errno == EFAULT);
	}
	close(zero);
	return NULL;
}

static void *import_again(void *arg)
{
	struct importer_map map = { .fd = (intptr_t)arg };

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		int im = open(IMPORTER, O_RDWR | O_CLOEXEC);

		map.dynamic = !map.dynamic;
		if (ioctl(im, IMPORTER_MAP, &map) != 0)
			CHECK(errno == ENODEV);
		close(im);
	}
	return NULL;
}

TEST(pool_revocation_races_with_faults_and_imports)
{
	int realm = open_realm(4 * MIB), round, i;

	for (round = 0; round < 30; round++) {
		int fd = alloc(realm, 4 * MIB);
		char *at = (char *)map_fd(fd, 4 * MIB);
		pthread_t t[4];
		struct iovec io = { at, 1 };
		int p[2];

		__atomic_store_n(&stop, false, __ATOMIC_RELAXED);
		for (i = 0; i < 3; i++)
			CHECK(pthread_create(&t[i], NULL, fault, at) == 0);
		CHECK(pthread_create(&t[3], NULL, import_again, (void *)(intptr_t)fd) == 0);
		usleep(round * 300);
		take_back(realm, fd);
		/* Nothing of it is back, whatever was going on. */
		CHECK(pipe(p) == 0);
		for (i = 0; i < 1024; i++) {
			io.iov_base = at + i * 4096;
			REFUSED(EFAULT, writev(p[1], &io, 1));
		}
		__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
		for (i = 0; i < 4; i++)
			CHECK(pthread_join(t[i], NULL) == 0);
		CHECK(live().buffers == 0);
		CHECK(munmap(at, 4 * MIB) == 0);
		close(fd);
		close(p[0]);
		close(p[1]);
		EVENTUALLY(realm_of(realm).buffers == 0);
	}
}

TEST(pool_full_descriptor_table_leaks_nothing)
{
	struct rlimit limit = { 32, 32 };
	int realm = open_realm(MIB), last = -1, fd;
	struct dmaplane_pool_alloc p;

	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while ((fd = dup(0)) >= 0)
		last = fd;
	REFUSED(EMFILE, try_alloc(realm, 4096, -1, 0, &p));
	close(last);
	EVENTUALLY(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 0);
}

TEST(pool_answer_that_cannot_be_written_is_undone)
{
	struct dmaplane_pool_alloc *p =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int realm = open_realm(MIB), next;

	p->size = 4096;
	p->node = -1;
	CHECK(mprotect(p, 4096, PROT_READ) == 0);
	next = dup(0);
	close(next);
	REFUSED(EFAULT, ioctl(realm, DMAPLANE_POOL_ALLOC, p));
	CHECK(dup(0) == next);
	EVENTUALLY(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 0);
}

TEST(pool_counts_against_the_users_limit)
{
	int realm = open_realm(1ULL << 40);
	struct dmaplane_pool_alloc p;

	REFUSED(EDQUOT, try_alloc(realm, 1200 * MIB, -1, 0, &p));
	CHECK(realm_of(realm).used_bytes == 0 && realm_of(realm).buffers == 0);
}

/* Only a mapping of a dma-buf of a realm is left. */
void keep_pool(void)
{
	int realm = open_realm(MIB), fd = alloc(realm, MIB);

	map_fd(fd, MIB);
	close(fd);
	close(realm);
}

/*
 * Random steps of a realm, for kills.c: what is mapped is touched by system calls, which
 * get errors for what is revoked.
 */
void pool_step(unsigned int *seed)
{
	static __thread int realm = -1, fds[4] = { -1, -1, -1, -1 };
	int *fd = &fds[rand_r(seed) % 4], zero, im;
	struct dmaplane_pool_quota q = { .bytes = rand_r(seed) % (8 * MIB) };
	struct dmaplane_pool_revoke r = { .fd = *fd };
	struct dmaplane_pool_info i = { .fd = *fd };
	struct dmaplane_pool_alloc p;
	struct importer_map map = { .fd = *fd, .dynamic = rand_r(seed) % 2 };
	char *at;

	if (realm < 0 || rand_r(seed) % 32 == 0) {
		close(realm);
		realm = open(POOL, O_RDWR);
	}
	switch (rand_r(seed) % 8) {
	case 0:
		ioctl(realm, DMAPLANE_POOL_SET_QUOTA, &q);
		break;
	case 1:
	case 2:
		if (try_alloc(realm, 2 * MIB, rand_r(seed) % 3 - 1, rand_r(seed) % 4, &p) == 0) {
			close(*fd);
			*fd = p.fd;
		}
		break;
	case 3:
		ioctl(realm, DMAPLANE_POOL_REVOKE, &r);
		break;
	case 4:
		ioctl(realm, DMAPLANE_POOL_INFO, &i);
		adopt(realm, *fd);
		break;
	case 5:
		im = open(IMPORTER, O_RDWR);
		ioctl(im, IMPORTER_MAP, &map);
		close(im);
		break;
	default:
		at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
		if (at == MAP_FAILED)
			break;
		zero = open("/dev/zero", O_RDONLY);
		if (read(zero, at + rand_r(seed) % MIB, 8) < 0)
			close(*fd);
		close(zero);
		if (rand_r(seed) % 4)
			munmap(at, MIB);
	}
}
