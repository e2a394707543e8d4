// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Buffers as dma-bufs, and the orders in which their users can go. */
#include <sys/resource.h>
#include <sys/socket.h>

#include "test.h"

TEST(dmabuf_shows_devices_and_processes_the_same_memory)
{
	int dev = open_device();
	uint64_t size = 5 * MIB;
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, size);
	uint64_t *at = map_buffer(dev, id), *other;
	int fd = export_buffer(dev, id), im;
	struct importer_map map;

	CHECK(lseek(fd, 0, SEEK_END) == (off_t)size);
	other = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(other != MAP_FAILED);
	im = import_buffer(fd, 0, &map);
	CHECK(map.bytes == size);
	at[0] = 11;
	at[size / 8 - 1] = 22;
	CHECK(device_reads(im, 0) == 11 && device_reads(im, size - 8) == 22);
	device_writes(im, 3 * MIB, 33);
	CHECK(at[3 * MIB / 8] == 33 && other[3 * MIB / 8] == 33);
}

TEST(dmabuf_mapping_is_bounded)
{
	int dev = open_device();
	int fd = export_buffer(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, 3 * 4096));
	char *tail;

	CHECK(mmap(NULL, 4 * 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 3 * 4096) == MAP_FAILED);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED);
	tail = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 2 * 4096);
	CHECK(tail != MAP_FAILED);
	tail[4095] = 1;
}

TEST(dmabuf_maps_for_each_importer)
{
	struct dmaplane_dmabuf_stats before, now;
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, 4 * MIB);
	int fd = export_buffer(dev, id), im[4], i;
	struct importer_map map;

	CHECK(ioctl(dev, DMAPLANE_GET_DMABUF_STATS, &before) == 0);
	for (i = 0; i < 4; i++)
		im[i] = import_buffer(fd, i % 2, &map);
	device_writes(im[0], 8, 77);
	for (i = 0; i < 4; i++)
		CHECK(device_reads(im[i], 8) == 77);
	CHECK(ioctl(im[1], IMPORTER_UNMAP) == 0);
	CHECK(device_reads(im[2], 8) == 77);
	CHECK(ioctl(dev, DMAPLANE_GET_DMABUF_STATS, &now) == 0);
	CHECK(now.attachments_total - before.attachments_total == 4);
	CHECK(now.maps_total - before.maps_total == 4);
	CHECK(now.unmaps_total - before.unmaps_total == 1);
	CHECK(now.detachments_total - before.detachments_total == 1);
}

TEST(dmabuf_of_coherent_memory_is_refused)
{
	int dev = open_device();
	struct dmaplane_export_dmabuf_arg p = { .buf_id = make_buffer(dev, DMAPLANE_BUF_COHERENT,
								      4096) };

	REFUSED(EINVAL, ioctl(dev, DMAPLANE_EXPORT_DMABUF, &p));
	CHECK(destroy(dev, p.buf_id) == 0);
}

TEST(dmabuf_holds_the_handle)
{
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, 4096);
	int first = export_buffer(dev, id), second = export_buffer(dev, id);

	REFUSED(EBUSY, destroy(dev, id));
	close(first);
	REFUSED(EBUSY, destroy(dev, id));
	close(second);
	EVENTUALLY(destroy(dev, id) == 0);
}

/* The device, its mapping, the dma-buf, its mapping, an importer: in each of the 120 orders. */
enum { DEV, MAP, FD, FDMAP, IMPORT, USERS };

static void in_order(const int *order)
{
	struct importer_map map;
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, MIB);
	uint64_t *at = map_buffer(dev, id), *fdat;
	int fd = export_buffer(dev, id), im = import_buffer(fd, 0, &map);
	bool gone[USERS] = {};
	int i;

	fdat = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(fdat != MAP_FAILED);
	at[7] = 0xfeed;
	for (i = 0; i < USERS; i++) {
		CHECK(live().buffers == 1);
		switch (order[i]) {
		case DEV:
			close(dev);
			break;
		case MAP:
			munmap(at, MIB);
			break;
		case FD:
			close(fd);
			break;
		case FDMAP:
			munmap(fdat, MIB);
			break;
		default:
			close(im);
		}
		gone[order[i]] = true;
		/* Whoever is left reads what was written. */
		CHECK(gone[MAP] || at[7] == 0xfeed);
		CHECK(gone[FDMAP] || fdat[7] == 0xfeed);
		CHECK(gone[IMPORT] || device_reads(im, 56) == 0xfeed);
	}
	EVENTUALLY(live().buffers == 0 && live().dmabufs == 0);
}

TEST(users_of_a_buffer_go_in_any_order)
{
	in_every_order(USERS, in_order);
}

TEST(full_descriptor_table_leaks_nothing)
{
	struct rlimit limit = { 32, 32 };
	struct dmaplane_export_dmabuf_arg p = {};
	int dev = open_device(), last = -1, fd;

	p.buf_id = make_buffer(dev, DMAPLANE_BUF_PAGES, 4096);
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while ((fd = dup(0)) >= 0)
		last = fd;
	REFUSED(EMFILE, ioctl(dev, DMAPLANE_EXPORT_DMABUF, &p));
	close(last);
	CHECK(live().dmabufs == 0);
	CHECK(destroy(dev, p.buf_id) == 0);
}

TEST(dmabuf_with_readonly_argument_is_not_kept)
{
	struct dmaplane_export_dmabuf_arg *p =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int dev = open_device(), next;

	p->buf_id = make_buffer(dev, DMAPLANE_BUF_PAGES, 4096);
	CHECK(mprotect(p, 4096, PROT_READ) == 0);
	next = dup(0);
	close(next);
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_EXPORT_DMABUF, p));
	/* The descriptor is free again. */
	CHECK(dup(0) == next);
	EVENTUALLY(live().dmabufs == 0);
	CHECK(destroy(dev, p->buf_id) == 0);
}

static void send_fd(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(fd))] = {};
	struct iovec io = { &byte, 1 };
	struct msghdr m = { .msg_iov = &io,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &m, 0) == 1);
}

static int receive_fd(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))] = {};
	struct iovec io = { &byte, 1 };
	struct msghdr m = { .msg_iov = &io,
			    .msg_iovlen = 1,
			    .msg_control = control,
			    .msg_controllen = sizeof(control) };
	int fd;

	CHECK(recvmsg(socket, &m, 0) == 1 && CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

/* One process makes it and is killed; another, of another user, goes on with the dma-buf. */
TEST(dmabuf_outlives_its_maker)
{
	int pair[2], fd, status;
	uint64_t *at;
	pid_t maker;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	maker = fork();
	if (!maker) {
		int dev = open_device();
		uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, MIB);

		*(uint64_t *)map_buffer(dev, id) = 123;
		send_fd(pair[1], export_buffer(dev, id));
		pause();
	}
	fd = receive_fd(pair[0]);
	CHECK(kill(maker, SIGKILL) == 0 && waitpid(maker, &status, 0) == maker);
	CHECK(setresuid(1000, 1000, 1000) == 0);
	at = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	CHECK(at[0] == 123);
	at[1] = 5;
}

/*
 * Holds a dma-buf or a mapping, and nothing else of the module: the init script looks
 * whether that keeps it loaded.
 */
int keep(const char *what)
{
	int dev = open_device();
	uint32_t id = make_buffer(dev, DMAPLANE_BUF_PAGES, 4096);

	if (!strcmp(what, "dmabuf"))
		export_buffer(dev, id);
	else if (!strcmp(what, "pool"))
		keep_pool();
	else
		map_buffer(dev, id);
	CHECK(close(dev) == 0);
	CHECK(close(open("/tmp/kept", O_CREAT | O_RDWR, 0600)) == 0);
	for (;;)
		pause();
}
