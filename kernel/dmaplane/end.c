// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Queue pairs, and requests on them. Completion queues are polled by the
 * calls that wait, never from interrupts, so that nothing runs after them.
 */
#include <linux/delay.h>
#include <linux/sched/signal.h>
#include <rdma/ib_cache.h>

#include "dmaplane_trace.h"
#include "rdma.h"

static void work_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct dp_work *w = container_of(wc->wr_cqe, struct dp_work, cqe);

	w->ended = ktime_get_ns();
	w->status = wc->status;
	if (wc->status == IB_WC_SUCCESS) {
		w->bytes = wc->byte_len;
		w->flags = wc->wc_flags;
		w->imm = wc->wc_flags & IB_WC_WITH_IMM ? be32_to_cpu(wc->ex.imm_data) : 0;
	} else {
		dp_count(errors);
	}
	dp_count(polled);
	trace_dmaplane_rdma_completion(w->status, w->bytes, w->ended - w->begun);
	w->done = true;
}

static void work_begin(struct dp_work *w)
{
	memset(w, 0, sizeof(*w));
	w->cqe.done = work_done;
	w->begun = ktime_get_ns();
}

/* Up to the state in which receives can be posted. */
int dp_end_open(struct dp_rdma *r, struct dp_end *e)
{
	struct ib_qp_init_attr init = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		/* Beside the program's: one to register memory. */
		.cap = { .max_send_wr = r->send_depth + 1, .max_recv_wr = r->recv_depth,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = r->port,
		.qp_access_flags =
			IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ,
	};
	int err;

	e->sends = ib_alloc_cq(r->ib, NULL, r->cq_depth + 1, 0, IB_POLL_DIRECT);
	if (IS_ERR(e->sends)) {
		err = PTR_ERR(e->sends);
		goto none;
	}
	e->recvs = ib_alloc_cq(r->ib, NULL, r->cq_depth + 1, 0, IB_POLL_DIRECT);
	if (IS_ERR(e->recvs)) {
		err = PTR_ERR(e->recvs);
		goto free_sends;
	}
	init.send_cq = e->sends;
	init.recv_cq = e->recvs;
	e->qp = ib_create_qp(r->pd, &init);
	if (IS_ERR(e->qp)) {
		err = PTR_ERR(e->qp);
		goto free_recvs;
	}
	err = ib_modify_qp(e->qp, &attr,
			   IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
	if (err)
		dp_end_close(e);
	return err;
free_recvs:
	ib_free_cq(e->recvs);
free_sends:
	ib_free_cq(e->sends);
none:
	memset(e, 0, sizeof(*e));
	return err;
}

/* Afterwards the device touches nothing that was posted. */
void dp_end_close(struct dp_end *e)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	if (!e->qp)
		return;
	ib_modify_qp(e->qp, &attr, IB_QP_STATE);
	ib_destroy_qp(e->qp);
	ib_free_cq(e->recvs);
	ib_free_cq(e->sends);
	memset(e, 0, sizeof(*e));
}

/* Nobody resolves addresses for kernel verbs, so the other end tells its own. */
int dp_end_connect(struct dp_rdma *r, struct dp_end *e, u32 qp_num, u16 lid, union ib_gid *gid,
		   const u8 *mac)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = r->mtu,
		.dest_qp_num = qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
	};
	int err;

	attr.ah_attr.type = rdma_ah_find_type(r->ib, r->port);
	rdma_ah_set_port_num(&attr.ah_attr, r->port);
	if (attr.ah_attr.type == RDMA_AH_ATTR_TYPE_ROCE) {
		rdma_ah_set_grh(&attr.ah_attr, gid, 0, r->gid_index, 64, 0);
		memcpy(attr.ah_attr.roce.dmac, mac, ETH_ALEN);
	} else {
		rdma_ah_set_dlid(&attr.ah_attr, lid);
	}
	err = ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			   IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IB_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	/* Without end: the limit of time is ours. */
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	return ib_modify_qp(e->qp, &attr, IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT |
			    IB_QP_RNR_RETRY | IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
}

int dp_pair_open(struct dp_rdma *r)
{
	int err = dp_end_open(r, &r->a);

	if (!err)
		err = dp_end_open(r, &r->b);
	if (!err)
		err = dp_end_connect(r, &r->a, r->b.qp->qp_num, r->lid, &r->gid, r->mac);
	if (!err)
		err = dp_end_connect(r, &r->b, r->a.qp->qp_num, r->lid, &r->gid, r->mac);
	if (err)
		dp_pair_close(r);
	return err;
}

/* What was posted ended with its queue pair. */
void dp_inbox_empty(struct dp_inbox *inbox)
{
	inbox->posted = 0;
	inbox->used = 0;
	inbox->taken = 0;
}

void dp_pair_close(struct dp_rdma *r)
{
	dp_end_close(&r->a);
	dp_end_close(&r->b);
	dp_inbox_empty(&r->inbox);
}

/* After an error, or with requests outstanding that nobody waits for. */
int dp_pair_restart(struct dp_rdma *r)
{
	dp_pair_close(r);
	return READ_ONCE(r->dead) ? -ENODEV : dp_pair_open(r);
}

/* The caller's turn; it ends with up(). The pair is whole in it. */
int dp_turn(struct dp_rdma *r, struct semaphore *turn)
{
	int err = 0;

	if (down_killable(turn))
		return -EINTR;
	if (READ_ONCE(r->dead))
		err = -ENODEV;
	else if (turn == &r->pair_turn && !r->b.qp)
		err = dp_pair_open(r);	/* a restart had failed */
	if (err)
		up(turn);
	return err;
}

static int post(struct dp_end *e, struct ib_send_wr *wr, struct dp_work *w, u32 bytes)
{
	int err;

	work_begin(w);
	wr->wr_cqe = &w->cqe;
	wr->send_flags = IB_SEND_SIGNALED;
	trace_dmaplane_rdma_post(e->qp->qp_num, wr->opcode, bytes);
	err = ib_post_send(e->qp, wr, NULL);
	if (!err) {
		dp_count(sends);
		dp_add(bytes_sent, bytes);
	}
	return err;
}

static struct ib_sge sge_of(struct dp_mr *mr, u64 offset, u32 bytes)
{
	return (struct ib_sge){ .addr = mr->addr + offset, .length = bytes, .lkey = mr->lkey };
}

/*
 * -EIO after revocation. Then another region may have the keys, so nothing
 * is posted; and devices differ in what becomes of what was, so nothing is
 * waited for.
 */
int dp_mr_check(const struct dp_mr *mr)
{
	if (!READ_ONCE(mr->revoked))
		return 0;
	return dp_refuse(-EIO, "a memory region's program freed the GPU's memory");
}

int dp_post_send(struct dp_end *e, struct dp_work *w, struct dp_mr *mr, u64 offset, u32 bytes)
{
	struct ib_sge sge = sge_of(mr, offset, bytes);
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	int err = dp_mr_check(mr);

	return err ? err : post(e, &wr, w, bytes);
}

int dp_post_write(struct dp_end *e, struct dp_work *w, struct dp_mr *mr,
		  const struct dmaplane_write_imm_params *p)
{
	struct ib_sge sge = sge_of(mr, p->local_offset, p->length);
	struct ib_rdma_wr wr = {
		.wr = { .opcode = IB_WR_RDMA_WRITE_WITH_IMM, .sg_list = &sge, .num_sge = 1,
			.ex.imm_data = cpu_to_be32(p->imm_data) },
		.remote_addr = p->remote_addr,
		.rkey = p->remote_rkey,
	};
	int err = dp_mr_check(mr);

	return err ? err : post(e, &wr.wr, w, p->length);
}

int dp_post_reg(struct dp_end *e, struct dp_work *w, struct ib_mr *mr, int access)
{
	struct ib_reg_wr wr = {
		.wr = { .opcode = IB_WR_REG_MR }, .mr = mr, .key = mr->rkey, .access = access,
	};

	return post(e, &wr.wr, w, 0);
}

int dp_post_recv(struct dp_end *e, struct dp_work *w, struct dp_mr *mr, u64 offset, u32 bytes)
{
	struct ib_sge sge;
	struct ib_recv_wr wr = {};
	int err = dp_mr_check(mr);

	if (err)
		return err;
	work_begin(w);
	wr.wr_cqe = &w->cqe;
	if (bytes) {
		sge = sge_of(mr, offset, bytes);
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	err = ib_post_recv(e->qp, &wr, NULL);
	if (!err)
		dp_count(recvs);
	return err;
}

/* Between two polls that found nothing: gives others the CPU, and up when it must. */
int dp_pause(struct dp_rdma *r, u32 *spins)
{
	if (fatal_signal_pending(current))
		return -EINTR;
	if (READ_ONCE(r->dead))
		return -ENODEV;
	if (++*spins < 64)
		cond_resched();
	else
		usleep_range(20, 100);
	return 0;
}

/* For what was posted with the region. */
int dp_wait(struct dp_rdma *r, struct dp_end *e, struct dp_work *w, const struct dp_mr *mr)
{
	u32 spins = 0;
	int err;

	for (;;) {
		ib_process_cq_direct(e->sends, 16);
		ib_process_cq_direct(e->recvs, 16);
		if (w->done)
			return w->status == IB_WC_SUCCESS ? 0 : -EIO;
		if (ktime_get_ns() - w->begun > DP_OPERATION_NS)
			return -ETIMEDOUT;
		err = dp_mr_check(mr);
		if (!err)
			err = dp_pause(r, &spins);
		if (err)
			return err;
	}
}
