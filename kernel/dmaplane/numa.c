// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What nodes there are, and how fast a CPU of each copies to memory of each. */
#include <linux/capability.h>
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/topology.h>
#include <linux/uaccess.h>

#include "dmaplane.h"

#define BENCH_BYTES_MAX		(256UL << 20)
#define BENCH_ITERATIONS_MAX	100000

static void node_memory(int node, u64 *total_kb, u64 *free_kb)
{
	struct zone *zones = NODE_DATA(node)->node_zones;
	u64 total = 0, free = 0;
	int i;

	for (i = 0; i < MAX_NR_ZONES; i++) {
		total += zone_managed_pages(&zones[i]);
		free += zone_page_state(&zones[i], NR_FREE_PAGES);
	}
	*total_kb = total << (PAGE_SHIFT - 10);
	*free_kb = free << (PAGE_SHIFT - 10);
}

long dp_numa_topo(void __user *arg)
{
	struct dmaplane_numa_topo *t;
	int node, other;
	long err = 0;

	t = kzalloc(sizeof(*t), GFP_KERNEL);
	if (!t)
		return -ENOMEM;
	t->nr_cpus = num_online_cpus();
	for_each_online_node(node) {
		if (node >= DMAPLANE_NODES_MAX)
			break;
		t->nr_nodes++;
		t->node_online[node] = 1;
		t->node_cpu_count[node] = cpumask_weight(cpumask_of_node(node));
		node_memory(node, &t->node_mem_total_kb[node], &t->node_mem_free_kb[node]);
		for_each_online_node(other)
			if (other < DMAPLANE_NODES_MAX)
				t->distances[node][other] = node_distance(node, other);
	}
	if (copy_to_user(arg, t, sizeof(*t)))
		err = -EFAULT;
	kfree(t);
	return err;
}

/* A benchmark may keep a CPU for long; other work there goes on beside it. */
static struct workqueue_struct *benches;

int dp_numa_init(void)
{
	benches = alloc_workqueue("dmaplane-bench", WQ_CPU_INTENSIVE, 0);
	return benches ? 0 : -ENOMEM;
}

void dp_numa_exit(void)
{
	destroy_workqueue(benches);
}

struct bench {
	struct work_struct work;
	struct completion done;
	struct dp_buffer *from, *to;
	u32 iterations;
	bool cancelled;
	u64 ns;
};

static void bench_work(struct work_struct *work)
{
	struct bench *b = container_of(work, struct bench, work);
	u64 begun = ktime_get_ns();
	unsigned long page;
	u32 i;

	for (i = 0; i < b->iterations; i++) {
		for (page = 0; page < b->from->npages; page++) {
			if (!(page & 255)) {
				if (READ_ONCE(b->cancelled))
					goto out;
				cond_resched();
			}
			copy_page(page_address(b->to->pages[page]),
				  page_address(b->from->pages[page]));
		}
	}
	b->ns = ktime_get_ns() - begun;
out:
	complete(&b->done);
}

/*
 * A CPU of the node. The work is the kernel's, so nothing else keeps it to
 * the CPUs that the caller's cpuset and affinity allow.
 */
static int cpu_of(int node)
{
	unsigned int cpu;

	for_each_cpu_and(cpu, cpumask_of_node(node), current->cpus_ptr)
		if (cpu_online(cpu))
			return cpu;
	if (!capable(CAP_SYS_NICE))
		return dp_refuse(-EPERM,
				 "NUMA_BENCH: without CAP_SYS_NICE no CPU of node %d may be used",
				 node);
	return cpumask_any_and(cpumask_of_node(node), cpu_online_mask);
}

static int bench_pair(struct bench *b, int cpu_node)
{
	int err, cpu = cpu_of(cpu_node);

	if (cpu < 0)
		return cpu;
	INIT_WORK_ONSTACK(&b->work, bench_work);
	init_completion(&b->done);
	b->cancelled = false;
	queue_work_on(cpu, benches, &b->work);
	err = wait_for_completion_killable(&b->done);
	WRITE_ONCE(b->cancelled, true);
	/* Waits for some copied pages at most: the work has been told. */
	cancel_work_sync(&b->work);
	destroy_work_on_stack(&b->work);
	return err;
}

static struct dp_buffer *bench_buffer(struct dp_file *f, size_t bytes, int node)
{
	struct dp_buffer *b = kzalloc(sizeof(*b), DP_GFP);
	int err = -ENOMEM;

	if (!b)
		return ERR_PTR(err);
	b->type = DMAPLANE_BUF_PAGES;
	b->npages = PAGE_ALIGN(bytes) >> PAGE_SHIFT;
	b->node_asked = node;
	err = dp_user_charge(f->user, b->npages << PAGE_SHIFT);
	if (!err) {
		err = dp_memory_alloc(b);
		if (!err)
			return b;
		dp_user_uncharge(f->user, b->npages << PAGE_SHIFT);
	}
	kfree(b);
	return ERR_PTR(err);
}

static void bench_free(struct dp_file *f, struct dp_buffer *b)
{
	dp_memory_free(b);
	dp_user_uncharge(f->user, b->npages << PAGE_SHIFT);
	kfree(b);
}

/* From memory of the CPU's own node to memory of another. */
static int bench_cell(struct dp_file *f, struct dmaplane_numa_bench_params *p, int cpu_node,
		      int node)
{
	struct bench b = { .iterations = p->iterations };
	u64 bytes;
	int err;

	b.from = bench_buffer(f, p->buffer_size, cpu_node);
	if (IS_ERR(b.from))
		return dp_no_memory("NUMA_BENCH", f->user, cpu_node, PTR_ERR(b.from));
	b.to = bench_buffer(f, p->buffer_size, node);
	if (IS_ERR(b.to)) {
		bench_free(f, b.from);
		return dp_no_memory("NUMA_BENCH", f->user, node, PTR_ERR(b.to));
	}
	/* Memory of some other node would be measured under a wrong name. */
	if (b.from->node_actual != cpu_node || b.to->node_actual != node)
		err = dp_refuse(-ENOMEM, "NUMA_BENCH: node %d or %d has too little free memory",
				cpu_node, node);
	else
		err = bench_pair(&b, cpu_node);
	if (!err) {
		bytes = (u64)(b.from->npages << PAGE_SHIFT) * p->iterations;
		p->lat_ns[cpu_node][node] = div_u64(b.ns, p->iterations);
		p->bw_mbps[cpu_node][node] = div64_u64(bytes * 1000, max_t(u64, b.ns, 1));
	}
	bench_free(f, b.to);
	bench_free(f, b.from);
	return err;
}

static int bench_all(struct dp_file *f, struct dmaplane_numa_bench_params *p)
{
	int cpu_node, node, err;

	for_each_online_node(cpu_node) {
		if (cpu_node >= DMAPLANE_NODES_MAX)
			break;
		p->nr_nodes++;
		/* A node without CPUs or without memory leaves its cells 0. */
		if (!cpumask_intersects(cpumask_of_node(cpu_node), cpu_online_mask) ||
		    !node_state(cpu_node, N_MEMORY))
			continue;
		for_each_node_state(node, N_MEMORY) {
			if (node >= DMAPLANE_NODES_MAX)
				break;
			err = bench_cell(f, p, cpu_node, node);
			if (err)
				return err;
		}
	}
	return 0;
}

static int check_bench(const struct dmaplane_numa_bench_params *p)
{
	if (!p->buffer_size || p->buffer_size > BENCH_BYTES_MAX)
		return dp_refuse(-EINVAL, "NUMA_BENCH: buffer_size %llu; 1 to %lu", p->buffer_size,
				 BENCH_BYTES_MAX);
	if (!p->iterations || p->iterations > BENCH_ITERATIONS_MAX)
		return dp_refuse(-EINVAL, "NUMA_BENCH: iterations %u; 1 to %d", p->iterations,
				 BENCH_ITERATIONS_MAX);
	return 0;
}

long dp_numa_bench(struct dp_file *f, void __user *arg)
{
	struct dmaplane_numa_bench_params *p = memdup_user(arg, sizeof(*p));
	long err;

	if (IS_ERR(p))
		return PTR_ERR(p);
	err = check_bench(p);
	if (err)
		goto out;
	memset(p->bw_mbps, 0, sizeof(p->bw_mbps));
	memset(p->lat_ns, 0, sizeof(p->lat_ns));
	p->nr_nodes = 0;
	p->status = 0;
	err = bench_all(f, p);
	if (!err && copy_to_user(arg, p, sizeof(*p)))
		err = -EFAULT;
out:
	kfree(p);
	return err;
}
