/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests about chunks, blocks and the session itself, as plain C functions: one request, one
 * checked answer. model_fetch.c has the requests about models, admin.c those of glake_admin.h.
 *
 * Owner: the caller owns the fds and the ids that a function returns. It has initialised the list
 * of fds. If this process's own limit cost the fds of an answer, the result is -EMFILE, and the
 * caller gets nothing.
 * Threads: any; all block.
 */
#ifndef GLAKE_LIBCLIENT_RPC_H
#define GLAKE_LIBCLIENT_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fdlist.h"
#include "libclient/link/call.h"
#include "libclient/link/session.h"
#include "libclient/link/wait.h"

/*
 * Sets the fields that HelloAnswer has: identity, devices (without ordinals), limits. The link's key is that which
 * the session is to have. @only_looks: see struct glake_connect_options.
 */
int glake__rpc_hello(struct glake_session *session, const char *program, bool only_looks);

/*
 * Get @n_chunks (1 .. 253) chunks. Each has @chunk_bytes, the last one @last_bytes. Ids go to
 * @ids_out, fds to @fds. All requests for one allocation share @wait, and so its patience.
 */
int glake__rpc_chunk_alloc(struct glake_session *session, uint32_t device, uint64_t chunk_bytes,
                           uint32_t n_chunks, uint64_t last_bytes, struct glake__wait *wait,
                           uint64_t *ids_out, struct fdlist *fds);
/* The chunks wanted at a location: @n_chunks of @chunk_bytes, but the last of @last_bytes. */
struct glake__chunks_at {
	bool is_host;    /* a NUMA node's memory, at most 4 GiB in a chunk; else a device's */
	uint32_t number; /* of the node or the device */
	uint32_t n_chunks;
	uint64_t chunk_bytes;
	uint64_t last_bytes;
};

/*
 * The same at 1 .. 16 different locations, all or none; ids and fds in the order of @parts. -ENOTSUP: the daemon has no
 * chunks in host memory there, or does not know of any. GLAKE_E_NO_HOST_MEMORY: a node is full.
 */
int glake__rpc_chunk_alloc_at(struct glake_session *session, const struct glake__chunks_at *parts,
                              size_t n_parts, struct glake__wait *wait, uint64_t *ids_out,
                              struct fdlist *fds);

/*
 * The same in two halves, so that several can be under way. @call is ended by the wait, which is due if the
 * start returned 0. A lost connection is not made anew.
 */
int glake__rpc_chunk_alloc_start(struct glake_session *session, struct glake__call *call,
                                 uint32_t device, uint64_t chunk_bytes, uint32_t n_chunks,
                                 uint64_t last_bytes, struct glake__wait *wait);
int glake__rpc_chunk_alloc_wait(struct glake_session *session, struct glake__call *call,
                                uint32_t n_chunks, uint64_t *ids_out, struct fdlist *fds);
int glake__rpc_chunk_free(struct glake_session *session, const uint64_t *ids, size_t n_ids);
/* Get the ticket, not 0, of @n_ids (1 .. 253) chunks of this session. */
int glake__rpc_chunk_share(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                           uint64_t *ticket_out);

/* A will for @n_ids (1 .. 253) chunks of this session. @key has 1 .. 64 bytes. */
int glake__rpc_chunk_keep(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                          const void *key, size_t n_key, const void *record, size_t n_record,
                          bool may_be_read);
/* They are in no will when this returns 0. */
int glake__rpc_chunk_unkeep(struct glake_session *session, const uint64_t *ids, size_t n_ids);
/* The chunks to adopt. */
struct glake__adopted {
	const void *key;
	size_t n_key;
	const void *name; /* to read: the record begins with it */
	size_t n_name;
	void *record; /* of the caller: room for GLAKE_MAX_RECORD_BYTES, and what has come: */
	size_t n_record;
	uint32_t n_living; /* with -ENOENT: such wills of processes that have not ended */
};
/*
 * Kept chunks of that key, @n_chunks (1 .. 253) of @chunk_bytes, with their will; or, if @is_read, chunks to read, of living
 * processes too, that this session does not read yet. -ENOENT: there are none.
 */
int glake__rpc_chunk_adopt(struct glake_session *session, uint32_t device, uint64_t chunk_bytes,
                           uint32_t n_chunks, bool is_read, struct glake__adopted *adopted,
                           uint64_t *ids_out, struct fdlist *fds);

/* Chunks of another @session with their ticket, or of this one (0, no ticket). */
struct glake__chunk_names {
	uint64_t session;
	uint64_t ticket;
	const uint64_t *ids;
	size_t n_ids; /* 1 .. 253 */
};

/* Get their fds once more, into @fds, and their sizes, multiples of 2 MiB, into @sizes_out. */
int glake__rpc_chunk_open(struct glake_session *session, const struct glake__chunk_names *names,
                          uint64_t *sizes_out, uint32_t *device_out, struct fdlist *fds);

/*
 * Blocks of the open @model from number @first on, as many as come at once: their fds, one or more, and sizes_out, with room for
 * GLAKE_MAX_PACKET_FDS. Request errors.
 */
int glake__rpc_model_blocks(struct glake_session *session, uint64_t model, uint64_t first,
                            uint64_t *sizes_out, struct fdlist *fds);

/*
 * Copies of chunks, blocks and models, 1 .. GLAKE_MAX_SLEPT, in host memory. Blocks until all are there; or until @is_unwanted,
 * which is asked all the time, says so: then no copies of this session are left, and the result is an error unless
 * all were there by then.
 */
int glake__rpc_sleep_copy(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                          bool (*is_unwanted)(void));
/* All that has copies is unmapped. @n_stays is GLAKE_MAX_STAYS at most. */
int glake__rpc_sleep_enter(struct glake_session *session, uint32_t why,
                           const struct glake_stay *stays, size_t n_stays);
/* The memory is mapped again, or still: the copies go. GLAKE_E_BAD_REQUEST: nothing is asleep. */
int glake__rpc_sleep_forget(struct glake_session *session);
/*
 * All of it is wanted back; the copies stay. Blocks until glaked has brought it, or there was no room for @patience_ms (0: for as long as
 * glaked has patience), or @is_stopped, which is asked all the time, says so: then it sleeps on, or has come by then, and
 * the result says which. GLAKE_E_BAD_REQUEST: nothing is asleep.
 */
int glake__rpc_sleep_wake(struct glake_session *session, uint64_t patience_ms,
                          bool (*is_stopped)(void));

/*
 * Have the process promised what it wants of the device (promise.h), if it was not yet: before each request for memory of it.
 * Blocks until that is reserved. Grant errors, and request errors. No lock is held.
 */
int glake__promise_ensure(struct glake_session *session, uint32_t index);

int glake__rpc_ping(struct glake_session *session);

/* Does glaked heed wait.is_spare? An earlier one would make others give memory. */
bool glake__rpc_knows_spare(struct glake_session *session);

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
	bool is_kept; /* the chunk is charged until glake__rpc_chunk_free() of the block's id */
	int fd; /* owned by the receiver; close-on-exec. -1: this process's own limit cost it */
};

/* A chunk that is to become a block. */
struct glake__publication {
	uint64_t chunk;
	uint64_t chunk_bytes;
	uint64_t content_bytes;
	bool is_alone; /* nobody has asked the program to seal it */
	bool is_started;
	int result;                        /* out: 0 or an error */
	char *text;                        /* out, owned by the caller: glake__error_save() of it */
	struct glake__block_answer answer; /* out, if the result is 0 */
};

/*
 * Whether glaked may have made a block of the chunk in spite of @error: the answer was lost, or makes no
 * sense. Others may have that block then, so nobody may write to the memory any more.
 */
bool glake__may_be_block(int error);

/* A session may have 16 requests under way, then glaked answers BUSY; other threads need some, too. */
#define GLAKE__PUBLISHED_AT_ONCE 8u

/*
 * Publishes a list in its order, several at a time, while its owner does other things. The list may grow, not
 * move. One thread, which is not cancelled.
 */
struct glake__publisher {
	struct glake_session *session;
	struct glake__publication *list;
	size_t n;
	size_t n_started;
	size_t n_ended; /* they have their results */
	struct glake__call calls[GLAKE__PUBLISHED_AT_ONCE];
};

/* Take the answers that have come, and start as many as may be. Waits for nothing, but for a lost connection. */
void glake__publisher_go_on(struct glake__publisher *publisher);
/* Until the first @n have ended. */
void glake__publisher_wait(struct glake__publisher *publisher, size_t n);
/* Parts that are not started will not be. */
void glake__publisher_stop(struct glake__publisher *publisher);

int glake__rpc_block_lookup(struct glake_session *session, uint32_t device,
                            const struct glake_digest *digest,
                            struct glake__block_answer *answer_out);
int glake__rpc_block_release(struct glake_session *session, uint64_t block);

#endif
