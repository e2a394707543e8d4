// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * dmaplane-test run [FILTER]: every test, each in a process of its own.
 * dmaplane-test kills N SEED: kills at random (kills.c).
 * dmaplane-test away SEED: the same until there is /tmp/back, while device and module go and come.
 * dmaplane-test fuzz SECONDS SEED: random calls (fuzz.c).
 * dmaplane-test keep dmabuf|mapping|pool: holds only that, until killed (dmabufs.c).
 * dmaplane-test hold: streams until the device below goes (rdma.c).
 * The last line is `dmaplane-test: N tests, M failed` or `... N kills, M failed`.
 */
#include "test.h"

#define LIMIT_S 600

static struct test *tests;

void test_add(struct test *t)
{
	struct test **at = &tests;

	while (*at && strcmp((*at)->name, t->name) < 0)
		at = &(*at)->next;
	t->next = *at;
	*at = t;
}

static bool passes(const struct test *t)
{
	pid_t child = fork();
	int status;

	if (!child) {
		alarm(LIMIT_S);
		t->run();
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return false;
	if (WIFSIGNALED(status))
		printf("# ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What a process left goes soon after it; what stays is leaked. */
static bool left_nothing(void)
{
	struct live l;
	int tries;

	for (tries = 0; tries < 20000; tries++) {
		l = live();
		if (!l.buffers && !l.dmabufs && !l.mrs && !l.pins)
			return true;
		usleep(1000);
	}
	printf("# leaked: %ld buffers, %ld dma-bufs, %ld memory regions, %ld pins\n", l.buffers,
	       l.dmabufs, l.mrs, l.pins);
	return false;
}

static int run(const char *filter)
{
	int n = 0, failed = 0;
	struct test *t;

	for (t = tests; t; t = t->next) {
		bool ok;

		if (filter && !strstr(t->name, filter))
			continue;
		ok = passes(t);
		ok = left_nothing() && ok;
		printf("%s %s\n", ok ? "ok" : "not ok", t->name);
		fflush(stdout);
		n++;
		failed += !ok;
	}
	printf("dmaplane-test: %d tests, %d failed\n", n, failed);
	return failed || !n;
}

static int tell_kills(int n, int failed)
{
	failed += !left_nothing();
	printf("dmaplane-test: %d kills, %d failed\n", n, failed);
	return failed != 0;
}

int main(int argc, char **argv)
{
	if (argc >= 2 && !strcmp(argv[1], "run"))
		return run(argc > 2 ? argv[2] : NULL);
	if (argc == 4 && !strcmp(argv[1], "kills"))
		return tell_kills(atoi(argv[2]), kills(atoi(argv[2]), atoi(argv[3])));
	if (argc == 3 && !strcmp(argv[1], "away")) {
		int n, failed = kills_while_away(atoi(argv[2]), &n);

		return tell_kills(n, failed);
	}
	if (argc == 4 && !strcmp(argv[1], "fuzz")) {
		int failed = fuzz(atoi(argv[2]), atoi(argv[3]));

		failed += !left_nothing();
		printf("dmaplane-test: %s s of fuzzing, %d failed\n", argv[2], failed);
		return failed != 0;
	}
	if (argc == 2 && !strcmp(argv[1], "hold"))
		return hold();
	if (argc == 3 && !strcmp(argv[1], "keep"))
		return keep(argv[2]);
	fprintf(stderr,
		"usage: %s run [FILTER] | kills N SEED | away SEED | fuzz SECONDS SEED | hold | keep dmabuf|mapping|pool\n",
		argv[0]);
	return 2;
}
