// SPDX-License-Identifier: GPL-2.0 OR MIT
#include <linux/module.h>

#define CREATE_TRACE_POINTS
#include "dmaplane_trace.h"
