/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own virtual memory management, as the shim sees it: reservations are ranges, what
 * it maps there are pieces. The driver's calls are the shim's.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/fill.h"
#include "libclient/space/ptr_table.h"
#include "libclient/space/reback.h"
#include "libclient/space/window.h"
#include "proto/cleanup.h"

/* ---- what is where ---------------------------------------------------------------------------- */

int glake__space_start(const char *libcuda, const struct glake__gate *gate)
{
	struct cudrv drv;
	int r = cudrv_open(&drv, libcuda, NULL, 0);
	if (r == 0) {
		glake__space_begin();
		glake__lock();
		if (!glake__space.gate.close) {
			glake__space.gate = *gate;
		}
		glake__unlock();
		glake__space_open(&drv);
		glake__lock();
		glake__fill_start();
		glake__unlock();
	}
	return r;
}

struct glake__address_info glake__space_look(glake_ptr address)
{
	struct glake__address_info info = {.kind = GLAKE__ELSEWHERE};
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	if (piece) {
		const struct glake__range *range = piece->range;
		info.address = range->ptr;
		info.n_bytes = range->n_bytes;
		info.kind = GLAKE__OWN;
		if (range->use == GLAKE__RANGE_PROGRAM) {
			info.kind = GLAKE__PROGRAMS;
		} else if (range->use == GLAKE__RANGE_OPENED) {
			info.kind = GLAKE__OPENED;
			info.user = range->user;
		}
	} else if (glake__window_has(address)) {
		info.kind = GLAKE__FREE;
	}
	glake__unlock();
	return info;
}

void glake__opened_set_user(glake_ptr address, void *user)
{
	glake__lock();
	struct glake__range *range = glake__range_at_locked(address, GLAKE__RANGE_OPENED);
	if (range) {
		range->user = user;
	}
	glake__unlock();
}

enum glake__pin glake__pin_at(glake_ptr address)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	enum glake__pin pin = piece && piece->chunk ? glake__chunk_pin_locked(piece->chunk)
	                                            : GLAKE__PIN_NONE;
	glake__unlock();
	return pin;
}

static void set_pin(struct glake__chunk *chunk, enum glake__pin pin, bool is_pinned)
{
	if (is_pinned) {
		chunk->pins |= 1u << pin;
	} else {
		chunk->pins &= ~(1u << pin);
	}
}

void glake__pin_range(glake_ptr address, uint64_t n_bytes, enum glake__pin pin, bool is_pinned)
{
	glake_ptr end = address + n_bytes;
	glake__lock();
	while (address < end) {
		const struct glake__piece *piece = glake__piece_at_locked(address);
		if (is_pinned && piece && piece->holder) {
			/* It may be about to be replaced. */
			glake__unlock();
			glake__busy_pause();
			glake__lock();
			continue;
		}
		if (piece && piece->chunk) {
			set_pin(piece->chunk, pin, is_pinned);
		}
		address = piece ? piece->range->ptr + piece->offset + piece->n_bytes
		                : (address / GLAKE__PAGE_BYTES + 1) * GLAKE__PAGE_BYTES;
	}
	glake__unlock();
}

/* ---- reservations ----------------------------------------------------------------------------- */

static bool is_granular(uint64_t value)
{
	return value % GLAKE__PAGE_BYTES == 0;
}

int glake__program_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint, glake_ptr *ptr_out)
{
	struct glake__range *range;
	if (!glake__space.has_drv || n_bytes == 0 || !is_granular(n_bytes) || !is_granular(hint) ||
	    (alignment & (alignment - 1))) {
		return -EINVAL;
	}
	int r = glake__range_reserve(GLAKE__RANGE_PROGRAM, NULL, -1, n_bytes, alignment, hint,
	                             &range);
	/* A hint is no more than that. */
	if (r == 0 && range->is_outside && hint && range->ptr != hint) {
		glake__range_drop(range);
		r = glake__range_reserve(GLAKE__RANGE_PROGRAM, NULL, -1, n_bytes, alignment, 0,
		                         &range);
	}
	if (r == 0) {
		*ptr_out = range->ptr;
	}
	return r;
}

int glake__program_unreserve(glake_ptr ptr, uint64_t n_bytes)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	struct glake__range *range = piece ? piece->range : NULL;
	bool is_it = range && range->use == GLAKE__RANGE_PROGRAM && range->ptr == ptr &&
	             range->n_bytes == n_bytes;
	bool is_free = !piece && glake__window_has(ptr);
	/* No other thread drops it from here on. */
	if (is_it) {
		range->use = GLAKE__RANGE_LOST;
	}
	glake__unlock();
	if (!is_it) {
		return range || is_free ? -EINVAL : -ENOENT;
	}
	int r = glake__range_drop(range);
	if (r == -EBUSY) {
		glake__lock();
		range->use = GLAKE__RANGE_PROGRAM;
		glake__unlock();
	}
	return r < 0 ? -EINVAL : 0;
}

/* ---- chunks and handles ----------------------------------------------------------------------- */

/* A number the driver gave; usually the only one of its chunk. */
struct name {
	struct glake__chunk *chunk; /* one use for each reference */
	unsigned n_refs;
};

static struct glake__ptr_table names; /* by handle; under the lock */

static void release_chunk(struct glake__chunk *chunk)
{
	if (chunk->user_release) {
		chunk->user_release(chunk->user);
	}
	free(chunk);
}

/* With the lock held; takes over one use of @chunk. */
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
	chunk->release = release_chunk;
	chunk->user = user;
	chunk->user_release = release;
	glake__lock();
	bool is_in = !glake__ptr_table_get(&names, handle) && add_name_locked(handle, chunk);
	glake__unlock();
	if (!is_in) {
		free(chunk);
		return NULL;
	}
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

void *glake__program_user(const struct glake__chunk *chunk)
{
	return chunk->user;
}

void glake__program_pin(struct glake__chunk *chunk, enum glake__pin pin)
{
	glake__lock();
	set_pin(chunk, pin, true);
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

/* ---- mappings --------------------------------------------------------------------------------- */

/* One change under way, of one reservation. */
struct glake__mapping {
	struct glake__mapping *next;
	bool is_hold; /* of what is mapped, which stays */
	struct glake__hold hold;
	struct glake__change change;
	struct glake__chunk *chunk;   /* to be mapped; NULL: what is there goes */
	struct glake__chunk *foreign; /* one use: of a handle that we do not know */
	bool is_loose;                /* of nothing in the map: only the use of the chunk is kept */
};

/* How much of [ptr, ptr + n_bytes) is of one reservation; 0: -EINVAL or -ENOENT is in *error_out. */
static uint64_t find_part(glake_ptr ptr, uint64_t n_bytes, int *error_out)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	const struct glake__range *range = piece ? piece->range : NULL;
	uint64_t n_part = 0;
	*error_out = range || glake__window_has(ptr) ? -EINVAL : -ENOENT;
	if (range && range->use == GLAKE__RANGE_PROGRAM) {
		uint64_t n_left = range->n_bytes - (ptr - range->ptr);
		n_part = n_left < n_bytes ? n_left : n_bytes;
	}
	glake__unlock();
	return n_part;
}

static int begin_part(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                      struct glake__mapping **list)
{
	const struct glake__part part = {.chunk = chunk, .n_bytes = n_bytes, .fd = -1};
	struct glake__mapping *mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		return -ENOMEM;
	}
	const struct glake__site site = {.use = GLAKE__RANGE_PROGRAM, .ptr = ptr, .waits = true};
	int r = glake__change_begin(&mapping->change, &site, &part, 1);
	if (r < 0) {
		free(mapping);
		return r == -ENOMEM ? r : -EINVAL;
	}
	mapping->chunk = chunk;
	mapping->next = *list;
	*list = mapping;
	return 0;
}

static int hold_part(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **list)
{
	struct glake__mapping *mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		return -ENOMEM;
	}
	if (glake__hold_begin(&mapping->hold, ptr, n_bytes, true) < 0) {
		free(mapping);
		return -EINVAL;
	}
	mapping->is_hold = true;
	mapping->next = *list;
	*list = mapping;
	return 0;
}

/* A mapping at a place that is in no reservation that we know. */
static int begin_loose(struct glake__chunk *chunk, struct glake__mapping **mapping_out)
{
	struct glake__mapping *mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		return -ENOENT;
	}
	mapping->is_loose = true;
	mapping->chunk = chunk;
	*mapping_out = mapping;
	return 0;
}

/* Of a multicast object, or of memory that came unseen. */
static struct glake__chunk *foreign_chunk(uint64_t n_bytes)
{
	struct glake__chunk *chunk = glake__chunk_new(0, n_bytes, -1, GLAKE__PAGE_CHUNK);
	if (chunk) {
		set_pin(chunk, GLAKE__PIN_FOREIGN, true);
	}
	return chunk;
}

static bool is_hole(const struct glake__change *change)
{
	const struct glake__piece *piece = glake__change_first(change);
	return !piece->chunk && piece->n_bytes == change->n_bytes;
}

int glake__program_map(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                       struct glake__mapping **mapping_out)
{
	int error;
	if (n_bytes == 0 || !is_granular(ptr) || !is_granular(n_bytes)) {
		return -ENOENT;
	}
	uint64_t n_part = find_part(ptr, n_bytes, &error);
	if (n_part == 0 && error == -ENOENT && chunk) {
		return begin_loose(chunk, mapping_out);
	}
	if (n_part < n_bytes) {
		return n_part == 0 ? error : -EINVAL;
	}
	struct glake__chunk *foreign = chunk ? NULL : foreign_chunk(n_bytes);
	struct glake__mapping *mapping = NULL;
	int r = chunk || foreign ? begin_part(ptr, n_bytes, chunk ? chunk : foreign, &mapping)
	                         : -ENOMEM;
	if (r == 0 && !is_hole(&mapping->change)) {
		glake__program_settle(mapping, false);
		r = -EINVAL;
	}
	if (r == 0) {
		mapping->foreign = foreign;
		*mapping_out = mapping;
	} else if (foreign) {
		glake__chunk_put(foreign);
	}
	return r;
}

/* From the lowest address up, as all do: so nobody waits in a circle. */
static int begin_parts(glake_ptr ptr, uint64_t n_bytes, bool is_hold,
                       struct glake__mapping **mapping_out)
{
	struct glake__mapping *list = NULL;
	glake_ptr at = ptr;
	int r = 0;
	while (r == 0 && at < ptr + n_bytes) {
		uint64_t n_part = find_part(at, ptr + n_bytes - at, &r);
		if (n_part > 0) {
			r = is_hold ? hold_part(at, n_part, &list)
			            : begin_part(at, n_part, NULL, &list);
		} else if (at != ptr) {
			r = -EINVAL;
		}
		at += n_part;
	}
	if (r < 0) {
		glake__program_settle(list, false);
		return r;
	}
	*mapping_out = list;
	return 0;
}

int glake__program_unmap(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out)
{
	return n_bytes == 0 || !is_granular(ptr) || !is_granular(n_bytes)
	               ? -ENOENT
	               : begin_parts(ptr, n_bytes, false, mapping_out);
}

int glake__program_hold(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out)
{
	return begin_parts(ptr, n_bytes, true, mapping_out);
}

static void settle_one(struct glake__mapping *mapping, bool is_done)
{
	struct glake__chunk *dead = NULL;
	if (mapping->is_hold) {
		glake__hold_end(&mapping->hold);
	} else if (mapping->is_loose) {
		/* We never learn when it ends: its charge stays until the process ends. */
		glake__lock();
		mapping->chunk->n_uses += is_done;
		glake__unlock();
	} else if (is_done) {
		if (mapping->chunk && mapping->chunk->n_bytes == 0) {
			mapping->chunk->n_bytes = mapping->change.n_bytes;
		}
		glake__change_commit(&mapping->change, &dead);
	} else {
		glake__change_cancel(&mapping->change, &dead);
	}
	glake__chunks_release(dead);
	if (mapping->foreign) {
		glake__chunk_put(mapping->foreign);
	}
	free(mapping);
}

void glake__program_settle(struct glake__mapping *mapping, bool is_done)
{
	while (mapping) {
		struct glake__mapping *next = mapping->next;
		settle_one(mapping, is_done);
		mapping = next;
	}
}

/* A piece has one access: that of the reader with the most. */
static void open_piece(struct glake__piece *piece, uint64_t reader, bool may_read, bool may_write)
{
	piece->readers = may_read ? piece->readers | reader : piece->readers & ~reader;
	piece->writers = may_write ? piece->writers | reader : piece->writers & ~reader;
	piece->access = piece->writers   ? GLAKE__ACCESS_WRITE
	                : piece->readers ? GLAKE__ACCESS_READ
	                                 : GLAKE__ACCESS_NONE;
}

void glake__program_opened(glake_ptr ptr, uint64_t n_bytes, int device, bool may_read,
                           bool may_write)
{
	bool is_device = device >= 0 && device < GLAKE__MAX_DEVICES;
	glake_ptr at = ptr;
	glake__lock();
	while (at < ptr + n_bytes) {
		struct glake__piece *piece = glake__piece_at_locked(at);
		if (!piece) {
			break;
		}
		if (piece->chunk && is_device) {
			open_piece(piece, 1ull << device, may_read, may_write);
		}
		at = piece->range->ptr + piece->offset + piece->n_bytes;
	}
	glake__unlock();
}
