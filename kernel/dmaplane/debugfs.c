// SPDX-License-Identifier: GPL-2.0 OR MIT
/* /sys/kernel/debug/dmaplane: totals of the module, and its buffers. For root. */
#include <linux/debugfs.h>
#include <linux/module.h>

#include "dmaplane.h"

static struct dentry *folder;

#define LINE(m, what)	seq_printf(m, #what " %llu\n", dp_total(what))

static int stats_show(struct seq_file *m, void *unused)
{
	LINE(m, channels);
	LINE(m, submissions);
	LINE(m, completions);
	LINE(m, dropped);
	LINE(m, buffers_created);
	LINE(m, buffers_destroyed);
	LINE(m, numa_local);
	LINE(m, numa_remote);
	LINE(m, numa_any);
	LINE(m, exported);
	LINE(m, released);
	LINE(m, attached);
	LINE(m, detached);
	LINE(m, mapped);
	LINE(m, unmapped);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int rdma_show(struct seq_file *m, void *unused)
{
	LINE(m, mrs_registered);
	LINE(m, mrs_deregistered);
	LINE(m, sends);
	LINE(m, recvs);
	LINE(m, polled);
	LINE(m, errors);
	LINE(m, bytes_sent);
	LINE(m, bytes_received);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(rdma);

static int flow_show(struct seq_file *m, void *unused)
{
	LINE(m, stalls);
	LINE(m, high_events);
	LINE(m, low_events);
	LINE(m, overflows);
	LINE(m, sustained_bytes);
	LINE(m, sustained_ops);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(flow);

static int histogram_show(struct seq_file *m, void *unused)
{
	struct dmaplane_hist_params v;
	int i;

	dp_hist_read(&dp_hist_all, &v, false);
	for (i = 0; i < DMAPLANE_HIST_BUCKETS - 1; i++)
		seq_printf(m, "below_us %u %llu\n", 1U << i, v.buckets[i]);
	seq_printf(m, "above %llu\n", v.buckets[i]);
	seq_printf(m,
		   "count %llu\nmin_ns %llu\navg_ns %llu\np50_ns %llu\np99_ns %llu\np999_ns %llu\nmax_ns %llu\n",
		   v.count, v.min_ns, v.avg_ns, v.p50_ns, v.p99_ns, v.p999_ns, v.max_ns);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(histogram);

static int gpu_show(struct seq_file *m, void *unused)
{
	if (dp_gpu_absent())
		seq_puts(m, "no peer-to-peer interface of a GPU driver\n");
	LINE(m, gpu_pins);
	LINE(m, gpu_unpins);
	LINE(m, gpu_callbacks);
	LINE(m, gpu_mrs);
	LINE(m, host_to_gpu);
	LINE(m, gpu_to_host);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(gpu);

DEFINE_SHOW_ATTRIBUTE(dp_buffers);

/* Without debugfs the module works all the same: nothing is checked. */
void dp_debugfs_init(void)
{
	folder = debugfs_create_dir("dmaplane", NULL);
	debugfs_create_file("stats", 0400, folder, NULL, &stats_fops);
	debugfs_create_file("buffers", 0400, folder, NULL, &dp_buffers_fops);
	debugfs_create_file("rdma", 0400, folder, NULL, &rdma_fops);
	debugfs_create_file("flow", 0400, folder, NULL, &flow_fops);
	debugfs_create_file("histogram", 0400, folder, NULL, &histogram_fops);
	debugfs_create_file("gpu", 0400, folder, NULL, &gpu_fops);
}

void dp_debugfs_exit(void)
{
	debugfs_remove(folder);
}
