// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Mappings of buffers into processes. Each holds a reference and counts,
 * copies by fork() and pieces by munmap() too: the kernel calls open() for
 * those, but not for the first.
 */
#include <linux/dma-mapping.h>
#include <linux/version.h>

#include "dmaplane.h"

static void mapping_open(struct vm_area_struct *vma)
{
	struct dp_buffer *b = vma->vm_private_data;

	dp_buffer_get(b);
	atomic_inc(&b->mappings);
}

static void mapping_close(struct vm_area_struct *vma)
{
	struct dp_buffer *b = vma->vm_private_data;

	atomic_dec(&b->mappings);
	dp_buffer_put(b);
}

static const struct vm_operations_struct mapping_ops = {
	.open = mapping_open,
	.close = mapping_close,
};

void dp_vma_flags(struct vm_area_struct *vma, unsigned long flags)
{
#if KERNEL_VERSION(6, 3, 0) <= LINUX_VERSION_CODE
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

int dp_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct dp_file *f = file->private_data;
	struct dp_buffer *b;
	int err;

	/* A private copy of memory that devices write is of no use. */
	if (!(vma->vm_flags & VM_SHARED))
		return dp_refuse(-EINVAL, "mmap: a mapping must be shared");
	if (vma->vm_pgoff > INT_MAX)
		return dp_refuse(-EINVAL, "mmap: offset %#lx pages; GET_MMAP_INFO says which",
				 vma->vm_pgoff);
	b = dp_buffer_find_count(f, vma->vm_pgoff, offsetof(struct dp_buffer, mappings));
	if (!b)
		return dp_no_buffer("mmap", vma->vm_pgoff);
	if (vma_pages(vma) > b->npages) {
		err = dp_refuse(-EINVAL, "mmap: %lu pages of buffer %u, which has %lu",
				vma_pages(vma), b->id, b->npages);
		goto fail;
	}
	dp_vma_flags(vma, VM_DONTEXPAND | VM_DONTDUMP);
	if (b->type == DMAPLANE_BUF_COHERENT) {
		unsigned long pgoff = vma->vm_pgoff;

		vma->vm_pgoff = 0;
		err = dma_mmap_coherent(b->dev, vma, b->vaddr, b->dma, b->npages << PAGE_SHIFT);
		vma->vm_pgoff = pgoff;
	} else {
		err = vm_map_pages_zero(vma, b->pages, b->npages);
	}
	if (err)
		goto fail;
	vma->vm_private_data = b;
	vma->vm_ops = &mapping_ops;
	return 0;
fail:
	atomic_dec(&b->mappings);
	dp_buffer_put(b);
	return err;
}
