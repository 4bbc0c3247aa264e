/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of the driver that the program has (program.h): of memory that the driver made for it, or that it imported. As
 * long as it has one, the chunk keeps its place and content.
 */
#include <stdlib.h>

#include "libclient/space/owner.h"
#include "libclient/space/program.h"
#include "libclient/space/ptr_table.h"
#include "libclient/space/range.h"

/* A number the driver gave; usually the only one of its chunk. */
struct name {
	struct glake__chunk *chunk; /* one use for each reference */
	unsigned n_refs;
};

static struct glake__ptr_table names; /* by handle; under the lock */

/* Called with the lock held; takes over one use of @chunk. */
static bool add_name_locked(unsigned long long handle, struct glake__chunk *chunk)
{
	struct name *name = calloc(1, sizeof(*name));
	if (!name || glake__ptr_table_add(&names, handle, name) < 0) {
		free(name);
		return false;
	}
	*name = (struct name){.chunk = chunk, .n_refs = 1};
	chunk->n_handles++;
	return true;
}

struct glake__chunk *glake__program_made(unsigned long long handle, uint64_t n_bytes, int device,
                                         void *user, void (*release)(void *user))
{
	struct glake__chunk *chunk = glake__chunk_new(0, n_bytes, device, GLAKE__PAGE_CHUNK);
	if (!chunk) {
		return NULL;
	}
	const struct glake__owner values = {.user = user, .end = release};
	struct glake__owner *owner = release ? glake__owner_new(&values) : NULL;
	glake__lock();
	bool is_in = (owner || !release) && !glake__ptr_table_get(&names, handle) &&
	             add_name_locked(handle, chunk);
	if (is_in) {
		glake__owner_join_locked(owner, chunk);
	}
	glake__unlock();
	if (!is_in) {
		free(chunk);
		free(owner);
		return NULL;
	}
	glake__owner_put(owner);
	return chunk;
}

void glake__program_imported(unsigned long long handle, int device)
{
	glake__lock();
	struct name *name = glake__ptr_table_get(&names, handle);
	if (name) {
		/* The driver gives the number that it has for this memory already. */
		name->n_refs++;
		name->chunk->n_uses++;
		name->chunk->n_handles++;
	}
	glake__unlock();
	struct glake__chunk *chunk = name ? NULL
	                                  : glake__program_made(handle, 0, device, NULL, NULL);
	if (chunk) {
		glake__program_pin(chunk, GLAKE__PIN_FOREIGN);
	}
}

struct glake__chunk *glake__program_take(unsigned long long handle)
{
	glake__lock();
	const struct name *name = glake__ptr_table_get(&names, handle);
	struct glake__chunk *chunk = name ? name->chunk : NULL;
	if (chunk) {
		chunk->n_uses++;
	}
	glake__unlock();
	return chunk;
}

void glake__program_give(struct glake__chunk *chunk)
{
	glake__chunk_put(chunk);
}

void glake__program_pin(struct glake__chunk *chunk, enum glake__pin pin)
{
	glake__lock();
	glake__chunk_note_pin_locked(chunk, pin, true);
	glake__unlock();
}

void glake__program_released(unsigned long long handle)
{
	struct glake__chunk *dead = NULL;
	struct name *gone = NULL;
	glake__lock();
	struct name *name = glake__ptr_table_get(&names, handle);
	if (name) {
		name->chunk->n_handles--;
		glake__chunk_put_locked(name->chunk, &dead);
		if (--name->n_refs == 0) {
			gone = glake__ptr_table_remove(&names, handle);
		}
	}
	glake__unlock();
	free(gone);
	glake__chunks_release(dead);
}

void glake__program_retained(unsigned long long handle, glake_ptr address)
{
	glake__lock();
	struct name *name = glake__ptr_table_get(&names, handle);
	const struct glake__piece *piece = glake__piece_at_locked(address);
	if (name) {
		name->n_refs++;
		name->chunk->n_handles++;
		name->chunk->n_uses++;
	} else if (piece && piece->chunk && add_name_locked(handle, piece->chunk)) {
		/* All handles had been released: the driver gives a new number. */
		piece->chunk->n_uses++;
	}
	glake__unlock();
}
