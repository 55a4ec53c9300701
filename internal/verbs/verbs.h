// The flat structures that Go and C share, and the calls that take batches of them. Their layout
// is checked against Go's by a test.
#ifndef DSMD_VERBS_H
#define DSMD_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>

#define DSMD_MAX_SGE 2
// How many requests or completions are converted at a time, on the stack.
#define DSMD_BATCH 32

struct dsmd_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

struct dsmd_send {
	uint64_t id, remote_addr;
	struct dsmd_sge sge[DSMD_MAX_SGE];
	uint32_t rkey, imm, op, flags, sges, unused;
};

struct dsmd_recv {
	uint64_t id;
	struct dsmd_sge sge;
	uint32_t sges, unused;
};

struct dsmd_wc {
	uint64_t id;
	uint32_t status, op, vendor_error, bytes, imm, qpn, flags;
};

// The calls of the fast path get the libraries' objects as numbers: Go looks at every pointer that
// it gives to C, on which it would spend as much time as on the call.
//
// The posting calls return 0 or an errno and say in *posted how many requests were taken.
int dsmd_post_send(uintptr_t qp, const struct dsmd_send *requests, int n, int *posted);
// Receives go to the queue pair or, if that is 0, to the shared queue.
int dsmd_post_recv(uintptr_t qp, uintptr_t srq, const struct dsmd_recv *requests, int n, int *posted);
// Returns the number of completions, or a negative number.
int dsmd_poll(uintptr_t cq, struct dsmd_wc *out, int n);

// The rest are inline functions and macros of the libraries, which Go cannot call.
int dsmd_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr);
int dsmd_query_gids(struct ibv_context *ctx, struct ibv_gid_entry *entries, int max);
struct ibv_mr *dsmd_reg_mr(struct ibv_pd *pd, uint64_t addr, uint64_t length, int access);
int dsmd_notify(struct ibv_cq *cq);
int dsmd_get_cq_event(struct ibv_comp_channel *channel);
int dsmd_nonblock(int fd);
int dsmd_get_async_event(struct ibv_context *ctx, int *type, uint32_t *qpn);
struct ibv_qp *dsmd_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

#endif
