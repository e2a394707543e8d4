// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A line in the kernel's log for each call that is refused for what it asks:
 * the call, the field, what it may be. Whoever may open the device can have
 * such lines written, so there are only so many in a minute, and what comes
 * from the program is escaped.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>
#include <linux/sched.h>

#include "dmaplane.h"

static unsigned int refusals_per_minute = 30;
module_param(refusals_per_minute, uint, 0644);
MODULE_PARM_DESC(refusals_per_minute,
		 "lines in the kernel's log about refused calls in a minute (default 30; 0: none)");

static DEFINE_SPINLOCK(lock);
static unsigned long minute_begun;
static unsigned int logged, left_out;

/* Whether this one is logged; also how many before were not, once their minute is over. */
static bool may_log(unsigned int *were_left_out)
{
	bool may;

	*were_left_out = 0;
	spin_lock(&lock);
	if (time_after_eq(jiffies, minute_begun + 60 * HZ)) {
		minute_begun = jiffies;
		*were_left_out = left_out;
		logged = 0;
		left_out = 0;
	}
	may = logged < READ_ONCE(refusals_per_minute);
	if (may)
		logged++;
	else
		left_out++;
	spin_unlock(&lock);
	return may;
}

/* The error. `why` begins with the name of the call. */
int dp_refuse(int err, const char *why, ...)
{
	char comm[TASK_COMM_LEN];
	unsigned int were_left_out;
	struct va_format line;
	va_list args;

	if (!may_log(&were_left_out))
		return err;
	if (were_left_out)
		pr_notice("%u more calls were refused\n", were_left_out);
	get_task_comm(comm, current);
	va_start(args, why);
	line.fmt = why;
	line.va = &args;
	pr_notice("%*pE[%d]: error %d: %pV\n", (int)strnlen(comm, sizeof(comm)), comm,
		  task_pid_nr(current), err, &line);
	va_end(args);
	return err;
}
