// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Channels: rings of entries with a worker. */
#include "test.h"

static int make_channel(int dev)
{
	struct dmaplane_channel_params p;

	return ioctl(dev, DMAPLANE_CREATE_CHANNEL, &p);
}

static int submit(int dev, uint64_t payload, uint32_t flags)
{
	struct dmaplane_submit_params p = { .entry = { .payload = payload, .flags = flags } };

	return ioctl(dev, DMAPLANE_SUBMIT, &p);
}

static int complete(int dev, struct dmaplane_ring_entry *e)
{
	struct dmaplane_complete_params p = {};
	int err = ioctl(dev, DMAPLANE_COMPLETE, &p);

	*e = p.entry;
	return err;
}

TEST(channel_completes_in_order)
{
	int dev = open_device();
	struct dmaplane_ring_entry e;
	struct dmaplane_stats s;
	uint64_t i;

	CHECK(make_channel(dev) == 0);
	for (i = 0; i < 5000; i++) {
		CHECK(submit(dev, i * 3, i) == 0);
		CHECK(complete(dev, &e) == 0);
		CHECK(e.payload == i * 3 + 1 && e.flags == (uint32_t)i);
	}
	REFUSED(EAGAIN, complete(dev, &e));
	CHECK(ioctl(dev, DMAPLANE_GET_STATS, &s) == 0);
	CHECK(s.total_submissions == 5000 && s.total_completions == 5000 && s.dropped_count == 0);
	CHECK(s.ring_high_watermark >= 1 && s.ring_high_watermark <= 1024);
}

/* Both rings fill, then submissions are dropped and counted; none that was taken is lost. */
TEST(channel_full_drops_and_counts)
{
	int dev = open_device();
	struct dmaplane_ring_entry e;
	struct dmaplane_stats s;
	uint64_t taken = 0, got = 0;

	CHECK(make_channel(dev) == 0);
	EVENTUALLY((submit(dev, taken, 0) == 0 ? taken++, taken : taken) == 2048);
	REFUSED(EAGAIN, submit(dev, 0, 0));
	CHECK(ioctl(dev, DMAPLANE_GET_STATS, &s) == 0);
	CHECK(s.total_submissions == 2048 && s.dropped_count >= 1 && s.ring_high_watermark == 1024);
	while (complete(dev, &e) == 0) {
		CHECK(e.payload == got + 1);
		got++;
	}
	CHECK(errno == EAGAIN && got == 2048);
}

TEST(channel_calls_need_one)
{
	int dev = open_device();
	struct dmaplane_ring_entry e;
	struct dmaplane_stats s;

	REFUSED(ENXIO, submit(dev, 1, 0));
	REFUSED(ENXIO, complete(dev, &e));
	REFUSED(ENXIO, ioctl(dev, DMAPLANE_GET_STATS, &s));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_CREATE_CHANNEL, NULL));
	CHECK(make_channel(dev) == 0);
	REFUSED(EBUSY, make_channel(dev));
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_SUBMIT, NULL));
	CHECK(submit(dev, 1, 0) == 0);
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_COMPLETE, NULL));
	/* A bad address did not take the entry. */
	CHECK(complete(dev, &e) == 0 && e.payload == 2);
}

TEST(channels_are_at_most_4)
{
	int dev[5], i;

	for (i = 0; i < 5; i++)
		dev[i] = open_device();
	for (i = 0; i < 4; i++)
		CHECK(make_channel(dev[i]) == 0);
	REFUSED(ENOSPC, make_channel(dev[4]));
	close(dev[1]);
	CHECK(make_channel(dev[4]) == 0);
}

TEST(channels_of_two_processes_do_not_mix)
{
	pid_t children[4];
	int c;

	for (c = 0; c < 4; c++) {
		children[c] = fork();
		if (!children[c]) {
			int dev = open_device();
			struct dmaplane_ring_entry e;
			uint64_t i, j;

			CHECK(make_channel(dev) == 0);
			for (i = 0; i < 2000; i += 50) {
				for (j = i; j < i + 50; j++)
					CHECK(submit(dev, j << 8 | c, c) == 0);
				for (j = i; j < i + 50; j++)
					CHECK(complete(dev, &e) == 0 &&
					      e.payload == (j << 8 | c) + 1 &&
					      e.flags == (uint32_t)c);
			}
			_exit(0);
		}
	}
	for (c = 0; c < 4; c++)
		reap(children[c]);
}
