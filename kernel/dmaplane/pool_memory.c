// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory of a realm as a dma-buf that can be revoked. The lock of all that
 * revocation changes is the dma-buf's reservation lock: importers map and
 * unmap under it, faults fill mappings under it, and revocation marks the
 * memory and empties the mappings under it. So what was emptied stays empty.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane.h"
#include "dmaplane_trace.h"

/* What a fault fills at once: as much as one page of a page table maps. */
#define FAULT_PAGES (PMD_SIZE >> PAGE_SHIFT)

struct pool_memory {
	struct dma_buf *d;		/* which has a pointer to this */
	struct dp_realm *realm;
	struct dp_buffer *buffer;	/* NULL: freed, after revocation */
	bool revoked;
	u32 importers;			/* mappings of devices */
	atomic_t mappings;		/* of processes; for INFO */
	struct dmaplane_pool_info info;	/* what does not change of it */
};

/* Importers of any kind may use the memory, and none has to: nothing moves but by revocation. */
static int pool_pin(struct dma_buf_attachment *at)
{
	struct pool_memory *m = at->dmabuf->priv;

	return m->revoked ? -ENODEV : 0;
}

static void pool_unpin(struct dma_buf_attachment *at)
{
}

static void free_memory(struct pool_memory *m)
{
	if (!m->buffer)
		return;
	dp_buffer_put(m->buffer);
	m->buffer = NULL;
	atomic64_sub(m->info.size, &m->realm->bytes);
}

static struct sg_table *pool_map(struct dma_buf_attachment *at, enum dma_data_direction dir)
{
	struct pool_memory *m = at->dmabuf->priv;
	struct sg_table *table;

	dma_resv_assert_held(at->dmabuf->resv);
	if (m->revoked)
		return ERR_PTR(-ENODEV);
	table = dp_dmabuf_map(m->buffer, at->dev, dir);
	if (!IS_ERR(table))
		m->importers++;
	return table;
}

static void pool_unmap(struct dma_buf_attachment *at, struct sg_table *table,
		       enum dma_data_direction dir)
{
	struct pool_memory *m = at->dmabuf->priv;

	dma_resv_assert_held(at->dmabuf->resv);
	dp_dmabuf_unmap(at, table, dir);
	m->importers--;
	if (m->revoked && !m->importers)
		free_memory(m);
}

/* The page of the fault, and those around it that the same page of a page table maps. */
static vm_fault_t fill(struct vm_area_struct *vma, const struct vm_fault *vmf, struct page **pages)
{
	unsigned long first = max(round_down(vmf->pgoff, FAULT_PAGES), vma->vm_pgoff);
	unsigned long end = min(round_down(vmf->pgoff, FAULT_PAGES) + FAULT_PAGES,
				vma->vm_pgoff + vma_pages(vma));
	unsigned long n = end - first;

	if (!vm_insert_pages(vma, vma->vm_start + ((first - vma->vm_pgoff) << PAGE_SHIFT),
			     pages + first, &n))
		return VM_FAULT_NOPAGE;
	/* Some were there, or there is little memory: this one has to be. */
	return vmf_insert_page(vma, vmf->address & PAGE_MASK, pages[vmf->pgoff]);
}

static vm_fault_t pool_fault(struct vm_fault *vmf)
{
	struct pool_memory *m = vmf->vma->vm_private_data;
	vm_fault_t result = VM_FAULT_SIGBUS;

	/* After a signal the access is tried again, or never. */
	if (dma_resv_lock_interruptible(m->d->resv, NULL))
		return VM_FAULT_NOPAGE;
	if (!m->revoked)
		result = fill(vmf->vma, vmf, m->buffer->pages);
	dma_resv_unlock(m->d->resv);
	return result;
}

static void mapping_open(struct vm_area_struct *vma)
{
	struct pool_memory *m = vma->vm_private_data;

	atomic_inc(&m->mappings);
}

static void mapping_close(struct vm_area_struct *vma)
{
	struct pool_memory *m = vma->vm_private_data;

	atomic_dec(&m->mappings);
}

/* A mapping has the dma-buf's file, so it needs no reference of its own. */
static const struct vm_operations_struct mapping_ops = {
	.open = mapping_open,
	.close = mapping_close,
	.fault = pool_fault,
};

/* The framework has checked that offset and length are within the buffer; it cannot grow. */
static int pool_mmap(struct dma_buf *d, struct vm_area_struct *vma)
{
	struct pool_memory *m = d->priv;

	if (!(vma->vm_flags & VM_SHARED))
		return dp_refuse(-EINVAL, "mmap of a dma-buf: a mapping must be shared");
	/* One that begins while memory is revoked ends in its first fault. */
	if (READ_ONCE(m->revoked))
		return dp_refuse(-ENODEV, "mmap of a dma-buf: it was revoked");
	dp_vma_flags(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = m;
	vma->vm_ops = &mapping_ops;
	atomic_inc(&m->mappings);
	return 0;
}

/* Nobody has it any more: no descriptor, no mapping, no importer. */
static void pool_release(struct dma_buf *d)
{
	struct pool_memory *m = d->priv;

	dp_count(released);
	WARN_ON(m->importers || atomic_read(&m->mappings));
	free_memory(m);
	atomic_dec(&m->realm->buffers);
	dp_realm_put(m->realm);
	kfree(m);
}

static const struct dma_buf_ops pool_ops = {
	.attach = dp_dmabuf_attach,
	.detach = dp_dmabuf_detach,
	.pin = pool_pin,
	.unpin = pool_unpin,
	.map_dma_buf = pool_map,
	.unmap_dma_buf = pool_unmap,
	.mmap = pool_mmap,
	.release = pool_release,
};

static int take(const char *call, struct dp_realm *r, u64 bytes)
{
	u64 quota = READ_ONCE(r->quota_bytes);

	if (!atomic_add_unless(&r->buffers, 1, DMAPLANE_POOL_BUFFERS_MAX))
		return dp_refuse(-ENOSPC, "%s: the realm has %d dma-bufs, the most", call,
				 DMAPLANE_POOL_BUFFERS_MAX);
	if (!dp_charge(&r->bytes, bytes, quota))
		return 0;
	atomic_dec(&r->buffers);
	return dp_refuse(-EDQUOT,
			 "%s: %llu bytes; the realm has %lld of its quota of %llu (SET_QUOTA)",
			 call, bytes, atomic64_read(&r->bytes), quota);
}

static void give_back(struct dp_realm *r, u64 bytes)
{
	atomic64_sub(bytes, &r->bytes);
	atomic_dec(&r->buffers);
}

/* With what the realm was charged. */
static struct pool_memory *memory_new(struct dp_realm *r, const struct dmaplane_pool_alloc *p,
				      u64 bytes)
{
	struct pool_memory *m = kzalloc(sizeof(*m), DP_GFP);
	struct dp_buffer *b;
	int err;

	if (!m)
		return ERR_PTR(-ENOMEM);
	b = dp_buffer_new(r->user, DMAPLANE_BUF_PAGES, p->size, p->node, p->flags);
	if (IS_ERR(b)) {
		err = PTR_ERR(b);
		goto free;
	}
	m->realm = r;
	m->buffer = b;
	m->info.size = bytes;
	m->info.node = p->node;
	m->info.actual_node = b->node_actual;
	m->info.nodes = b->nodes;
	m->info.block_bytes = PAGE_SIZE << b->min_order;
	m->d = dp_dmabuf_make(&pool_ops, bytes, m);
	if (IS_ERR(m->d)) {
		err = PTR_ERR(m->d);
		dp_buffer_put(b);
		goto free;
	}
	/* From here the dma-buf's release gives all of it back. */
	kref_get(&r->ref);
	return m;
free:
	kfree(m);
	return ERR_PTR(err);
}

static int check_alloc(const struct dmaplane_pool_alloc *p)
{
	const u32 flags = DMAPLANE_POOL_HUGE | DMAPLANE_POOL_STRICT_NODE;

	if (p->flags & ~flags || p->reserved[0] || p->reserved[1])
		return dp_refuse(-EINVAL, "ALLOC: flags %#x; %#x at most. reserved is 0", p->flags,
				 flags);
	if (!p->size || p->size > DMAPLANE_POOL_BYTES_MAX)
		return dp_refuse(-EINVAL, "ALLOC: size %llu; 1 to %llu", p->size,
				 DMAPLANE_POOL_BYTES_MAX);
	if (!dp_node_valid(p->node))
		return dp_refuse(-EINVAL, "ALLOC: node %d is no node with memory, nor -1", p->node);
	if (p->flags & DMAPLANE_POOL_HUGE && p->size % DP_BLOCK_BYTES)
		return dp_refuse(-EINVAL, "ALLOC: size %llu; with HUGE a multiple of %lu", p->size,
				 DP_BLOCK_BYTES);
	if (p->flags & DMAPLANE_POOL_STRICT_NODE && p->node == DMAPLANE_POOL_NODE_ANY)
		return dp_refuse(-EINVAL, "ALLOC: node -1; with STRICT_NODE it must be one");
	return 0;
}

long dp_pool_alloc(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_alloc p;
	struct pool_memory *m;
	u64 bytes;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = check_alloc(&p);
	if (err)
		return err;
	bytes = PAGE_ALIGN(p.size);
	err = take("ALLOC", r, bytes);
	if (err)
		return err;
	m = memory_new(r, &p, bytes);
	if (IS_ERR(m)) {
		give_back(r, bytes);
		return dp_no_memory("ALLOC", r->user, p.node, PTR_ERR(m));
	}
	trace_dmaplane_buf_alloc(0, DMAPLANE_BUF_PAGES, p.size, p.node, m->info.actual_node);
	p.actual_node = m->info.actual_node;
	p.nodes = m->info.nodes;
	p.block_bytes = m->info.block_bytes;
	return dp_dmabuf_give(m->d, &p.fd, arg, &p, sizeof(p));
}

/* The memory of a dma-buf, locked and with a reference; unlock_memory() undoes both. */
static struct pool_memory *lock_memory(const char *call, int fd)
{
	struct dma_buf *d = dma_buf_get(fd);
	int err;

	if (IS_ERR(d))
		return ERR_PTR(dp_refuse(PTR_ERR(d), "%s: fd %d is no dma-buf", call, fd));
	if (d->ops != &pool_ops) {
		err = dp_refuse(-EINVAL, "%s: fd %d is a dma-buf that no realm made", call, fd);
		goto put;
	}
	err = dma_resv_lock_interruptible(d->resv, NULL);
	if (!err)
		return d->priv;
	err = -ERESTARTSYS;
put:
	dma_buf_put(d);
	return ERR_PTR(err);
}

static void unlock_memory(struct pool_memory *m)
{
	struct dma_buf *d = m->d;

	dma_resv_unlock(d->resv);
	dma_buf_put(d);
}

/* Mappings first: nothing that is free is mapped, not even for a moment. */
static void revoke(struct pool_memory *m)
{
	WRITE_ONCE(m->revoked, true);
	unmap_mapping_range(m->d->file->f_mapping, 0, 0, 1);
	dma_buf_move_notify(m->d);
	if (!m->importers)
		free_memory(m);
}

long dp_pool_revoke(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_revoke p;
	struct pool_memory *m;
	int err = -EPERM;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.flags || p.reserved0 || p.reserved)
		return dp_refuse(-EINVAL, "REVOKE: flags and reserved are 0");
	m = lock_memory("REVOKE", p.fd);
	if (IS_ERR(m))
		return PTR_ERR(m);
	if (m->realm == r) {
		err = 0;
		if (!m->revoked)
			revoke(m);
		p.importers = m->importers;
	}
	unlock_memory(m);
	if (err)
		return dp_refuse(err, "REVOKE: fd %d is another realm's", p.fd);
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

long dp_pool_info(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_info p, info;
	struct pool_memory *m;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.reserved[0] || p.reserved[1])
		return dp_refuse(-EINVAL, "INFO: reserved is 0");
	m = lock_memory("INFO", p.fd);
	if (IS_ERR(m))
		return PTR_ERR(m);
	info = m->info;
	info.fd = p.fd;
	info.state = (m->revoked ? DMAPLANE_POOL_REVOKED : 0) |
		     (m->buffer ? 0 : DMAPLANE_POOL_FREED) |
		     (m->realm == r ? DMAPLANE_POOL_MINE : 0);
	info.importers = m->importers;
	info.mappings = atomic_read(&m->mappings);
	unlock_memory(m);
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int adopt(struct dp_realm *r, struct pool_memory *m)
{
	struct dp_realm *old = m->realm;
	int err;

	/* The memory stays charged to the user, so the user stays the same. */
	if (old->user != r->user)
		return dp_refuse(-EPERM, "ADOPT: the dma-buf is another user's");
	if (READ_ONCE(old->open))
		return dp_refuse(-EBUSY, "ADOPT: the realm of the dma-buf is open");
	if (m->revoked)
		return dp_refuse(-ENODEV, "ADOPT: the dma-buf was revoked");
	err = take("ADOPT", r, m->info.size);
	if (err)
		return err;
	kref_get(&r->ref);
	m->realm = r;
	give_back(old, m->info.size);
	dp_realm_put(old);
	return 0;
}

long dp_pool_adopt(struct dp_realm *r, void __user *arg)
{
	struct dmaplane_pool_adopt p;
	struct pool_memory *m;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.reserved0 || p.reserved)
		return dp_refuse(-EINVAL, "ADOPT: reserved is 0");
	m = lock_memory("ADOPT", p.fd);
	if (IS_ERR(m))
		return PTR_ERR(m);
	err = adopt(r, m);
	unlock_memory(m);
	return err;
}
