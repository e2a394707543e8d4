// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Buffers and the handles by which a file names them. A handle is one
 * reference among several; memory goes with the last. Handles count up, so
 * that one that was destroyed names nothing for a long time, not something
 * else.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane.h"
#include "dmaplane_trace.h"

static DEFINE_MUTEX(all_lock);
static LIST_HEAD(all_buffers);

/* Never 0, and such that the offset for mmap fits in a long. */
#define HANDLES XA_LIMIT(1, INT_MAX)

void dp_buffer_get(struct dp_buffer *b)
{
	kref_get(&b->ref);
}

static void buffer_release(struct kref *ref)
{
	struct dp_buffer *b = container_of(ref, struct dp_buffer, ref);

	WARN_ON(atomic_read(&b->mappings) || atomic_read(&b->exports));
	mutex_lock(&all_lock);
	list_del(&b->node);
	mutex_unlock(&all_lock);
	dp_memory_free(b);
	dp_user_uncharge(b->user, b->npages << PAGE_SHIFT);
	dp_user_put(b->user);
	kfree(b);
	dp_count(buffers_destroyed);
}

void dp_buffer_put(struct dp_buffer *b)
{
	kref_put(&b->ref, buffer_release);
}

struct dp_buffer *dp_buffer_find(struct dp_file *f, u32 id)
{
	return dp_buffer_find_count(f, id, 0);
}

/*
 * Also raises the counter at `offset` of the buffer (not 0), which says why
 * its handle cannot be destroyed, with no gap in between.
 */
struct dp_buffer *dp_buffer_find_count(struct dp_file *f, u32 id, size_t offset)
{
	struct dp_buffer *b;

	xa_lock(&f->buffers);
	b = xa_load(&f->buffers, id);
	if (b) {
		kref_get(&b->ref);
		if (offset)
			atomic_inc((atomic_t *)((char *)b + offset));
	}
	xa_unlock(&f->buffers);
	return b;
}

static void count_placement(const struct dp_buffer *b)
{
	dp_count(buffers_created);
	if (b->node_asked == NUMA_NO_NODE)
		dp_count(numa_any);
	else if (b->node_asked == b->node_actual)
		dp_count(numa_local);
	else
		dp_count(numa_remote);
}

/* The caller has checked what it asks for. */
struct dp_buffer *dp_buffer_new(struct dp_user *user, u32 type, size_t size, int node,
				unsigned int demands)
{
	size_t bytes = PAGE_ALIGN(size);
	struct dp_buffer *b;
	int err;

	b = kzalloc(sizeof(*b), DP_GFP);
	if (!b)
		return ERR_PTR(-ENOMEM);
	kref_init(&b->ref);
	b->type = type;
	b->size = size;
	b->npages = bytes >> PAGE_SHIFT;
	b->node_asked = node;
	b->demands = demands;
	err = dp_user_charge(user, bytes);
	if (err)
		goto free;
	err = dp_memory_alloc(b);
	if (err)
		goto uncharge;
	kref_get(&user->ref);
	b->user = user;
	mutex_lock(&all_lock);
	list_add_tail(&b->node, &all_buffers);
	mutex_unlock(&all_lock);
	count_placement(b);
	return b;
uncharge:
	dp_user_uncharge(user, bytes);
free:
	kfree(b);
	return ERR_PTR(err);
}

static int check_create(const struct dmaplane_buf_params *p)
{
	if (p->alloc_type != DMAPLANE_BUF_COHERENT && p->alloc_type != DMAPLANE_BUF_PAGES)
		return dp_refuse(-EINVAL, "CREATE_BUFFER: alloc_type %u; there are 0 and 1",
				 p->alloc_type);
	if (!p->size || p->size > DMAPLANE_BUFFER_BYTES_MAX)
		return dp_refuse(-EINVAL, "CREATE_BUFFER: size %llu; 1 to %llu", p->size,
				 (u64)DMAPLANE_BUFFER_BYTES_MAX);
	if (!dp_node_valid(p->numa_node))
		return dp_refuse(-EINVAL,
				 "CREATE_BUFFER: numa_node %d is no node with memory, nor -1",
				 p->numa_node);
	return 0;
}

long dp_buffer_create(struct dp_file *f, void __user *arg)
{
	struct dmaplane_buf_params p;
	struct dp_buffer *b;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = check_create(&p);
	if (err)
		return err;
	if (!atomic_add_unless(&f->nbuffers, 1, DMAPLANE_BUFFERS_MAX))
		return dp_refuse(-ENOSPC, "CREATE_BUFFER: the file has %d buffers, the most",
				 DMAPLANE_BUFFERS_MAX);
	b = dp_buffer_new(f->user, p.alloc_type, p.size, p.numa_node, 0);
	if (IS_ERR(b)) {
		atomic_dec(&f->nbuffers);
		return dp_no_memory("CREATE_BUFFER", f->user, p.numa_node, PTR_ERR(b));
	}
	p.actual_numa_node = b->node_actual;
	/* A place first: what finds the buffer must find its number in it. */
	err = xa_alloc_cyclic(&f->buffers, &p.buf_id, NULL, HANDLES, &f->next_buffer,
			      DP_GFP);
	if (err < 0)
		goto drop;
	b->id = p.buf_id;
	trace_dmaplane_buf_alloc(b->id, b->type, b->size, b->node_asked, b->node_actual);
	if (copy_to_user(arg, &p, sizeof(p))) {
		err = -EFAULT;
		xa_erase(&f->buffers, p.buf_id);
		goto drop;
	}
	/* The place is there, so this takes no memory and cannot fail. */
	xa_store(&f->buffers, p.buf_id, b, DP_GFP);
	return 0;
drop:
	dp_buffer_put(b);
	atomic_dec(&f->nbuffers);
	return err;
}

long dp_buffer_destroy(struct dp_file *f, void __user *arg)
{
	struct dp_buffer *b;
	u32 id;

	if (copy_from_user(&id, arg, sizeof(id)))
		return -EFAULT;
	xa_lock(&f->buffers);
	b = xa_load(&f->buffers, id);
	/* Who maps it or holds its dma-buf would not learn of it. */
	if (b && (atomic_read(&b->mappings) || atomic_read(&b->exports))) {
		xa_unlock(&f->buffers);
		return dp_refuse(-EBUSY,
				 "DESTROY_BUFFER: buffer %u is mapped, or a dma-buf of it is open",
				 id);
	}
	if (b)
		__xa_erase(&f->buffers, id);
	xa_unlock(&f->buffers);
	if (!b)
		return dp_no_buffer("DESTROY_BUFFER", id);
	atomic_dec(&f->nbuffers);
	dp_buffer_put(b);
	return 0;
}

/* The file is closed: no call of it runs any more, and none maps it. */
void dp_buffers_drop(struct dp_file *f)
{
	struct dp_buffer *b;
	unsigned long id;

	xa_for_each(&f->buffers, id, b)
		dp_buffer_put(b);
	xa_destroy(&f->buffers);
}

long dp_buffer_mmap_info(struct dp_file *f, void __user *arg)
{
	struct dmaplane_mmap_info p;
	struct dp_buffer *b;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	b = dp_buffer_find(f, p.buf_id);
	if (!b)
		return dp_no_buffer("GET_MMAP_INFO", p.buf_id);
	p.mmap_offset = (u64)b->id << DMAPLANE_MMAP_SHIFT;
	p.mmap_size = (u64)b->npages << PAGE_SHIFT;
	dp_buffer_put(b);
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

long dp_buffer_stats(void __user *arg)
{
	struct dmaplane_buf_stats s = {
		.buffers_created = dp_total(buffers_created),
		.buffers_destroyed = dp_total(buffers_destroyed),
		.numa_local_allocs = dp_total(numa_local),
		.numa_remote_allocs = dp_total(numa_remote),
		.numa_anon_allocs = dp_total(numa_any),
	};

	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}

int dp_buffers_show(struct seq_file *m, void *unused)
{
	struct dp_buffer *b;

	seq_puts(m, "id uid type bytes node_asked node_actual refs mappings dmabufs\n");
	if (mutex_lock_killable(&all_lock))
		return -EINTR;
	list_for_each_entry(b, &all_buffers, node)
		seq_printf(m, "%u %u %s %zu %d %d %u %d %d\n", b->id,
			   from_kuid_munged(&init_user_ns, b->user->uid),
			   b->type == DMAPLANE_BUF_COHERENT ? "coherent" : "pages", b->size,
			   b->node_asked, b->node_actual, kref_read(&b->ref),
			   atomic_read(&b->mappings), atomic_read(&b->exports));
	mutex_unlock(&all_lock);
	return 0;
}

#ifdef DMAPLANE_KUNIT
#include "buffer_kunit.c"
#endif
