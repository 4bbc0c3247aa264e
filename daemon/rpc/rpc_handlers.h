/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One handler per request. It answers exactly once, now or later, or closes the session.
 */
#ifndef GLAKE_DAEMON_RPC_HANDLERS_H
#define GLAKE_DAEMON_RPC_HANDLERS_H

#include "daemon/rpc/rpc_answer.h"

typedef void (*rpc_handler_fn)(struct session *session, const request_t *request,
                               struct fdlist *fds);

void rpc_chunk_alloc(struct session *session, const request_t *request, struct fdlist *fds);
/* The number of a ChunkAlloc that waits for room, in the order of requests (pressure.h); 0: it is none. */
uint64_t rpc_waits_for_room(const struct pending *pending);
/* The wait of the request, if it is one for chunks, a promise, a model. Each for its own kind: others do not wait. */
struct pressure_wait rpc_chunk_wait(const struct pending *pending);
struct pressure_wait rpc_promise_wait(const struct pending *pending);
struct pressure_wait rpc_model_wait(const struct pending *pending);
void rpc_promise(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_free(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_share(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_open(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_keep(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_unkeep(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_adopt(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_chunk_read(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_usage_report(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_fault_report(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_mistake_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_mistake_forgive(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_readers_get(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_drain(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_model_open(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_tensors(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_blocks(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_model_close(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_weights_publish(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_weights_attach(struct session *session, const request_t *request, struct fdlist *fds);

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
void rpc_event_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_layout_list(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_use_list(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_pin(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_evict(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_quota_set(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_session_seal(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_seal_progress(struct session *session, const request_t *request, struct fdlist *fds);

void rpc_sleep_copy(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_sleep_enter(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_sleep_leave(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_session_sleep(struct session *session, const request_t *request, struct fdlist *fds);
void rpc_sleeper_list(struct session *session, const request_t *request, struct fdlist *fds);

#endif
