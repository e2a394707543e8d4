// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Memory of GPUs, through the peer-to-peer interface of NVIDIA's driver:
 * pinned, mapped by the CPU (write-combining), copied to and from buffers.
 *
 * The driver's symbols are taken when they are needed and held while
 * something is pinned. Drivers export them for GPL-compatible modules since
 * they are open source; older ones do not, and kernels from 6.6 on refuse
 * those: then there is no GPU here.
 *
 * The driver may end a pin at any time, by a callback, when its process
 * frees the memory or dies. Whoever takes the page table out of the pin, the
 * callback or the unpinning call, gives it back: nobody does so twice. Calls
 * that copy hold the pin's lock for reading, and the end waits for them and
 * revokes memory regions (gpu_mr.c). The lock is not held while the driver is
 * called, which waits for its callbacks.
 */
#include <linux/highmem.h>
#include <linux/io.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "dmaplane_trace.h"
#include "gpu.h"

#define HANDLES		XA_LIMIT(1, INT_MAX)
#define PINS_MAX	64
#define ITERATIONS_MAX	100000
/* What the driver's pages are multiples of. */
#define GPU_PAGE_BYTES	(64UL << 10)
/* The driver says that a callback runs: how long it may take. */
#define CALLBACK_WAIT	(10 * HZ)

static void pin_release(struct kref *ref)
{
	struct dp_gpu_pin *g = container_of(ref, struct dp_gpu_pin, ref);

	kvfree(g->pieces);
	kfree(g);
}

void dp_gpu_pin_put(struct dp_gpu_pin *g)
{
	kref_put(&g->ref, pin_release);
}

static void symbols_put(void)
{
	symbol_put(nvidia_p2p_get_pages);
	symbol_put(nvidia_p2p_put_pages);
	symbol_put(nvidia_p2p_free_page_table);
}

static int symbols_get(void)
{
	if (!symbol_get(nvidia_p2p_get_pages))
		return -ENODEV;
	if (!symbol_get(nvidia_p2p_put_pages))
		goto put_get;
	if (!symbol_get(nvidia_p2p_free_page_table))
		goto put_put;
	return 0;
put_put:
	symbol_put(nvidia_p2p_put_pages);
put_get:
	symbol_put(nvidia_p2p_get_pages);
	return -ENODEV;
}

/*
 * While something is pinned the symbols are held: looking them up again takes one more
 * reference.
 */
#define call_driver(name, ...) ({				\
	typeof(&(name)) fn_ = symbol_get(name);		\
	int answer_ = fn_ ? fn_(__VA_ARGS__) : -ENODEV;	\
	if (fn_)					\
		symbol_put(name);			\
	answer_;					\
})

/* Takes the page table out, and what reaches the memory away, for one caller only. */
static struct nvidia_p2p_page_table *take_table(struct dp_gpu_pin *g)
{
	struct nvidia_p2p_page_table *table;
	u32 i;

	down_write(&g->lock);
	table = g->table;
	g->table = NULL;
	if (table) {
		dp_gpu_mrs_revoke(g);
		for (i = 0; i < g->npieces; i++)
			iounmap(g->pieces[i].at);
	}
	up_write(&g->lock);
	return table;
}

/* The driver's: the memory goes away when this returns. */
static void pin_called_back(void *data)
{
	struct dp_gpu_pin *g = data;
	struct nvidia_p2p_page_table *table = take_table(g);

	dp_count(gpu_callbacks);
	if (table)
		call_driver(nvidia_p2p_free_page_table, table);
	complete_all(&g->called_back);
}

/*
 * Ends the pin, whoever else is about to. Nobody holds it any more; the caller keeps a
 * reference.
 */
static void pin_end(struct dp_gpu_pin *g)
{
	struct nvidia_p2p_page_table *table = take_table(g);

	if (!table) {
		/* The callback has it: the driver may use the pin until that is over. */
		wait_for_completion(&g->called_back);
	} else if (call_driver(nvidia_p2p_put_pages, 0, 0, g->va, table)) {
		/* A callback that came between gave the pages up. */
		if (wait_for_completion_timeout(&g->called_back, CALLBACK_WAIT))
			call_driver(nvidia_p2p_free_page_table, table);
		else
			kref_get(&g->ref);
	}
	symbols_put();
	dp_count(gpu_unpins);
}

/* The caller's hold of it, and the reference that goes with that. */
void dp_gpu_pin_let_go(struct dp_gpu_pin *g)
{
	if (refcount_dec_and_test(&g->holders))
		pin_end(g);
	dp_gpu_pin_put(g);
}

static u32 page_bytes_of(u32 page_size)
{
	switch (page_size) {
	case NVIDIA_P2P_PAGE_SIZE_4KB:
		return 4 << 10;
	case NVIDIA_P2P_PAGE_SIZE_64KB:
		return 64 << 10;
	case NVIDIA_P2P_PAGE_SIZE_128KB:
		return 128 << 10;
	default:
		return 0;
	}
}

/* The node of the device that has the address behind a BAR. */
static int node_of(u64 address)
{
	struct pci_dev *pdev = NULL;
	int bar;

	for_each_pci_dev(pdev)
		for (bar = 0; bar < PCI_STD_NUM_BARS; bar++)
			if (pci_resource_len(pdev, bar) &&
			    address >= pci_resource_start(pdev, bar) &&
			    address <= pci_resource_end(pdev, bar)) {
				int node = dev_to_node(&pdev->dev);

				pci_dev_put(pdev);
				return node;
			}
	return NUMA_NO_NODE;
}

/* Under the lock for writing, with the table. */
static int map_pieces(struct dp_gpu_pin *g)
{
	struct nvidia_p2p_page **pages = g->table->pages;
	u32 i = 0;

	g->pieces = kvcalloc(g->entries, sizeof(*g->pieces), DP_GFP);
	if (!g->pieces)
		return -ENOMEM;
	while (i < g->entries) {
		struct dp_gpu_piece *p = &g->pieces[g->npieces];

		p->physical = pages[i]->physical_address;
		p->offset = (u64)i * g->page_bytes;
		do {
			p->bytes += g->page_bytes;
			i++;
		} while (i < g->entries && pages[i]->physical_address == p->physical + p->bytes);
		p->at = ioremap_wc(p->physical, p->bytes);
		if (!p->at)
			return -ENOMEM;
		g->npieces++;
	}
	return 0;
}

static int check_table(struct dp_gpu_pin *g)
{
	struct nvidia_p2p_page_table *table = g->table;

	/* The major version says what the structure looks like. */
	if (table->version >> 16 != NVIDIA_P2P_PAGE_TABLE_VERSION >> 16)
		return -EPROTO;
	g->page_bytes = page_bytes_of(table->page_size);
	g->entries = table->entries;
	if (!g->page_bytes || !g->entries || (u64)g->entries * g->page_bytes < g->size)
		return -EPROTO;
	return 0;
}

/* With the symbols, which the pin has from then on. */
static struct dp_gpu_pin *pin_new(u64 va, u64 size)
{
	struct dp_gpu_pin *g = kzalloc(sizeof(*g), DP_GFP);
	struct nvidia_p2p_page_table *table = NULL;
	int err = -ENOMEM;

	if (!g)
		goto put;
	kref_init(&g->ref);
	refcount_set(&g->holders, 1);
	INIT_LIST_HEAD(&g->mrs);
	init_rwsem(&g->lock);
	init_completion(&g->called_back);
	g->va = va;
	g->size = size;
	/* A callback that comes at once waits until it is whole. */
	down_write(&g->lock);
	err = call_driver(nvidia_p2p_get_pages, 0, 0, va, size, &table, pin_called_back, g);
	if (err) {
		up_write(&g->lock);
		dp_gpu_pin_put(g);
		goto put;
	}
	g->table = table;
	err = check_table(g);
	if (!err)
		err = map_pieces(g);
	up_write(&g->lock);
	dp_count(gpu_pins);
	if (!err)
		return g;
	dp_gpu_pin_let_go(g);
	return ERR_PTR(err);
put:
	symbols_put();
	return ERR_PTR(err);
}

/* Counts the pin if it may be. */
static int check_pin(struct dp_file *f, const struct dmaplane_gpu_pin_params *p)
{
	if (!p->size || p->size > DMAPLANE_BUFFER_BYTES_MAX || p->size % GPU_PAGE_BYTES)
		return dp_refuse(-EINVAL, "GPU_PIN: size %llu; multiples of %lu up to %llu",
				 p->size, GPU_PAGE_BYTES, DMAPLANE_BUFFER_BYTES_MAX);
	if (p->gpu_va % GPU_PAGE_BYTES || p->gpu_va + p->size < p->gpu_va)
		return dp_refuse(-EINVAL, "GPU_PIN: gpu_va %#llx; a multiple of %lu", p->gpu_va,
				 GPU_PAGE_BYTES);
	if (!atomic_add_unless(&f->npins, 1, PINS_MAX))
		return dp_refuse(-ENOSPC, "GPU_PIN: the file has %d pins, the most", PINS_MAX);
	return 0;
}

/* The error of a call that named a pin which is not there. */
static int no_pin(const char *call, u32 handle)
{
	if (dp_gpu_absent())
		return dp_refuse(-ENODEV, "%s: no driver gives NVIDIA's peer-to-peer symbols",
				 call);
	return dp_refuse(-ENOENT, "%s: handle %u is no pin of this file", call, handle);
}

long dp_gpu_pin(struct dp_file *f, void __user *arg)
{
	struct dmaplane_gpu_pin_params p;
	struct dp_gpu_pin *g;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = symbols_get();
	if (err)
		return dp_refuse(err, "GPU_PIN: no driver gives NVIDIA's peer-to-peer symbols");
	err = check_pin(f, &p);
	if (err) {
		symbols_put();
		return err;
	}
	g = pin_new(p.gpu_va, p.size);
	if (IS_ERR(g)) {
		atomic_dec(&f->npins);
		return dp_refuse(PTR_ERR(g), "GPU_PIN: the driver pins no %llu bytes at %#llx",
				 p.size, p.gpu_va);
	}
	down_read(&g->lock);
	g->node = g->table ? node_of(g->table->pages[0]->physical_address) : NUMA_NO_NODE;
	up_read(&g->lock);
	err = xa_alloc_cyclic(&f->pins, &p.handle, NULL, HANDLES, &f->next_pin, DP_GFP);
	if (err < 0)
		goto end;
	p.gpu_numa_node = g->node;
	p.num_pages = g->entries;
	p.bar1_consumed = (u64)g->entries * g->page_bytes;
	trace_dmaplane_gpu_pin(p.handle, p.gpu_va, p.size, p.num_pages);
	err = -EFAULT;
	if (copy_to_user(arg, &p, sizeof(p))) {
		xa_erase(&f->pins, p.handle);
		goto end;
	}
	xa_store(&f->pins, p.handle, g, DP_GFP);
	return 0;
end:
	dp_gpu_pin_let_go(g);
	atomic_dec(&f->npins);
	return err;
}

long dp_gpu_unpin(struct dp_file *f, void __user *arg)
{
	struct dmaplane_gpu_unpin_params p;
	struct dp_gpu_pin *g;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	xa_lock(&f->pins);
	g = xa_load(&f->pins, p.handle);
	if (g)
		__xa_erase(&f->pins, p.handle);
	xa_unlock(&f->pins);
	if (!g)
		return no_pin("GPU_UNPIN", p.handle);
	dp_gpu_pin_let_go(g);
	atomic_dec(&f->npins);
	return 0;
}

/* Whether no driver's symbols are there. */
bool dp_gpu_absent(void)
{
	if (symbols_get())
		return true;
	symbols_put();
	return false;
}

void dp_gpu_drop(struct dp_file *f)
{
	struct dp_gpu_pin *g;
	unsigned long handle;

	xa_for_each(&f->pins, handle, g)
		dp_gpu_pin_let_go(g);
	xa_destroy(&f->pins);
}

struct dp_gpu_pin *dp_gpu_pin_find(struct dp_file *f, u32 handle)
{
	struct dp_gpu_pin *g;

	xa_lock(&f->pins);
	g = xa_load(&f->pins, handle);
	if (g)
		kref_get(&g->ref);
	xa_unlock(&f->pins);
	return g;
}

/* One page of the buffer. A GPU page is a multiple of it, so it lies in one piece. */
static void copy_page_of(void __iomem *gpu, struct page *page, size_t within, size_t bytes,
			 bool to_host)
{
	void *host = kmap_local_page(page);

	if (to_host)
		memcpy_fromio(host + within, gpu, bytes);
	else
		memcpy_toio(gpu, host + within, bytes);
	kunmap_local(host);
}

static int copy_locked(struct dp_gpu_pin *g, struct dp_buffer *b, u64 offset, u64 bytes,
		       bool to_host)
{
	u64 end = offset + bytes;
	u32 i = 0;

	while (offset < end) {
		size_t within = offset_in_page(offset),
		       n = min_t(u64, PAGE_SIZE - within, end - offset);

		while (offset >= g->pieces[i].offset + g->pieces[i].bytes)
			i++;
		copy_page_of(g->pieces[i].at + (offset - g->pieces[i].offset),
			     b->pages[offset >> PAGE_SHIFT], within, n, to_host);
		offset += n;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	if (!to_host)
		wmb(); /* Write-combining buffers are empty before the caller tells anybody. */
	return 0;
}

/* The same offset on both sides. */
static int copy(const char *call, struct dp_gpu_pin *g, struct dp_buffer *b, u64 offset, u64 bytes,
		bool to_host, u64 *ns)
{
	u64 size = min_t(u64, g->size, b->size);
	u64 begun;
	int err;

	if (!bytes || offset > size || bytes > size - offset)
		return dp_refuse(-EINVAL, "%s: %llu bytes from %llu on; 1 to %llu in all", call,
				 bytes, offset, size);
	err = down_read_killable(&g->lock);
	if (err)
		return err;
	begun = ktime_get_ns();
	if (g->table)
		err = copy_locked(g, b, offset, bytes, to_host);
	else
		err = dp_refuse(-EIO, "%s: the program that had the GPU's memory freed it", call);
	*ns += ktime_get_ns() - begun;
	up_read(&g->lock);
	if (!err && to_host)
		dp_add(gpu_to_host, bytes);
	else if (!err)
		dp_add(host_to_gpu, bytes);
	return err;
}

static u64 mbps(u64 bytes, u64 ns)
{
	return div64_u64(bytes * 1000, max_t(u64, ns, 1));
}

/* Both or an error. */
static int find_both(const char *call, struct dp_file *f, u32 handle, u32 buffer,
		     struct dp_gpu_pin **g, struct dp_buffer **b)
{
	*g = dp_gpu_pin_find(f, handle);
	if (!*g)
		return no_pin(call, handle);
	*b = dp_buffer_find(f, buffer);
	if (*b)
		return 0;
	dp_gpu_pin_put(*g);
	return dp_no_buffer(call, buffer);
}

long dp_gpu_copy(struct dp_file *f, void __user *arg, bool to_host)
{
	const char *call = to_host ? "GPU_DMA_TO_HOST" : "GPU_DMA_FROM_HOST";
	struct dmaplane_gpu_dma_params p;
	struct dp_gpu_pin *g;
	struct dp_buffer *b;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = find_both(call, f, p.gpu_handle, p.host_handle, &g, &b);
	if (err)
		return err;
	p.elapsed_ns = 0;
	err = copy(call, g, b, p.offset, p.size, to_host, &p.elapsed_ns);
	if (!err) {
		p.throughput_mbps = mbps(p.size, p.elapsed_ns);
		trace_dmaplane_gpu_dma(p.gpu_handle, to_host, p.size, p.elapsed_ns);
	}
	dp_buffer_put(b);
	dp_gpu_pin_put(g);
	if (err)
		return err;
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

long dp_gpu_bench(struct dp_file *f, void __user *arg)
{
	const char *call = "GPU_BENCH";
	struct dmaplane_gpu_bench_params p;
	u64 there = 0, back = 0;
	struct dp_gpu_pin *g;
	struct dp_buffer *b;
	int err;
	u32 i;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = find_both(call, f, p.gpu_handle, p.host_handle, &g, &b);
	if (err)
		return err;
	if (!p.iterations || p.iterations > ITERATIONS_MAX)
		err = dp_refuse(-EINVAL, "%s: iterations %u; 1 to %d", call, p.iterations,
				ITERATIONS_MAX);
	for (i = 0; i < p.iterations && !err; i++) {
		err = copy(call, g, b, 0, p.size, false, &there);
		if (!err)
			err = copy(call, g, b, 0, p.size, true, &back);
	}
	dp_buffer_put(b);
	dp_gpu_pin_put(g);
	if (err)
		return err;
	p.h2g_bandwidth_mbps = mbps(p.size * p.iterations, there);
	p.g2h_bandwidth_mbps = mbps(p.size * p.iterations, back);
	return copy_to_user(arg, &p, sizeof(p)) ? -EFAULT : 0;
}

long dp_gpu_stats(void __user *arg)
{
	struct dmaplane_gpu_stats s = {
		.pins_total = dp_total(gpu_pins),
		.unpins_total = dp_total(gpu_unpins),
		.callbacks_fired = dp_total(gpu_callbacks),
		.dma_h2g_bytes = dp_total(host_to_gpu),
		.dma_g2h_bytes = dp_total(gpu_to_host),
		.gpu_mrs_registered = dp_total(gpu_mrs),
	};

	return copy_to_user(arg, &s, sizeof(s)) ? -EFAULT : 0;
}
