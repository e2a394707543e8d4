/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the parts of the module that use memory of GPUs share. */
#ifndef DMAPLANE_GPU_H
#define DMAPLANE_GPU_H

#include <linux/completion.h>
#include <linux/rwsem.h>

#include "dmaplane.h"
#include "nv_p2p.h"

/* A range that is contiguous behind the BAR. */
struct dp_gpu_piece {
	u64 offset, bytes, physical;
	void __iomem *at;
};

/*
 * Pinned memory. `holders` are the handle and each memory region: the last
 * ends the pin. References are those, each call that uses it, and the
 * driver's until it gave the pin up.
 */
struct dp_gpu_pin {
	struct kref ref;
	refcount_t holders;
	u64 va, size;
	u32 entries, page_bytes;
	int node;
	struct rw_semaphore lock;		/* of all below; to end it, for writing */
	struct nvidia_p2p_page_table *table;	/* NULL: ended */
	struct dp_gpu_piece *pieces;
	u32 npieces;
	struct list_head mrs;			/* that may reach it */
	struct completion called_back;
};

/* gpu.c */
struct dp_gpu_pin *dp_gpu_pin_find(struct dp_file *f, u32 handle);
void dp_gpu_pin_put(struct dp_gpu_pin *g);
void dp_gpu_pin_let_go(struct dp_gpu_pin *g);

/* gpu_mr.c, which a kernel without kernel verbs leaves out */
#ifdef DMAPLANE_RDMA
void dp_gpu_mrs_revoke(struct dp_gpu_pin *g);
#else
static inline void dp_gpu_mrs_revoke(struct dp_gpu_pin *g) { }
#endif

#endif /* DMAPLANE_GPU_H */
