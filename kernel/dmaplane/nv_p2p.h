/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The part of NVIDIA's public peer-to-peer interface that gpu.c calls, as
 * documented in "Developing a Linux Kernel Module using GPUDirect RDMA".
 * The driver's own header comes with the driver, which need not be here.
 */
#ifndef DMAPLANE_NV_P2P_H
#define DMAPLANE_NV_P2P_H

#include <linux/types.h>

#define NVIDIA_P2P_PAGE_TABLE_VERSION	0x00010002

enum nvidia_p2p_page_size_type {
	NVIDIA_P2P_PAGE_SIZE_4KB = 0,
	NVIDIA_P2P_PAGE_SIZE_64KB,
	NVIDIA_P2P_PAGE_SIZE_128KB,
};

struct nvidia_p2p_page {
	u64 physical_address;
	u32 registers[6];
};

struct nvidia_p2p_page_table {
	u32 version;
	u32 page_size;		/* enum nvidia_p2p_page_size_type */
	struct nvidia_p2p_page **pages;
	u32 entries;
	u8 *gpu_uuid;
};

int nvidia_p2p_get_pages(u64 p2p_token, u32 va_space, u64 virtual_address, u64 length,
			 struct nvidia_p2p_page_table **page_table,
			 void (*free_callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 p2p_token, u32 va_space, u64 virtual_address,
			 struct nvidia_p2p_page_table *page_table);
int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *page_table);

#endif
