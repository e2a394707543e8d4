// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory counts in the memory cgroup of the process that asks for it; at the cgroup's
 * limit a call fails, and nobody is killed.
 */
#include <sys/mount.h>

#include "test.h"

#define ROOT	"/tmp/cgroup"
#define GROUP	ROOT "/dmaplane"

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static bool has(const char *file, const char *word)
{
	char text[4096] = {};
	int fd = open(file, O_RDONLY);

	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0 && close(fd) == 0);
	return strstr(text, word);
}

/* The kernel counts pages some ahead, so this is never less than what is there. */
static uint64_t in_use(void)
{
	unsigned long bytes;
	FILE *f = fopen(GROUP "/memory.current", "r");

	CHECK(f && fscanf(f, "%lu", &bytes) == 1 && fclose(f) == 0);
	return bytes;
}

static void is_charged(void)
{
	struct dmaplane_pool_alloc p = { .size = 8 * MIB, .node = DMAPLANE_POOL_NODE_ANY };
	struct dmaplane_pool_quota q = { .bytes = 8 * MIB };
	int dev = open_device(), pool = open(POOL, O_RDWR);

	CHECK(in_use() < 4 * MIB);
	make_buffer(dev, DMAPLANE_BUF_PAGES, 8 * MIB);
	CHECK(in_use() >= 8 * MIB);
	make_buffer(dev, DMAPLANE_BUF_COHERENT, 2 * MIB);
	CHECK(in_use() >= 10 * MIB);
	CHECK(ioctl(pool, DMAPLANE_POOL_SET_QUOTA, &q) == 0 &&
	      ioctl(pool, DMAPLANE_POOL_ALLOC, &p) == 0);
	CHECK(in_use() >= 18 * MIB);
	CHECK(close(p.fd) == 0 && close(dev) == 0);
	EVENTUALLY(in_use() < 4 * MIB);
}

static void is_limited(void)
{
	struct dmaplane_buf_params p;
	int dev = open_device(), i;

	put(GROUP "/memory.max", "8388608");
	REFUSED(ENOMEM, try_buffer(dev, DMAPLANE_BUF_PAGES, 16 * MIB, -1, &p));
	REFUSED(ENOMEM, try_buffer(dev, DMAPLANE_BUF_COHERENT, 16 * MIB, -1, &p));
	make_buffer(dev, DMAPLANE_BUF_PAGES, 6 * MIB);
	/* Of a size for which the kernel would rather kill somebody than refuse it, if it may. */
	for (i = 0; i < 64 && try_buffer(dev, DMAPLANE_BUF_COHERENT, 32 << 10, -1, &p) == 0; i++)
		continue;
	CHECK(i < 64 && errno == ENOMEM);
}

TEST(memory_counts_in_the_cgroup)
{
	pid_t child;

	CHECK((mkdir(ROOT, 0700) == 0 || errno == EEXIST) &&
	      mount("none", ROOT, "cgroup2", 0, NULL) == 0);
	CHECK(has(ROOT "/cgroup.controllers", "memory"));
	put(ROOT "/cgroup.subtree_control", "+memory");
	CHECK(mkdir(GROUP, 0700) == 0);
	child = fork();
	if (!child) {
		put(GROUP "/cgroup.procs", "0");
		is_charged();
		is_limited();
		_exit(0);
	}
	reap(child);
	CHECK(has(GROUP "/memory.events", "oom_kill 0\n"));
	EVENTUALLY(rmdir(GROUP) == 0);
	CHECK(umount(ROOT) == 0);
}
