// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory regions: a buffer that a device may reach, through keys of its own.
 * Addresses begin at a number made of the region's, never at one of the
 * kernel's. Destroyed, a region's keys reach nothing. gpu_mr.c makes regions
 * over memory of GPUs.
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
	struct ib_device *ib = mr->ib;

	if (mr->pin) {
		dp_gpu_mr_release(mr);
	} else {
		ib_dereg_mr(mr->mr);
		ib_dma_unmap_sgtable_attrs(ib, &mr->table, DMA_BIDIRECTIONAL, 0);
		sg_free_table(&mr->table);
		dp_buffer_put(mr->buf);
	}
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

/* `page` is the largest that the memory comes in; 4 KiB where the device does not know it. */
int dp_mr_map_pages(const char *call, struct dp_rdma *r, struct dp_mr *mr, size_t page)
{
	unsigned int limit = r->ib->attrs.max_fast_reg_page_list_len;
	u64 entries;
	int n;

	if (!(r->ib->attrs.page_size_cap & page))
		page = PAGE_SIZE;
	entries = DIV_ROUND_UP((u64)mr->size, page);
	if (entries > limit)
		return dp_refuse(-E2BIG, "%s: memory in %llu pieces; the device maps %u", call,
				 entries, limit);
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
	struct dp_mr *mr = kzalloc(sizeof(*mr), DP_GFP);
	int err = -ENOMEM;

	if (!mr)
		goto put;
	kref_init(&mr->ref);
	mr->ib = r->ib;
	mr->buf = b;
	mr->size = b->npages << PAGE_SHIFT;
	err = sg_alloc_table_from_pages_segment(&mr->table, b->pages, b->npages, 0, mr->size,
						ib_dma_max_seg_size(r->ib) & PAGE_MASK,
						DP_GFP);
	if (err)
		goto free;
	err = ib_dma_map_sgtable_attrs(r->ib, &mr->table, DMA_BIDIRECTIONAL, 0);
	if (err)
		goto free_table;
	err = dp_mr_map_pages("REGISTER_MR", r, mr, PAGE_SIZE << b->min_order);
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

/* In the pair's turn: from here on the keys reach the memory, at addresses from `addr` on. */
int dp_mr_enable(struct dp_rdma *r, struct dp_mr *mr, u64 addr)
{
	struct dp_work *w = kzalloc(sizeof(*w), GFP_KERNEL);
	int err;

	if (!w)
		return -ENOMEM;
	mr->mr->iova = addr;
	err = dp_post_reg(&r->a, w, mr->mr, mr->access);
	if (!err)
		err = dp_wait(r, &r->a, w, mr);
	if (err)
		dp_pair_restart(r);
	kfree(w);
	mr->addr = addr;
	mr->lkey = mr->mr->lkey;
	if (mr->access & (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ))
		mr->rkey = mr->mr->rkey;
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

static struct dp_mr *mr_for(struct dp_file *f, struct dp_rdma *r,
			    const struct dmaplane_mr_params *p)
{
	struct dp_buffer *b = dp_buffer_find(f, p->buf_id);
	struct dp_mr *mr;

	if (!b)
		return ERR_PTR(dp_no_buffer("REGISTER_MR", p->buf_id));
	mr = mr_new(r, b);
	if (!IS_ERR(mr))
		mr->access = access_of(p->access_flags);
	return mr;
}

/* A number for a region that there will be; dp_mr_number_drop() gives it back. */
int dp_mr_number(const char *call, struct dp_rdma *r, u32 *id)
{
	int err;

	if (!atomic_add_unless(&r->nmrs, 1, DMAPLANE_MRS_MAX))
		return dp_refuse(-ENOSPC, "%s: the context has %d memory regions, the most", call,
				 DMAPLANE_MRS_MAX);
	err = xa_alloc_cyclic(&r->mrs, id, NULL, HANDLES, &r->next_mr, DP_GFP);
	if (err < 0)
		atomic_dec(&r->nmrs);
	return min(err, 0);
}

void dp_mr_number_drop(struct dp_rdma *r, u32 id)
{
	xa_erase(&r->mrs, id);
	atomic_dec(&r->nmrs);
}

/* Tells the caller of the region, and makes it one that can be found; or drops it. */
long dp_mr_give(struct dp_rdma *r, struct dp_mr *mr, u32 id, void __user *arg, const void *answer,
		size_t bytes)
{
	if (copy_to_user(arg, answer, bytes)) {
		dp_mr_number_drop(r, id);
		dp_mr_put(mr);
		return -EFAULT;
	}
	/* The place is there, so this takes no memory and cannot fail. */
	xa_store(&r->mrs, id, mr, DP_GFP);
	return 0;
}

static int enable_buffer(struct dp_rdma *r, struct dp_mr *mr, u32 id)
{
	int err = dp_turn(r, &r->pair_turn);

	if (err)
		return err;
	err = dp_mr_enable(r, mr, (u64)id << 30);
	up(&r->pair_turn);
	return err;
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
		return dp_refuse(-EINVAL, "REGISTER_MR: access_flags %#x; %#x at most",
				 p.access_flags, ACCESS_BITS);
	err = dp_mr_number("REGISTER_MR", r, &p.mr_id);
	if (err)
		return err;
	mr = mr_for(f, r, &p);
	if (IS_ERR(mr)) {
		dp_mr_number_drop(r, p.mr_id);
		return PTR_ERR(mr);
	}
	err = enable_buffer(r, mr, p.mr_id);
	if (err) {
		dp_mr_number_drop(r, p.mr_id);
		dp_mr_put(mr);
		return err;
	}
	mr->reg_ns = ktime_get_ns() - begun;
	p.lkey = mr->lkey;
	p.rkey = mr->rkey;
	p.addr = mr->addr;
	return dp_mr_give(r, mr, p.mr_id, arg, &p, sizeof(p));
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
		return dp_no_mr("DEREGISTER_MR", id);
	atomic_dec(&r->nmrs);
	dp_mr_put(mr);
	return 0;
}
