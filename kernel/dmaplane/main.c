// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * /dev/dmaplane: buffers that devices and processes share, with a lifetime
 * that the kernel guarantees. This file has the device and the table of
 * calls; what they do is in a file for each kind of object. pool.c has the
 * device of rgaps's pools.
 *
 * A call takes its argument from user space first, then looks objects up
 * (each lookup takes a reference), and holds no lock while it waits or
 * copies to user space.
 */
#include <linux/cdev.h>
#include <linux/cred.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "dmaplane.h"

struct dp_totals dp_totals;

static dev_t number;
static struct cdev cdev;
static struct class *class;
static struct device *device;

static int dp_open(struct inode *inode, struct file *file)
{
	struct dp_file *f;

	/* Every call makes, changes or tells of something: no half rights. */
	if (!(file->f_mode & FMODE_READ) || !(file->f_mode & FMODE_WRITE))
		return dp_refuse(-EACCES, "open: only for reading and writing");
	f = kzalloc(sizeof(*f), DP_GFP);
	if (!f)
		return -ENOMEM;
	f->user = dp_user_get(file->f_cred->uid);
	if (!f->user) {
		kfree(f);
		return -ENOMEM;
	}
	xa_init_flags(&f->buffers, XA_FLAGS_ALLOC1);
	xa_init_flags(&f->pins, XA_FLAGS_ALLOC1);
	spin_lock_init(&f->rdma_lock);
	dp_hist_init(&f->hist);
	file->private_data = f;
	return nonseekable_open(inode, file);
}

/* The last descriptor, mapping and running call are gone. */
static int dp_release(struct inode *inode, struct file *file)
{
	struct dp_file *f = file->private_data;

	dp_rdma_drop(f);
	dp_gpu_drop(f);
	dp_channel_destroy(f->channel);
	dp_buffers_drop(f);
	dp_user_put(f->user);
	kfree(f);
	return 0;
}

static long flow_stats(void __user *arg)
{
	struct dmaplane_flow_stats s = {
		.credit_stalls = dp_total(stalls),
		.high_watermark_events = dp_total(high_events),
		.low_watermark_events = dp_total(low_events),
		.cq_overflows = dp_total(overflows),
		.total_sustained_bytes = dp_total(sustained_bytes),
		.total_sustained_ops = dp_total(sustained_ops),
	};

	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}

static long rdma_stats(void __user *arg)
{
	struct dmaplane_rdma_stats s = {
		.mrs_registered = dp_total(mrs_registered),
		.mrs_deregistered = dp_total(mrs_deregistered),
		.sends_posted = dp_total(sends),
		.recvs_posted = dp_total(recvs),
		.completions_polled = dp_total(polled),
		.completion_errors = dp_total(errors),
		.bytes_sent = dp_total(bytes_sent),
		.bytes_received = dp_total(bytes_received),
	};

	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}

static long dispatch(struct file *file, unsigned int cmd, void __user *arg)
{
	struct dp_file *f = file->private_data;

	switch (cmd) {
	case DMAPLANE_CREATE_CHANNEL:
		return dp_channel_create(f, arg);
	case DMAPLANE_SUBMIT:
		return dp_channel_submit(f, arg);
	case DMAPLANE_COMPLETE:
		return dp_channel_complete(f, file->f_flags & O_NONBLOCK, arg);
	case DMAPLANE_GET_STATS:
		return dp_channel_stats(f, arg);
	case DMAPLANE_CREATE_BUFFER:
		return dp_buffer_create(f, arg);
	case DMAPLANE_DESTROY_BUFFER:
		return dp_buffer_destroy(f, arg);
	case DMAPLANE_GET_MMAP_INFO:
		return dp_buffer_mmap_info(f, arg);
	case DMAPLANE_GET_BUF_STATS:
		return dp_buffer_stats(arg);
	case DMAPLANE_EXPORT_DMABUF:
		return dp_dmabuf_export(f, arg);
	case DMAPLANE_GET_DMABUF_STATS:
		return dp_dmabuf_stats(arg);
	case DMAPLANE_GET_RDMA_STATS:
		return rdma_stats(arg);
	case DMAPLANE_GET_FLOW_STATS:
		return flow_stats(arg);
	case DMAPLANE_QUERY_NUMA_TOPO:
		return dp_numa_topo(arg);
	case DMAPLANE_NUMA_BENCH:
		return dp_numa_bench(f, arg);
	case DMAPLANE_GET_HISTOGRAM:
		return dp_hist_get(f, arg);
	case DMAPLANE_GET_GPU_STATS:
		return dp_gpu_stats(arg);
	case DMAPLANE_GPU_PIN:
		return dp_gpu_pin(f, arg);
	case DMAPLANE_GPU_UNPIN:
		return dp_gpu_unpin(f, arg);
	case DMAPLANE_GPU_DMA_TO_HOST:
	case DMAPLANE_GPU_DMA_FROM_HOST:
		return dp_gpu_copy(f, arg, cmd == DMAPLANE_GPU_DMA_TO_HOST);
	case DMAPLANE_GPU_BENCH:
		return dp_gpu_bench(f, arg);
	case DMAPLANE_GPU_REGISTER_MR:
	case DMAPLANE_GPU_LOOPBACK:
		if (dp_gpu_absent())
			return dp_refuse(-ENODEV,
					 "call %#x: no driver gives NVIDIA's peer-to-peer symbols",
					 cmd);
		return dp_rdma_ioctl(f, cmd, arg);
	case DMAPLANE_SETUP_RDMA:
	case DMAPLANE_TEARDOWN_RDMA:
	case DMAPLANE_REGISTER_MR:
	case DMAPLANE_DEREGISTER_MR:
	case DMAPLANE_LOOPBACK_TEST:
	case DMAPLANE_PINGPONG_BENCH:
	case DMAPLANE_STREAMING_BENCH:
	case DMAPLANE_CONFIGURE_FLOW:
	case DMAPLANE_SUSTAINED_STREAM:
	case DMAPLANE_QDEPTH_SWEEP:
	case DMAPLANE_RDMA_WRITE_IMM:
	case DMAPLANE_RDMA_POST_RECV:
	case DMAPLANE_RDMA_POLL_RECV:
	case DMAPLANE_RDMA_INIT_PEER:
	case DMAPLANE_RDMA_CONNECT_PEER:
	case DMAPLANE_RDMA_REMOTE_SEND:
	case DMAPLANE_RDMA_REMOTE_RECV:
	case DMAPLANE_RDMA_DESTROY_PEER:
		return dp_rdma_ioctl(f, cmd, arg);
	default:
		return -ENOTTY;
	}
}

static long dp_ioctl(struct file *file, unsigned int cmd, unsigned long value)
{
	long err = dispatch(file, cmd, (void __user *)value);

	return err == -EFAULT || err == -ENOTTY ? dp_refuse_call(err, cmd) : err;
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.open = dp_open,
	.release = dp_release,
	.unlocked_ioctl = dp_ioctl,
	.mmap = dp_mmap,
};

static struct class *make_class(void)
{
#if KERNEL_VERSION(6, 4, 0) <= LINUX_VERSION_CODE
	return class_create("dmaplane");
#else
	return class_create(THIS_MODULE, "dmaplane");
#endif
}

/* The device last: once it is there, programs open it. */
static int __init dp_init(void)
{
	int err;

	err = dp_channel_init();
	if (err)
		return err;
	err = dp_numa_init();
	if (err)
		goto channel;
	err = dp_memory_init(NULL);
	if (err)
		goto numa;
	err = dp_rdma_init();
	if (err)
		goto memory;
	err = alloc_chrdev_region(&number, 0, 1, "dmaplane");
	if (err)
		goto rdma;
	class = make_class();
	if (IS_ERR(class)) {
		err = PTR_ERR(class);
		goto region;
	}
	dp_debugfs_init();
	cdev_init(&cdev, &fops);
	cdev.owner = THIS_MODULE;
	err = cdev_add(&cdev, number, 1);
	if (err)
		goto debugfs;
	device = device_create(class, NULL, number, NULL, "dmaplane");
	if (IS_ERR(device)) {
		err = PTR_ERR(device);
		goto cdev;
	}
	err = dp_pool_init();
	if (!err)
		return 0;
	device_destroy(class, number);
cdev:
	cdev_del(&cdev);
debugfs:
	dp_debugfs_exit();
	class_destroy(class);
region:
	unregister_chrdev_region(number, 1);
rdma:
	dp_rdma_exit();
memory:
	dp_memory_exit();
numa:
	dp_numa_exit();
channel:
	dp_channel_exit();
	return err;
}

/* No file is open, and no dma-buf is left: each holds the module. */
static void __exit dp_exit(void)
{
	dp_pool_exit();
	dp_debugfs_exit();
	device_destroy(class, number);
	cdev_del(&cdev);
	class_destroy(class);
	unregister_chrdev_region(number, 1);
	dp_rdma_exit();
	dp_memory_exit();
	dp_numa_exit();
	dp_channel_exit();
}

module_init(dp_init);
module_exit(dp_exit);

MODULE_DESCRIPTION("Buffers that devices and processes share, with guaranteed lifetimes");
MODULE_AUTHOR("The rgaps authors");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("0.1");
#if KERNEL_VERSION(6, 13, 0) <= LINUX_VERSION_CODE
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
