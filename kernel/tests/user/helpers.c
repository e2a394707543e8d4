// SPDX-License-Identifier: GPL-2.0 OR MIT
#include "test.h"

int open_device(void)
{
	int dev = open(DEVICE, O_RDWR | O_CLOEXEC);

	CHECK(dev >= 0);
	return dev;
}

int try_buffer(int dev, uint32_t type, uint64_t size, int node, struct dmaplane_buf_params *p)
{
	memset(p, 0, sizeof(*p));
	p->alloc_type = type;
	p->size = size;
	p->numa_node = node;
	return ioctl(dev, DMAPLANE_CREATE_BUFFER, p);
}

uint32_t make_buffer(int dev, uint32_t type, uint64_t size)
{
	struct dmaplane_buf_params p;

	CHECK(try_buffer(dev, type, size, DMAPLANE_NODE_ANY, &p) == 0);
	CHECK(p.buf_id);
	return p.buf_id;
}

int destroy(int dev, uint32_t id)
{
	return ioctl(dev, DMAPLANE_DESTROY_BUFFER, &id);
}

void *map_buffer(int dev, uint32_t id)
{
	struct dmaplane_mmap_info info = { .buf_id = id };
	void *at;

	CHECK(ioctl(dev, DMAPLANE_GET_MMAP_INFO, &info) == 0);
	at = mmap(NULL, info.mmap_size, PROT_READ | PROT_WRITE, MAP_SHARED, dev, info.mmap_offset);
	CHECK(at != MAP_FAILED);
	return at;
}

int export_buffer(int dev, uint32_t id)
{
	struct dmaplane_export_dmabuf_arg p = { .buf_id = id };

	CHECK(ioctl(dev, DMAPLANE_EXPORT_DMABUF, &p) == 0);
	CHECK(p.fd >= 0);
	return p.fd;
}

int import_buffer(int dmabuf, uint32_t device, struct importer_map *map)
{
	int im = open(IMPORTER, O_RDWR | O_CLOEXEC);

	CHECK(im >= 0);
	memset(map, 0, sizeof(*map));
	map->fd = dmabuf;
	map->device = device;
	CHECK(ioctl(im, IMPORTER_MAP, map) == 0);
	return im;
}

uint64_t device_reads(int importer, uint64_t offset)
{
	struct importer_access a = { .offset = offset };

	CHECK(ioctl(importer, IMPORTER_READ, &a) == 0);
	return a.value;
}

void device_writes(int importer, uint64_t offset, uint64_t value)
{
	struct importer_access a = { .offset = offset, .value = value };

	CHECK(ioctl(importer, IMPORTER_WRITE, &a) == 0);
}

void reap(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void permute(int *order, int n, int users, void (*run)(const int *order))
{
	int i, t;

	if (n == users) {
		run(order);
		return;
	}
	for (i = n; i < users; i++) {
		t = order[n], order[n] = order[i], order[i] = t;
		permute(order, n + 1, users, run);
		t = order[n], order[n] = order[i], order[i] = t;
	}
}

/* Of the numbers below `users`. */
void in_every_order(int users, void (*run)(const int *order))
{
	int order[8], i;

	CHECK(users <= 8);
	for (i = 0; i < users; i++)
		order[i] = i;
	permute(order, 0, users, run);
}

int setup_rdma(int dev, const char *name)
{
	struct dmaplane_rdma_setup p = {
		.port = 1, .cq_depth = 128, .max_send_wr = 64, .max_recv_wr = 64
	};

	strncpy(p.ib_dev_name, name, sizeof(p.ib_dev_name) - 1);
	return ioctl(dev, DMAPLANE_SETUP_RDMA, &p);
}

uint32_t register_mr(int dev, uint32_t buf, uint32_t access, struct dmaplane_mr_params *p)
{
	memset(p, 0, sizeof(*p));
	p->buf_id = buf;
	p->access_flags = access;
	CHECK(ioctl(dev, DMAPLANE_REGISTER_MR, p) == 0);
	CHECK(p->mr_id && p->lkey && p->addr);
	return p->mr_id;
}

struct live live(void)
{
	struct dmaplane_buf_stats b;
	struct dmaplane_dmabuf_stats d;
	struct dmaplane_rdma_stats r;
	struct dmaplane_gpu_stats g;
	int dev = open_device();

	CHECK(ioctl(dev, DMAPLANE_GET_GPU_STATS, &g) == 0);
	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &b) == 0);
	CHECK(ioctl(dev, DMAPLANE_GET_DMABUF_STATS, &d) == 0);
	CHECK(ioctl(dev, DMAPLANE_GET_RDMA_STATS, &r) == 0);
	close(dev);
	return (struct live){
		.buffers = b.buffers_created - b.buffers_destroyed,
		.dmabufs = d.dmabufs_exported - d.dmabufs_released,
		.mrs = r.mrs_registered - r.mrs_deregistered,
		.pins = g.pins_total - g.unpins_total,
	};
}
