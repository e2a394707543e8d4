// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * RDMA contexts of files, and the devices below them. A device may be
 * removed at any moment: its contexts are taken from their files, calls
 * that run see that and end, and removal waits for the last of them.
 */
#include <linux/etherdevice.h>
#include <linux/nsproxy.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <rdma/ib_cache.h>

#include "rdma.h"

#define DEPTH_MAX 4096

static DEFINE_MUTEX(devices_lock);
static LIST_HEAD(devices);

static void rdma_release(struct kref *ref)
{
	struct dp_rdma *r = container_of(ref, struct dp_rdma, ref);
	struct dp_device *d = r->device;

	dp_end_close(&r->peer);
	dp_pair_close(r);
	dp_mrs_drop(r);
	atomic_dec(&r->user->contexts);
	dp_user_put(r->user);
	kvfree(r->inbox.works);
	kvfree(r->peer_inbox.works);
	if (r->pd)
		ib_dealloc_pd(r->pd);
	kfree(r);
	/* Last: the device may go with this. */
	if (atomic_dec_and_test(&d->contexts))
		wake_up_all(&d->idle);
}

static void rdma_put(struct dp_rdma *r)
{
	kref_put(&r->ref, rdma_release);
}

static struct dp_rdma *rdma_get(struct dp_file *f)
{
	struct dp_rdma *r;

	spin_lock(&f->rdma_lock);
	r = f->rdma;
	if (r)
		kref_get(&r->ref);
	spin_unlock(&f->rdma_lock);
	return r;
}

/* Takes the context from its file; under devices_lock. The caller puts it. */
static struct dp_rdma *unlink_context(struct dp_file *f)
{
	struct dp_rdma *r;

	spin_lock(&f->rdma_lock);
	r = f->rdma;
	f->rdma = NULL;
	spin_unlock(&f->rdma_lock);
	if (r) {
		list_del(&r->node);
		WRITE_ONCE(r->dead, true);
	}
	return r;
}

static int teardown(struct dp_file *f)
{
	struct dp_rdma *r;

	mutex_lock(&devices_lock);
	r = unlink_context(f);
	mutex_unlock(&devices_lock);
	if (!r)
		return -ENOTCONN;
	rdma_put(r);
	return 0;
}

void dp_rdma_drop(struct dp_file *f)
{
	teardown(f);
}

/* A GID of RoCE v2 with an IPv4 address if there is one, else of RoCE v2, else the first. */
static void choose_gid(struct dp_rdma *r, int entries)
{
	int i, best = 0;

	for (i = 0; i < entries; i++) {
		const struct ib_gid_attr *attr = rdma_get_gid_attr(r->ib, r->port, i);
		int worth = 1;

		if (IS_ERR(attr))
			continue;
		if (attr->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP)
			worth += 1 + ipv6_addr_v4mapped((struct in6_addr *)&attr->gid);
		if (worth > best) {
			best = worth;
			r->gid_index = i;
			r->gid = attr->gid;
		}
		rdma_put_gid_attr(attr);
	}
}

static void find_mac(struct dp_rdma *r)
{
	const struct ib_gid_attr *attr = rdma_get_gid_attr(r->ib, r->port, r->gid_index);
	struct net_device *ndev;

	if (IS_ERR(attr))
		return;
	rcu_read_lock();
	ndev = rcu_dereference(attr->ndev);
	if (ndev)
		ether_addr_copy(r->mac, ndev->dev_addr);
	rcu_read_unlock();
	rdma_put_gid_attr(attr);
}

static int open_context(struct dp_rdma *r)
{
	struct ib_port_attr port;
	int err;

	if (!rdma_is_port_valid(r->ib, r->port))
		return dp_refuse(-EINVAL, "SETUP_RDMA: port %u; the device has others", r->port);
	if (!(r->ib->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS))
		return dp_refuse(-EOPNOTSUPP,
				 "SETUP_RDMA: the device registers no memory by work requests");
	if (r->send_depth + 2 > r->ib->attrs.max_qp_wr || r->recv_depth > r->ib->attrs.max_qp_wr ||
	    r->cq_depth + 2 > r->ib->attrs.max_cqe)
		return dp_refuse(-EINVAL,
				 "SETUP_RDMA: max_send_wr %u, max_recv_wr %u, cq_depth %u; the device's %d, %d, %d",
				 r->send_depth, r->recv_depth, r->cq_depth,
				 r->ib->attrs.max_qp_wr - 2, r->ib->attrs.max_qp_wr,
				 r->ib->attrs.max_cqe - 2);
	err = ib_query_port(r->ib, r->port, &port);
	if (err)
		return err;
	if (port.state != IB_PORT_ACTIVE)
		return dp_refuse(-ENETDOWN, "SETUP_RDMA: port %u is not active", r->port);
	r->mtu = port.active_mtu;
	r->lid = port.lid;
	r->max_msg = port.max_msg_sz;
	choose_gid(r, port.gid_tbl_len);
	find_mac(r);
	r->inbox.works = kvcalloc(r->recv_depth, sizeof(*r->inbox.works), DP_GFP);
	r->peer_inbox.works = kvcalloc(r->recv_depth, sizeof(*r->inbox.works), DP_GFP);
	if (!r->inbox.works || !r->peer_inbox.works)
		return -ENOMEM;
	r->pd = ib_alloc_pd(r->ib, 0);
	if (IS_ERR(r->pd)) {
		err = PTR_ERR(r->pd);
		r->pd = NULL;
		return err;
	}
	return dp_pair_open(r);
}

/* Holds the device until rdma_release(), also if what follows fails. */
static struct dp_device *find_device(const char *name)
{
	struct dp_device *d, *found = NULL;

	mutex_lock(&devices_lock);
	list_for_each_entry(d, &devices, node) {
		if (!strcmp(dev_name(&d->ib->dev), name) &&
		    rdma_dev_access_netns(d->ib, current->nsproxy->net_ns)) {
			atomic_inc(&d->contexts);
			found = d;
			break;
		}
	}
	mutex_unlock(&devices_lock);
	return found;
}

static int link_context(struct dp_file *f, struct dp_rdma *r)
{
	struct dp_device *d;
	int err = -ENODEV;

	mutex_lock(&devices_lock);
	/* It may have been removed meanwhile. */
	list_for_each_entry(d, &devices, node) {
		if (d != r->device)
			continue;
		err = -EBUSY;
		spin_lock(&f->rdma_lock);
		if (!f->rdma) {
			f->rdma = r;
			err = 0;
		}
		spin_unlock(&f->rdma_lock);
		break;
	}
	if (!err)
		list_add(&r->node, &r->device->linked);
	mutex_unlock(&devices_lock);
	return err;
}

static struct dp_rdma *new_context(struct dp_file *f, const struct dmaplane_rdma_setup *p)
{
	struct dp_rdma *r = kzalloc(sizeof(*r), DP_GFP);
	int err;

	if (!r)
		return ERR_PTR(-ENOMEM);
	err = dp_user_context(f->user);
	if (err)
		goto free;
	r->device = find_device(p->ib_dev_name);
	if (!r->device) {
		err = dp_refuse(-ENODEV, "SETUP_RDMA: no device %*pE in this network namespace",
				(int)strlen(p->ib_dev_name), p->ib_dev_name);
		goto give_back;
	}
	kref_init(&r->ref);
	kref_get(&f->user->ref);
	r->user = f->user;
	r->file = f;
	r->ib = r->device->ib;
	r->port = p->port;
	r->cq_depth = p->cq_depth;
	r->send_depth = p->max_send_wr;
	r->recv_depth = p->max_recv_wr;
	r->flow.credits = min(r->send_depth, r->recv_depth);
	r->flow.high = r->flow.credits;
	r->flow.low = r->flow.credits / 2;
	sema_init(&r->pair_turn, 1);
	sema_init(&r->peer_turn, 1);
	xa_init_flags(&r->mrs, XA_FLAGS_ALLOC1);
	return r;
give_back:
	atomic_dec(&f->user->contexts);
free:
	kfree(r);
	return ERR_PTR(err);
}

static int check_setup(struct dp_file *f, struct dmaplane_rdma_setup *p)
{
	if (strnlen(p->ib_dev_name, sizeof(p->ib_dev_name)) == sizeof(p->ib_dev_name))
		return dp_refuse(-EINVAL, "SETUP_RDMA: ib_dev_name has no end; at most %zu bytes",
				 sizeof(p->ib_dev_name) - 1);
	p->port = p->port ?: 1;
	p->cq_depth = p->cq_depth ?: 128;
	p->max_send_wr = p->max_send_wr ?: min(p->cq_depth, 64U);
	p->max_recv_wr = p->max_recv_wr ?: min(p->cq_depth, 64U);
	/* A completion queue holds what both of its users may have outstanding. */
	if (p->cq_depth > DEPTH_MAX || p->max_send_wr > p->cq_depth || p->max_recv_wr > p->cq_depth)
		return dp_refuse(-EINVAL,
				 "SETUP_RDMA: max_send_wr %u, max_recv_wr %u <= cq_depth %u <= %d does not hold",
				 p->max_send_wr, p->max_recv_wr, p->cq_depth, DEPTH_MAX);
	if (READ_ONCE(f->rdma))
		return dp_refuse(-EBUSY, "SETUP_RDMA: the file has a context");
	return 0;
}

static long setup(struct dp_file *f, void __user *arg)
{
	struct dmaplane_rdma_setup p;
	struct dp_rdma *r;
	int err;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	err = check_setup(f, &p);
	if (err)
		return err;
	r = new_context(f, &p);
	if (IS_ERR(r))
		return PTR_ERR(r);
	err = open_context(r);
	p.status = 0;
	if (!err && copy_to_user(arg, &p, sizeof(p)))
		err = -EFAULT;
	if (!err)
		err = link_context(f, r);
	if (err)
		rdma_put(r);
	return err;
}

static long with_context(struct dp_file *f, struct dp_rdma *r, unsigned int cmd, void __user *arg)
{
	switch (cmd) {
	case DMAPLANE_REGISTER_MR:
		return dp_mr_register(f, r, arg);
	case DMAPLANE_DEREGISTER_MR:
		return dp_mr_deregister(r, arg);
	case DMAPLANE_GPU_REGISTER_MR:
		return dp_gpu_mr_register(f, r, arg);
	case DMAPLANE_GPU_LOOPBACK:
		return dp_gpu_loopback(f, r, arg);
	case DMAPLANE_LOOPBACK_TEST:
		return dp_loopback(f, r, arg);
	case DMAPLANE_PINGPONG_BENCH:
		return dp_pingpong(f, r, arg);
	case DMAPLANE_STREAMING_BENCH:
		return dp_streaming(f, r, arg);
	case DMAPLANE_CONFIGURE_FLOW:
		return dp_flow_configure(r, arg);
	case DMAPLANE_SUSTAINED_STREAM:
		return dp_sustained(f, r, arg);
	case DMAPLANE_QDEPTH_SWEEP:
		return dp_sweep(f, r, arg);
	case DMAPLANE_RDMA_WRITE_IMM:
		return dp_write_imm(f, r, arg);
	case DMAPLANE_RDMA_POST_RECV:
		return dp_recv_post(r, arg);
	case DMAPLANE_RDMA_POLL_RECV:
		return dp_recv_poll(r, arg);
	case DMAPLANE_RDMA_INIT_PEER:
		return dp_peer_init(r, arg);
	case DMAPLANE_RDMA_CONNECT_PEER:
		return dp_peer_connect(r, arg);
	case DMAPLANE_RDMA_REMOTE_SEND:
		return dp_peer_send(f, r, arg);
	case DMAPLANE_RDMA_REMOTE_RECV:
		return dp_peer_recv(r, arg);
	default:
		return dp_peer_destroy(r);
	}
}

static int no_context(unsigned int cmd)
{
	return dp_refuse(-ENOTCONN, "call %#x: the file has no context of SETUP_RDMA", cmd);
}

long dp_rdma_ioctl(struct dp_file *f, unsigned int cmd, void __user *arg)
{
	struct dp_rdma *r;
	long err;

	if (cmd == DMAPLANE_SETUP_RDMA)
		return setup(f, arg);
	if (cmd == DMAPLANE_TEARDOWN_RDMA) {
		err = teardown(f);
		return err ? no_context(cmd) : 0;
	}
	r = rdma_get(f);
	if (!r)
		return no_context(cmd);
	err = with_context(f, r, cmd, arg);
	rdma_put(r);
	return err;
}

static int client_add(struct ib_device *ib)
{
	struct dp_device *d = kzalloc(sizeof(*d), GFP_KERNEL);

	if (!d)
		return -ENOMEM;
	d->ib = ib;
	INIT_LIST_HEAD(&d->linked);
	init_waitqueue_head(&d->idle);
	mutex_lock(&devices_lock);
	list_add_tail(&d->node, &devices);
	mutex_unlock(&devices_lock);
	return 0;
}

static void client_remove(struct ib_device *ib, void *data)
{
	struct dp_device *d, *found = NULL;
	struct dp_rdma *r, *next;
	LIST_HEAD(taken);

	mutex_lock(&devices_lock);
	list_for_each_entry(d, &devices, node)
		if (d->ib == ib)
			found = d;
	if (!found) {
		mutex_unlock(&devices_lock);
		return;
	}
	list_del(&found->node);
	while (!list_empty(&found->linked)) {
		r = unlink_context(list_first_entry(&found->linked, struct dp_rdma, node)->file);
		list_add(&r->node, &taken);
	}
	mutex_unlock(&devices_lock);
	list_for_each_entry_safe(r, next, &taken, node)
		rdma_put(r);
	/* Calls that run see `dead`, and end. */
	wait_event(found->idle, !atomic_read(&found->contexts));
	kfree(found);
}

static struct ib_client client = {
	.name = "dmaplane",
	.add = client_add,
	.remove = client_remove,
};

int dp_rdma_init(void)
{
	return ib_register_client(&client);
}

void dp_rdma_exit(void)
{
	ib_unregister_client(&client);
}
