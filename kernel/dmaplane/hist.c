// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Latencies of RDMA operations: bucket 0 is below 1 us, bucket i from
 * 2^(i-1) to 2^i us, the last open. A percentile is the upper end of its
 * bucket, and no more than the largest value.
 */
#include <linux/log2.h>
#include <linux/math64.h>
#include <linux/uaccess.h>

#include "dmaplane.h"

struct dp_hist dp_hist_all = { .lock = __SPIN_LOCK_UNLOCKED(dp_hist_all.lock) };

void dp_hist_init(struct dp_hist *h)
{
	spin_lock_init(&h->lock);
}

void dp_hist_record(struct dp_hist *h, u64 ns)
{
	u64 us = div_u64(ns, NSEC_PER_USEC);
	unsigned int bucket =
		us ? min_t(unsigned int, ilog2(us) + 1, DMAPLANE_HIST_BUCKETS - 1) : 0;

	spin_lock(&h->lock);
	h->values.buckets[bucket]++;
	if (!h->values.count || ns < h->values.min_ns)
		h->values.min_ns = ns;
	h->values.max_ns = max_t(u64, h->values.max_ns, ns);
	h->values.count++;
	h->sum_ns += ns;
	spin_unlock(&h->lock);
}

static u64 percentile(const struct dmaplane_hist_params *v, u32 per_mille)
{
	u64 wanted = div_u64(v->count * per_mille + 999, 1000), seen = 0;
	int i;

	for (i = 0; i < DMAPLANE_HIST_BUCKETS - 1; i++) {
		seen += v->buckets[i];
		if (seen >= wanted)
			return min_t(u64, v->max_ns, (u64)NSEC_PER_USEC << i);
	}
	return v->max_ns;
}

void dp_hist_read(struct dp_hist *h, struct dmaplane_hist_params *out, bool reset)
{
	u64 sum;

	spin_lock(&h->lock);
	*out = h->values;
	sum = h->sum_ns;
	if (reset) {
		memset(&h->values, 0, sizeof(h->values));
		h->sum_ns = 0;
	}
	spin_unlock(&h->lock);
	if (!out->count)
		return;
	out->p50_ns = percentile(out, 500);
	out->p99_ns = percentile(out, 990);
	out->p999_ns = percentile(out, 999);
	out->avg_ns = div64_u64(sum, out->count);
}

long dp_hist_get(struct dp_file *f, void __user *arg)
{
	struct dmaplane_hist_params p, out;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	dp_hist_read(&f->hist, &out, p.reset);
	out.reset = p.reset;
	return copy_to_user(arg, &out, sizeof(out)) ? -EFAULT : 0;
}
