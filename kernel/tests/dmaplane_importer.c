// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A driver that imports dma-bufs, for tests: it attaches two devices of
 * different reach, and reads and writes through the addresses that they
 * get, as a device would.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/dma-resv.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "dmaplane_importer.h"

static struct platform_device *devices[2];

struct import {
	struct mutex lock;	/* of all below */
	struct dma_buf *buf;
	struct dma_buf_attachment *at;
	struct sg_table *table;	/* NULL when revoked; under the reservation lock */
};

/* The memory is taken away: what this device has of it ends here. */
static void import_moved(struct dma_buf_attachment *at)
{
	struct import *im = at->importer_priv;

	if (!im->table)
		return;
	dma_buf_unmap_attachment(at, im->table, DMA_BIDIRECTIONAL);
	im->table = NULL;
}

static const struct dma_buf_attach_ops dynamic_ops = {
	.allow_peer2peer = true,
	.move_notify = import_moved,
};

static void undo(struct import *im)
{
	if (!im->buf)
		return;
	dma_resv_lock(im->buf->resv, NULL);
	import_moved(im->at);
	dma_resv_unlock(im->buf->resv);
	dma_buf_detach(im->buf, im->at);
	dma_buf_put(im->buf);
	im->buf = NULL;
}

static long import_map(struct import *im, struct importer_map *p)
{
	struct scatterlist *sg;
	unsigned int i;
	long err;

	if (im->buf || p->device >= ARRAY_SIZE(devices))
		return -EINVAL;
	im->buf = dma_buf_get(p->fd);
	if (IS_ERR(im->buf)) {
		err = PTR_ERR(im->buf);
		im->buf = NULL;
		return err;
	}
	im->at = dma_buf_dynamic_attach(im->buf, &devices[p->device]->dev,
					p->dynamic ? &dynamic_ops : NULL, im);
	if (IS_ERR(im->at)) {
		err = PTR_ERR(im->at);
		goto put;
	}
	dma_resv_lock(im->buf->resv, NULL);
	im->table = dma_buf_map_attachment(im->at, DMA_BIDIRECTIONAL);
	if (IS_ERR(im->table)) {
		err = PTR_ERR(im->table);
		im->table = NULL;
		dma_resv_unlock(im->buf->resv);
		dma_buf_detach(im->buf, im->at);
		goto put;
	}
	p->entries = im->table->nents;
	p->address = sg_dma_address(im->table->sgl);
	p->bytes = 0;
	for_each_sgtable_dma_sg(im->table, sg, i)
		p->bytes += sg_dma_len(sg);
	dma_resv_unlock(im->buf->resv);
	return 0;
put:
	dma_buf_put(im->buf);
	im->buf = NULL;
	return err;
}

/* Without an IOMMU a device's addresses are physical ones. */
static u64 *at_offset(struct import *im, u64 offset)
{
	struct scatterlist *sg;
	unsigned int i;

	for_each_sgtable_dma_sg(im->table, sg, i) {
		if (offset < sg_dma_len(sg))
			return phys_to_virt(sg_dma_address(sg) + offset);
		offset -= sg_dma_len(sg);
	}
	return NULL;
}

static long import_access(struct import *im, struct importer_access *p, bool write)
{
	long err = -EINVAL;
	u64 *at;

	if (!im->buf || p->offset & 7)
		return err;
	dma_resv_lock(im->buf->resv, NULL);
	at = im->table ? at_offset(im, p->offset) : NULL;
	if (at && write)
		WRITE_ONCE(*at, p->value);
	else if (at)
		p->value = READ_ONCE(*at);
	err = at ? 0 : im->table ? -EINVAL : -ENODEV;
	dma_resv_unlock(im->buf->resv);
	return err;
}

static long importer_ioctl(struct file *file, unsigned int cmd, unsigned long value)
{
	struct import *im = file->private_data;
	void __user *arg = (void __user *)value;
	union {
		struct importer_map map;
		struct importer_access access;
	} p = {};
	size_t bytes = _IOC_SIZE(cmd);
	long err;

	if (bytes > sizeof(p) || (bytes && copy_from_user(&p, arg, bytes)))
		return -EFAULT;
	mutex_lock(&im->lock);
	switch (cmd) {
	case IMPORTER_MAP:
		err = import_map(im, &p.map);
		break;
	case IMPORTER_WRITE:
	case IMPORTER_READ:
		err = import_access(im, &p.access, cmd == IMPORTER_WRITE);
		break;
	case IMPORTER_UNMAP:
		err = im->buf ? 0 : -EINVAL;
		undo(im);
		break;
	default:
		err = -ENOTTY;
	}
	mutex_unlock(&im->lock);
	if (!err && _IOC_DIR(cmd) & _IOC_READ && copy_to_user(arg, &p, bytes))
		err = -EFAULT;
	return err;
}

static int importer_open(struct inode *inode, struct file *file)
{
	struct import *im = kzalloc(sizeof(*im), GFP_KERNEL);

	if (!im)
		return -ENOMEM;
	mutex_init(&im->lock);
	file->private_data = im;
	return 0;
}

static int importer_release(struct inode *inode, struct file *file)
{
	struct import *im = file->private_data;

	undo(im);
	kfree(im);
	return 0;
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.open = importer_open,
	.release = importer_release,
	.unlocked_ioctl = importer_ioctl,
};

static struct miscdevice misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "dmaplane_importer",
	.fops = &fops,
};

static int __init importer_init(void)
{
	static const u64 reach[] = { DMA_BIT_MASK(64), DMA_BIT_MASK(32) };
	int i, err;

	for (i = 0; i < ARRAY_SIZE(devices); i++) {
		struct platform_device_info info = {
			.name = "dmaplane-importer", .id = i, .dma_mask = reach[i],
		};

		devices[i] = platform_device_register_full(&info);
		if (IS_ERR(devices[i])) {
			err = PTR_ERR(devices[i]);
			goto unregister;
		}
	}
	err = misc_register(&misc);
	if (!err)
		return 0;
unregister:
	while (i--)
		platform_device_unregister(devices[i]);
	return err;
}

static void __exit importer_exit(void)
{
	int i;

	misc_deregister(&misc);
	for (i = 0; i < ARRAY_SIZE(devices); i++)
		platform_device_unregister(devices[i]);
}

module_init(importer_init);
module_exit(importer_exit);

MODULE_DESCRIPTION("Imports dma-bufs, for tests of dmaplane");
MODULE_LICENSE("Dual MIT/GPL");
#if KERNEL_VERSION(6, 13, 0) <= LINUX_VERSION_CODE
MODULE_IMPORT_NS("DMA_BUF");
#else
MODULE_IMPORT_NS(DMA_BUF);
#endif
