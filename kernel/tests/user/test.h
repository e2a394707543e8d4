/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A test is a function that ends with a failed CHECK or returns. Each runs
 * in a process of its own with a limit of time; after it the module must
 * have no more objects than before (test.c).
 */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../dmaplane/dmaplane_pool_uapi.h"
#include "../../dmaplane/dmaplane_uapi.h"
#include "../dmaplane_importer.h"

#define DEVICE "/dev/dmaplane"
#define POOL "/dev/dmaplane-pool"
#define IMPORTER "/dev/dmaplane_importer"

struct test {
	const char *name;
	void (*run)(void);
	struct test *next;
};

void test_add(struct test *t);

#define TEST(fn) \
	static void fn(void); \
	__attribute__((constructor)) static void add_##fn(void) \
	{ \
		static struct test t = { .name = #fn, .run = fn }; \
		test_add(&t); \
	} \
	static void fn(void)

#define FAIL(...) do { \
	printf("# %s:%d: ", __FILE__, __LINE__); \
	printf(__VA_ARGS__); \
	printf("\n"); \
	fflush(stdout); \
	_exit(1); \
} while (0)

#define CHECK(x) do { if (!(x)) FAIL("%s (errno %d)", #x, errno); } while (0)

/* The call fails, and with this error. */
#define REFUSED(err, call) do { \
	errno = 0; \
	if ((long)(call) != -1) \
		FAIL("%s did not fail", #call); \
	if (errno != (err)) \
		FAIL("%s: errno %d, not %s", #call, errno, #err); \
} while (0)

#define RDMA_DEVICE "rxe0"
#define RW \
	(DMAPLANE_ACCESS_LOCAL_WRITE | DMAPLANE_ACCESS_REMOTE_WRITE | DMAPLANE_ACCESS_REMOTE_READ)

#define MIB (1UL << 20)

/* Waits for a state, never for a time: fails after a minute. */
#define EVENTUALLY(x) do { \
	int tries_ = 0; \
	while (!(x)) { \
		if (++tries_ > 60000) \
			FAIL("never: %s", #x); \
		usleep(1000); \
	} \
} while (0)

/* helpers.c: each fails the test where it cannot do it */
int open_device(void);
uint32_t make_buffer(int dev, uint32_t type, uint64_t size);
int try_buffer(int dev, uint32_t type, uint64_t size, int node, struct dmaplane_buf_params *p);
int destroy(int dev, uint32_t id);
void *map_buffer(int dev, uint32_t id);
int export_buffer(int dev, uint32_t id);
int import_buffer(int dmabuf, uint32_t device, struct importer_map *map);
uint64_t device_reads(int importer, uint64_t offset);
void device_writes(int importer, uint64_t offset, uint64_t value);
void reap(pid_t child);
void in_every_order(int users, void (*run)(const int *order));
int setup_rdma(int dev, const char *name);
uint32_t register_mr(int dev, uint32_t buf, uint32_t access, struct dmaplane_mr_params *p);

struct live { long buffers, dmabufs, mrs, pins; };
struct live live(void);

void gpu_step(int dev, unsigned int *seed);
void keep_pool(void);
void pool_step(unsigned int *seed);
void any_call(int dev, int pool, unsigned int *seed);
int fuzz(int seconds, unsigned int seed);
int kills(int n, unsigned int seed);
int kills_while_away(unsigned int seed, int *n);
int hold(void);
int keep(const char *what);

#endif
