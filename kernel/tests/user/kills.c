// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A process that makes, maps, exports, imports, registers, sends, revokes and
 * destroys buffers at random in three threads is killed at a random moment, again and
 * again. So it goes, too, while the RDMA device and the module go and come.
 */
#include <pthread.h>

#include "test.h"

#define THREADS 3

static int dev, pool;

static void rdma_step(unsigned int *seed, uint32_t buf)
{
	static __thread struct dmaplane_mr_params mr;
	struct dmaplane_loopback_params l = { .mr_id = mr.mr_id, .size = 1 + rand_r(seed) % 9000 };
	struct dmaplane_bench_params b = {
		.mr_id = mr.mr_id, .msg_size = 512, .iterations = 20, .queue_depth = 8
	};
	struct dmaplane_post_recv_params r = { .mr_id = mr.mr_id, .use_peer_qp = rand_r(seed) % 2 };
	struct dmaplane_poll_recv_params p = { .timeout_ms = rand_r(seed) % 3 };
	struct dmaplane_write_imm_params w = { .local_mr_id = mr.mr_id,
					       .length = 64,
					       .remote_addr = mr.addr,
					       .remote_rkey = mr.rkey };
	struct dmaplane_rdma_peer_info peer;

	switch (rand_r(seed) % 10) {
	case 0:
		setup_rdma(dev, RDMA_DEVICE);
		break;
	case 1:
		if (rand_r(seed) % 8 == 0)
			ioctl(dev, DMAPLANE_TEARDOWN_RDMA);
		break;
	case 2:
		mr.buf_id = buf;
		mr.access_flags = RW;
		ioctl(dev, DMAPLANE_REGISTER_MR, &mr);
		break;
	case 3:
		ioctl(dev, DMAPLANE_DEREGISTER_MR, &mr.mr_id);
		break;
	case 4:
		ioctl(dev, DMAPLANE_LOOPBACK_TEST, &l);
		break;
	case 5:
		ioctl(dev, DMAPLANE_STREAMING_BENCH, &b);
		break;
	case 6:
		ioctl(dev, DMAPLANE_RDMA_POST_RECV, &r);
		break;
	case 7:
		ioctl(dev, DMAPLANE_RDMA_POLL_RECV, &p);
		break;
	case 8:
		ioctl(dev, DMAPLANE_RDMA_WRITE_IMM, &w);
		break;
	default:
		if (ioctl(dev, DMAPLANE_RDMA_INIT_PEER, &peer) == 0)
			ioctl(dev, DMAPLANE_RDMA_CONNECT_PEER, &peer);
		else
			ioctl(dev, DMAPLANE_RDMA_DESTROY_PEER);
	}
}

static void one_step(unsigned int *seed)
{
	static __thread int fds[8] = { -1, -1, -1, -1, -1, -1, -1, -1 };
	static __thread uint32_t last;
	struct dmaplane_buf_params p;
	struct dmaplane_export_dmabuf_arg ex = {};
	struct dmaplane_submit_params s = {};
	struct dmaplane_complete_params c;
	struct dmaplane_channel_params ch;
	struct importer_map map;
	int *fd = &fds[rand_r(seed) % 8], im;
	void *at;

	switch (rand_r(seed) % 26) {
	case 0:
		if (try_buffer(dev, rand_r(seed) % 2, 1 + rand_r(seed) % (256 << 10),
			       rand_r(seed) % 3 - 1, &p) == 0)
			last = p.buf_id;
		break;
	case 1:
		destroy(dev, last - rand_r(seed) % 4);
		break;
	case 2:
		at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, dev, (off_t)last << 12);
		if (at != MAP_FAILED) {
			memset(at, 1, 8);
			if (rand_r(seed) % 4)
				munmap(at, 4096);
		}
		break;
	case 3:
		ex.buf_id = last;
		if (ioctl(dev, DMAPLANE_EXPORT_DMABUF, &ex) == 0) {
			close(*fd);
			*fd = ex.fd;
		}
		break;
	case 4:
		close(*fd);
		*fd = -1;
		break;
	case 5:
		im = open(IMPORTER, O_RDWR);
		memset(&map, 0, sizeof(map));
		map.fd = *fd;
		ioctl(im, IMPORTER_MAP, &map);
		close(im);
		break;
	case 6:
		ioctl(dev, DMAPLANE_CREATE_CHANNEL, &ch);
		break;
	case 7:
		ioctl(dev, DMAPLANE_SUBMIT, &s);
		break;
	case 8:
		ioctl(dev, DMAPLANE_COMPLETE, &c);
		break;
	case 9 ... 13:
		rdma_step(seed, last);
		break;
	case 14 ... 18:
		pool_step(seed);
		break;
	case 19 ... 20:
		gpu_step(dev, seed);
		break;
	default:
		any_call(dev, pool, seed);
	}
}

static void *worker(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;

	for (;;)
		one_step(&seed);
	return NULL;
}

static void step_until_killed(unsigned int seed, bool may_be_away)
{
	pthread_t t;
	int k;

	dev = open(DEVICE, O_RDWR);
	pool = open(POOL, O_RDWR);
	if (dev < 0 || pool < 0) {
		CHECK(may_be_away);
		for (;;)
			pause();
	}
	for (k = 1; k < THREADS; k++)
		pthread_create(&t, NULL, worker, (void *)(uintptr_t)(seed + k));
	worker((void *)(uintptr_t)seed);
}

/* Whether the process ended other than by its kill. */
static bool kill_one(unsigned int *seed, bool may_be_away)
{
	unsigned int at = rand_r(seed) % 20000, begin = rand_r(seed);
	pid_t child = fork();
	int status;

	if (!child)
		step_until_killed(begin, may_be_away);
	/* The moment is what is random here; nothing is waited for. */
	usleep(at);
	kill(child, SIGKILL);
	if (child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status))
		return false;
	printf("# process of seed %u: it had ended\n", begin);
	return true;
}

int kills(int n, unsigned int seed)
{
	int i, failed = 0;

	for (i = 0; i < n; i++) {
		failed += kill_one(&seed, false);
		if (i % 500 == 499) {
			printf("# killed %d so far\n", i + 1);
			fflush(stdout);
		}
	}
	return failed;
}

/*
 * Until the init script is done with taking away the RDMA device and the module; `n` says
 * how many.
 */
int kills_while_away(unsigned int seed, int *n)
{
	int failed = 0;

	for (*n = 0; access("/tmp/back", F_OK) != 0; ++*n)
		failed += kill_one(&seed, true);
	return failed;
}
