//go:build rdma

#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

static void convert_sges(struct ibv_sge *to, const struct dsmd_sge *from, int n)
{
	for (int i = 0; i < n; i++) {
		to[i].addr = from[i].addr;
		to[i].length = from[i].length;
		to[i].lkey = from[i].lkey;
	}
}

// convert_send sets what a request of its kind has, and all but next. What other kinds have is not
// looked at by any driver, and clearing it takes longer than the rest.
static void convert_send(struct ibv_send_wr *wr, struct ibv_sge *sges, const struct dsmd_send *r)
{
	wr->wr_id = r->id;
	wr->opcode = r->op;
	wr->send_flags = r->flags;
	wr->imm_data = htonl(r->imm);
	wr->sg_list = sges;
	wr->num_sge = r->sges;
	convert_sges(sges, r->sge, r->sges);
	wr->wr.rdma.remote_addr = r->remote_addr;
	wr->wr.rdma.rkey = r->rkey;
}

int dsmd_post_send(uintptr_t handle, const struct dsmd_send *requests, int n, int *posted)
{
	struct ibv_qp *qp = (struct ibv_qp *)handle;
	struct ibv_send_wr wrs[DSMD_BATCH], *bad;
	struct ibv_sge sges[DSMD_BATCH][DSMD_MAX_SGE];

	*posted = 0;
	while (*posted < n) {
		int batch = n - *posted < DSMD_BATCH ? n - *posted : DSMD_BATCH;
		for (int i = 0; i < batch; i++) {
			const struct dsmd_send *r = &requests[*posted + i];
			if (r->sges > DSMD_MAX_SGE)
				return EINVAL;
			convert_send(&wrs[i], sges[i], r);
			wrs[i].next = i + 1 < batch ? &wrs[i + 1] : NULL;
		}
		bad = NULL;
		int err = ibv_post_send(qp, wrs, &bad);
		if (err) {
			*posted += bad ? bad - wrs : 0;
			return err;
		}
		*posted += batch;
	}
	return 0;
}

int dsmd_post_recv(uintptr_t qp_handle, uintptr_t srq_handle, const struct dsmd_recv *requests, int n, int *posted)
{
	struct ibv_qp *qp = (struct ibv_qp *)qp_handle;
	struct ibv_srq *srq = (struct ibv_srq *)srq_handle;
	struct ibv_recv_wr wrs[DSMD_BATCH], *bad;
	struct ibv_sge sges[DSMD_BATCH];

	*posted = 0;
	while (*posted < n) {
		int batch = n - *posted < DSMD_BATCH ? n - *posted : DSMD_BATCH;
		for (int i = 0; i < batch; i++) {
			const struct dsmd_recv *r = &requests[*posted + i];
			if (r->sges > 1)
				return EINVAL;
			convert_sges(&sges[i], &r->sge, r->sges);
			wrs[i].wr_id = r->id;
			wrs[i].sg_list = &sges[i];
			wrs[i].num_sge = r->sges;
			wrs[i].next = i + 1 < batch ? &wrs[i + 1] : NULL;
		}
		bad = NULL;
		int err = qp ? ibv_post_recv(qp, wrs, &bad) : ibv_post_srq_recv(srq, wrs, &bad);
		if (err) {
			*posted += bad ? bad - wrs : 0;
			return err;
		}
		*posted += batch;
	}
	return 0;
}

int dsmd_poll(uintptr_t cq, struct dsmd_wc *out, int n)
{
	struct ibv_wc wcs[DSMD_BATCH];
	int total = 0;

	while (total < n) {
		int batch = n - total < DSMD_BATCH ? n - total : DSMD_BATCH;
		int got = ibv_poll_cq((struct ibv_cq *)cq, batch, wcs);
		if (got < 0)
			return total > 0 ? total : got;
		for (int i = 0; i < got; i++) {
			struct dsmd_wc *o = &out[total + i];
			o->id = wcs[i].wr_id;
			o->status = wcs[i].status;
			o->op = wcs[i].opcode;
			o->vendor_error = wcs[i].vendor_err;
			o->bytes = wcs[i].byte_len;
			o->imm = ntohl(wcs[i].imm_data);
			o->qpn = wcs[i].qp_num;
			o->flags = wcs[i].wc_flags;
		}
		total += got;
		if (got < batch)
			break;
	}
	return total;
}

int dsmd_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	memset(attr, 0, sizeof *attr);
	return ibv_query_port(ctx, port, attr);
}

int dsmd_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *entries, int max)
{
	return ibv_query_gid_table(ctx, entries, max, 0);
}

struct ibv_mr *dsmd_reg_mr(struct ibv_pd *pd, uint64_t addr, uint64_t length, int access)
{
	return ibv_reg_mr(pd, (void *)(uintptr_t)addr, length, access);
}

int dsmd_notify(struct ibv_cq *cq) { return ibv_req_notify_cq(cq, 0); }

// Takes one event, acknowledges it, and returns 0; or an errno.
int dsmd_get_cq_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context))
		return errno;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

int dsmd_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

int dsmd_get_async_event(struct ibv_context *ctx, int *type, uint32_t *qpn)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(ctx, &event))
		return errno;
	*type = event.event_type;
	*qpn = 0;
	switch (event.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*qpn = event.element.qp->qp_num;
	default:
		break;
	}
	ibv_ack_async_event(&event);
	return 0;
}

struct ibv_qp *dsmd_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return ibv_create_qp(pd, attr);
}
