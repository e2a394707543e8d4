// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Buffers, their handles and their mappings. */
#include <pwd.h>
#include <sys/resource.h>

#include "test.h"

TEST(buffer_is_zeroed_and_mapped)
{
	static const uint32_t types[] = { DMAPLANE_BUF_COHERENT, DMAPLANE_BUF_PAGES };
	int dev = open_device(), i;

	for (i = 0; i < 2; i++) {
		uint32_t id = make_buffer(dev, types[i], MIB + 1);
		struct dmaplane_mmap_info info = { .buf_id = id };
		unsigned char *at = map_buffer(dev, id);
		size_t b;

		CHECK(ioctl(dev, DMAPLANE_GET_MMAP_INFO, &info) == 0);
		CHECK(info.mmap_offset == (uint64_t)id << 12);
		CHECK(info.mmap_size == MIB + 4096);
		for (b = 0; b < info.mmap_size; b++)
			CHECK(!at[b]);
		memset(at, 0x5a, info.mmap_size);
		/* A second mapping is of the same memory. */
		CHECK(!memcmp(at, map_buffer(dev, id), info.mmap_size));
	}
}

TEST(buffer_arguments_are_checked)
{
	struct dmaplane_buf_params p;
	int dev = open_device();
	uint32_t id;

	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 0, -1, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, (1UL << 30) + 1, -1, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, ~0UL, -1, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_GPU, 4096, -1, &p));
	REFUSED(EINVAL, try_buffer(dev, 77, 4096, -1, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 4096, -2, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 4096, 7, &p));
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 4096, 100000, &p));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_CREATE_BUFFER, NULL));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_CREATE_BUFFER, 8));
	for (id = 0; id < 3; id++) {
		struct dmaplane_mmap_info info = { .buf_id = id };
		struct dmaplane_export_dmabuf_arg ex = { .buf_id = id };

		REFUSED(ENOENT, destroy(dev, id));
		REFUSED(ENOENT, ioctl(dev, DMAPLANE_GET_MMAP_INFO, &info));
		REFUSED(ENOENT, ioctl(dev, DMAPLANE_EXPORT_DMABUF, &ex));
	}
	REFUSED(ENOTTY, ioctl(dev, _IOWR(0xE4, 0xFF, int), &id));
	REFUSED(ENOTTY, ioctl(dev, _IOR(0xE4, 0x05, struct dmaplane_buf_params), &p));
}

/* The result cannot be written back: the buffer is not left without a handle. */
TEST(buffer_with_readonly_argument_is_not_kept)
{
	struct dmaplane_buf_params *p =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int dev = open_device();

	p->alloc_type = DMAPLANE_BUF_PAGES;
	p->size = 4096;
	p->numa_node = -1;
	CHECK(mprotect(p, 4096, PROT_READ) == 0);
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_CREATE_BUFFER, p));
	CHECK(live().buffers == 0);
}

TEST(buffer_handles_are_the_files_own)
{
	int a = open_device(), b = open_device();
	uint32_t id = make_buffer(a, DMAPLANE_BUF_PAGES, 4096);

	REFUSED(ENOENT, destroy(b, id));
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, b, (off_t)id << 12) == MAP_FAILED &&
	      errno == ENOENT);
	CHECK(destroy(a, id) == 0);
}

TEST(buffer_handle_is_not_used_again_at_once)
{
	int dev = open_device();
	uint32_t first = make_buffer(dev, DMAPLANE_BUF_PAGES, 4096);

	CHECK(destroy(dev, first) == 0);
	REFUSED(ENOENT, destroy(dev, first));
	CHECK(make_buffer(dev, DMAPLANE_BUF_PAGES, 4096) != first);
	REFUSED(ENOENT, destroy(dev, first));
}

TEST(buffers_are_at_most_64)
{
	struct dmaplane_buf_params p;
	uint32_t ids[64];
	int dev = open_device(), i;

	for (i = 0; i < 64; i++)
		ids[i] = make_buffer(dev, i % 2, 4096);
	REFUSED(ENOSPC, try_buffer(dev, DMAPLANE_BUF_PAGES, 4096, -1, &p));
	CHECK(destroy(dev, ids[17]) == 0);
	CHECK(try_buffer(dev, DMAPLANE_BUF_PAGES, 4096, -1, &p) == 0);
	for (i = 0; i < 64; i++)
		CHECK(i == 17 || destroy(dev, ids[i]) == 0);
	CHECK(live().buffers == 1);
}

TEST(buffer_is_not_destroyed_while_mapped)
{
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, 16 * 4096);
	char *at = map_buffer(dev, id);

	REFUSED(EBUSY, destroy(dev, id));
	/* A hole makes two mappings of one. */
	CHECK(munmap(at + 4 * 4096, 4096) == 0);
	REFUSED(EBUSY, destroy(dev, id));
	CHECK(munmap(at, 4 * 4096) == 0);
	REFUSED(EBUSY, destroy(dev, id));
	at[15 * 4096] = 1;
	CHECK(munmap(at + 5 * 4096, 11 * 4096) == 0);
	CHECK(destroy(dev, id) == 0);
}

TEST(buffer_mapped_by_a_child_is_not_destroyed)
{
	int dev = open_device(), to[2], from[2];
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, MIB);
	char *at = map_buffer(dev, id), byte;
	pid_t child;

	CHECK(pipe(to) == 0 && pipe(from) == 0);
	at[5] = 1;
	child = fork();
	if (!child) {
		close(to[1]);
		CHECK(at[5] == 1);
		at[5] = 2;
		CHECK(write(from[1], "x", 1) == 1);
		CHECK(read(to[0], &byte, 1) == 0);
		_exit(0);
	}
	CHECK(read(from[0], &byte, 1) == 1);
	CHECK(at[5] == 2);
	CHECK(munmap(at, MIB) == 0);
	REFUSED(EBUSY, destroy(dev, id));
	close(to[1]);
	reap(child);
	EVENTUALLY(destroy(dev, id) == 0);
}

TEST(mapping_outlives_the_descriptor)
{
	static const uint32_t types[] = { DMAPLANE_BUF_COHERENT, DMAPLANE_BUF_PAGES };
	int i;

	for (i = 0; i < 2; i++) {
		int dev = open_device();
		char *at = map_buffer(dev, make_buffer(dev, types[i], MIB));

		close(dev);
		memset(at, i + 1, MIB);
		CHECK(at[MIB - 1] == i + 1);
		CHECK(live().buffers == 1);
		CHECK(munmap(at, MIB) == 0);
		EVENTUALLY(live().buffers == 0);
	}
}

TEST(mapping_is_bounded_by_the_buffer)
{
	int dev = open_device(), i;
	static const uint32_t types[] = { DMAPLANE_BUF_COHERENT, DMAPLANE_BUF_PAGES };

	for (i = 0; i < 2; i++) {
		uint32_t id = make_buffer(dev, types[i], 3 * 4096);
		off_t at = (off_t)id << 12;
		char *m;

		CHECK(mmap(NULL, 4 * 4096, PROT_READ, MAP_SHARED, dev, at) == MAP_FAILED &&
		      errno == EINVAL);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, dev, at) == MAP_FAILED &&
		      errno == EINVAL);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, dev, at + (1L << 43)) == MAP_FAILED);
		m = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, dev, at);
		CHECK(m != MAP_FAILED);
		CHECK(mremap(m, 2 * 4096, 8 * 4096, MREMAP_MAYMOVE) == MAP_FAILED);
		m = mremap(m, 2 * 4096, 4096, 0);
		CHECK(m != MAP_FAILED);
		m[0] = 1;
		REFUSED(EBUSY, destroy(dev, id));
		CHECK(munmap(m, 4096) == 0);
		CHECK(destroy(dev, id) == 0);
	}
}

TEST(device_wants_reading_and_writing)
{
	REFUSED(EACCES, open(DEVICE, O_RDONLY));
	REFUSED(EACCES, open(DEVICE, O_WRONLY));
}

TEST(big_buffer_holds_what_is_written)
{
	int dev = open_device();
	uint64_t size = 64 * MIB, i;
	uint64_t *at = map_buffer(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, size));

	for (i = 0; i < size / 8; i += 512)
		at[i] = i * 0x9e3779b97f4a7c15;
	for (i = 0; i < size / 8; i += 512)
		CHECK(at[i] == i * 0x9e3779b97f4a7c15);
}

static void set_user_limit(long mib)
{
	FILE *f = fopen("/sys/module/dmaplane/parameters/user_mib_max", "w");

	CHECK(f && fprintf(f, "%ld", mib) > 0 && fclose(f) == 0);
}

/* Also over several files, and until the last mapping is gone. */
TEST(user_has_a_limit_of_memory)
{
	int a = open_device(), b;
	struct dmaplane_buf_params p;
	char *at;

	set_user_limit(8);
	CHECK(chmod(DEVICE, 0666) == 0);
	CHECK(setresuid(1000, 1000, 0) == 0);
	/* The opener is charged: this file is root's. */
	make_buffer(a, DMAPLANE_BUF_PAGES, 6 * MIB);
	b = open_device();
	at = map_buffer(b, make_buffer(b, DMAPLANE_BUF_PAGES, 6 * MIB));
	REFUSED(EDQUOT, try_buffer(b, DMAPLANE_BUF_PAGES, 3 * MIB, -1, &p));
	close(b);
	b = open_device();
	REFUSED(EDQUOT, try_buffer(b, DMAPLANE_BUF_COHERENT, 3 * MIB, -1, &p));
	CHECK(try_buffer(b, DMAPLANE_BUF_PAGES, 2 * MIB, -1, &p) == 0);
	CHECK(munmap(at, 6 * MIB) == 0);
	EVENTUALLY(try_buffer(b, DMAPLANE_BUF_PAGES, 3 * MIB, -1, &p) == 0);
	CHECK(setresuid(0, 0, 0) == 0);
	CHECK(chmod(DEVICE, 0600) == 0);
	set_user_limit(0);
}

TEST(buffer_larger_than_memory_is_refused)
{
	struct dmaplane_buf_params p;
	int dev = open_device(), i, made = 0;

	/*
	 * The checkers of such a kernel take memory while there is none, and then the
	 * kernel kills somebody for them.
	 */
	if (access("/sys/kernel/debug/kmemleak", F_OK) == 0) {
		printf("# left out: the kernel's checkers take memory, too\n");
		return;
	}
	/* Below the limit of a user, beyond what is there: an error, and nobody is killed. */
	set_user_limit(100000);
	for (i = 0; i < 8; i++) {
		if (try_buffer(dev, DMAPLANE_BUF_PAGES, 256 * MIB, -1, &p) == 0)
			made++;
		else
			CHECK(errno == ENOMEM);
	}
	set_user_limit(0);
	CHECK(made < 8);
}
