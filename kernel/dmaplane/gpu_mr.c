// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory regions over pinned memory of GPUs, at the addresses that it has for
 * the program. A region holds the pin, so the memory stays pinned until both
 * the handle and all regions are gone.
 *
 * When the driver takes the memory away, the pin revokes its regions under
 * its lock: the device forgets the keys, and what was posted with them fails.
 * Nothing of the device reaches the memory when the lock is free again.
 *
 * A device that does DMA gets addresses of the BAR. One that has the CPU copy
 * (Soft-RoCE) needs pages, which the BAR has where its driver made them
 * (memremap_pages(), as for peer-to-peer DMA).
 */
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "gpu.h"
#include "rdma.h"

#define CALL	"GPU_REGISTER_MR"
#define ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ)

/* The pages of the whole pin, or an error; put_dev_pagemap() gives them back. */
static struct dev_pagemap *find_pages(const struct dp_gpu_pin *g)
{
	struct dev_pagemap *pages = get_dev_pagemap(PHYS_PFN(g->pieces[0].physical), NULL);
	u32 i;

	if (!pages)
		return ERR_PTR(-EOPNOTSUPP);
	for (i = 0; i < g->npieces; i++) {
		const struct dp_gpu_piece *p = &g->pieces[i];

		if (pages->type == MEMORY_DEVICE_PRIVATE || p->physical < pages->range.start ||
		    p->physical + p->bytes - 1 > pages->range.end) {
			put_dev_pagemap(pages);
			return ERR_PTR(-EOPNOTSUPP);
		}
	}
	return pages;
}

static void unmap(struct dp_mr *mr)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(&mr->table, sg, i)
		if (!mr->pages)
			dma_unmap_resource(mr->ib->dma_device, sg_dma_address(sg), sg_dma_len(sg),
					   DMA_BIDIRECTIONAL, 0);
	sg_free_table(&mr->table);
}

static int map_piece(struct dp_mr *mr, struct scatterlist *sg, const struct dp_gpu_piece *p,
		     u64 bytes)
{
	dma_addr_t at;

	if (mr->pages) {
		/* What the CPU uses, as ib_dma_map_page() gives it. */
		at = (uintptr_t)phys_to_virt(p->physical);
	} else {
		at = dma_map_resource(mr->ib->dma_device, p->physical, bytes, DMA_BIDIRECTIONAL, 0);
		if (dma_mapping_error(mr->ib->dma_device, at))
			return dp_refuse(-EIO, CALL ": no DMA address for %llu bytes at %#llx",
					 bytes, p->physical);
	}
	sg->length = bytes;
	sg_dma_address(sg) = at;
	sg_dma_len(sg) = bytes;
	return 0;
}

/* Under the pin's lock, with its page table. Also the largest pages that all of it comes in. */
static int map(struct dp_mr *mr, size_t *page)
{
	const struct dp_gpu_pin *g = mr->pin;
	u64 mapped = 0, bits = DP_BLOCK_BYTES | g->va;
	struct scatterlist *sg;
	int err, i;

	err = sg_alloc_table(&mr->table, g->npieces, DP_GFP);
	if (err)
		return err;
	for_each_sgtable_sg(&mr->table, sg, i) {
		/* Of the last piece only what was asked for. */
		u64 bytes = min(g->pieces[i].bytes, g->size - mapped);

		err = bytes ? map_piece(mr, sg, &g->pieces[i], bytes) : 0;
		if (err || !bytes)
			break;
		bits |= sg_dma_address(sg) | bytes;
		mapped += bytes;
	}
	mr->table.nents = i;
	if (err)
		unmap(mr);
	*page = bits & -bits;
	return err;
}

/* In the pair's turn, under the pin's lock. */
static int enable(struct dp_rdma *r, struct dp_mr *mr)
{
	struct dp_gpu_pin *g = mr->pin;
	size_t page;
	int err;

	if (!g->table)
		return dp_refuse(-EIO, CALL ": the program that had the GPU's memory freed it");
	if (ib_uses_virt_dma(mr->ib)) {
		struct dev_pagemap *pages = find_pages(g);

		if (IS_ERR(pages))
			return dp_refuse(PTR_ERR(pages),
					 CALL ": %s copies by the CPU, and the memory has no pages",
					 dev_name(&mr->ib->dev));
		mr->pages = pages;
	}
	err = map(mr, &page);
	if (err)
		goto put_pages;
	err = dp_mr_map_pages(CALL, r, mr, page);
	if (err)
		goto unmap;
	err = dp_mr_enable(r, mr, g->va);
	if (err)
		goto dereg;
	list_add(&mr->of_pin, &g->mrs);
	return 0;
dereg:
	ib_dereg_mr(mr->mr);
unmap:
	unmap(mr);
put_pages:
	put_dev_pagemap(mr->pages);
	return err;
}

/*
 * The turn first: with the lock nothing is waited for that may take long, since the driver
 * waits for it.
 */
static int enable_in_turn(struct dp_rdma *r, struct dp_mr *mr)
{
	int err = dp_turn(r, &r->pair_turn);

	if (err)
		return err;
	err = down_write_killable(&mr->pin->lock);
	if (!err) {
		err = enable(r, mr);
		up_write(&mr->pin->lock);
	}
	up(&r->pair_turn);
	return err;
}

/*
 * Takes the caller's reference of the pin, also if it fails. NULL: nobody holds the pin
 * any more.
 */
static struct dp_mr *mr_new(struct dp_rdma *r, struct dp_gpu_pin *g)
{
	struct dp_mr *mr;
	int err;

	/* Its handle may have gone since it was found. */
	if (!refcount_inc_not_zero(&g->holders)) {
		dp_gpu_pin_put(g);
		return NULL;
	}
	mr = kzalloc(sizeof(*mr), DP_GFP);
	err = -ENOMEM;
	if (!mr)
		goto let_go;
	kref_init(&mr->ref);
	mr->ib = r->ib;
	mr->pin = g;
	mr->size = g->size;
	mr->access = ACCESS;
	err = enable_in_turn(r, mr);
	if (!err) {
		dp_count(mrs_registered);
		dp_count(gpu_mrs);
		return mr;
	}
	kfree(mr);
let_go:
	dp_gpu_pin_let_go(g);
	return ERR_PTR(err);
}

/* Under the pin's lock. */
static void revoke(struct dp_mr *mr)
{
	list_del(&mr->of_pin);
	WRITE_ONCE(mr->revoked, true);
	ib_dereg_mr(mr->mr);
	unmap(mr);
	put_dev_pagemap(mr->pages);
}

void dp_gpu_mrs_revoke(struct dp_gpu_pin *g)
{
	while (!list_empty(&g->mrs))
		revoke(list_first_entry(&g->mrs, struct dp_mr, of_pin));
}

/* The last reference is gone. */
void dp_gpu_mr_release(struct dp_mr *mr)
{
	struct dp_gpu_pin *g = mr->pin;

	down_write(&g->lock);
	if (!mr->revoked)
		revoke(mr);
	up_write(&g->lock);
	dp_gpu_pin_let_go(g);
}

long dp_gpu_mr_register(struct dp_file *f, struct dp_rdma *r, void __user *arg)
{
	u64 begun = ktime_get_ns();
	struct dmaplane_gpu_mr_params p;
	struct dp_gpu_pin *g;
	struct dp_mr *mr;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = dp_mr_number(CALL, r, &p.mr_id);
	if (err)
		return err;
	g = dp_gpu_pin_find(f, p.gpu_handle);
	mr = g ? mr_new(r, g) : NULL;
	if (!mr)
		mr = ERR_PTR(dp_refuse(-ENOENT, CALL ": gpu_handle %u is no pin of this file",
				       p.gpu_handle));
	if (IS_ERR(mr)) {
		dp_mr_number_drop(r, p.mr_id);
		return PTR_ERR(mr);
	}
	mr->reg_ns = ktime_get_ns() - begun;
	p.lkey = mr->lkey;
	p.rkey = mr->rkey;
	return dp_mr_give(r, mr, p.mr_id, arg, &p, sizeof(p));
}
