// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Limits per user, so that nobody who may open the device can take all
 * memory or all channels from the others. The opener of a file is charged,
 * whoever uses it, until the last user of the memory is gone.
 */
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "dmaplane.h"

static unsigned long user_mib_max;
module_param(user_mib_max, ulong, 0644);
MODULE_PARM_DESC(user_mib_max,
		 "MiB of buffers that one user may have (default 0: half of the memory)");

/* Queue pairs are scarce: they are the device's, and each context has three. */
#define CONTEXTS_MAX 64

static DEFINE_MUTEX(users_lock);
static LIST_HEAD(users);

struct dp_user *dp_user_get(kuid_t uid)
{
	struct dp_user *user;

	mutex_lock(&users_lock);
	list_for_each_entry(user, &users, node) {
		if (uid_eq(user->uid, uid)) {
			kref_get(&user->ref);
			goto out;
		}
	}
	user = kzalloc(sizeof(*user), DP_GFP);
	if (user) {
		kref_init(&user->ref);
		user->uid = uid;
		list_add(&user->node, &users);
	}
out:
	mutex_unlock(&users_lock);
	return user;
}

static void dp_user_release(struct kref *ref)
{
	struct dp_user *user = container_of(ref, struct dp_user, ref);

	list_del(&user->node);
	mutex_unlock(&users_lock);
	WARN_ON(atomic64_read(&user->bytes));
	WARN_ON(atomic_read(&user->channels) || atomic_read(&user->contexts));
	kfree(user);
}

void dp_user_put(struct dp_user *user)
{
	kref_put_mutex(&user->ref, dp_user_release, &users_lock);
}

static u64 user_bytes_max(void)
{
	unsigned long mib = READ_ONCE(user_mib_max);

	if (mib)
		return (u64)mib << 20;
	return (u64)totalram_pages() << (PAGE_SHIFT - 1);
}

/* What is not granted is never counted, so it refuses nobody else. */
int dp_charge(atomic64_t *used, u64 bytes, u64 max)
{
	s64 before = atomic64_read(used);

	do {
		if (bytes > max || before > max - bytes)
			return -EDQUOT;
	} while (!atomic64_try_cmpxchg(used, &before, before + bytes));
	return 0;
}

int dp_user_charge(struct dp_user *user, size_t bytes)
{
	return dp_charge(&user->bytes, bytes, user_bytes_max());
}

/* Tells why an allocation failed with this error. */
int dp_no_memory(const char *call, struct dp_user *user, int node, int err)
{
	if (err == -EDQUOT)
		return dp_refuse(err,
				 "%s: the user has %lld bytes, and may have %llu (parameter user_mib_max)",
				 call, atomic64_read(&user->bytes), user_bytes_max());
	if (err == -ENOMEM)
		return dp_refuse(err,
				 "%s: too little free memory as demanded, of node %d (-1: of any)",
				 call, node);
	return err;
}

void dp_user_uncharge(struct dp_user *user, size_t bytes)
{
	atomic64_sub(bytes, &user->bytes);
}

/* Takes one of the user's channels; whoever destroys it gives it back. */
int dp_user_channel(struct dp_user *user)
{
	if (atomic_add_unless(&user->channels, 1, DMAPLANE_CHANNELS_MAX))
		return 0;
	return dp_refuse(-ENOSPC, "CREATE_CHANNEL: the user has %d channels, the most",
			 DMAPLANE_CHANNELS_MAX);
}

/* One of the user's RDMA contexts, likewise. */
int dp_user_context(struct dp_user *user)
{
	if (atomic_add_unless(&user->contexts, 1, CONTEXTS_MAX))
		return 0;
	return dp_refuse(-ENOSPC, "SETUP_RDMA: the user has %d contexts, the most", CONTEXTS_MAX);
}
