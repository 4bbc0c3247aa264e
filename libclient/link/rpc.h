/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests about chunks, blocks and the session itself, as plain C functions: one request, one
 * answer, checked. Those about models are in model_fetch.c, those of glake_admin.h in admin.c.
 *
 * Owner: what comes out is the caller's: fds in a list he initialised, ids until he frees them. Fds
 * that are lost to this process's own limit are -EMFILE, and nothing is out then.
 * Threads: any; all block.
 */
#ifndef GLAKE_LIBCLIENT_RPC_H
#define GLAKE_LIBCLIENT_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fdlist.h"
#include "libclient/link/session.h"
#include "libclient/glake_shim.h"

/* Fills in what HelloAnswer says: identity, devices (without ordinals), limits. */
int glake__rpc_hello(struct glake_session *session, const char *program);

/*
 * @n_chunks (1 .. 253) chunks of @chunk_bytes each but the last, of @last_bytes: as many ids, and as
 * many fds into @fds. @wait: of all requests for one allocation, whose patience is one.
 */
int glake__rpc_chunk_alloc(struct glake_session *session, uint32_t device, uint64_t chunk_bytes,
                           uint32_t n_chunks, uint64_t last_bytes, struct glake__wait *wait,
                           uint64_t *ids_out, struct fdlist *fds);
int glake__rpc_chunk_free(struct glake_session *session, const uint64_t *ids, size_t n_ids);
/* The ticket, not 0, of @n_ids (1 .. 253) chunks of ours. */
int glake__rpc_chunk_share(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                           uint64_t *ticket_out);

/* Chunks: of session @owner, with their ticket, or of our own (0, and no ticket). */
struct glake__chunk_names {
	uint64_t owner;
	uint64_t ticket;
	const uint64_t *ids;
	size_t n_ids; /* 1 .. 253 */
};

/* Their fds once more, into @fds. Their sizes, all of whole chunks, into @sizes_out. */
int glake__rpc_chunk_open(struct glake_session *session, const struct glake__chunk_names *names,
                          uint64_t *sizes_out, uint32_t *device_out, struct fdlist *fds);

int glake__rpc_ping(struct glake_session *session);

/* All but size and warm_bytes. */
int glake__rpc_device_get(struct glake_session *session, uint32_t index,
                          struct glake_device_view *view_out);

int glake__rpc_model_close(struct glake_session *session, uint64_t model);

struct glake__block_answer {
	uint64_t block;
	struct glake_digest digest;
	uint64_t chunk_bytes;
	uint64_t content_bytes;
	bool was_known;
	int fd; /* owned by the receiver; close-on-exec. -1: lost to this process's own limit */
};

int glake__rpc_block_publish(struct glake_session *session, uint64_t chunk, uint64_t content_bytes,
                             struct glake__block_answer *answer_out);
int glake__rpc_block_lookup(struct glake_session *session, uint32_t device,
                            const struct glake_digest *digest,
                            struct glake__block_answer *answer_out);
int glake__rpc_block_release(struct glake_session *session, uint64_t block);

#endif
