/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the tests ask of the stand-in for NVIDIA's driver, /dev/nvidia_p2p_stand_in, which
 * can also be mapped: its memory by address.
 */
#ifndef NVIDIA_P2P_STAND_IN_H
#define NVIDIA_P2P_STAND_IN_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* Where its memory begins for programs of a GPU. */
#define STAND_IN_VA		0x7f0000000000ULL
#define STAND_IN_BYTES		(16ULL << 20)
#define STAND_IN_PAGE		(64ULL << 10)
/* Page by page its second half lies in another order behind the BAR: two pages are swapped each. */
#define STAND_IN_BEHIND(page)	((page) < STAND_IN_BYTES / STAND_IN_PAGE / 2 ? (page) : (page) ^ 1)

/* The program frees what is at an address: who pinned it is told. */
#define STAND_IN_FREE		_IOW('g', 1, __u64)
/* How many pins there are. */
#define STAND_IN_PINS		_IOR('g', 2, __u32)

#endif
