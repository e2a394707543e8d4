// SPDX-License-Identifier: GPL-2.0 OR MIT
/* KUnit tests of credits and figures, a part of stream.c where DMAPLANE_KUNIT is set. */
#include <kunit/test.h>
#include <linux/prandom.h>

#define KUNIT_SEED	1
#define KUNIT_STEPS	20000

/*
 * Whatever completes when: what is in flight never exceeds the credits, and
 * once the high watermark was reached nothing is posted above the low one.
 */
static void kunit_check_credits(struct kunit *test, struct rnd_state *rnd, struct run *run)
{
	bool draining = false;
	u32 i;

	for (i = 0; i < KUNIT_STEPS; i++) {
		u64 in_flight = run->posted - run->done;

		if (in_flight && prandom_u32_state(rnd) % 3 == 0) {
			run->done += 1 + prandom_u32_state(rnd) % in_flight;
			continue;
		}
		if (in_flight >= run->high)
			draining = true;
		else if (in_flight <= run->low)
			draining = false;
		if (has_credit(run)) {
			KUNIT_ASSERT_FALSE(test, draining);
			run->posted++;
		}
		KUNIT_ASSERT_LE(test, run->posted - run->done, (u64)run->credits);
		KUNIT_ASSERT_LE(test, run->posted - run->done, (u64)run->high);
	}
	KUNIT_EXPECT_GT(test, run->stalls, 0ULL);
	KUNIT_EXPECT_GT(test, run->done, 100ULL);
}

static void kunit_in_flight_never_exceeds_credits(struct kunit *test)
{
	struct rnd_state rnd;
	u32 credits, high, low;

	prandom_seed_state(&rnd, KUNIT_SEED);
	for (credits = 1; credits <= 9; credits++)
		for (high = 1; high <= credits; high++)
			for (low = 0; low < high; low++) {
				struct run run = { .credits = credits, .high = high, .low = low };

				kunit_check_credits(test, &rnd, &run);
			}
}

/*
 * With credits for as many messages as queues and completion queues hold, none is refused
 * for want of room.
 */
static void kunit_a_depth_that_queues_cannot_hold_is_refused(struct kunit *test)
{
	struct dp_rdma *r = kunit_kzalloc(test, sizeof(*r), GFP_KERNEL);
	struct run run = { .r = r, .depth = 5 };

	KUNIT_ASSERT_NOT_NULL(test, r);
	r->send_depth = 4;
	r->recv_depth = 8;
	KUNIT_EXPECT_EQ(test, run_in_turn(&run), -EINVAL);
	/* Receives that a program posted would take the messages. */
	run.depth = 4;
	r->inbox.posted = 1;
	KUNIT_EXPECT_EQ(test, run_in_turn(&run), -EBUSY);
}

static void kunit_latencies_are_told_to_a_sixteenth(struct kunit *test)
{
	struct run run = {};
	u64 ns;

	for (ns = STEPS; ns < 1ULL << 40; ns += 1 + ns / 7) {
		u64 end = step_end(step_of(ns));

		KUNIT_ASSERT_GE(test, end, ns);
		KUNIT_ASSERT_LE(test, end, ns + ns / STEPS);
	}
	run.latencies = kunit_kcalloc(test, STEPS_ALL, sizeof(*run.latencies), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, run.latencies);
	KUNIT_EXPECT_EQ(test, p99_of(&run), 0ULL);
	run.done = 100;
	run.latencies[step_of(1000)] = 98;
	run.latencies[step_of(50000)] = 2;
	KUNIT_EXPECT_EQ(test, p99_of(&run), step_end(step_of(50000)));
	run.latencies[step_of(1000)] = 99;
	run.latencies[step_of(50000)] = 1;
	KUNIT_EXPECT_EQ(test, p99_of(&run), step_end(step_of(1000)));
}

static void kunit_saturation_is_the_least_depth_with_the_most(struct kunit *test)
{
	struct dmaplane_sweep_params *p = kunit_kzalloc(test, sizeof(*p), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, p);
	p->min_qdepth = 2;
	p->step = 3;
	p->nr_points = 4;
	p->throughput_mbps[0] = 50;
	p->throughput_mbps[1] = 94;
	p->throughput_mbps[2] = 95;
	p->throughput_mbps[3] = 100;
	KUNIT_EXPECT_EQ(test, saturation(p), 8U);
}

static struct kunit_case stream_cases[] = {
	KUNIT_CASE(kunit_in_flight_never_exceeds_credits),
	KUNIT_CASE(kunit_a_depth_that_queues_cannot_hold_is_refused),
	KUNIT_CASE(kunit_latencies_are_told_to_a_sixteenth),
	KUNIT_CASE(kunit_saturation_is_the_least_depth_with_the_most),
	{}
};

static struct kunit_suite stream_suite = {
	.name = "dmaplane_stream",
	.test_cases = stream_cases,
};
kunit_test_suites(&stream_suite);
