// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Messages from one end of the pair to the other, with credits: one for
 * each message in flight, so that neither a queue nor a completion queue
 * can overflow. Configurations that would need more are refused.
 */
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane_trace.h"
#include "rdma.h"

#define ITERATIONS_MAX	10000000
#define SECONDS_MAX	3600
/* Sixteen steps for each power of two: 6 % apart. */
#define STEPS		16
#define STEPS_ALL	(64 * STEPS)

/* A run of messages. */
struct run {
	const char *call;		/* its name, for the log */
	struct dp_file *f;
	struct dp_rdma *r;
	struct dp_mr *mr, *into;	/* from, to; the same, or of one direction only */
	u32 bytes, depth, credits, high, low;
	u64 count;			/* of messages; 0: until `until` */
	u64 until;
	bool back_and_forth;		/* every other message the other way */
	/* What is in flight, by number modulo depth. */
	struct dp_work *sends, *recvs;
	u64 posted, done;
	bool held;			/* from the high watermark to the low one */
	u32 status;
	/* What came out. */
	u64 begun, ended, stalls, sum_ns;
	u32 *latencies;			/* how many in each step */
	u64 window_begun, window_done, windows, window_min, window_max;
};

static u64 mbps(u64 bytes, u64 ns)
{
	return div64_u64(bytes * 1000, max_t(u64, ns, 1));
}

static unsigned int step_of(u64 ns)
{
	unsigned int power = ilog2(ns | STEPS);

	return power * STEPS + ((ns >> (power - ilog2(STEPS))) & (STEPS - 1));
}

static u64 step_end(unsigned int step)
{
	unsigned int power = step / STEPS;

	return ((u64)(STEPS + step % STEPS + 1) << (power - ilog2(STEPS))) - 1;
}

static u64 p99_of(const struct run *run)
{
	u64 wanted = run->done - div_u64(run->done, 100), seen = 0;
	unsigned int step;

	for (step = 0; step < STEPS_ALL; step++) {
		seen += run->latencies[step];
		if (seen >= wanted && seen)
			return step_end(step);
	}
	return 0;
}

/* Within a region both halves where they fit, so that what arrives is not what was there. */
static u64 landing(const struct run *run)
{
	return run->into == run->mr && run->mr->size / 2 >= run->bytes ? run->mr->size / 2 : 0;
}

static int check_message(const struct run *run)
{
	u64 max = min3((u64)run->mr->size, (u64)run->into->size, (u64)run->r->max_msg);

	if (!run->bytes || run->bytes > max)
		return dp_refuse(-EINVAL, "%s: messages of %u bytes; 1 to %llu", run->call,
				 run->bytes, max);
	if (!(run->into->access & IB_ACCESS_LOCAL_WRITE))
		return dp_refuse(-EACCES, "%s: the memory region lacks the right to be written (1)",
				 run->call);
	return 0;
}

static int post_one(struct run *run)
{
	bool back = run->back_and_forth && (run->posted & 1);
	struct dp_end *from = back ? &run->r->b : &run->r->a;
	struct dp_end *to = back ? &run->r->a : &run->r->b;
	u64 other = landing(run);
	u32 slot = run->posted % run->depth;
	int err;

	err = dp_post_recv(to, &run->recvs[slot], run->into, back ? 0 : other, run->bytes);
	if (!err)
		err = dp_post_send(from, &run->sends[slot], run->mr, back ? other : 0, run->bytes);
	if (!err)
		run->posted++;
	return err;
}

static bool wants_to_post(const struct run *run)
{
	if (run->posted - run->done >= run->depth)
		return false;
	return run->count ? run->posted < run->count : ktime_get_ns() < run->until;
}

/* A credit for one more message, by the watermarks. */
static bool has_credit(struct run *run)
{
	u64 in_flight = run->posted - run->done;

	if (run->held && in_flight <= run->low) {
		run->held = false;
		dp_count(low_events);
	}
	if (!run->held && in_flight >= run->high) {
		run->held = true;
		dp_count(high_events);
	}
	if (!run->held && in_flight < run->credits)
		return true;
	run->stalls++;
	dp_count(stalls);
	trace_dmaplane_flow_stall(in_flight, run->credits);
	return false;
}

static void close_window(struct run *run, u64 now)
{
	u64 rate = mbps((run->done - run->window_done) * run->bytes, now - run->window_begun);

	run->window_min = run->windows ? min(run->window_min, rate) : rate;
	run->window_max = max(run->window_max, rate);
	run->windows++;
	run->window_begun = now;
	run->window_done = run->done;
}

/* Messages whose two completions are there, in order. */
static int take_done(struct run *run)
{
	while (run->done < run->posted) {
		struct dp_work *send = &run->sends[run->done % run->depth];
		struct dp_work *recv = &run->recvs[run->done % run->depth];
		u64 ns;

		if ((send->done && send->status) || (recv->done && recv->status)) {
			run->status = send->done && send->status ? send->status : recv->status;
			return -EIO;
		}
		if (!send->done || !recv->done)
			break;
		ns = max(send->ended, recv->ended) - send->begun;
		run->sum_ns += ns;
		run->latencies[step_of(ns)]++;
		dp_hist_record(&run->f->hist, ns);
		dp_hist_record(&dp_hist_all, ns);
		dp_add(bytes_received, recv->bytes);
		run->done++;
	}
	return 0;
}

static void poll_pair(struct run *run)
{
	ib_process_cq_direct(run->r->a.sends, 32);
	ib_process_cq_direct(run->r->b.recvs, 32);
	if (!run->back_and_forth)
		return;
	ib_process_cq_direct(run->r->b.sends, 32);
	ib_process_cq_direct(run->r->a.recvs, 32);
}

static int go(struct run *run)
{
	u64 last, seen, now;
	u32 spins = 0;
	int err;

	run->begun = run->window_begun = last = ktime_get_ns();
	for (;;) {
		seen = run->done;
		while (wants_to_post(run) && has_credit(run)) {
			err = post_one(run);
			if (err)
				return err;
		}
		poll_pair(run);
		err = take_done(run);
		if (err)
			return err;
		now = ktime_get_ns();
		if (now - run->window_begun >= NSEC_PER_SEC)
			close_window(run, now);
		if (run->done == run->posted && !wants_to_post(run))
			break;
		if (run->done != seen) {
			last = now;
			spins = 0;
		} else if (now - last > DP_OPERATION_NS) {
			return -ETIMEDOUT;
		}
		err = dp_mr_check(run->mr);
		if (!err)
			err = dp_pause(run->r, &spins);
		if (err)
			return err;
	}
	run->ended = now;
	if (run->done > run->window_done && !run->windows)
		close_window(run, now);
	return 0;
}

static void run_free(struct run *run)
{
	kvfree(run->sends);
	kvfree(run->recvs);
	kvfree(run->latencies);
}

static int run_alloc(struct run *run)
{
	run->sends = kvcalloc(run->depth, sizeof(*run->sends), DP_GFP);
	run->recvs = kvcalloc(run->depth, sizeof(*run->recvs), DP_GFP);
	run->latencies = kvcalloc(STEPS_ALL, sizeof(*run->latencies), DP_GFP);
	if (run->sends && run->recvs && run->latencies)
		return 0;
	run_free(run);
	return -ENOMEM;
}

/*
 * In the caller's turn. Requests that are left outstanding end with the
 * queue pairs, before what they point to is freed.
 */
static int run_in_turn(struct run *run)
{
	struct dp_rdma *r = run->r;
	u32 depth_max = min(r->send_depth, r->recv_depth);
	int err;

	if (!run->depth || run->depth > depth_max)
		return dp_refuse(-EINVAL, "%s: queue depth %u; 1 to %u", run->call, run->depth,
				 depth_max);
	/* A program's own receives would take these messages. */
	if (r->inbox.posted != r->inbox.taken)
		return dp_refuse(-EBUSY,
				 "%s: receives of RDMA_POST_RECV are outstanding on the pair",
				 run->call);
	run->credits = min(run->depth, r->flow.credits);
	run->high = min(run->credits, r->flow.high);
	run->low = min(run->high - 1, r->flow.low);
	err = run_alloc(run);
	if (err)
		return err;
	err = go(run);
	if (err)
		dp_pair_restart(r);
	return err;
}

/* Frees nothing of the run if it succeeds: run_free() does, after reading it. */
static int run_between(struct run *run)
{
	int err = check_message(run);

	if (!err)
		err = dp_turn(run->r, &run->r->pair_turn);
	if (!err) {
		err = run_in_turn(run);
		up(&run->r->pair_turn);
	}
	if (err) {
		run_free(run);
		run->sends = NULL;
		run->recvs = NULL;
		run->latencies = NULL;
	}
	return err;
}

/* Within a region. */
static int run_messages(struct run *run, u32 mr_id)
{
	int err;

	run->mr = dp_mr_find(run->r, mr_id);
	if (!run->mr)
		return dp_no_mr(run->call, mr_id);
	run->into = run->mr;
	err = run_between(run);
	dp_mr_put(run->mr);
	return err;
}

/* Results go back also with an error, since they tell of it. */
static long give(void __user *arg, const void *p, size_t bytes, int err)
{
	if (copy_to_user(arg, p, bytes))
		return -EFAULT;
	return err;
}

long dp_loopback(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_loopback_params p;
	struct run run = { .call = "LOOPBACK_TEST", .f = f, .r = r, .depth = 1, .count = 1 };
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	run.bytes = p.size;
	err = run_messages(&run, p.mr_id);
	p.status = run.status;
	p.latency_ns = run.sum_ns;
	run_free(&run);
	return give(arg, &p, sizeof(p), err);
}

/* From a region of a GPU's memory to one of a buffer's. */
static int run_from_gpu(struct run *run, u32 gpu_mr_id, u32 host_mr_id)
{
	int err;

	run->mr = dp_mr_find(run->r, gpu_mr_id);
	run->into = dp_mr_find(run->r, host_mr_id);
	if (!run->mr || !run->into)
		err = dp_no_mr(run->call, run->mr ? host_mr_id : gpu_mr_id);
	else if (!run->mr->pin || !run->into->buf)
		err = dp_refuse(-EINVAL,
				"%s: gpu_mr_id %u, host_mr_id %u: not of a GPU's memory, not of a buffer",
				run->call, gpu_mr_id, host_mr_id);
	else
		err = run_between(run);
	if (run->mr)
		dp_mr_put(run->mr);
	if (run->into)
		dp_mr_put(run->into);
	return err;
}

long dp_gpu_loopback(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_gpu_loopback_params p;
	struct run run = { .call = "GPU_LOOPBACK", .f = f, .r = r, .depth = 1, .count = 1 };
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	run.bytes = p.size;
	err = run_from_gpu(&run, p.gpu_mr_id, p.host_mr_id);
	p.status = run.status;
	p.latency_ns = run.sum_ns;
	p.recv_bytes = err ? 0 : run.recvs[0].bytes;
	run_free(&run);
	return give(arg, &p, sizeof(p), err);
}

static long bench(struct dp_file *f, struct dp_rdma *r, void __user *arg, bool pingpong)
{
	struct dmaplane_bench_params p;
	struct run run = { .call = pingpong ? "PINGPONG_BENCH" : "STREAMING_BENCH",
			   .f = f,
			   .r = r };
	struct dp_mr *mr;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (!p.iterations || p.iterations > ITERATIONS_MAX)
		return dp_refuse(-EINVAL, "%s: iterations %u; 1 to %d", run.call, p.iterations,
				 ITERATIONS_MAX);
	mr = dp_mr_find(r, p.mr_id);
	if (!mr)
		return dp_no_mr(run.call, p.mr_id);
	p.mr_reg_ns = mr->reg_ns;
	dp_mr_put(mr);
	run.bytes = p.msg_size;
	run.back_and_forth = pingpong;
	run.count = pingpong ? 2ULL * p.iterations : p.iterations;
	run.depth = pingpong ? 1 : p.queue_depth;
	err = run_messages(&run, p.mr_id);
	if (err)
		return err;
	p.total_ns = run.ended - run.begun;
	p.avg_latency_ns = div64_u64(run.sum_ns, run.done);
	p.p99_latency_ns = p99_of(&run);
	p.throughput_mbps = mbps(run.done * run.bytes, p.total_ns);
	run_free(&run);
	return give(arg, &p, sizeof(p), 0);
}

/* One message at a time, there and back; the latencies are of one way. */
long dp_pingpong(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	return bench(f, r, arg, true);
}

long dp_streaming(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	return bench(f, r, arg, false);
}

long dp_sustained(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_sustained_params p;
	struct run run = { .call = "SUSTAINED_STREAM", .f = f, .r = r };
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (!p.duration_secs || p.duration_secs > SECONDS_MAX)
		return dp_refuse(-EINVAL, "%s: duration_secs %u; 1 to %d", run.call,
				 p.duration_secs, SECONDS_MAX);
	run.bytes = p.msg_size;
	run.depth = p.queue_depth;
	run.until = ktime_get_ns() + p.duration_secs * (u64)NSEC_PER_SEC;
	err = run_messages(&run, p.mr_id);
	p.total_ops = run.done;
	p.total_bytes = run.done * run.bytes;
	p.avg_throughput_mbps = err ? 0 : mbps(p.total_bytes, run.ended - run.begun);
	p.min_window_mbps = run.window_min;
	p.max_window_mbps = run.window_max;
	p.stall_count = run.stalls;
	/* Credits are no more than what the completion queues hold. */
	p.cq_overflow_count = 0;
	p.status = run.status;
	run_free(&run);
	dp_add(sustained_ops, p.total_ops);
	dp_add(sustained_bytes, p.total_bytes);
	return give(arg, &p, sizeof(p), err);
}

static int sweep_point(struct dp_file *f, struct dp_rdma *r, struct dmaplane_sweep_params *p,
		       u32 depth)
{
	struct run run = { .call = "QDEPTH_SWEEP",
			   .f = f,
			   .r = r,
			   .bytes = p->msg_size,
			   .depth = depth,
			   .count = p->iterations };
	int err = run_messages(&run, p->mr_id);

	if (err) {
		p->status = run.status;
		return err;
	}
	p->throughput_mbps[p->nr_points] = mbps(run.done * run.bytes, run.ended - run.begun);
	p->avg_latency_ns[p->nr_points] = div64_u64(run.sum_ns, run.done);
	p->p99_latency_ns[p->nr_points] = p99_of(&run);
	p->nr_points++;
	run_free(&run);
	return 0;
}

/* The smallest depth that has 95 % of the best throughput. */
static u32 saturation(const struct dmaplane_sweep_params *p)
{
	u64 best = 0;
	u32 i;

	for (i = 0; i < p->nr_points; i++)
		best = max_t(u64, best, p->throughput_mbps[i]);
	for (i = 0; i < p->nr_points; i++)
		if (p->throughput_mbps[i] * 100 >= best * 95)
			break;
	return p->min_qdepth + i * p->step;
}

static int check_sweep(struct dp_rdma *r, const struct dmaplane_sweep_params *p)
{
	u32 depth_max = min(r->send_depth, r->recv_depth);

	if (!p->iterations || p->iterations > ITERATIONS_MAX)
		return dp_refuse(-EINVAL, "QDEPTH_SWEEP: iterations %u; 1 to %d", p->iterations,
				 ITERATIONS_MAX);
	if (!p->min_qdepth || p->max_qdepth < p->min_qdepth || p->max_qdepth > depth_max)
		return dp_refuse(-EINVAL,
				 "QDEPTH_SWEEP: 1 <= min_qdepth %u <= max_qdepth %u <= %u does not hold",
				 p->min_qdepth, p->max_qdepth, depth_max);
	if (!p->step || (p->max_qdepth - p->min_qdepth) / p->step >= DMAPLANE_SWEEP_POINTS)
		return dp_refuse(-EINVAL,
				 "QDEPTH_SWEEP: step %u; such that there are %d points at most",
				 p->step, DMAPLANE_SWEEP_POINTS);
	return 0;
}

long dp_sweep(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_sweep_params *p = memdup_user(arg, sizeof(*p));
	u64 depth;
	long err;

	if (IS_ERR(p))
		return PTR_ERR(p);
	err = check_sweep(r, p);
	if (err)
		goto out;
	p->nr_points = 0;
	p->status = 0;
	memset(p->throughput_mbps, 0, sizeof(p->throughput_mbps));
	memset(p->avg_latency_ns, 0, sizeof(p->avg_latency_ns));
	memset(p->p99_latency_ns, 0, sizeof(p->p99_latency_ns));
	for (depth = p->min_qdepth; depth <= p->max_qdepth && !err; depth += p->step)
		err = sweep_point(f, r, p, depth);
	p->saturation_qdepth = err ? 0 : saturation(p);
	err = give(arg, p, sizeof(*p), err);
out:
	kfree(p);
	return err;
}

/* Watermarks: at the high one posting stops, until the low one is reached. */
long dp_flow_configure(struct dp_rdma *r, void __user *arg)
{
	struct dmaplane_flow_params p;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (!p.max_credits || p.max_credits > min(r->send_depth, r->recv_depth))
		return dp_refuse(-EINVAL,
				 "CONFIGURE_FLOW: max_credits %u; 1 to %u, as the queues hold",
				 p.max_credits, min(r->send_depth, r->recv_depth));
	if (p.high_watermark > p.max_credits || p.low_watermark >= p.high_watermark)
		return dp_refuse(-EINVAL,
				 "CONFIGURE_FLOW: low_watermark %u < high_watermark %u <= max_credits %u fails",
				 p.low_watermark, p.high_watermark, p.max_credits);
	err = dp_turn(r, &r->pair_turn);
	if (err)
		return err;
	r->flow.credits = p.max_credits;
	r->flow.high = p.high_watermark;
	r->flow.low = p.low_watermark;
	up(&r->pair_turn);
	p.status = 0;
	return give(arg, &p, sizeof(p), 0);
}

#ifdef DMAPLANE_KUNIT
#include "stream_kunit.c"
#endif
