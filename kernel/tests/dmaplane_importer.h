/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the tests ask of the importing driver, /dev/dmaplane_importer. */
#ifndef DMAPLANE_IMPORTER_H
#define DMAPLANE_IMPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

struct importer_map {
	__s32 fd;	/* a dma-buf */
	__u32 device;	/* 0 reaches all memory, 1 only the first 4 GiB */
	__u32 entries;	/* out: of the table */
	__u32 dynamic;	/* 1: gives the mapping up when memory is revoked */
	__u64 address;	/* out: of the first entry, for the device */
	__u64 bytes;	/* out: in the table */
};

struct importer_access {
	__u64 offset;	/* a multiple of 8 in what the open file maps */
	__u64 value;	/* to write, or read */
};

/*
 * One mapping an open file; it is undone by closing it, or by UNMAP. ENODEV: the memory
 * was revoked.
 */
#define IMPORTER_MAP	_IOWR('i', 1, struct importer_map)
#define IMPORTER_WRITE	_IOW('i', 2, struct importer_access)
#define IMPORTER_READ	_IOWR('i', 3, struct importer_access)
#define IMPORTER_UNMAP	_IO('i', 4)

#endif
