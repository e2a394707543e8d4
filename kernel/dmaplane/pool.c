// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * /dev/dmaplane-pool: an open file is a realm with a quota. This file has the
 * device and its table of calls; pool_memory.c has the dma-bufs.
 */
#include <linux/cred.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane.h"

static void realm_release(struct kref *ref)
{
	struct dp_realm *r = container_of(ref, struct dp_realm, ref);

	WARN_ON(atomic64_read(&r->bytes) || atomic_read(&r->buffers));
	dp_user_put(r->user);
	kfree(r);
}

void dp_realm_put(struct dp_realm *r)
{
	kref_put(&r->ref, realm_release);
}

static int pool_open(struct inode *inode, struct file *file)
{
	struct dp_realm *r;

	if (!(file->f_mode & FMODE_READ) || !(file->f_mode & FMODE_WRITE))
		return dp_refuse(-EACCES, "open: only for reading and writing");
	r = kzalloc(sizeof(*r), DP_GFP);
	if (!r)
		return -ENOMEM;
	r->user = dp_user_get(file->f_cred->uid);
	if (!r->user) {
		kfree(r);
		return -ENOMEM;
	}
	kref_init(&r->ref);
	r->open = true;
	file->private_data = r;
	return nonseekable_open(inode, file);
}

/* What it allocated stays, and stays charged to it, until another realm adopts it. */
static int pool_release(struct inode *inode, struct file *file)
{
	struct dp_realm *r = file->private_data;

	WRITE_ONCE(r->open, false);
	dp_realm_put(r);
	return 0;
}

static long get_version(void __user *arg)
{
	struct dmaplane_pool_version v = {
		.version = DMAPLANE_POOL_VERSION,
		.buffers_max = DMAPLANE_POOL_BUFFERS_MAX,
		.features = DMAPLANE_POOL_HAS_REVOKE | DMAPLANE_POOL_HAS_ADOPT,
		.bytes_max = DMAPLANE_POOL_BYTES_MAX,
	};

	return copy_to_user(arg, &v, sizeof(v)) ? -EFAULT : 0;
}

static long set_quota(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_quota p;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.reserved || p.bytes > LLONG_MAX)
		return dp_refuse(-EINVAL, "SET_QUOTA: bytes %llu; %lld at most. reserved is 0",
				 p.bytes, LLONG_MAX);
	WRITE_ONCE(r->quota_bytes, p.bytes);
	return 0;
}

static long get_realm(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_realm p = {
		.quota_bytes = READ_ONCE(r->quota_bytes),
		.used_bytes = atomic64_read(&r->bytes),
		.buffers = atomic_read(&r->buffers),
	};

	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

static long dispatch(struct dp_realm *r, unsigned int cmd, void __user *arg)
{
	switch (cmd) {
	case DMAPLANE_POOL_GET_VERSION:
		return get_version(arg);
	case DMAPLANE_POOL_SET_QUOTA:
		return set_quota(r, arg);
	case DMAPLANE_POOL_GET_REALM:
		return get_realm(r, arg);
	case DMAPLANE_POOL_ALLOC:
		return dp_pool_alloc(r, arg);
	case DMAPLANE_POOL_REVOKE:
		return dp_pool_revoke(r, arg);
	case DMAPLANE_POOL_INFO:
		return dp_pool_info(r, arg);
	case DMAPLANE_POOL_ADOPT:
		return dp_pool_adopt(r, arg);
	default:
		return -ENOTTY;
	}
}

static long pool_ioctl(struct file *file, unsigned int cmd, unsigned long value)
{
	long err = dispatch(file->private_data, cmd, (void __user *)value);

	return err == -EFAULT || err == -ENOTTY ? dp_refuse_call(err, cmd) : err;
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.open = pool_open,
	.release = pool_release,
	.unlocked_ioctl = pool_ioctl,
};

static struct miscdevice misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "dmaplane-pool",
	.fops = &fops,
};

int dp_pool_init(void)
{
	return misc_register(&misc);
}

void dp_pool_exit(void)
{
	misc_deregister(&misc);
}
