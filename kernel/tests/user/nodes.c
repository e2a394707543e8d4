// SPDX-License-Identifier: GPL-2.0 OR MIT
/* NUMA: what there is, where buffers are. The machine has two nodes. */
#include <sched.h>

#include "test.h"

TEST(numa_topology_is_the_machines)
{
	struct dmaplane_numa_topo t;
	int dev = open_device();

	CHECK(ioctl(dev, DMAPLANE_QUERY_NUMA_TOPO, &t) == 0);
	CHECK(t.nr_nodes == 2 && t.nr_cpus == 4);
	CHECK(t.node_online[0] && t.node_online[1] && !t.node_online[2]);
	CHECK(t.node_cpu_count[0] == 2 && t.node_cpu_count[1] == 2);
	CHECK(t.node_mem_total_kb[0] > 100000 && t.node_mem_total_kb[1] > 100000);
	CHECK(t.node_mem_free_kb[1] > 0 && t.node_mem_free_kb[1] <= t.node_mem_total_kb[1]);
	CHECK(t.distances[0][0] == 10 && t.distances[1][1] == 10);
	CHECK(t.distances[0][1] == 21 && t.distances[1][0] == 21);
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_QUERY_NUMA_TOPO, NULL));
}

TEST(numa_node_is_as_asked)
{
	struct dmaplane_buf_stats before, now;
	struct dmaplane_buf_params p;
	int dev = open_device(), node, type;

	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &before) == 0);
	for (node = 0; node < 2; node++) {
		for (type = 0; type < 2; type++) {
			CHECK(try_buffer(dev, type, 2 * MIB, node, &p) == 0);
			CHECK(p.numa_node == node && p.actual_numa_node == node);
		}
	}
	CHECK(try_buffer(dev, DMAPLANE_BUF_PAGES, 2 * MIB, -1, &p) == 0);
	CHECK(p.numa_node == -1 && p.actual_numa_node >= 0 && p.actual_numa_node < 2);
	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &now) == 0);
	CHECK(now.numa_local_allocs - before.numa_local_allocs == 4);
	CHECK(now.numa_anon_allocs - before.numa_anon_allocs == 1);
	CHECK(now.numa_remote_allocs == before.numa_remote_allocs);
}

/* A node that has not enough: what came is reported, not what was asked. */
TEST(numa_fallback_is_reported)
{
	struct dmaplane_buf_stats before, now;
	struct dmaplane_buf_params p;
	struct dmaplane_numa_topo t;
	int dev = open_device();
	bool fell_back = false;
	uint64_t size;

	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &before) == 0);
	while (!fell_back) {
		CHECK(ioctl(dev, DMAPLANE_QUERY_NUMA_TOPO, &t) == 0);
		size = 64 * MIB;
		CHECK(t.node_mem_free_kb[0] > 3 * 64 * 1024);
		CHECK(try_buffer(dev, DMAPLANE_BUF_PAGES, size, 1, &p) == 0);
		fell_back = p.actual_numa_node != 1;
	}
	CHECK(p.numa_node == 1 && p.actual_numa_node == 0);
	CHECK(ioctl(dev, DMAPLANE_GET_BUF_STATS, &now) == 0);
	CHECK(now.numa_remote_allocs - before.numa_remote_allocs == 1);
}

TEST(numa_bench_fills_every_cell)
{
	struct dmaplane_numa_bench_params *p = calloc(1, sizeof(*p));
	int dev = open_device(), i, j;

	REFUSED(EINVAL, ioctl(dev, DMAPLANE_NUMA_BENCH, p));
	p->buffer_size = MIB;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_NUMA_BENCH, p));
	p->iterations = ~0U;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_NUMA_BENCH, p));
	p->iterations = 4;
	CHECK(ioctl(dev, DMAPLANE_NUMA_BENCH, p) == 0);
	CHECK(p->nr_nodes == 2 && p->status == 0);
	for (i = 0; i < 8; i++)
		for (j = 0; j < 8; j++)
			CHECK(i < 2 && j < 2 ? p->bw_mbps[i][j] && p->lat_ns[i][j]
					     : !p->bw_mbps[i][j] && !p->lat_ns[i][j]);
	CHECK(live().buffers == 0);
}

static int bench(int dev)
{
	struct dmaplane_numa_bench_params p = { .buffer_size = MIB, .iterations = 1 };

	return ioctl(dev, DMAPLANE_NUMA_BENCH, &p);
}

/* A program that keeps to some CPUs is not given others by way of the kernel. */
TEST(numa_bench_needs_a_right_to_other_cpus)
{
	int dev = open_device();
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0 && bench(dev) == 0);
	CHECK(setresuid(1000, 1000, 1000) == 0);
	REFUSED(EPERM, bench(dev));
	CPU_SET(1, &one);
	CPU_SET(2, &one);
	CHECK(sched_setaffinity(0, sizeof(one), &one) == 0 && bench(dev) == 0);
}

/* D: it waits in the kernel, for something that only a deadly signal cuts short. */
static char state_of(pid_t pid)
{
	char path[32], state;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1 && fclose(f) == 0);
	return state;
}

TEST(numa_bench_can_be_killed)
{
	pid_t child = fork();
	int status;

	if (!child) {
		struct dmaplane_numa_bench_params *p = calloc(1, sizeof(*p));

		p->buffer_size = 16 * MIB;
		p->iterations = 100000;
		ioctl(open_device(), DMAPLANE_NUMA_BENCH, p);
		_exit(1);
	}
	EVENTUALLY(state_of(child) == 'D');
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
}

TEST(histogram_is_the_files_own)
{
	struct dmaplane_hist_params h;
	int dev = open_device();

	memset(&h, 0xff, sizeof(h));
	CHECK(ioctl(dev, DMAPLANE_GET_HISTOGRAM, &h) == 0);
	CHECK(!h.count && !h.buckets[0] && !h.p99_ns && !h.max_ns);
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_GET_HISTOGRAM, NULL));
}
