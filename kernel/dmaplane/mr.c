// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory regions: a buffer that a device may reach, through keys of its own.
 * Addresses begin at a number made of the region's, never at one of the
 * kernel's. Destroyed, a region's keys reach nothing.
 */
#include <linux/dma-mapping.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "rdma.h"

#define HANDLES		XA_LIMIT(1, INT_MAX)
#define ACCESS_BITS	(DMAPLANE_ACCESS_LOCAL_WRITE | DMAPLANE_ACCESS_REMOTE_WRITE | \
			 DMAPLANE_ACCESS_REMOTE_READ)

static void mr_release(struct kref *ref)
{
	struct dp_mr *mr = container_of(ref, struct dp_mr, ref);
	struct ib_device *ib = mr->mr->device;

	ib_dereg_mr(mr->mr);
	ib_dma_unmap_sgtable_attrs(ib, &mr->table, DMA_BIDIRECTIONAL, 0);
	sg_free_table(&mr->table);
	dp_buffer_put(mr->buf);
	kfree(mr);
	dp_count(mrs_deregistered);
}

void dp_mr_put(struct dp_mr *mr)
{
	kref_put(&mr->ref, mr_release);
}

struct dp_mr *dp_mr_find(struct dp_rdma *r, u32 id)
{
	struct dp_mr *mr;

	xa_lock(&r->mrs);
	mr = xa_load(&r->mrs, id);
	if (mr)
		kref_get(&mr->ref);
	xa_unlock(&r->mrs);
	return mr;
}

void dp_mrs_drop(struct dp_rdma *r)
{
	struct dp_mr *mr;
	unsigned long id;

	xa_for_each(&r->mrs, id, mr)
		dp_mr_put(mr);
	xa_destroy(&r->mrs);
}

/* The largest pages of which the device holds enough for the buffer. */
static int map_pages(struct dp_rdma *r, struct dp_mr *mr)
{
	unsigned int limit = r->ib->attrs.max_fast_reg_page_list_len;
	size_t page = PAGE_SIZE << mr->buf->min_order;
	u32 entries;
	int n;

	if (!(r->ib->attrs.page_size_cap & page))
		page = PAGE_SIZE;
	entries = DIV_ROUND_UP(mr->size, page);
	if (entries > limit)
		return -E2BIG;
	mr->mr = ib_alloc_mr(r->pd, IB_MR_TYPE_MEM_REG, entries);
	if (IS_ERR(mr->mr))
		return PTR_ERR(mr->mr);
	n = ib_map_mr_sg(mr->mr, mr->table.sgl, mr->table.nents, NULL, page);
	if (n == mr->table.nents)
		return 0;
	ib_dereg_mr(mr->mr);
	return n < 0 ? n : -E2BIG;
}

/* Takes the caller's reference of the buffer, also if it fails. */
static struct dp_mr *mr_new(struct dp_rdma *r, struct dp_buffer *b)
{
	struct dp_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL_ACCOUNT);
	int err = -ENOMEM;

	if (!mr)
		goto put;
	kref_init(&mr->ref);
	mr->buf = b;
	mr->size = b->npages << PAGE_SHIFT;
	err = sg_alloc_table_from_pages_segment(&mr->table, b->pages, b->npages, 0, mr->size,
						ib_dma_max_seg_size(r->ib) & PAGE_MASK, GFP_KERNEL);
	if (err)
		goto free;
	err = ib_dma_map_sgtable_attrs(r->ib, &mr->table, DMA_BIDIRECTIONAL, 0);
	if (err)
		goto free_table;
	err = map_pages(r, mr);
	if (!err) {
		dp_count(mrs_registered);
		return mr;
	}
	ib_dma_unmap_sgtable_attrs(r->ib, &mr->table, DMA_BIDIRECTIONAL, 0);
free_table:
	sg_free_table(&mr->table);
free:
	kfree(mr);
put:
	dp_buffer_put(b);
	return ERR_PTR(err);
}

static int mr_enable(struct dp_rdma *r, struct dp_mr *mr, u32 id)
{
	struct dp_work *w = kzalloc(sizeof(*w), GFP_KERNEL);
	int err;

	if (!w)
		return -ENOMEM;
	mr->mr->iova = (u64)id << 30;
	err = dp_turn(r, &r->pair_turn);
	if (!err) {
		err = dp_post_reg(&r->a, w, mr->mr, mr->access);
		if (!err)
			err = dp_wait(r, &r->a, w);
		if (err)
			dp_pair_restart(r);
		up(&r->pair_turn);
	}
	kfree(w);
	return err;
}

static int access_of(u32 flags)
{
	int access = 0;

	/* Who may be written to by others may be written to. */
	if (flags & (DMAPLANE_ACCESS_LOCAL_WRITE | DMAPLANE_ACCESS_REMOTE_WRITE))
		access |= IB_ACCESS_LOCAL_WRITE;
	if (flags & DMAPLANE_ACCESS_REMOTE_WRITE)
		access |= IB_ACCESS_REMOTE_WRITE;
	if (flags & DMAPLANE_ACCESS_REMOTE_READ)
		access |= IB_ACCESS_REMOTE_READ;
	return access;
}

static struct dp_mr *mr_for(struct dp_file *f, struct dp_rdma *r, const struct dmaplane_mr_params *p)
{
	struct dp_buffer *b = dp_buffer_find(f, p->buf_id);
	struct dp_mr *mr;

	if (!b)
		return ERR_PTR(-ENOENT);
	mr = mr_new(r, b);
	if (!IS_ERR(mr))
		mr->access = access_of(p->access_flags);
	return mr;
}

long dp_mr_register(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	u64 begun = ktime_get_ns();
	struct dmaplane_mr_params p;
	struct dp_mr *mr;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (p.access_flags & ~ACCESS_BITS)
		return -EINVAL;
	if (!atomic_add_unless(&r->nmrs, 1, DMAPLANE_MRS_MAX))
		return -ENOSPC;
	mr = mr_for(f, r, &p);
	if (IS_ERR(mr)) {
		atomic_dec(&r->nmrs);
		return PTR_ERR(mr);
	}
	err = xa_alloc_cyclic(&r->mrs, &p.mr_id, NULL, HANDLES, &r->next_mr, GFP_KERNEL_ACCOUNT);
	if (err < 0)
		goto drop;
	err = mr_enable(r, mr, p.mr_id);
	if (err)
		goto erase;
	mr->reg_ns = ktime_get_ns() - begun;
	p.lkey = mr->mr->lkey;
	p.rkey = mr->access & (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ) ? mr->mr->rkey : 0;
	p.addr = mr->mr->iova;
	err = -EFAULT;
	if (copy_to_user(arg, &p, sizeof(p)))
		goto erase;
	xa_store(&r->mrs, p.mr_id, mr, GFP_KERNEL_ACCOUNT);
	return 0;
erase:
	xa_erase(&r->mrs, p.mr_id);
drop:
	dp_mr_put(mr);
	atomic_dec(&r->nmrs);
	return err;
}

long dp_mr_deregister(struct dp_rdma *r, void __user *arg)
{
	struct dp_mr *mr;
	u32 id;

	if (copy_from_user(&id, arg, sizeof(id)))
		return -EFAULT;
	xa_lock(&r->mrs);
	mr = xa_load(&r->mrs, id);
	if (mr)
		__xa_erase(&r->mrs, id);
	xa_unlock(&r->mrs);
	if (!mr)
		return -ENOENT;
	atomic_dec(&r->nmrs);
	dp_mr_put(mr);
	return 0;
}
