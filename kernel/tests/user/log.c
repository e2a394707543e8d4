// SPDX-License-Identifier: GPL-2.0 OR MIT
/* What the kernel's log says of calls that are refused. */
#include <sys/prctl.h>
#include <time.h>

#include "test.h"

#define LIMIT		"/sys/module/dmaplane/parameters/refusals_per_minute"
#define LIMIT_DEFAULT	30

static void set_limit(unsigned int lines)
{
	FILE *f = fopen(LIMIT, "w");

	CHECK(f && fprintf(f, "%u", lines) > 0 && fclose(f) == 0);
}

/* From here on. */
static int open_log(void)
{
	int log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);

	CHECK(log >= 0 && lseek(log, 0, SEEK_END) >= 0);
	return log;
}

/* The next line of the module's; false: there is none. What was overwritten is skipped. */
static bool next_line(int log, char *line, size_t size)
{
	ssize_t n;

	for (;;) {
		n = read(log, line, size - 1);
		if (n < 0 && errno == EAGAIN)
			return false;
		if (n < 0) {
			CHECK(errno == EPIPE);
			continue;
		}
		line[n] = 0;
		if (strstr(line, ";dmaplane: "))
			return true;
	}
}

/* One line, which has this; what others are refused meanwhile does not count. */
static void told(int log, const char *what)
{
	char line[1024], own[32];
	bool is_told = false;

	snprintf(own, sizeof(own), "[%d]: ", getpid());
	while (next_line(log, line, sizeof(line))) {
		if (!strstr(line, own))
			continue;
		if (is_told || !strstr(line, what))
			FAIL("not just '%s': %s", what, line);
		is_told = true;
	}
	if (!is_told)
		FAIL("nothing of '%s'", what);
}

static void buffers_are_told(int log, int dev)
{
	struct dmaplane_export_dmabuf_arg ex = {};
	struct dmaplane_numa_bench_params n = { .buffer_size = 1 };
	struct dmaplane_buf_params p;

	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 0, -1, &p));
	told(log, "error -22: CREATE_BUFFER: size 0; 1 to 1073741824");
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_GPU, 1, -1, &p));
	told(log, "CREATE_BUFFER: alloc_type 2; there are 0 and 1");
	REFUSED(EINVAL, try_buffer(dev, DMAPLANE_BUF_PAGES, 1, 7, &p));
	told(log, "CREATE_BUFFER: numa_node 7");
	REFUSED(ENOENT, destroy(dev, 77));
	told(log, "DESTROY_BUFFER: buffer 77");
	ex.buf_id = make_buffer(dev, DMAPLANE_BUF_COHERENT, 4096);
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_EXPORT_DMABUF, &ex));
	told(log, "EXPORT_DMABUF: buffer");
	CHECK(mmap(NULL, 8192, PROT_READ, MAP_SHARED, dev, (off_t)ex.buf_id << 12) == MAP_FAILED);
	told(log, "mmap: 2 pages of buffer");
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_NUMA_BENCH, &n));
	told(log, "NUMA_BENCH: iterations 0; 1 to 100000");
	REFUSED(EFAULT, ioctl(dev, DMAPLANE_CREATE_BUFFER, NULL));
	told(log, "call 0xc018e405: its argument cannot be read or written");
	REFUSED(ENOTTY, ioctl(dev, 0x1234, NULL));
	told(log, "call 0x1234: there is none");
	REFUSED(ENXIO, ioctl(dev, DMAPLANE_COMPLETE, &p));
	told(log, "COMPLETE: the file has no channel");
}

static void rdma_is_told(int log, int dev)
{
	struct dmaplane_rdma_setup s = { .ib_dev_name = RDMA_DEVICE,
					 .cq_depth = 16,
					 .max_send_wr = 32 };
	struct dmaplane_loopback_params l = { .mr_id = 5, .size = 1 };
	struct dmaplane_flow_params flow = { .max_credits = 65 };
	struct dmaplane_write_imm_params w = { .length = 4097 };
	struct dmaplane_mr_params mr;

	REFUSED(ENOTCONN, ioctl(dev, DMAPLANE_LOOPBACK_TEST, &l));
	told(log, "the file has no context of SETUP_RDMA");
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_SETUP_RDMA, &s));
	told(log,
	     "SETUP_RDMA: max_send_wr 32, max_recv_wr 16 <= cq_depth 16 <= 4096 does not hold");
	REFUSED(ENODEV, setup_rdma(dev, "a\nb"));
	/* As /dev/kmsg writes a backslash. */
	told(log, "SETUP_RDMA: no device a\\x5cnb");
	CHECK(setup_rdma(dev, RDMA_DEVICE) == 0);
	REFUSED(ENOENT, ioctl(dev, DMAPLANE_LOOPBACK_TEST, &l));
	told(log, "LOOPBACK_TEST: mr_id 5");
	l.mr_id = register_mr(dev, make_buffer(dev, DMAPLANE_BUF_PAGES, 4096), RW, &mr);
	l.size = 4097;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_LOOPBACK_TEST, &l));
	told(log, "LOOPBACK_TEST: messages of 4097 bytes; 1 to 4096");
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_CONFIGURE_FLOW, &flow));
	told(log, "CONFIGURE_FLOW: max_credits 65; 1 to 64");
	w.local_mr_id = mr.mr_id;
	REFUSED(EINVAL, ioctl(dev, DMAPLANE_RDMA_WRITE_IMM, &w));
	told(log, "RDMA_WRITE_IMM: 4097 bytes from 0 on, of 4096");
}

static void pools_are_told(int log)
{
	struct dmaplane_pool_alloc a = { .size = 4096, .node = -1, .flags = DMAPLANE_POOL_HUGE };
	struct dmaplane_pool_info info = { .fd = 0 };
	int pool = open(POOL, O_RDWR);

	REFUSED(EINVAL, ioctl(pool, DMAPLANE_POOL_ALLOC, &a));
	told(log, "ALLOC: size 4096; with HUGE a multiple of 2097152");
	a.flags = 0;
	REFUSED(EDQUOT, ioctl(pool, DMAPLANE_POOL_ALLOC, &a));
	told(log, "ALLOC: 4096 bytes; the realm has 0 of its quota of 0");
	REFUSED(EINVAL, ioctl(pool, DMAPLANE_POOL_INFO, &info));
	told(log, "INFO: fd 0 is no dma-buf");
	REFUSED(EACCES, open(POOL, O_RDONLY));
	told(log, "open: only for reading and writing");
}

/* Call, field and bound; one line for each call. */
TEST(refused_calls_are_told_in_the_log)
{
	int dev = open_device(), log;

	set_limit(~0U);
	log = open_log();
	buffers_are_told(log, dev);
	rdma_is_told(log, dev);
	pools_are_told(log);
	/* A name with a line in it makes no line. */
	CHECK(prctl(PR_SET_NAME, "x\ndmaplane: y") == 0);
	REFUSED(ENOENT, destroy(dev, 77));
	told(log, ";dmaplane: x\\x5cndmaplane: y[");
	set_limit(LIMIT_DEFAULT);
}

/* Whoever may open the device cannot fill the log. */
TEST(refused_calls_do_not_fill_the_log)
{
	int dev = open_device(), log = open_log(), i, lines = 0;
	time_t begun = time(NULL);
	char line[1024];

	for (i = 0; i < 20000; i++)
		REFUSED(ENOENT, destroy(dev, 77));
	while (next_line(log, line, sizeof(line)))
		lines++;
	/* Of each minute that was touched, and one that tells of what was left out. */
	CHECK(lines <= (LIMIT_DEFAULT + 1) * ((time(NULL) - begun) / 60 + 2));
	set_limit(0);
	REFUSED(ENOENT, destroy(dev, 77));
	CHECK(!next_line(log, line, sizeof(line)));
	set_limit(LIMIT_DEFAULT);
}
