// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A process that makes, maps, exports, imports and destroys buffers at
 * random in three threads is killed at a random moment, again and again.
 */
#include <pthread.h>

#include "test.h"

#define THREADS 3

static int dev;

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

	switch (rand_r(seed) % 9) {
	case 0:
		if (try_buffer(dev, rand_r(seed) % 2, 1 + rand_r(seed) % (256 << 10), rand_r(seed) % 3 - 1, &p) == 0)
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
	default:
		ioctl(dev, DMAPLANE_COMPLETE, &c);
	}
}

static void *worker(void *arg)
{
	unsigned int seed = (unsigned int)(uintptr_t)arg;

	for (;;)
		one_step(&seed);
	return NULL;
}

int kills(int n, unsigned int seed)
{
	int i, failed = 0;

	for (i = 0; i < n; i++) {
		unsigned int at = rand_r(&seed) % 8000, begin = rand_r(&seed);
		pid_t child = fork();
		int status;

		if (!child) {
			pthread_t t;
			int k;

			dev = open_device();
			for (k = 1; k < THREADS; k++)
				pthread_create(&t, NULL, worker, (void *)(uintptr_t)(begin + k));
			worker((void *)(uintptr_t)begin);
		}
		/* The moment is what is random here; nothing is waited for. */
		usleep(at);
		kill(child, SIGKILL);
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) {
			printf("# kill %d of seed %u: the child had ended\n", i, begin);
			failed++;
		}
		if (i % 500 == 499) {
			printf("# killed %d so far\n", i + 1);
			fflush(stdout);
		}
	}
	return failed;
}
