// SPDX-License-Identifier: GPL-2.0 OR MIT
/* KUnit tests of lifetimes, a part of buffer.c where DMAPLANE_KUNIT is set. */
#include <kunit/test.h>
#include <linux/mman.h>

#define KUNIT_UID	4242
#define KUNIT_BYTES	(5 * PAGE_SIZE)

/* An open file, and memory of a process for arguments. */
struct kunit_file {
	struct dp_file f;
	void __user *arg;
};

static int kunit_buffer_init(struct kunit *test)
{
	struct kunit_file *k = kunit_kzalloc(test, sizeof(*k), GFP_KERNEL);
	unsigned long arg;

	KUNIT_ASSERT_NOT_NULL(test, k);
	arg = kunit_vm_mmap(test, NULL, 0, PAGE_SIZE, PROT_READ | PROT_WRITE,
			    MAP_ANONYMOUS | MAP_PRIVATE, 0);
	KUNIT_ASSERT_NE(test, arg, 0UL);
	k->arg = (void __user *)arg;
	k->f.user = dp_user_get(KUIDT_INIT(KUNIT_UID));
	KUNIT_ASSERT_NOT_NULL(test, k->f.user);
	xa_init_flags(&k->f.buffers, XA_FLAGS_ALLOC1);
	test->priv = k;
	return 0;
}

static void kunit_buffer_exit(struct kunit *test)
{
	struct kunit_file *k = test->priv;

	dp_buffers_drop(&k->f);
	KUNIT_EXPECT_EQ(test, atomic64_read(&k->f.user->bytes), 0LL);
	dp_user_put(k->f.user);
}

static long kunit_create(struct kunit *test, u32 *id)
{
	struct dmaplane_buf_params p = { .alloc_type = DMAPLANE_BUF_PAGES,
					 .size = KUNIT_BYTES,
					 .numa_node = NUMA_NO_NODE };
	struct kunit_file *k = test->priv;
	long err;

	KUNIT_ASSERT_EQ(test, copy_to_user(k->arg, &p, sizeof(p)), 0UL);
	err = dp_buffer_create(&k->f, k->arg);
	if (!err)
		KUNIT_ASSERT_EQ(test, copy_from_user(&p, k->arg, sizeof(p)), 0UL);
	*id = p.buf_id;
	return err;
}

static long kunit_destroy(struct kunit *test, u32 id)
{
	struct kunit_file *k = test->priv;

	KUNIT_ASSERT_EQ(test, copy_to_user(k->arg, &id, sizeof(id)), 0UL);
	return dp_buffer_destroy(&k->f, k->arg);
}

/* The handle, and two users that found the buffer by it, go in each order. */
static void kunit_memory_ends_with_the_last_of_its_users(struct kunit *test)
{
	static const char orders[][4] = { "huv", "hvu", "uhv", "uvh", "vhu", "vuh" };
	struct kunit_file *k = test->priv;
	int order, i;

	for (order = 0; order < ARRAY_SIZE(orders); order++) {
		u64 gone = dp_total(buffers_destroyed);
		struct dp_buffer *b;
		u32 id;

		KUNIT_ASSERT_EQ(test, kunit_create(test, &id), 0L);
		b = dp_buffer_find(&k->f, id);
		KUNIT_ASSERT_NOT_NULL(test, b);
		KUNIT_ASSERT_PTR_EQ(test, b, dp_buffer_find(&k->f, id));
		for (i = 0; i < 3; i++) {
			KUNIT_EXPECT_EQ(test, dp_total(buffers_destroyed), gone);
			KUNIT_EXPECT_EQ(test, atomic64_read(&k->f.user->bytes), (s64)KUNIT_BYTES);
			/* It is there, and zeroed; KASAN watches. */
			KUNIT_EXPECT_EQ(test, *(u64 *)page_address(b->pages[4]), 0ULL);
			if (orders[order][i] == 'h')
				KUNIT_EXPECT_EQ(test, kunit_destroy(test, id), 0L);
			else
				dp_buffer_put(b);
		}
		KUNIT_EXPECT_EQ(test, dp_total(buffers_destroyed), gone + 1);
		KUNIT_EXPECT_EQ(test, atomic64_read(&k->f.user->bytes), 0LL);
		KUNIT_EXPECT_EQ(test, kunit_destroy(test, id), (long)-ENOENT);
	}
}

static void kunit_a_handle_stays_while_its_buffer_is_mapped_or_exported(struct kunit *test)
{
	static const size_t counters[] = { offsetof(struct dp_buffer, mappings),
					   offsetof(struct dp_buffer, exports) };
	struct kunit_file *k = test->priv;
	int i;

	for (i = 0; i < ARRAY_SIZE(counters); i++) {
		struct dp_buffer *b;
		u32 id;

		KUNIT_ASSERT_EQ(test, kunit_create(test, &id), 0L);
		b = dp_buffer_find_count(&k->f, id, counters[i]);
		KUNIT_ASSERT_NOT_NULL(test, b);
		KUNIT_EXPECT_EQ(test, kunit_destroy(test, id), (long)-EBUSY);
		atomic_dec((atomic_t *)((char *)b + counters[i]));
		KUNIT_EXPECT_EQ(test, kunit_destroy(test, id), 0L);
		dp_buffer_put(b);
	}
}

static void kunit_an_old_handle_names_nothing(struct kunit *test)
{
	struct kunit_file *k = test->priv;
	u32 first, id, i;

	KUNIT_ASSERT_EQ(test, kunit_create(test, &first), 0L);
	KUNIT_ASSERT_EQ(test, kunit_destroy(test, first), 0L);
	for (i = 0; i < 3 * DMAPLANE_BUFFERS_MAX; i++) {
		KUNIT_ASSERT_EQ(test, kunit_create(test, &id), 0L);
		KUNIT_ASSERT_NE(test, id, first);
		KUNIT_ASSERT_NULL(test, dp_buffer_find(&k->f, first));
		KUNIT_ASSERT_EQ(test, kunit_destroy(test, id), 0L);
	}
}

/* At the limit, and with arguments that are no good, nothing stays. */
static void kunit_a_call_that_fails_leaves_nothing(struct kunit *test)
{
	struct dmaplane_buf_params p = { .alloc_type = DMAPLANE_BUF_PAGES,
					 .size = KUNIT_BYTES,
					 .numa_node = NUMA_NO_NODE };
	struct kunit_file *k = test->priv;
	u32 id, i;

	for (i = 0; i < DMAPLANE_BUFFERS_MAX; i++)
		KUNIT_ASSERT_EQ(test, kunit_create(test, &id), 0L);
	KUNIT_EXPECT_EQ(test, kunit_create(test, &id), (long)-ENOSPC);
	KUNIT_EXPECT_EQ(test, atomic_read(&k->f.nbuffers), DMAPLANE_BUFFERS_MAX);
	KUNIT_EXPECT_EQ(test, atomic64_read(&k->f.user->bytes),
			(s64)(DMAPLANE_BUFFERS_MAX * KUNIT_BYTES));
	KUNIT_EXPECT_EQ(test, kunit_destroy(test, 1), 0L);

	p.numa_node = nr_node_ids;
	KUNIT_ASSERT_EQ(test, copy_to_user(k->arg, &p, sizeof(p)), 0UL);
	KUNIT_EXPECT_EQ(test, dp_buffer_create(&k->f, k->arg), (long)-EINVAL);
	KUNIT_EXPECT_EQ(test, dp_buffer_create(&k->f, k->arg + PAGE_SIZE - 8), (long)-EFAULT);
	KUNIT_EXPECT_EQ(test, atomic_read(&k->f.nbuffers), DMAPLANE_BUFFERS_MAX - 1);
}

/* Users of memory may outlive the file: what it gave out is not lost to them. */
static void kunit_a_closed_file_takes_nothing_from_users(struct kunit *test)
{
	struct kunit_file *k = test->priv;
	struct dp_buffer *b;
	u32 id;

	KUNIT_ASSERT_EQ(test, kunit_create(test, &id), 0L);
	b = dp_buffer_find(&k->f, id);
	KUNIT_ASSERT_NOT_NULL(test, b);
	dp_buffers_drop(&k->f);
	KUNIT_EXPECT_EQ(test, kref_read(&b->ref), 1U);
	KUNIT_EXPECT_EQ(test, *(u64 *)page_address(b->pages[0]), 0ULL);
	dp_buffer_put(b);
}

static struct kunit_case buffer_cases[] = {
	KUNIT_CASE(kunit_memory_ends_with_the_last_of_its_users),
	KUNIT_CASE(kunit_a_handle_stays_while_its_buffer_is_mapped_or_exported),
	KUNIT_CASE(kunit_an_old_handle_names_nothing),
	KUNIT_CASE(kunit_a_call_that_fails_leaves_nothing),
	KUNIT_CASE(kunit_a_closed_file_takes_nothing_from_users),
	{}
};

static struct kunit_suite buffer_suite = {
	.name = "dmaplane_buffer",
	.test_cases = buffer_cases,
	.init = kunit_buffer_init,
	.exit = kunit_buffer_exit,
};
kunit_test_suites(&buffer_suite);
