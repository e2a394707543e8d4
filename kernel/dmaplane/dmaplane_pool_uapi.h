/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * The interface of /dev/dmaplane-pool: memory with a quota that can be taken
 * back. docs/decisions/0043-dmaplane-pool.md argues it.
 *
 * An open file of the device is a realm. ALLOC makes memory and returns a
 * dma-buf of it, which is its only handle: the memory lives until the last
 * descriptor, mapping and importer of the dma-buf is gone, or until REVOKE.
 * Closing the realm's file takes nothing away. Who receives the dma-buf can
 * map and import it, and needs no access to the device.
 *
 * Numbers, sizes and offsets never change. A new call is a new number and a
 * new bit of `features`. Flags that are not named here, and all `reserved`
 * fields, must be 0: EINVAL.
 */
#ifndef DMAPLANE_POOL_UAPI_H
#define DMAPLANE_POOL_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define DMAPLANE_POOL_VERSION		1

#define DMAPLANE_POOL_BYTES_MAX		(1ULL << 36)	/* of one ALLOC */
#define DMAPLANE_POOL_BUFFERS_MAX	4096		/* alive, of one realm */
#define DMAPLANE_POOL_NODE_ANY		(-1)

/*
 * GET_VERSION: what the module has. A program needs the version that it was
 * written for, and the features that it uses.
 */
#define DMAPLANE_POOL_HAS_REVOKE	(1ULL << 0)
#define DMAPLANE_POOL_HAS_ADOPT		(1ULL << 1)

struct dmaplane_pool_version {
	__u32 version;		/* DMAPLANE_POOL_VERSION */
	__u32 buffers_max;	/* DMAPLANE_POOL_BUFFERS_MAX */
	__u64 features;
	__u64 bytes_max;	/* DMAPLANE_POOL_BYTES_MAX */
	__u64 reserved;
};

/*
 * SET_QUOTA: bytes that the realm may have. A new realm has a quota of 0. A
 * quota below what the realm has takes nothing away and stops new ALLOCs.
 * The limit of the user that opened the file holds as well.
 */
struct dmaplane_pool_quota {
	__u64 bytes;
	__u64 reserved;
};

/* GET_REALM */
struct dmaplane_pool_realm {
	__u64 quota_bytes;
	__u64 used_bytes;	/* whole pages; revoked memory until it is free */
	__u32 buffers;		/* dma-bufs that exist, with revoked ones */
	__u32 reserved0;
	__u64 reserved[4];
};

/*
 * ALLOC: zeroed memory as a dma-buf. `size` is rounded up to whole pages. The
 * flags are demands, not wishes: what cannot be had fails with ENOMEM.
 * Without them it is 2 MiB blocks of `node` as far as there are any, then
 * smaller ones of it, then pages of other nodes; the answer says what came.
 * Fails with EDQUOT where the realm's quota or the user's limit is too small,
 * and with ENOSPC at the limit of buffers.
 */
#define DMAPLANE_POOL_HUGE		(1U << 0)	/* whole blocks of 2 MiB, so is `size` */
#define DMAPLANE_POOL_STRICT_NODE	(1U << 1)	/* every page from `node`, not -1 */

struct dmaplane_pool_alloc {
	__u64 size;
	__s32 node;		/* or DMAPLANE_POOL_NODE_ANY */
	__u32 flags;		/* DMAPLANE_POOL_HUGE, DMAPLANE_POOL_STRICT_NODE */
	__s32 fd;		/* out: the dma-buf, close-on-exec */
	/* out: `node` if every page is there; else the other node with most of them */
	__s32 actual_node;
	__u64 nodes;		/* out: bit n: pages of node n; bit 63: of nodes from 63 */
	/* out: all memory comes in aligned contiguous blocks at least so large, but the last */
	__u64 block_bytes;
	__u64 reserved[2];
};

/*
 * REVOKE: takes the memory of a dma-buf of this realm away from everybody.
 * When it returns, an access through any mapping is a SIGBUS, mmap() and new
 * imports fail with ENODEV, and importers that handle move_notify have been
 * told. Importers that do not keep what they have mapped until they unmap it:
 * `importers` says how many mappings of devices are left. The memory is freed
 * and no longer charged when there are none, perhaps before the call returns.
 * To revoke again changes nothing and tells how many are left now. EPERM: the
 * dma-buf is of another realm.
 *
 * A page that a process has pinned through its mapping (ibv_reg_mr, O_DIRECT)
 * is given back to the kernel when it is unpinned. Until then it holds the
 * old bytes and nobody else gets it; it counts as the process's pinned memory.
 */
struct dmaplane_pool_revoke {
	__s32 fd;		/* dma-buf */
	__u32 flags;		/* 0 */
	__u32 importers;	/* out */
	__u32 reserved0;
	__u64 reserved;
};

/*
 * INFO: of a dma-buf of any realm, for everybody who has it and a file of the
 * device. EINVAL says that the descriptor is none of this device.
 */
#define DMAPLANE_POOL_REVOKED		(1U << 0)
#define DMAPLANE_POOL_FREED		(1U << 1)	/* revoked, and no importer is left */
#define DMAPLANE_POOL_MINE		(1U << 2)	/* of the realm that asks */

struct dmaplane_pool_info {
	__s32 fd;		/* dma-buf */
	__u32 state;		/* out: DMAPLANE_POOL_REVOKED, _FREED, _MINE */
	__u64 size;		/* out: whole pages */
	__s32 node;		/* out: as asked */
	__s32 actual_node;	/* out: as of ALLOC, like the next two */
	__u64 nodes;
	__u64 block_bytes;
	__u32 importers;	/* out: mappings of devices */
	__u32 mappings;		/* out: mappings of processes, pieces counted */
	__u64 reserved[2];
};

/*
 * ADOPT: a dma-buf whose realm's file is closed belongs to this realm from
 * now on, and counts against its quota: for a daemon that begins again while
 * its clients go on. Only by a file of the same user: EPERM. EBUSY while the
 * old realm's file is open, EDQUOT, ENOSPC as for ALLOC, ENODEV if revoked.
 */
struct dmaplane_pool_adopt {
	__s32 fd;		/* dma-buf */
	__u32 reserved0;
	__u64 reserved;
};

#define DMAPLANE_POOL_MAGIC 0xE6

#define DMAPLANE_POOL_GET_VERSION _IOR(DMAPLANE_POOL_MAGIC, 0x00, struct dmaplane_pool_version)
#define DMAPLANE_POOL_SET_QUOTA _IOW(DMAPLANE_POOL_MAGIC, 0x01, struct dmaplane_pool_quota)
#define DMAPLANE_POOL_GET_REALM _IOR(DMAPLANE_POOL_MAGIC, 0x02, struct dmaplane_pool_realm)
#define DMAPLANE_POOL_ALLOC _IOWR(DMAPLANE_POOL_MAGIC, 0x03, struct dmaplane_pool_alloc)
#define DMAPLANE_POOL_REVOKE _IOWR(DMAPLANE_POOL_MAGIC, 0x04, struct dmaplane_pool_revoke)
#define DMAPLANE_POOL_INFO _IOWR(DMAPLANE_POOL_MAGIC, 0x05, struct dmaplane_pool_info)
#define DMAPLANE_POOL_ADOPT _IOWR(DMAPLANE_POOL_MAGIC, 0x06, struct dmaplane_pool_adopt)

#endif /* DMAPLANE_POOL_UAPI_H */
