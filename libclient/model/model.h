/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of this session: the blocks mapped read-only side by side, and its tensors.
 *
 * Owner: the caller of glake_model_open*(); the books list it, so that the session's end ends it.
 * Lifetime: glake_model_open*() .. glake_model_close() or glake_disconnect(), and as long as others
 * hold references: the tensors of glake_model_dlpack(). These hold the session's struct as well.
 * Threads: unchanging between open and close, so read without a lock.
 */
#ifndef GLAKE_LIBCLIENT_MODEL_H
#define GLAKE_LIBCLIENT_MODEL_H

#include "libclient/link/session.h"
#include "libclient/model/tensor_table.h"
#include "libclient/space/range.h"

/* user is its struct glake_model. */
extern const struct glake__use glake__use_model;

struct glake_model {
	struct glake_model *next;      /* link: books.models */
	struct glake_session *session; /* with a reference to it if is_exported */
	_Atomic uint32_t n_refs;
	bool is_exported; /* under the lock: other code may have queued work on it */
	bool is_whole;    /* under the lock: all of it is mapped, and stays so. Then it can sleep */
	struct glake__device *device;
	uint64_t id;
	char *name; /* owned */
	bool no_map;
	uint64_t n_tensors; /* as announced; the table must come to have as many */
	uint64_t n_blocks;
	uint64_t content_bytes;
	uint64_t span_bytes;
	bool was_loaded;
	uint64_t deduplicated_bytes;
	uint64_t load_ns;
	uint64_t map_ns;

	struct glake__range *range; /* owned; NULL: nothing is mapped */
	glake_ptr base;             /* its address, or 0 */
	uint64_t n_mapped;          /* blocks, side by side from base */
	uint64_t mapped_bytes;
	struct glake__tensor_table tensors;
};

/*
 * Map the next blocks, of @n_bytes each, behind those mapped so far. The fds stay the
 * caller's.
 */
int glake__model_map_blocks(struct glake_model *model, const uint64_t *n_bytes, const int *fds,
                            size_t n_blocks);

/* Ask glaked for a model: on success @model has its numbers and id. */
typedef int (*glake__model_ask_fn)(struct glake_model *model, const void *how);

/* Ask for a model, and map it unless @no_map: the rest of opening it. */
int glake__model_make(struct glake_session *session, struct glake__device *device, bool no_map,
                      glake__model_ask_fn ask, const void *how, struct glake_model **model_out);

/* Unmap all mapped blocks. */
void glake__model_unmap(struct glake_model *model);
/* Free the struct. No block is mapped. */
void glake__model_free(struct glake_model *model);

/*
 * The last one unmaps, or the wake does, if it is asleep: nobody waits for that. Any thread, also after the session's end, also in
 * a forked child.
 */
void glake__model_ref(struct glake_model *model);
void glake__model_unref(struct glake_model *model);
/* Ends the models whose end has waited for the wake. */
void glake__models_end_late(struct glake_session *session);

#endif
