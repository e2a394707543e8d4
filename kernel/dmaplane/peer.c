// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Writes with immediate data and posted receives, on the pair or on a queue
 * pair whose other end is elsewhere.
 */
#include <linux/capability.h>
#include <linux/etherdevice.h>
#include <linux/math64.h>
#include <linux/nsproxy.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>

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

static int no_peer(const char *call)
{
	return dp_refuse(-ENOTCONN, "%s: the file has no peer that is connected", call);
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
		return no_peer("RDMA_WRITE_IMM");
	/* The notice needs a receive; the peer's are the peer's to count. */
	if (!p->use_peer_qp && s.inbox->posted == s.inbox->used)
		return dp_refuse(-ENOBUFS,
				 "RDMA_WRITE_IMM: no receive of RDMA_POST_RECV is left on the pair");
	err = dp_post_write(s.from, w, mr, p);
	if (!err)
		err = dp_wait(r, s.from, w, mr);
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
		return dp_no_mr("RDMA_WRITE_IMM", p.local_mr_id);
	w = NULL;
	if (p.length > r->max_msg || p.local_offset > mr->size ||
	    p.length > mr->size - p.local_offset) {
		err = dp_refuse(-EINVAL,
				"RDMA_WRITE_IMM: %u bytes from %llu on, of %zu and in messages of at most %u",
				p.length, p.local_offset, mr->size, r->max_msg);
		goto out;
	}
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

static int post_in_turn(const char *call, struct dp_rdma *r, bool peer, struct dp_mr *mr, u32 bytes)
{
	struct side s = side_of(r, peer);
	int err;

	if (!s.to->qp)
		return no_peer(call);
	if (s.inbox->posted - s.inbox->taken >= r->recv_depth)
		return dp_refuse(-ENOSPC, "%s: %u receives are posted, the most", call,
				 r->recv_depth);
	err = dp_post_recv(s.to, slot_of(r, s.inbox, s.inbox->posted), mr, 0, bytes);
	if (!err)
		s.inbox->posted++;
	return err;
}

static int post_recv(const char *call, struct dp_rdma *r, bool peer, u32 mr_id, u32 bytes)
{
	struct semaphore *turn = side_of(r, peer).turn;
	struct dp_mr *mr = dp_mr_find(r, mr_id);
	int err;

	if (!mr)
		return dp_no_mr(call, mr_id);
	if (bytes > mr->size)
		err = dp_refuse(-EINVAL, "%s: size %u; the memory region has %zu", call, bytes,
				mr->size);
	else if (bytes && !(mr->access & IB_ACCESS_LOCAL_WRITE))
		err = dp_refuse(-EACCES, "%s: the memory region lacks the right to be written (1)",
				call);
	else
		err = dp_turn(r, turn);
	if (!err) {
		err = post_in_turn(call, r, peer, mr, bytes);
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
	return give(arg, &p, sizeof(p),
		    post_recv("RDMA_POST_RECV", r, p.use_peer_qp, p.mr_id, p.size));
}

/* 1 and a copy of the oldest receive if it is done, 0 if it is not. */
static int take_in_turn(struct dp_rdma *r, bool peer, struct dp_work *out)
{
	struct side s = side_of(r, peer);
	struct dp_work *w;

	if (!s.to->qp)
		return no_peer("RDMA_POLL_RECV, RDMA_REMOTE_RECV");
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
		return dp_refuse(-EINVAL, "RDMA_POLL_RECV: timeout_ms %u; %d at most", p.timeout_ms,
				 TIMEOUT_MS_MAX);
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
	if (r->peer.qp)
		err = dp_refuse(-EBUSY, "RDMA_INIT_PEER: the file has a peer's queue pair");
	else
		err = dp_end_open(r, &r->peer);
	if (!err) {
		p.qp_num = r->peer.qp->qp_num;
		p.lid = r->lid;
		memcpy(p.gid, r->gid.raw, sizeof(p.gid));
		memcpy(p.mac, r->mac, sizeof(p.mac));
	}
	up(&r->peer_turn);
	return err ? err : give(arg, &p, sizeof(p), 0);
}

/*
 * On Ethernet the caller says whom frames go to, past the kernel's own
 * resolution of addresses. That takes the right to send any frame; the
 * device's own address is anybody's.
 */
static int may_address(struct dp_rdma *r, const u8 *mac)
{
	if (!rdma_protocol_roce(r->ib, r->port) || ether_addr_equal_unaligned(mac, r->mac) ||
	    ns_capable(current->nsproxy->net_ns->user_ns, CAP_NET_RAW))
		return 0;
	return dp_refuse(-EPERM,
			 "RDMA_CONNECT_PEER: mac %pM is not the device's own, which takes CAP_NET_RAW",
			 mac);
}

long dp_peer_connect(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_rdma_peer_info p;
	union ib_gid gid;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.qp_num >> 24)
		return dp_refuse(-EINVAL, "RDMA_CONNECT_PEER: qp_num %#x; it has 24 bits",
				 p.qp_num);
	err = may_address(r, p.mac);
	if (err)
		return err;
	memcpy(gid.raw, p.gid, sizeof(gid.raw));
	err = dp_turn(r, &r->peer_turn);
	if (err)
		return err;
	if (!r->peer.qp)
		err = dp_refuse(-ENOTCONN, "RDMA_CONNECT_PEER: RDMA_INIT_PEER comes before it");
	else if (r->peer_connected)
		err = dp_refuse(-EISCONN, "RDMA_CONNECT_PEER: the peer is connected");
	else
		err = dp_end_connect(r, &r->peer, p.qp_num, p.lid, &gid, p.mac);
	if (!err)
		r->peer_connected = true;
	up(&r->peer_turn);
	return err;
}

static int send_in_turn(struct dp_rdma *r, struct dp_mr *mr, struct dp_work *w, u32 bytes)
{
	int err;

	if (!r->peer_connected)
		return no_peer("RDMA_REMOTE_SEND");
	err = dp_post_send(&r->peer, w, mr, 0, bytes);
	if (!err)
		err = dp_wait(r, &r->peer, w, mr);
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
		return dp_no_mr("RDMA_REMOTE_SEND", p.mr_id);
	if (!p.size || p.size > mr->size || p.size > r->max_msg) {
		err = dp_refuse(-EINVAL, "RDMA_REMOTE_SEND: size %u; 1 to %llu", p.size,
				min_t(u64, mr->size, r->max_msg));
		goto out;
	}
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
		return no_peer("RDMA_REMOTE_RECV");
	if (!p.size)
		return dp_refuse(-EINVAL, "RDMA_REMOTE_RECV: size 0");
	err = post_recv("RDMA_REMOTE_RECV", r, true, p.mr_id, p.size);
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
	if (!r->peer.qp)
		err = dp_refuse(-ENOTCONN, "RDMA_DESTROY_PEER: the file has no peer's queue pair");
	give_up(r, true);
	up(&r->peer_turn);
	return err;
}
