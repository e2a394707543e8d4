// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Writes with immediate data and posted receives, on the pair or on a queue
 * pair whose other end is elsewhere.
 */
#include <linux/math64.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane_trace.h"
#include "rdma.h"

#define TIMEOUT_MS_MAX (3600 * 1000)

/* Which end sends, which receives, whose turn, which receives are posted. */
struct side {
	struct semaphore *turn;
	struct dp_end *from, *to;
	struct dp_inbox *inbox;
};

static struct side side_of(struct dp_rdma *r, u32 peer)
{
	if (peer)
		return (struct side){ &r->peer_turn, &r->peer, &r->peer, &r->peer_inbox };
	return (struct side){ &r->pair_turn, &r->a, &r->b, &r->inbox };
}

static struct dp_work *slot_of(struct dp_rdma *r, struct dp_inbox *inbox, u64 number)
{
	u32 slot;

	div_u64_rem(number, r->recv_depth, &slot);
	return &inbox->works[slot];
}

static long give(void __user *arg, const void *p, size_t bytes, int err)
{
	if (copy_to_user(arg, p, bytes))
		return -EFAULT;
	return err;
}

/* An operation that failed leaves queue pairs that nothing can use. */
static void give_up(struct dp_rdma *r, bool peer)
{
	if (peer) {
		dp_end_close(&r->peer);
		r->peer_connected = false;
		dp_inbox_empty(&r->peer_inbox);
	} else {
		dp_pair_restart(r);
	}
}

static int write_in_turn(struct dp_rdma *r, struct dp_mr *mr, struct dp_work *w,
			 struct dmaplane_write_imm_params *p)
{
	struct side s = side_of(r, p->use_peer_qp);
	int err;

	if (p->use_peer_qp && !r->peer_connected)
		return -ENOTCONN;
	/* The notice needs a receive; the peer's are the peer's to count. */
	if (!p->use_peer_qp && s.inbox->posted == s.inbox->used)
		return -ENOBUFS;
	err = dp_post_write(s.from, w, mr, p);
	if (!err)
		err = dp_wait(r, s.from, w);
	p->status = w->status;
	trace_dmaplane_rdma_write_imm(p->imm_data, p->length, w->status);
	if (err)
		give_up(r, p->use_peer_qp);
	else if (!p->use_peer_qp)
		s.inbox->used++;
	return err;
}

long dp_write_imm(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_write_imm_params p;
	struct semaphore *turn;
	struct dp_work *w;
	struct dp_mr *mr;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	mr = dp_mr_find(r, p.local_mr_id);
	if (!mr)
		return -ENOENT;
	err = -EINVAL;
	w = NULL;
	if (p.length > r->max_msg || p.local_offset > mr->size || p.length > mr->size - p.local_offset)
		goto out;
	err = -ENOMEM;
	w = kzalloc(sizeof(*w), GFP_KERNEL);
	if (!w)
		goto out;
	turn = side_of(r, p.use_peer_qp).turn;
	err = dp_turn(r, turn);
	if (err)
		goto out;
	p.status = 0;
	err = write_in_turn(r, mr, w, &p);
	up(turn);
	p.elapsed_ns = w->done ? w->ended - w->begun : 0;
	if (!err) {
		dp_hist_record(&f->hist, p.elapsed_ns);
		dp_hist_record(&dp_hist_all, p.elapsed_ns);
	}
	err = give(arg, &p, sizeof(p), err);
out:
	kfree(w);
	dp_mr_put(mr);
	return err;
}

static int post_in_turn(struct dp_rdma *r, bool peer, struct dp_mr *mr, u32 bytes)
{
	struct side s = side_of(r, peer);
	int err;

	if (!s.to->qp)
		return -ENOTCONN;
	if (s.inbox->posted - s.inbox->taken >= r->recv_depth)
		return -ENOSPC;
	err = dp_post_recv(s.to, slot_of(r, s.inbox, s.inbox->posted), mr, 0, bytes);
	if (!err)
		s.inbox->posted++;
	return err;
}

static int post_recv(struct dp_rdma *r, bool peer, u32 mr_id, u32 bytes)
{
	struct semaphore *turn = side_of(r, peer).turn;
	struct dp_mr *mr = dp_mr_find(r, mr_id);
	int err = -EINVAL;

	if (!mr)
		return -ENOENT;
	if (bytes <= mr->size)
		err = bytes && !(mr->access & IB_ACCESS_LOCAL_WRITE) ? -EACCES : 0;
	if (!err)
		err = dp_turn(r, turn);
	if (!err) {
		err = post_in_turn(r, peer, mr, bytes);
		up(turn);
	}
	dp_mr_put(mr);
	return err;
}

long dp_recv_post(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_post_recv_params p;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	p.status = 0;
	return give(arg, &p, sizeof(p), post_recv(r, p.use_peer_qp, p.mr_id, p.size));
}

/* 1 and a copy of the oldest receive if it is done, 0 if it is not. */
static int take_in_turn(struct dp_rdma *r, bool peer, struct dp_work *out)
{
	struct side s = side_of(r, peer);
	struct dp_work *w;

	if (!s.to->qp)
		return -ENOTCONN;
	ib_process_cq_direct(s.to->recvs, 32);
	w = slot_of(r, s.inbox, s.inbox->taken);
	if (s.inbox->taken == s.inbox->posted || !w->done)
		return 0;
	*out = *w;
	s.inbox->taken++;
	if (w->status == IB_WC_SUCCESS)
		dp_add(bytes_received, w->bytes);
	else
		give_up(r, peer);
	return 1;
}

/* No turn is held between two looks, so that others can send meanwhile. */
static int poll_recv(struct dp_rdma *r, bool peer, u32 timeout_ms, struct dp_work *out)
{
	struct semaphore *turn = side_of(r, peer).turn;
	u64 until = ktime_get_ns() + timeout_ms * (u64)NSEC_PER_MSEC;
	u32 spins = 0;
	int err;

	for (;;) {
		err = dp_turn(r, turn);
		if (err)
			return err;
		err = take_in_turn(r, peer, out);
		up(turn);
		if (err)
			return min(err, 0);
		if (ktime_get_ns() >= until)
			return -ETIMEDOUT;
		err = dp_pause(r, &spins);
		if (err)
			return err;
	}
}

long dp_recv_poll(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_poll_recv_params p;
	u64 begun = ktime_get_ns();
	struct dp_work w = {};
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.timeout_ms > TIMEOUT_MS_MAX)
		return -EINVAL;
	err = poll_recv(r, p.use_peer_qp, p.timeout_ms, &w);
	p.status = w.status;
	p.wc_flags = w.flags;
	p.imm_data = w.imm;
	p.byte_len = w.bytes;
	p.elapsed_ns = ktime_get_ns() - begun;
	if (!err && w.status != IB_WC_SUCCESS)
		err = -EIO;
	return give(arg, &p, sizeof(p), err);
}

long dp_peer_init(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_rdma_peer_info p = {};
	int err = dp_turn(r, &r->peer_turn);

	if (err)
		return err;
	err = r->peer.qp ? -EBUSY : dp_end_open(r, &r->peer);
	if (!err) {
		p.qp_num = r->peer.qp->qp_num;
		p.lid = r->lid;
		memcpy(p.gid, r->gid.raw, sizeof(p.gid));
		memcpy(p.mac, r->mac, sizeof(p.mac));
	}
	up(&r->peer_turn);
	return err ? err : give(arg, &p, sizeof(p), 0);
}

long dp_peer_connect(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_rdma_peer_info p;
	union ib_gid gid;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.qp_num >> 24)
		return -EINVAL;
	memcpy(gid.raw, p.gid, sizeof(gid.raw));
	err = dp_turn(r, &r->peer_turn);
	if (err)
		return err;
	if (!r->peer.qp)
		err = -ENOTCONN;
	else if (r->peer_connected)
		err = -EISCONN;
	else
		err = dp_end_connect(r, &r->peer, p.qp_num, p.lid, &gid, p.mac);
	if (!err)
		r->peer_connected = true;
	up(&r->peer_turn);
	return err;
}

static int send_in_turn(struct dp_rdma *r, struct dp_mr *mr, struct dp_work *w, u32 bytes)
{
	int err = -ENOTCONN;

	if (!r->peer_connected)
		return err;
	err = dp_post_send(&r->peer, w, mr, 0, bytes);
	if (!err)
		err = dp_wait(r, &r->peer, w);
	if (err)
		give_up(r, true);
	return err;
}

static void tell_transfer(struct dmaplane_rdma_remote_xfer_params *p, u64 ns, u32 bytes)
{
	p->elapsed_ns = ns;
	p->throughput_mbps = div64_u64((u64)bytes * 1000, max_t(u64, ns, 1));
}

long dp_peer_send(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_rdma_remote_xfer_params p;
	struct dp_work *w = NULL;
	struct dp_mr *mr;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	mr = dp_mr_find(r, p.mr_id);
	if (!mr)
		return -ENOENT;
	err = -EINVAL;
	if (!p.size || p.size > mr->size || p.size > r->max_msg)
		goto out;
	err = -ENOMEM;
	w = kzalloc(sizeof(*w), GFP_KERNEL);
	if (!w)
		goto out;
	err = dp_turn(r, &r->peer_turn);
	if (err)
		goto out;
	err = send_in_turn(r, mr, w, p.size);
	up(&r->peer_turn);
	p.status = w->status;
	if (!err) {
		tell_transfer(&p, w->ended - w->begun, p.size);
		dp_hist_record(&f->hist, p.elapsed_ns);
		dp_hist_record(&dp_hist_all, p.elapsed_ns);
	}
	err = give(arg, &p, sizeof(p), err);
out:
	kfree(w);
	dp_mr_put(mr);
	return err;
}

/* Posts a receive and waits for the oldest that is posted. */
long dp_peer_recv(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_rdma_remote_xfer_params p;
	u64 begun = ktime_get_ns();
	struct dp_work w = {};
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (!READ_ONCE(r->peer_connected))
		return -ENOTCONN;
	if (!p.size)
		return -EINVAL;
	err = post_recv(r, true, p.mr_id, p.size);
	if (!err)
		err = poll_recv(r, true, div_u64(DP_OPERATION_NS, NSEC_PER_MSEC), &w);
	p.status = w.status;
	if (!err && w.status != IB_WC_SUCCESS)
		err = -EIO;
	if (!err)
		tell_transfer(&p, ktime_get_ns() - begun, w.bytes);
	return give(arg, &p, sizeof(p), err);
}

long dp_peer_destroy(struct dp_rdma *r)
{
	int err = dp_turn(r, &r->peer_turn);

	if (err)
		return err;
	err = r->peer.qp ? 0 : -ENOTCONN;
	give_up(r, true);
	up(&r->peer_turn);
	return err;
}
