/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the parts of the module share. docs/decisions/0040-dmaplane-module.md
 * has the rules of lifetimes and locks.
 */
#ifndef DMAPLANE_H
#define DMAPLANE_H

#include <linux/atomic.h>
#include <linux/dma-buf.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "dmaplane_pool_uapi.h"
#include "dmaplane_uapi.h"

/* Memory comes in blocks of 2 MiB where it can, so that devices need few entries for a buffer. */
#define DP_BLOCK_ORDER 9
#define DP_BLOCK_BYTES (PAGE_SIZE << DP_BLOCK_ORDER)

/* All memory: on account of the caller's cgroup; an error, and no process is killed for it. */
#define DP_GFP (GFP_KERNEL_ACCOUNT | __GFP_NOWARN | __GFP_RETRY_MAYFAIL)

/* What one user, over all its open files, has and may have. */
struct dp_user {
	struct kref ref;
	struct list_head node;
	kuid_t uid;
	atomic64_t bytes;
	atomic_t channels;
	atomic_t contexts;		/* for RDMA */
};

/*
 * Memory. References: its handle in a file's table, each mapping of the
 * device, each dma-buf, each memory region, each call that is using it.
 */
struct dp_buffer {
	struct kref ref;
	struct dp_user *user;
	struct list_head node;		/* of all buffers, for debugfs */
	u32 id;
	u32 type;
	size_t size;			/* as asked */
	unsigned long npages;
	struct page **pages;
	unsigned int demands;		/* DMAPLANE_POOL_HUGE, DMAPLANE_POOL_STRICT_NODE */
	unsigned int min_order;		/* of the blocks that pages come in */
	int node_asked;
	int node_actual;
	u64 nodes;			/* that have pages of it; bit 63 is the rest */
	/* Under the lock of the table of handles when they leave 0. */
	atomic_t mappings;
	atomic_t exports;
	/* Coherent memory only. */
	struct device *dev;
	void *vaddr;
	dma_addr_t dma;
};

struct dp_ring {
	struct dmaplane_ring_entry entries[DMAPLANE_RING_ENTRIES];
	u32 head;			/* next to be read */
	u32 tail;			/* next to be written */
};

struct dp_channel {
	u32 id;
	struct dp_user *user;
	spinlock_t lock;		/* of all below but the work */
	struct dp_ring submitted;
	struct dp_ring completed;
	u32 in_work;
	struct dmaplane_stats stats;
	wait_queue_head_t wait;
	struct work_struct work;
};

struct dp_hist {
	spinlock_t lock;			/* of all below */
	struct dmaplane_hist_params values;	/* percentiles left out */
	u64 sum_ns;
};

struct dp_rdma;

/* An open file: every handle and context belongs to one, and ends with it. */
struct dp_file {
	struct dp_user *user;
	struct xarray buffers;
	u32 next_buffer;
	atomic_t nbuffers;
	struct dp_channel *channel;	/* set once, by cmpxchg */
	struct dp_hist hist;
	spinlock_t rdma_lock;		/* of the pointer */
	struct dp_rdma *rdma;
	struct xarray pins;		/* of GPU memory */
	u32 next_pin;
	atomic_t npins;
};

/*
 * An open file of the pool's device, and who its memory is charged to.
 * References: the file, and each dma-buf.
 */
struct dp_realm {
	struct kref ref;
	struct dp_user *user;
	bool open;
	u64 quota_bytes;
	atomic64_t bytes;
	atomic_t buffers;
};

/* Totals of the module since it was loaded; they name nobody's objects. */
struct dp_totals {
	atomic64_t buffers_created, buffers_destroyed;
	atomic64_t numa_local, numa_remote, numa_any;
	atomic64_t exported, released;
	atomic64_t attached, detached, mapped, unmapped;
	atomic64_t channels, submissions, completions, dropped;
	atomic64_t mrs_registered, mrs_deregistered;
	atomic64_t sends, recvs, polled, errors, bytes_sent, bytes_received;
	atomic64_t stalls, high_events, low_events, overflows;
	atomic64_t sustained_bytes, sustained_ops;
	atomic64_t gpu_pins, gpu_unpins, gpu_callbacks, gpu_mrs;
	atomic64_t host_to_gpu, gpu_to_host;
};

extern struct dp_totals dp_totals;

#define dp_count(what)		atomic64_inc(&dp_totals.what)
#define dp_add(what, n)		atomic64_add(n, &dp_totals.what)
#define dp_total(what)		((u64)atomic64_read(&dp_totals.what))

/* refuse.c */
__printf(2, 3) int dp_refuse(int err, const char *why, ...);

/* What all calls have in common. */
static inline int dp_refuse_call(int err, unsigned int cmd)
{
	if (err == -ENOTTY)
		return dp_refuse(err, "call %#x: there is none", cmd);
	return dp_refuse(err, "call %#x: its argument cannot be read or written", cmd);
}

static inline int dp_no_buffer(const char *call, u32 id)
{
	return dp_refuse(-ENOENT, "%s: buffer %u is none of this file", call, id);
}

/* user.c */
struct dp_user *dp_user_get(kuid_t uid);
void dp_user_put(struct dp_user *user);
int dp_charge(atomic64_t *used, u64 bytes, u64 max);
int dp_user_charge(struct dp_user *user, size_t bytes);
int dp_no_memory(const char *call, struct dp_user *user, int node, int err);
void dp_user_uncharge(struct dp_user *user, size_t bytes);
int dp_user_channel(struct dp_user *user);
int dp_user_context(struct dp_user *user);

/* channel.c */
long dp_channel_create(struct dp_file *f, void __user *arg);
long dp_channel_submit(struct dp_file *f, void __user *arg);
long dp_channel_complete(struct dp_file *f, bool nonblock, void __user *arg);
long dp_channel_stats(struct dp_file *f, void __user *arg);
void dp_channel_destroy(struct dp_channel *c);
int dp_channel_init(void);
void dp_channel_exit(void);

/* buffer.c */
struct dp_buffer *dp_buffer_new(struct dp_user *user, u32 type, size_t size, int node,
				unsigned int demands);
long dp_buffer_create(struct dp_file *f, void __user *arg);
long dp_buffer_destroy(struct dp_file *f, void __user *arg);
long dp_buffer_mmap_info(struct dp_file *f, void __user *arg);
long dp_buffer_stats(void __user *arg);
void dp_buffers_drop(struct dp_file *f);
struct dp_buffer *dp_buffer_find(struct dp_file *f, u32 id);
struct dp_buffer *dp_buffer_find_count(struct dp_file *f, u32 id, size_t offset);
void dp_buffer_get(struct dp_buffer *b);
void dp_buffer_put(struct dp_buffer *b);
int dp_buffers_show(struct seq_file *m, void *unused);

/* memory.c */
int dp_memory_alloc(struct dp_buffer *b);
void dp_memory_free(struct dp_buffer *b);
bool dp_node_valid(int node);
int dp_memory_init(struct device *parent);
void dp_memory_exit(void);

/* mmap.c */
int dp_mmap(struct file *file, struct vm_area_struct *vma);
void dp_vma_flags(struct vm_area_struct *vma, unsigned long flags);

/* dmabuf.c */
int dp_dmabuf_attach(struct dma_buf *d, struct dma_buf_attachment *at);
void dp_dmabuf_detach(struct dma_buf *d, struct dma_buf_attachment *at);
struct sg_table *dp_dmabuf_map(struct dp_buffer *b, struct device *dev,
			       enum dma_data_direction dir);
void dp_dmabuf_unmap(struct dma_buf_attachment *at, struct sg_table *table,
		     enum dma_data_direction dir);
struct dma_buf *dp_dmabuf_make(const struct dma_buf_ops *ops, size_t bytes, void *priv);
long dp_dmabuf_give(struct dma_buf *d, s32 *fd, void __user *arg, const void *answer, size_t bytes);
long dp_dmabuf_export(struct dp_file *f, void __user *arg);
long dp_dmabuf_stats(void __user *arg);

/* pool.c */
int dp_pool_init(void);
void dp_pool_exit(void);

/* pool_memory.c */
long dp_pool_alloc(struct dp_realm *r, void __user *arg);
long dp_pool_revoke(struct dp_realm *r, void __user *arg);
long dp_pool_info(struct dp_realm *r, void __user *arg);
long dp_pool_adopt(struct dp_realm *r, void __user *arg);
void dp_realm_put(struct dp_realm *r);

/* numa.c */
long dp_numa_topo(void __user *arg);
long dp_numa_bench(struct dp_file *f, void __user *arg);
int dp_numa_init(void);
void dp_numa_exit(void);

/* gpu.c */
long dp_gpu_pin(struct dp_file *f, void __user *arg);
long dp_gpu_unpin(struct dp_file *f, void __user *arg);
long dp_gpu_copy(struct dp_file *f, void __user *arg, bool to_host);
long dp_gpu_bench(struct dp_file *f, void __user *arg);
long dp_gpu_stats(void __user *arg);
bool dp_gpu_absent(void);
void dp_gpu_drop(struct dp_file *f);

/* hist.c */
void dp_hist_init(struct dp_hist *h);
void dp_hist_record(struct dp_hist *h, u64 ns);
void dp_hist_read(struct dp_hist *h, struct dmaplane_hist_params *out, bool reset);
long dp_hist_get(struct dp_file *f, void __user *arg);

extern struct dp_hist dp_hist_all;

/* rdma.c; Kbuild says whether the kernel has kernel verbs */
#ifdef DMAPLANE_RDMA
long dp_rdma_ioctl(struct dp_file *f, unsigned int cmd, void __user *arg);
void dp_rdma_drop(struct dp_file *f);
int dp_rdma_init(void);
void dp_rdma_exit(void);
#else
static inline long dp_rdma_ioctl(struct dp_file *f, unsigned int cmd, void __user *arg)
{
	return dp_refuse(-ENODEV,
			 "call %#x: the module was built for a kernel without kernel verbs", cmd);
}

static inline void dp_rdma_drop(struct dp_file *f) { }
static inline int dp_rdma_init(void) { return 0; }
static inline void dp_rdma_exit(void) { }
#endif

/* debugfs.c */
void dp_debugfs_init(void);
void dp_debugfs_exit(void);

#endif /* DMAPLANE_H */
