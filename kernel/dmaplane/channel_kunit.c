// SPDX-License-Identifier: GPL-2.0 OR MIT
/* KUnit tests of rings, a part of channel.c where DMAPLANE_KUNIT is set. */
#include <kunit/test.h>

static void kunit_ring_keeps_order_and_refuses_when_full(struct kunit *test)
{
	struct dp_ring *r = kunit_kzalloc(test, sizeof(*r), GFP_KERNEL);
	struct dmaplane_ring_entry e = {};
	u64 round, i;

	KUNIT_ASSERT_NOT_NULL(test, r);
	KUNIT_EXPECT_FALSE(test, ring_pop(r, &e));
	/* The second time the counters pass the end of 32 bits. */
	for (round = 0; round < 2; round++) {
		for (i = 0; i < DMAPLANE_RING_ENTRIES; i++) {
			e.payload = round << 32 | i;
			KUNIT_ASSERT_TRUE(test, ring_push(r, &e));
		}
		KUNIT_EXPECT_EQ(test, ring_used(r), DMAPLANE_RING_ENTRIES);
		e.payload = U64_MAX;
		KUNIT_EXPECT_FALSE(test, ring_push(r, &e));
		for (i = 0; i < DMAPLANE_RING_ENTRIES; i++) {
			KUNIT_ASSERT_TRUE(test, ring_pop(r, &e));
			KUNIT_ASSERT_EQ(test, e.payload, round << 32 | i);
		}
		KUNIT_EXPECT_FALSE(test, ring_pop(r, &e));
		r->head = U32_MAX - 100;
		r->tail = U32_MAX - 100;
	}
}

/* The worker never takes an entry that would find no room when it is done. */
static void kunit_worker_takes_what_finds_room(struct kunit *test)
{
	struct dp_channel *c = kunit_kzalloc(test, sizeof(*c), GFP_KERNEL);
	struct dmaplane_ring_entry batch[WORK_BATCH], e = {};
	u32 room;

	KUNIT_ASSERT_NOT_NULL(test, c);
	spin_lock_init(&c->lock);
	for (room = 0; room <= WORK_BATCH + 1; room++) {
		c->submitted.head = 0;
		c->submitted.tail = 0;
		while (ring_used(&c->submitted) < WORK_BATCH + 10)
			ring_push(&c->submitted, &e);
		c->completed.head = 0;
		c->completed.tail = DMAPLANE_RING_ENTRIES - room;
		KUNIT_EXPECT_EQ(test, take_batch(c, batch), min_t(u32, room, WORK_BATCH));
		KUNIT_EXPECT_EQ(test, ring_used(&c->submitted),
				WORK_BATCH + 10 - min_t(u32, room, WORK_BATCH));
	}
}

static struct kunit_case channel_cases[] = {
	KUNIT_CASE(kunit_ring_keeps_order_and_refuses_when_full),
	KUNIT_CASE(kunit_worker_takes_what_finds_room),
	{}
};

static struct kunit_suite channel_suite = {
	.name = "dmaplane_channel",
	.test_cases = channel_cases,
};
kunit_test_suites(&channel_suite);
