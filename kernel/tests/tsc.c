// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Prints the frequency of this machine's time stamp counter in kHz, for guest-clock.sh.
 * QEMU's guests see that counter. On a busy machine a guest that measures it against
 * emulated timers may be wrong by a factor, and then its time runs as much too fast.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

/* Both at the same time: of several looks the one with the least between. */
static void look(uint64_t *ns, uint64_t *ticks)
{
	uint64_t best = UINT64_MAX;
	int i;

	for (i = 0; i < 100; i++) {
		uint64_t before = now_ns(), counted = __rdtsc(), between = now_ns() - before;

		if (between >= best)
			continue;
		best = between;
		*ns = before;
		*ticks = counted;
	}
}

int main(void)
{
	uint64_t ns[2], ticks[2];

	look(&ns[0], &ticks[0]);
	usleep(500000);
	look(&ns[1], &ticks[1]);
	printf("%lu\n", (ticks[1] - ticks[0]) * 1000000 / (ns[1] - ns[0]));
	return 0;
}
