// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The memory below a buffer, and where it came from. An allocator that is
 * asked for a node may take pages of another without a word, so every page
 * is looked at afterwards.
 */
#include <linux/dma-mapping.h>
#include <linux/log2.h>
#include <linux/platform_device.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "dmaplane.h"

/* Coherent memory comes from the node of a device: one of each, then one of none. */
static struct platform_device *dma_devices[DMAPLANE_NODES_MAX + 1];

bool dp_node_valid(int node)
{
	return node == NUMA_NO_NODE ||
	       (node >= 0 && node < nr_node_ids && node_state(node, N_MEMORY));
}

/*
 * One block of 2^*order pages for the rest of a buffer, aligned to its size;
 * or of a smaller order, which then holds for all that follow. Of the last
 * block, what the buffer does not need goes back.
 */
static long alloc_block(const struct dp_buffer *b, unsigned int *order, unsigned long rest,
			struct page **pages)
{
	const unsigned int least = b->demands & DMAPLANE_POOL_HUGE ? DP_BLOCK_ORDER : 0;
	gfp_t effort = DP_GFP | __GFP_ZERO;
	struct page *page;
	unsigned long i;

	/* Small pages of this node are better than large ones of another. */
	for (;;) {
		page = alloc_pages_node(b->node_asked, (effort & ~__GFP_RECLAIM) | __GFP_THISNODE,
					*order);
		if (page || *order == least)
			break;
		--*order;
	}
	if (b->demands & DMAPLANE_POOL_STRICT_NODE)
		effort |= __GFP_THISNODE;
	if (!page)
		page = alloc_pages_node(b->node_asked, effort, *order);
	if (!page)
		return -ENOMEM;
	if (*order)
		split_page(page, *order);
	for (i = 0; i < 1UL << *order; i++) {
		if (i < rest)
			pages[i] = page + i;
		else
			__free_page(page + i);
	}
	return min(i, rest);
}

static void free_pages_of(struct dp_buffer *b, unsigned long n)
{
	while (n--) {
		__free_page(b->pages[n]);
		if (!(n & 1023))
			cond_resched();
	}
}

static int alloc_paged(struct dp_buffer *b)
{
	unsigned int order = min_t(unsigned int, DP_BLOCK_ORDER, order_base_2(b->npages));
	unsigned long done = 0;
	long n;

	while (done < b->npages) {
		n = fatal_signal_pending(current) ? -EINTR :
			alloc_block(b, &order, b->npages - done, b->pages + done);
		if (n < 0) {
			free_pages_of(b, done);
			return n;
		}
		done += n;
		cond_resched();
	}
	b->min_order = order;
	return 0;
}

static int alloc_coherent(struct dp_buffer *b)
{
	int slot = b->node_asked == NUMA_NO_NODE ? DMAPLANE_NODES_MAX : b->node_asked;
	size_t bytes = b->npages << PAGE_SHIFT;
	unsigned long i;

	if (slot > DMAPLANE_NODES_MAX || !dma_devices[slot])
		return dp_refuse(-EINVAL, "CREATE_BUFFER: no coherent memory of node %d",
				 b->node_asked);
	b->dev = &dma_devices[slot]->dev;
	b->vaddr = dma_alloc_coherent(b->dev, bytes, &b->dma, DP_GFP);
	if (!b->vaddr)
		return -ENOMEM;
	for (i = 0; i < b->npages; i++) {
		void *at = b->vaddr + (i << PAGE_SHIFT);

		b->pages[i] = is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
	}
	/* Contiguous, and aligned as it happens to be. */
	b->min_order = min_t(unsigned int, DP_BLOCK_ORDER,
			     __ffs(page_to_pfn(b->pages[0]) | 1UL << get_order(bytes)));
	return 0;
}

/*
 * The node that was asked for if every page is there. If not, the one other
 * that has most; so what is reported equals what was asked only if it holds.
 */
static int look_at_pages(struct dp_buffer *b)
{
	unsigned long i, *counts;
	int node, found = NUMA_NO_NODE;

	counts = kcalloc(nr_node_ids, sizeof(*counts), GFP_KERNEL);
	if (!counts)
		return -ENOMEM;
	for (i = 0; i < b->npages; i++)
		counts[page_to_nid(b->pages[i])]++;
	for_each_node_state(node, N_MEMORY) {
		if (counts[node])
			b->nodes |= BIT_ULL(min(node, 63));
	}
	if (b->node_asked != NUMA_NO_NODE && counts[b->node_asked] == b->npages) {
		found = b->node_asked;
	} else {
		for_each_node_state(node, N_MEMORY) {
			if (node == b->node_asked || !counts[node])
				continue;
			if (found == NUMA_NO_NODE || counts[node] > counts[found])
				found = node;
		}
	}
	kfree(counts);
	b->node_actual = found;
	return 0;
}

int dp_memory_alloc(struct dp_buffer *b)
{
	int err;

	b->pages = kvmalloc_array(b->npages, sizeof(*b->pages), DP_GFP);
	if (!b->pages)
		return -ENOMEM;
	err = b->type == DMAPLANE_BUF_COHERENT ? alloc_coherent(b) : alloc_paged(b);
	if (err) {
		kvfree(b->pages);
		return err;
	}
	err = look_at_pages(b);
	if (err)
		dp_memory_free(b);
	return err;
}

void dp_memory_free(struct dp_buffer *b)
{
	if (b->type == DMAPLANE_BUF_COHERENT)
		dma_free_coherent(b->dev, b->npages << PAGE_SHIFT, b->vaddr, b->dma);
	else
		free_pages_of(b, b->npages);
	kvfree(b->pages);
}

static int add_device(struct device *parent, int slot, int node)
{
	struct platform_device_info info = {
		.parent = parent,
		.name = "dmaplane-memory",
		.id = slot,
		.dma_mask = DMA_BIT_MASK(64),
	};
	struct platform_device *device = platform_device_register_full(&info);

	if (IS_ERR(device))
		return PTR_ERR(device);
	set_dev_node(&device->dev, node);
	dma_devices[slot] = device;
	return 0;
}

int dp_memory_init(struct device *parent)
{
	int node, err = add_device(parent, DMAPLANE_NODES_MAX, NUMA_NO_NODE);

	for_each_node_state(node, N_MEMORY) {
		if (!err && node < DMAPLANE_NODES_MAX)
			err = add_device(parent, node, node);
	}
	if (err)
		dp_memory_exit();
	return err;
}

void dp_memory_exit(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(dma_devices); i++) {
		platform_device_unregister(dma_devices[i]);
		dma_devices[i] = NULL;
	}
}
