/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rpc*.c files share: one handler per request, and the ways to answer.
 *
 * A handler answers exactly once, now or later, or closes the session.
 */
#ifndef GLAKE_DAEMON_RPC_HANDLERS_H
#define GLAKE_DAEMON_RPC_HANDLERS_H

#include "daemon/rpc/rpc.h"
#include "daemon/base/status.h"
#include "proto/glake.pb-c.h"

typedef Glake__Wire__Request request_t;
typedef Glake__Wire__Answer answer_t;

/* Of one answer; further ones are not told of. No host has as many. */
#define RPC_MAX_DEVICES 64u

typedef void (*rpc_handler_fn)(struct session *session, const request_t *request,
                               struct fdlist *fds);

/* Fill in id and status OK, pack, send. fds stay the caller's. */
void rpc_answer(struct session *session, uint64_t id, answer_t *answer, const int *fds,
                size_t n_fds);
/* Without a body. */
void rpc_answer_ok(struct session *session, uint64_t id);
__attribute__((format(printf, 4, 5))) void rpc_refuse(struct session *session, uint64_t id,
                                                      enum status status, const char *format, ...);
bool rpc_notify(struct session *session, answer_t *notice);

/* The device of that number, or NULL after a refusal. */
struct device *rpc_device(struct session *session, uint64_t id, uint32_t index);

/* @error of store_hold_model() or store_pin_model() is the session's answer. */
void rpc_refuse_model(struct session *session, uint64_t id, const struct model *model, int error);

/* Whether the session may act on what belongs to @realm. */
bool rpc_may_act(const struct session *session, const struct realm *realm);

void rpc_chunk_alloc(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_free(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_share(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_open(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_usage_report(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_model_open(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_tensors(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_blocks(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_close(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_block_publish(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_block_lookup(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_block_release(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_status_get(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_device_get(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_stats_get(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_session_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_tenant_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_block_list(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_pin(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_evict(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_quota_set(struct session *session, const request_t *request, struct fdlist *fds);

#endif
