/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/number.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/fill.h"
#include "libclient/space/owner.h"
#include "libclient/space/ptr_table.h"
#include "libclient/space/reback.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"

struct glake__number {
	unsigned long long value;
	struct glake__range *row; /* owned; its user is this */
	void *user;
	uint64_t n_bytes;
	uint32_t n_refs; /* that the program has */
	uint32_t n_uses; /* calls under way */
};

static const struct glake__use number_use = {.name = "number", .is_nowhere = true};

static struct glake__ptr_table
	numbers;           /* by value, as long as they have references; under the lock */
static uint64_t n_numbers; /* ever */

/* ---- making and ending ------------------------------------------------------------------------ */

static int fill_row(struct glake__number *number, struct glake__chunk *chunk)
{
	const struct glake__part part = {.chunk = chunk, .n_bytes = number->n_bytes, .fd = -1};
	return glake__range_fill(number->row, 0, &part, 1);
}

/* Nobody has it any more. */
static void end(struct glake__number *number)
{
	const struct glake__part hole = {.n_bytes = number->n_bytes, .fd = -1};
	const struct glake__site site = {.range = number->row, .waits = true};
	struct glake__chunk *dead = NULL;
	struct glake__change change;
	if (glake__change_begin(&change, &site, &hole, 1) < 0) {
		/* Without memory of the host for that it stays, for nobody. */
		return;
	}
	glake__change_commit(&change, &dead);
	glake__range_drop(number->row);
	glake__chunks_release(dead);
	free(number);
}

static int make_row(struct glake__number *number, const struct glake__device *device, uint64_t id,
                    unsigned long long handle, struct glake__owner *owner)
{
	int r = glake__range_reserve(&number_use, number, device->handle, number->n_bytes, 0, 0,
	                             &number->row);
	if (r < 0) {
		return r;
	}
	struct glake__chunk *chunk = glake__chunk_new(id, number->n_bytes, device->handle,
	                                              GLAKE__PAGE_CHUNK);
	r = chunk ? 0 : -ENOMEM;
	if (chunk) {
		chunk->handle = handle;
		r = fill_row(number, chunk);
		if (r < 0) {
			chunk->handle = 0;
		} else {
			glake__lock();
			glake__owner_join_locked(owner, chunk);
			glake__unlock();
		}
		glake__chunk_put(chunk);
	}
	if (r < 0) {
		glake__range_drop(number->row);
	}
	return r;
}

static int enter(struct glake__number *number)
{
	glake__lock();
	number->value = 0x6c1aull << 48 | ++n_numbers << 4;
	int r = glake__ptr_table_add(&numbers, number->value, number);
	number->n_refs = r == 0;
	glake__unlock();
	return r;
}

int glake__number_make(struct glake_session *session, int ordinal, uint64_t id, uint64_t n_bytes,
                       unsigned long long handle, void *user, void (*end_fn)(void *user),
                       unsigned long long *value_out)
{
	struct glake__device *device = glake__session_at_ordinal(session, ordinal);
	if (!device) {
		return -ENODEV;
	}
	struct glake__number *number = calloc(1, sizeof(*number));
	const struct glake__owner values = {
		.device = device, .n_bytes = n_bytes, .user = user, .end = end_fn};
	struct glake__owner *owner = number ? glake__owner_new(&values) : NULL;
	if (!owner) {
		free(number);
		return -ENOMEM;
	}
	*number = (struct glake__number){.user = user, .n_bytes = n_bytes};
	int r = enter(number);
	if (r == 0) {
		r = make_row(number, device, id, handle, owner);
	}
	if (r < 0) {
		glake__lock();
		if (number->n_refs > 0) {
			glake__ptr_table_remove(&numbers, number->value);
		}
		glake__unlock();
		free(number);
		free(owner);
		return r;
	}
	*value_out = number->value;
	glake__owner_put(owner);
	return 0;
}

/* ---- having ----------------------------------------------------------------------------------- */

struct glake__number *glake__number_take(unsigned long long value)
{
	glake__lock();
	struct glake__number *number = glake__ptr_table_get(&numbers, value);
	if (number) {
		number->n_uses++;
	}
	glake__unlock();
	return number;
}

static struct glake__number *number_of_locked(const struct glake__chunk *chunk)
{
	return chunk->row ? chunk->row->range->user : NULL;
}

struct glake__number *glake__number_use_locked(const struct glake__chunk *chunk)
{
	struct glake__number *number = number_of_locked(chunk);
	if (number) {
		number->n_uses++;
	}
	return number;
}

/* A mapping of @chunk that the program has made; NULL: it has none. */
static const struct glake__piece *mapping_of_locked(const struct glake__chunk *chunk)
{
	const struct glake__piece *at = chunk->mappings;
	while (at && (at->range->use->is_nowhere || at->range->use->is_ours)) {
		at = at->next_mapping;
	}
	return at;
}

static bool is_mapped_locked(const struct glake__number *number)
{
	bool is_mapped = false;
	const struct glake__piece *at = number->row->first;
	for (; !is_mapped && at; at = at->next) {
		is_mapped = at->chunk && (at->chunk->n_coming > 0 || mapping_of_locked(at->chunk));
	}
	return is_mapped;
}

glake_ptr glake__number_address(const struct glake__number *number, uint64_t *n_bytes_out)
{
	glake__lock();
	const struct glake__piece *at = mapping_of_locked(number->row->first->chunk);
	glake_ptr ptr = at ? at->range->ptr + at->offset : 0;
	glake__unlock();
	*n_bytes_out = number->n_bytes;
	return ptr;
}

void glake__number_give(struct glake__number *number)
{
	if (!number) {
		return;
	}
	glake__lock();
	number->n_uses--;
	bool is_over = number->n_uses == 0 && number->n_refs == 0 && !is_mapped_locked(number);
	glake__unlock();
	if (is_over) {
		end(number);
	}
}

void *glake__number_user(const struct glake__number *number)
{
	return number->user;
}

bool glake__number_release(unsigned long long value)
{
	glake__lock();
	struct glake__number *number = glake__ptr_table_get(&numbers, value);
	if (number) {
		number->n_uses++;
		if (--number->n_refs == 0) {
			glake__ptr_table_remove(&numbers, value);
		}
	}
	glake__unlock();
	glake__number_give(number);
	return number;
}

/* A chunk that has lost its last name gets it back. The table has room for it, since it was in there before. */
unsigned long long glake__number_retain(glake_ptr address)
{
	unsigned long long value = 0;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	struct glake__number *number = piece && piece->chunk && piece->range->use->is_programs
	                                       ? number_of_locked(piece->chunk)
	                                       : NULL;
	if (number &&
	    (number->n_refs > 0 || glake__ptr_table_add(&numbers, number->value, number) == 0)) {
		number->n_refs++;
		value = number->value;
	}
	glake__unlock();
	return value;
}

/* ---- mapping ---------------------------------------------------------------------------------- */

/* The row of @number, as parts, with a use of each chunk. NULL without memory. */
static struct glake__part *list_row(const struct glake__number *number, size_t *n_out)
{
	size_t n = 0;
	glake__lock();
	for (const struct glake__piece *at = number->row->first; at; at = at->next) {
		n++;
	}
	struct glake__part *parts = calloc(n, sizeof(*parts));
	size_t i = 0;
	for (const struct glake__piece *at = number->row->first; parts && at; at = at->next) {
		at->chunk->n_uses++;
		parts[i++] = (struct glake__part){
			.chunk = at->chunk,
			.n_bytes = at->n_bytes,
			.fd = -1,
			.handle = at->chunk->handle,
		};
	}
	glake__unlock();
	*n_out = n;
	return parts;
}

static bool is_still_row(const struct glake__number *number, const struct glake__part *parts,
                         size_t n)
{
	size_t i = 0;
	glake__lock();
	const struct glake__piece *at = number->row->first;
	while (at && i < n && at->chunk == parts[i].chunk && at->chunk->handle == parts[i].handle) {
		at = at->next;
		i++;
	}
	glake__unlock();
	return !at && i == n;
}

static void put_row(struct glake__part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		glake__chunk_put(parts[i].chunk);
	}
	free(parts);
}

/* All parts side by side, or none. */
static int map_parts(glake_ptr ptr, const struct glake__part *parts, size_t n)
{
	uint64_t n_mapped = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = glake__map_handle(ptr + n_mapped, parts[i].n_bytes, parts[i].handle);
		n_mapped += r == 0 ? parts[i].n_bytes : 0;
	}
	if (r < 0 && n_mapped > 0) {
		char *text = glake__error_save();
		glake__map_unmap(ptr, n_mapped);
		glake__error_restore(text);
	}
	return r;
}

static bool is_hole(const struct glake__change *change)
{
	const struct glake__piece *piece = glake__change_first(change);
	return !piece->chunk && piece->n_bytes == change->n_bytes;
}

/*
 * The place is looked up when the change begins: it may be given back meanwhile. From then on nobody holds the chunks,
 * which are about to get a place. -EAGAIN: before that one was replaced, or slept, and so has another handle.
 */
static int map_row(struct glake__number *number, const struct glake__site *site,
                   const struct glake__part *parts, size_t n)
{
	struct glake__change change;
	struct glake__chunk *none = NULL;
	int r = glake__change_begin(&change, site, parts, n);
	if (r < 0) {
		return r == -ENOMEM ? r : -EINVAL;
	}
	r = !is_hole(&change)                 ? -EINVAL
	    : !is_still_row(number, parts, n) ? -EAGAIN
	                                      : map_parts(site->ptr, parts, n);
	if (r == 0) {
		glake__fill_reset(site->ptr, number->n_bytes);
		glake__change_commit(&change, &none);
	} else {
		glake__change_cancel(&change, &none);
	}
	return r;
}

static int try_map(struct glake__number *number, const struct glake__site *site)
{
	size_t n;
	struct glake__part *parts = list_row(number, &n);
	if (!parts) {
		return -ENOMEM;
	}
	int r = map_row(number, site, parts, n);
	put_row(parts, n);
	return r;
}

int glake__number_map(struct glake__number *number, glake_ptr ptr, uint64_t n_bytes)
{
	struct glake__site site = {.ptr = ptr, .waits = true};
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	site.use = piece && piece->range->use->is_programs ? piece->range->use : NULL;
	bool is_ours = piece || glake__window_has(ptr);
	glake__unlock();
	if (n_bytes != number->n_bytes) {
		return -EOPNOTSUPP;
	}
	if (!is_ours) {
		return -ENOENT;
	}
	if (!site.use || ptr % GLAKE__PAGE_BYTES) {
		return -EINVAL;
	}
	int r;
	do {
		r = try_map(number, &site);
	} while (r == -EAGAIN);
	return r;
}

/* ---- other ways to the memory ----------------------------------------------------------------- */

static int pin_locked(struct glake__number *number, enum glake__pin pin, uint64_t *id_out,
                      unsigned long long *handle_out)
{
	const struct glake__piece *piece = number->row->first;
	struct glake__chunk *chunk = piece->chunk;
	if (chunk->holder || piece->holder) {
		return -EAGAIN;
	}
	if (piece->next) {
		return -EBUSY;
	}
	if (chunk->kind != GLAKE__PAGE_CHUNK) {
		return -EROFS;
	}
	chunk->pins |= 1u << pin;
	*id_out = chunk->id;
	*handle_out = chunk->handle;
	return 0;
}

int glake__number_pin(struct glake__number *number, enum glake__pin pin, uint64_t *id_out,
                      unsigned long long *handle_out)
{
	int r = -EAGAIN;
	while (r == -EAGAIN) {
		glake__lock();
		r = pin_locked(number, pin, id_out, handle_out);
		glake__unlock();
		if (r == -EAGAIN) {
			glake__busy_pause();
		}
	}
	return r;
}
