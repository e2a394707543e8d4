// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Buffers as dma-bufs, which other drivers import. Each importer's mapping
 * gets a table of its own: addresses differ from device to device.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "dmaplane.h"

int dp_dmabuf_attach(struct dma_buf *d, struct dma_buf_attachment *at)
{
	dp_count(attached);
	return 0;
}

void dp_dmabuf_detach(struct dma_buf *d, struct dma_buf_attachment *at)
{
	dp_count(detached);
}

struct sg_table *dp_dmabuf_map(struct dp_buffer *b, struct device *dev, enum dma_data_direction dir)
{
	struct sg_table *table;
	int err;

	table = kzalloc(sizeof(*table), DP_GFP);
	if (!table)
		return ERR_PTR(-ENOMEM);
	err = sg_alloc_table_from_pages_segment(table, b->pages, b->npages, 0,
						b->npages << PAGE_SHIFT, dma_get_max_seg_size(dev),
						DP_GFP);
	if (err)
		goto free;
	err = dma_map_sgtable(dev, table, dir, 0);
	if (err)
		goto free_table;
	dp_count(mapped);
	return table;
free_table:
	sg_free_table(table);
free:
	kfree(table);
	return ERR_PTR(err);
}

void dp_dmabuf_unmap(struct dma_buf_attachment *at, struct sg_table *table,
		     enum dma_data_direction dir)
{
	dma_unmap_sgtable(at->dev, table, dir, 0);
	sg_free_table(table);
	kfree(table);
	dp_count(unmapped);
}

static struct sg_table *buf_map(struct dma_buf_attachment *at, enum dma_data_direction dir)
{
	return dp_dmabuf_map(at->dmabuf->priv, at->dev, dir);
}

/* The framework has checked that offset and length are within the buffer. */
static int buf_mmap(struct dma_buf *d, struct vm_area_struct *vma)
{
	struct dp_buffer *b = d->priv;

	if (!(vma->vm_flags & VM_SHARED))
		return dp_refuse(-EINVAL, "mmap of a dma-buf: a mapping must be shared");
	return vm_map_pages(vma, b->pages, b->npages);
}

static int buf_vmap(struct dma_buf *d, struct iosys_map *map)
{
	struct dp_buffer *b = d->priv;
	void *at = vmap(b->pages, b->npages, VM_MAP, PAGE_KERNEL);

	if (!at)
		return -ENOMEM;
	iosys_map_set_vaddr(map, at);
	return 0;
}

static void buf_vunmap(struct dma_buf *d, struct iosys_map *map)
{
	vunmap(map->vaddr);
}

static void buf_release(struct dma_buf *d)
{
	struct dp_buffer *b = d->priv;

	dp_count(released);
	atomic_dec(&b->exports);
	dp_buffer_put(b);
}

static const struct dma_buf_ops buf_ops = {
	.attach = dp_dmabuf_attach,
	.detach = dp_dmabuf_detach,
	.map_dma_buf = buf_map,
	.unmap_dma_buf = dp_dmabuf_unmap,
	.mmap = buf_mmap,
	.vmap = buf_vmap,
	.vunmap = buf_vunmap,
	.release = buf_release,
};

/* What its release counts, and gives up. */
struct dma_buf *dp_dmabuf_make(const struct dma_buf_ops *ops, size_t bytes, void *priv)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct dma_buf *d;

	info.ops = ops;
	info.size = bytes;
	info.flags = O_RDWR;
	info.priv = priv;
	d = dma_buf_export(&info);
	if (!IS_ERR(d))
		dp_count(exported);
	return d;
}

/* As a descriptor in the answer, or not at all: then the dma-buf goes. */
long dp_dmabuf_give(struct dma_buf *d, s32 *fd, void __user *arg, const void *answer, size_t bytes)
{
	long err;

	*fd = get_unused_fd_flags(O_CLOEXEC);
	err = *fd;
	if (err < 0)
		goto put;
	err = -EFAULT;
	if (copy_to_user(arg, answer, bytes))
		goto put_fd;
	fd_install(*fd, d->file);
	return 0;
put_fd:
	put_unused_fd(*fd);
put:
	dma_buf_put(d);
	return err;
}

long dp_dmabuf_export(struct dp_file *f, void __user *arg)
{
	struct dmaplane_export_dmabuf_arg p;
	struct dma_buf *d = ERR_PTR(-EINVAL);
	struct dp_buffer *b;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	b = dp_buffer_find_count(f, p.buf_id, offsetof(struct dp_buffer, exports));
	if (!b)
		return dp_no_buffer("EXPORT_DMABUF", p.buf_id);
	/* Coherent memory belongs to the device that it was allocated for. */
	if (b->type != DMAPLANE_BUF_PAGES)
		dp_refuse(-EINVAL,
			  "EXPORT_DMABUF: buffer %u is coherent; only those of pages (alloc_type 1)",
			  p.buf_id);
	else
		d = dp_dmabuf_make(&buf_ops, b->npages << PAGE_SHIFT, b);
	if (IS_ERR(d)) {
		atomic_dec(&b->exports);
		dp_buffer_put(b);
		return PTR_ERR(d);
	}
	/* From here the dma-buf's release drops what was taken above. */
	return dp_dmabuf_give(d, &p.fd, arg, &p, sizeof(p));
}

long dp_dmabuf_stats(void __user *arg)
{
	struct dmaplane_dmabuf_stats s = {
		.dmabufs_exported = dp_total(exported),
		.dmabufs_released = dp_total(released),
		.attachments_total = dp_total(attached),
		.detachments_total = dp_total(detached),
		.maps_total = dp_total(mapped),
		.unmaps_total = dp_total(unmapped),
	};

	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}
