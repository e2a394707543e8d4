/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the parts of the module that use RDMA share. */
#ifndef DMAPLANE_RDMA_H
#define DMAPLANE_RDMA_H

#include <linux/if_ether.h>
#include <linux/scatterlist.h>
#include <linux/semaphore.h>
#include <rdma/ib_verbs.h>

#include "dmaplane.h"

/* How long a single operation may take before it counts as lost. */
#define DP_OPERATION_NS	(10ULL * NSEC_PER_SEC)

/* A queue pair with its completion queues, which nobody else uses. */
struct dp_end {
	struct ib_qp *qp;
	struct ib_cq *sends, *recvs;
};

/* One posted request. It lives until it is done or its queue pair is gone. */
struct dp_work {
	struct ib_cqe cqe;
	bool done;
	enum ib_wc_status status;
	u32 bytes, imm, flags;
	u64 begun, ended;
};

/* Receives that a program posted, in the order in which they complete. */
struct dp_inbox {
	struct dp_work *works;		/* recv_depth of them */
	u64 posted, used, taken;	/* used: by writes on the pair */
};

struct dp_flow {
	u32 credits, high, low;
};

/* A device that is there. Its removal waits until `contexts` is 0. */
struct dp_device {
	struct list_head node;
	struct ib_device *ib;
	struct list_head linked;	/* contexts that a file still has */
	atomic_t contexts;
	wait_queue_head_t idle;
};

/*
 * What SETUP_RDMA makes. References: the file's, and each call's that uses
 * it; the last destroys it. `dead` tells calls that run to end.
 */
struct dp_rdma {
	struct kref ref;
	struct list_head node;
	struct dp_file *file;
	struct dp_user *user;
	struct dp_device *device;
	struct ib_device *ib;
	struct ib_pd *pd;
	u32 port, cq_depth, send_depth, recv_depth, max_msg;
	u16 lid;
	enum ib_mtu mtu;
	int gid_index;
	union ib_gid gid;
	u8 mac[ETH_ALEN];
	bool dead;
	/* One call at a time uses the pair, or the peer; killable. */
	struct semaphore pair_turn, peer_turn;
	struct dp_end a, b;		/* connected with each other */
	struct dp_end peer;
	bool peer_connected;
	struct dp_inbox inbox, peer_inbox;
	struct dp_flow flow;
	struct xarray mrs;
	u32 next_mr;
	atomic_t nmrs;
};

struct dp_gpu_pin;
struct dev_pagemap;

/* A registered buffer, or pinned memory of a GPU, which it keeps. */
struct dp_mr {
	struct kref ref;
	struct ib_device *ib;
	struct dp_buffer *buf;		/* NULL: memory of a GPU */
	struct ib_mr *mr;
	struct sg_table table;
	size_t size;
	u64 reg_ns;
	int access;
	u64 addr;
	u32 lkey, rkey;
	/* Of a GPU's memory only, under the lock of the pin. */
	struct dp_gpu_pin *pin;
	struct list_head of_pin;
	struct dev_pagemap *pages;	/* of the BAR, if the device needs them */
	bool revoked;			/* the keys reach nothing any more */
};

static inline int dp_no_mr(const char *call, u32 id)
{
	return dp_refuse(-ENOENT, "%s: mr_id %u is no memory region of this file", call, id);
}

/* end.c */
int dp_end_open(struct dp_rdma *r, struct dp_end *e);
void dp_end_close(struct dp_end *e);
int dp_end_connect(struct dp_rdma *r, struct dp_end *e, u32 qp_num, u16 lid, union ib_gid *gid,
		   const u8 *mac);
int dp_pair_open(struct dp_rdma *r);
void dp_pair_close(struct dp_rdma *r);
void dp_inbox_empty(struct dp_inbox *inbox);
int dp_pair_restart(struct dp_rdma *r);
int dp_turn(struct dp_rdma *r, struct semaphore *turn);
int dp_post_send(struct dp_end *e, struct dp_work *w, struct dp_mr *mr, u64 offset, u32 bytes);
int dp_post_write(struct dp_end *e, struct dp_work *w, struct dp_mr *mr,
		  const struct dmaplane_write_imm_params *p);
int dp_post_recv(struct dp_end *e, struct dp_work *w, struct dp_mr *mr, u64 offset, u32 bytes);
int dp_post_reg(struct dp_end *e, struct dp_work *w, struct ib_mr *mr, int access);
int dp_pause(struct dp_rdma *r, u32 *spins);
int dp_mr_check(const struct dp_mr *mr);
int dp_wait(struct dp_rdma *r, struct dp_end *e, struct dp_work *w, const struct dp_mr *mr);

/* mr.c */
long dp_mr_register(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_mr_deregister(struct dp_rdma *r, void __user *arg);
struct dp_mr *dp_mr_find(struct dp_rdma *r, u32 id);
void dp_mr_put(struct dp_mr *mr);
void dp_mrs_drop(struct dp_rdma *r);
int dp_mr_number(const char *call, struct dp_rdma *r, u32 *id);
void dp_mr_number_drop(struct dp_rdma *r, u32 id);
int dp_mr_map_pages(const char *call, struct dp_rdma *r, struct dp_mr *mr, size_t page);
int dp_mr_enable(struct dp_rdma *r, struct dp_mr *mr, u64 addr);
long dp_mr_give(struct dp_rdma *r, struct dp_mr *mr, u32 id, void __user *arg, const void *answer,
		size_t bytes);

/* gpu_mr.c */
long dp_gpu_mr_register(struct dp_file *f, struct dp_rdma *r, void __user *arg);
void dp_gpu_mr_release(struct dp_mr *mr);

/* stream.c */
long dp_loopback(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_gpu_loopback(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_pingpong(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_streaming(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_sustained(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_sweep(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_flow_configure(struct dp_rdma *r, void __user *arg);

/* peer.c */
long dp_write_imm(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_recv_post(struct dp_rdma *r, void __user *arg);
long dp_recv_poll(struct dp_rdma *r, void __user *arg);
long dp_peer_init(struct dp_rdma *r, void __user *arg);
long dp_peer_connect(struct dp_rdma *r, void __user *arg);
long dp_peer_send(struct dp_file *f, struct dp_rdma *r, void __user *arg);
long dp_peer_recv(struct dp_rdma *r, void __user *arg);
long dp_peer_destroy(struct dp_rdma *r);

#endif /* DMAPLANE_RDMA_H */
