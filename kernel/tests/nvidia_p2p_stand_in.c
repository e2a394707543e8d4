// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A stand-in for the peer-to-peer interface of NVIDIA's driver, for tests:
 * its GPU memory is the BAR of QEMU's ivshmem device, which is memory behind
 * PCI as that of a GPU is.
 */
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv_p2p.h"
#include "nvidia_p2p_stand_in.h"

#define BAR	2

struct pinned {
	struct list_head node;
	u64 va, bytes;
	struct nvidia_p2p_page_table table;
	void (*callback)(void *data);
	void *data;
};

static bool pages = true;
module_param(pages, bool, 0444);
MODULE_PARM_DESC(pages,
		 "whether the memory has struct pages, as a driver for peer-to-peer DMA makes them");

static struct pci_dev *device;
static struct dev_pagemap pagemap = { .type = MEMORY_DEVICE_PCI_P2PDMA, .nr_range = 1 };
static DEFINE_MUTEX(lock);
static LIST_HEAD(pins);

static void pinned_free(struct pinned *p)
{
	u32 i;

	for (i = 0; p->table.pages && i < p->table.entries; i++)
		kfree(p->table.pages[i]);
	kfree(p->table.pages);
	kfree(p);
}

static struct pinned *pinned_new(u64 va, u64 bytes)
{
	struct pinned *p = kzalloc(sizeof(*p), GFP_KERNEL);
	u64 first = (va - STAND_IN_VA) / STAND_IN_PAGE, i;

	if (!p)
		return NULL;
	p->va = va;
	p->bytes = bytes;
	p->table.version = NVIDIA_P2P_PAGE_TABLE_VERSION;
	p->table.page_size = NVIDIA_P2P_PAGE_SIZE_64KB;
	p->table.entries = bytes / STAND_IN_PAGE;
	p->table.pages = kcalloc(p->table.entries, sizeof(*p->table.pages), GFP_KERNEL);
	for (i = 0; p->table.pages && i < p->table.entries; i++) {
		struct nvidia_p2p_page *page = kzalloc(sizeof(*page), GFP_KERNEL);

		p->table.pages[i] = page;
		if (!page)
			break;
		page->physical_address = pci_resource_start(device, BAR) +
					 STAND_IN_BEHIND(first + i) * STAND_IN_PAGE;
	}
	if (p->table.pages && i == p->table.entries)
		return p;
	pinned_free(p);
	return NULL;
}

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data)
{
	struct pinned *p;

	if (!free_callback || (virtual_address | length) % STAND_IN_PAGE ||
	    virtual_address < STAND_IN_VA || length > STAND_IN_BYTES ||
	    virtual_address - STAND_IN_VA > STAND_IN_BYTES - length)
		return -EINVAL;
	p = pinned_new(virtual_address, length);
	if (!p)
		return -ENOMEM;
	p->callback = free_callback;
	p->data = data;
	*page_table = &p->table;
	mutex_lock(&lock);
	list_add_tail(&p->node, &pins);
	mutex_unlock(&lock);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table)
{
	struct pinned *p, *found = NULL;

	mutex_lock(&lock);
	list_for_each_entry(p, &pins, node)
		if (&p->table == page_table)
			found = p;
	if (found)
		list_del(&found->node);
	mutex_unlock(&lock);
	/* Its callback was begun. */
	if (!found)
		return -EINVAL;
	WARN_ON(found->va != virtual_address);
	pinned_free(found);
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_put_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table)
{
	pinned_free(container_of(page_table, struct pinned, table));
	return 0;
}
EXPORT_SYMBOL_GPL(nvidia_p2p_free_page_table);

static struct pinned *take_pin_at(u64 va)
{
	struct pinned *p, *found = NULL;

	mutex_lock(&lock);
	list_for_each_entry(p, &pins, node) {
		if (va < p->va || va - p->va >= p->bytes)
			continue;
		list_del(&p->node);
		found = p;
		break;
	}
	mutex_unlock(&lock);
	return found;
}

static long stand_in_ioctl(struct file *file, unsigned int cmd, unsigned long value)
{
	void __user *arg = (void __user *)value;
	struct pinned *p;
	u32 n = 0;
	u64 va;

	switch (cmd) {
	case STAND_IN_FREE:
		if (copy_from_user(&va, arg, sizeof(va)))
			return -EFAULT;
		while ((p = take_pin_at(va)))
			p->callback(p->data);
		return 0;
	case STAND_IN_PINS:
		mutex_lock(&lock);
		list_for_each_entry(p, &pins, node)
			n++;
		mutex_unlock(&lock);
		return copy_to_user(arg, &n, sizeof(n)) ? -EFAULT : 0;
	default:
		return -ENOTTY;
	}
}

/* All of it, in the order of the BAR. */
static int stand_in_mmap(struct file *file, struct vm_area_struct *vma)
{
	vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
	return vm_iomap_memory(vma, pci_resource_start(device, BAR), pci_resource_len(device, BAR));
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = stand_in_ioctl,
	.mmap = stand_in_mmap,
};

static struct miscdevice misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidia_p2p_stand_in",
	.fops = &fops,
};

static int make_pages(void)
{
	if (!pages)
		return 0;
	pagemap.range.start = pci_resource_start(device, BAR);
	pagemap.range.end = pci_resource_end(device, BAR);
	return PTR_ERR_OR_ZERO(memremap_pages(&pagemap, NUMA_NO_NODE));
}

static void drop_pages(void)
{
	if (pages)
		memunmap_pages(&pagemap);
}

static int __init stand_in_init(void)
{
	int err;

	device = pci_get_device(PCI_VENDOR_ID_REDHAT_QUMRANET, 0x1110, NULL);
	if (!device)
		return -ENODEV;
	err = pci_enable_device(device);
	if (!err && pci_resource_len(device, BAR) != STAND_IN_BYTES)
		err = -ENODEV;
	if (!err)
		err = make_pages();
	if (err)
		goto put;
	err = misc_register(&misc);
	if (!err)
		return 0;
	drop_pages();
put:
	pci_dev_put(device);
	return err;
}

static void __exit stand_in_exit(void)
{
	misc_deregister(&misc);
	WARN_ON(!list_empty(&pins));
	drop_pages();
	pci_disable_device(device);
	pci_dev_put(device);
}

module_init(stand_in_init);
module_exit(stand_in_exit);

MODULE_DESCRIPTION("Stand-in for the peer-to-peer interface of NVIDIA's driver, for tests of dmaplane");
MODULE_AUTHOR("The rgaps authors");
MODULE_LICENSE("Dual MIT/GPL");
