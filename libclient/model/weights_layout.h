/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of tensors as places side by side: what a published model is made of.
 *
 * A place is a block that the process has mapped, whole, or pages that are to be copied. Each page that a
 * tensor touches is in one. A tensor that lies in several has them side by side; apart from that, places
 * are in the order of their tensors, so that it does not matter which addresses a process has.
 *
 * Owner: the publishing call. Lifetime: {0} is empty; glake__layout_deinit().
 * Threads: none of its own.
 */
#ifndef GLAKE_LIBCLIENT_WEIGHTS_LAYOUT_H
#define GLAKE_LIBCLIENT_WEIGHTS_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/glake.h"
#include "libclient/link/session.h"

/* Bytes of tensors. */
struct glake__extent {
	glake_ptr begin;
	glake_ptr end;
};

struct glake__weight {
	glake_ptr ptr;
	uint64_t n_bytes;
	uint64_t offset;              /* in the span of the model */
	size_t row;                   /* of places that belong together, by their first tensor */
	bool is_block;                /* else pages to be copied */
	uint8_t key[GLAKE_KEY_BYTES]; /* of the session that has the block: it may end meanwhile */
	uint64_t block;               /* its id there; 0: the block is number index of: */
	uint64_t model;
	uint64_t index;
	struct glake_block *copy; /* owned by who makes it; of pages */
};

struct glake__layout {
	struct glake__extent *extents; /* owned; by address, none overlap */
	size_t n_extents;
	struct glake__weight *places; /* owned; by address */
	size_t n_places;
	size_t capacity;
	struct glake__weight **in_span; /* owned; the same by offset */
	uint64_t span_bytes;
	const char *copied_why; /* static; of one page; NULL: none is copied */
};

/*
 * Look up where @extents lie, one for each tensor, which are taken over. Blocks are those of @device. Returns
 * 0 or -ENOMEM.
 * What is found to be a block has the content that its id stands for, also if it is unmapped meanwhile.
 */
int glake__layout_make(struct glake__layout *layout, const struct glake__device *device,
                       struct glake__extent *extents, size_t n_extents);
void glake__layout_deinit(struct glake__layout *layout);

/*
 * Does @owner, of this process, speak with the same glaked as @session? A session of an earlier one does not.
 * Called with the space locked, which keeps @owner.
 */
bool glake__layout_is_peer_locked(const struct glake_session *session, struct glake_session *owner);

/* Where @ptr, in an extent, is in the span. */
uint64_t glake__layout_offset(const struct glake__layout *layout, glake_ptr ptr);

/* The first extent that ends behind @ptr; one past the last if none does. */
const struct glake__extent *glake__layout_extent_at(const struct glake__layout *layout,
                                                    glake_ptr ptr);

#endif
