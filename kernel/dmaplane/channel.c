// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Channels: a ring of submitted entries, a worker that takes each through
 * its work (adding 1 to the payload stands in for it), and a ring of
 * completed entries. A file has at most one.
 *
 * A completed ring that is full stops the worker, never loses an entry: a
 * submission is dropped, and counted, only where its own ring is full.
 */
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane.h"
#include "dmaplane_trace.h"

/* Entries that the worker takes in one go. */
#define WORK_BATCH 64

static struct workqueue_struct *workers;
static atomic_t next_id;

static u32 ring_used(const struct dp_ring *r)
{
	return r->tail - r->head;
}

static bool ring_push(struct dp_ring *r, const struct dmaplane_ring_entry *e)
{
	if (ring_used(r) == DMAPLANE_RING_ENTRIES)
		return false;
	r->entries[r->tail++ % DMAPLANE_RING_ENTRIES] = *e;
	return true;
}

static bool ring_pop(struct dp_ring *r, struct dmaplane_ring_entry *e)
{
	if (!ring_used(r))
		return false;
	*e = r->entries[r->head++ % DMAPLANE_RING_ENTRIES];
	return true;
}

/* Takes entries that are sure to find room among the completed ones. */
static u32 take_batch(struct dp_channel *c, struct dmaplane_ring_entry *batch)
{
	u32 room, n = 0;

	spin_lock(&c->lock);
	room = min_t(u32, DMAPLANE_RING_ENTRIES - ring_used(&c->completed), WORK_BATCH);
	while (n < room && ring_pop(&c->submitted, &batch[n]))
		n++;
	c->in_work = n;
	spin_unlock(&c->lock);
	return n;
}

static void channel_work(struct work_struct *work)
{
	struct dp_channel *c = container_of(work, struct dp_channel, work);
	struct dmaplane_ring_entry batch[WORK_BATCH];
	u32 i, n;

	while ((n = take_batch(c, batch)) > 0) {
		for (i = 0; i < n; i++)
			batch[i].payload++;
		spin_lock(&c->lock);
		for (i = 0; i < n; i++)
			ring_push(&c->completed, &batch[i]);
		c->in_work = 0;
		c->stats.total_completions += n;
		spin_unlock(&c->lock);
		dp_add(completions, n);
		for (i = 0; i < n; i++)
			trace_dmaplane_ring_complete(c->id, batch[i].payload);
		wake_up_interruptible_all(&c->wait);
		cond_resched();
	}
}

static struct dp_channel *channel_of(struct dp_file *f)
{
	/* Pairs with cmpxchg() in dp_channel_create(): the channel is whole. */
	return smp_load_acquire(&f->channel);
}

static int no_channel(const char *call)
{
	return dp_refuse(-ENXIO, "%s: the file has no channel", call);
}

long dp_channel_create(struct dp_file *f, void __user *arg)
{
	struct dmaplane_channel_params p = {};
	struct dp_channel *c;
	int err;

	if (READ_ONCE(f->channel))
		return dp_refuse(-EBUSY, "CREATE_CHANNEL: the file has one");
	err = dp_user_channel(f->user);
	if (err)
		return err;
	c = kvzalloc(sizeof(*c), DP_GFP);
	if (!c) {
		atomic_dec(&f->user->channels);
		return -ENOMEM;
	}
	c->user = f->user;
	c->id = atomic_inc_return(&next_id) - 1;
	spin_lock_init(&c->lock);
	init_waitqueue_head(&c->wait);
	INIT_WORK(&c->work, channel_work);
	dp_count(channels);
	p.channel_id = c->id;
	if (copy_to_user(arg, &p, sizeof(p))) {
		dp_channel_destroy(c);
		return -EFAULT;
	}
	/* Another thread may have been faster: the file keeps that one's. */
	if (cmpxchg(&f->channel, NULL, c)) {
		dp_channel_destroy(c);
		return dp_refuse(-EBUSY, "CREATE_CHANNEL: the file has one");
	}
	return 0;
}

void dp_channel_destroy(struct dp_channel *c)
{
	if (!c)
		return;
	cancel_work_sync(&c->work);
	atomic_dec(&c->user->channels);
	kvfree(c);
}

long dp_channel_submit(struct dp_file *f, void __user *arg)
{
	struct dp_channel *c = channel_of(f);
	struct dmaplane_submit_params p;
	bool pushed;

	if (!c)
		return no_channel("SUBMIT");
	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	p.entry.pad = 0;
	spin_lock(&c->lock);
	pushed = ring_push(&c->submitted, &p.entry);
	if (pushed) {
		c->stats.total_submissions++;
		c->stats.ring_high_watermark =
			max(c->stats.ring_high_watermark, ring_used(&c->submitted));
	} else {
		c->stats.dropped_count++;
	}
	spin_unlock(&c->lock);
	if (!pushed) {
		dp_count(dropped);
		return -EAGAIN;
	}
	dp_count(submissions);
	trace_dmaplane_ring_submit(c->id, p.entry.payload);
	queue_work(workers, &c->work);
	return 0;
}

/* True once there is an entry, or none is on its way. */
static bool pop_or_idle(struct dp_channel *c, struct dmaplane_ring_entry *e, bool *popped)
{
	bool idle;

	spin_lock(&c->lock);
	*popped = ring_pop(&c->completed, e);
	idle = !c->in_work && !ring_used(&c->submitted);
	spin_unlock(&c->lock);
	return *popped || idle;
}

long dp_channel_complete(struct dp_file *f, bool nonblock, void __user *arg)
{
	struct dp_channel *c = channel_of(f);
	struct dmaplane_complete_params p = {};
	bool popped;

	if (!c)
		return no_channel("COMPLETE");
	/* Before the entry is taken, so that it is not lost in a bad address. */
	if (copy_to_user(arg, &p, sizeof(p)))
		return -EFAULT;
	if (nonblock)
		pop_or_idle(c, &p.entry, &popped);
	else if (wait_event_interruptible(c->wait, pop_or_idle(c, &p.entry, &popped)))
		return -ERESTARTSYS;
	if (!popped)
		return -EAGAIN;
	queue_work(workers, &c->work);
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

long dp_channel_stats(struct dp_file *f, void __user *arg)
{
	struct dp_channel *c = channel_of(f);
	struct dmaplane_stats s;

	if (!c)
		return no_channel("GET_STATS");
	spin_lock(&c->lock);
	s = c->stats;
	spin_unlock(&c->lock);
	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}

int dp_channel_init(void)
{
	workers = alloc_workqueue("dmaplane", WQ_UNBOUND, 0);
	return workers ? 0 : -ENOMEM;
}

void dp_channel_exit(void)
{
	destroy_workqueue(workers);
}

#ifdef DMAPLANE_KUNIT
#include "channel_kunit.c"
#endif
