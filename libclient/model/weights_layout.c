/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/weights_layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/heap/backing.h"
#include "libclient/seal/block.h"
#include "libclient/space/range.h"
#include "libclient/model/model.h"
#include "proto/array.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

void glake__layout_deinit(struct glake__layout *layout)
{
	free(layout->extents);
	free(layout->places);
	free(layout->in_span);
	*layout = (struct glake__layout){0};
}

/* ---- extents ---------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
	const struct glake__extent *left = a;
	const struct glake__extent *right = b;
	return (left->begin > right->begin) - (left->begin < right->begin);
}

static void join(struct glake__layout *layout)
{
	struct glake__extent *extents = layout->extents;
	size_t n = 0;
	qsort(extents, layout->n_extents, sizeof(*extents), by_address);
	for (size_t i = 0; i < layout->n_extents; i++) {
		if (n > 0 && extents[i].begin < extents[n - 1].end) {
			extents[n - 1].end = extents[i].end > extents[n - 1].end
			                             ? extents[i].end
			                             : extents[n - 1].end;
		} else {
			extents[n++] = extents[i];
		}
	}
	layout->n_extents = n;
}

const struct glake__extent *glake__layout_extent_at(const struct glake__layout *layout,
                                                    glake_ptr ptr)
{
	size_t low = 0;
	size_t high = layout->n_extents;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (layout->extents[middle].end > ptr) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	return &layout->extents[low];
}

/* ---- places ----------------------------------------------------------------------------------- */

static uint64_t index_of(const struct glake__piece *piece)
{
	uint64_t index = 0;
	while ((piece = piece->previous)) {
		index++;
	}
	return index;
}

/* The session that has the block in @piece, and its name of it. NULL: nobody who could be asked. */
static struct glake_session *name_locked(const struct glake__piece *piece,
                                         struct glake__weight *place)
{
	struct glake_session *owner = NULL;
	void *user = piece->range->user;
	place->block = piece->chunk->id;
	if (!user) {
		return NULL;
	}
	if (piece->range->use == &glake__use_private) {
		owner = ((struct glake__backing *)user)->device->session;
	} else if (piece->range->use == &glake__use_block) {
		owner = ((struct glake_block *)user)->session;
	} else if (piece->range->use == &glake__use_model) {
		const struct glake_model *model = user;
		owner = model->session;
		place->block = 0;
		place->model = model->id;
		place->index = index_of(piece);
	}
	return owner && owner->is_closing ? NULL : owner;
}

static const char *why_copied_locked(const struct glake__piece *piece,
                                     const struct glake__device *device)
{
	enum glake__pin pin = piece && piece->chunk ? glake__chunk_pin_locked(piece->chunk)
	                                            : GLAKE__PIN_NONE;
	if (pin != GLAKE__PIN_NONE) {
		return glake__pin_text(pin);
	}
	if (piece && piece->chunk && piece->chunk->device != device->handle) {
		return "memory of another device";
	}
	return piece && piece->range->use == &glake__use_private ? "in pages with other memory"
	                                                         : "not memory of glake_alloc()";
}

bool glake__layout_is_peer_locked(const struct glake_session *session, struct glake_session *owner)
{
	return owner == session || (glake__state_is_up(owner->link.state) &&
	                            strcmp(owner->link.path, session->link.path) == 0);
}

static struct glake__weight to_copy(struct glake__layout *layout, glake_ptr at, const char *why)
{
	layout->copied_why = why;
	return (struct glake__weight){.ptr = at, .n_bytes = GLAKE__PAGE_BYTES};
}

/* Looks at the page @at. A piece that is changing is looked at after its change. */
static struct glake__weight look_at(struct glake__layout *layout,
                                    const struct glake__device *device, glake_ptr at)
{
	struct glake__weight place = {.is_block = true};
	struct glake_session *owner = NULL;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(at);
	while (piece && piece->holder) {
		glake__unlock();
		glake__busy_pause();
		glake__lock();
		piece = glake__piece_at_locked(at);
	}
	if (piece && piece->chunk && piece->chunk->kind == GLAKE__PAGE_BLOCK &&
	    piece->chunk->device == device->handle) {
		owner = name_locked(piece, &place);
	}
	if (!owner) {
		place = to_copy(layout, at, why_copied_locked(piece, device));
	} else if (!glake__layout_is_peer_locked(device->session, owner)) {
		place = to_copy(layout, at, "memory of another glaked");
	} else {
		place.ptr = piece->range->ptr + piece->offset;
		place.n_bytes = piece->n_bytes;
		memcpy(place.key, owner->link.key, sizeof(place.key));
	}
	glake__unlock();
	return place;
}

static int add(struct glake__layout *layout, const struct glake__weight *place)
{
	struct glake__weight *last = layout->n_places ? &layout->places[layout->n_places - 1]
	                                              : NULL;
	if (last && !last->is_block && !place->is_block &&
	    last->ptr + last->n_bytes == place->ptr &&
	    last->n_bytes + place->n_bytes <= GLAKE_MAX_BLOCK_BYTES) {
		last->n_bytes += place->n_bytes;
		return 0;
	}
	if (array_grow(layout->places, layout->n_places, layout->capacity, 64) < 0) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	layout->places[layout->n_places++] = *place;
	return 0;
}

static int find_places(struct glake__layout *layout, const struct glake__device *device)
{
	glake_ptr done = 0; /* the places end there */
	int r = 0;
	for (size_t i = 0; r == 0 && i < layout->n_extents; i++) {
		const struct glake__extent *extent = &layout->extents[i];
		glake_ptr at = extent->begin & ~(GLAKE__PAGE_BYTES - 1);
		at = at > done ? at : done;
		while (r == 0 && at < extent->end) {
			struct glake__weight place = look_at(layout, device, at);
			r = add(layout, &place);
			at = done = place.ptr + place.n_bytes;
		}
	}
	return r;
}

/* The one that @ptr, in an extent, lies in. */
static size_t place_at(const struct glake__layout *layout, glake_ptr ptr)
{
	size_t low = 0;
	size_t high = layout->n_places;
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;
		if (layout->places[middle].ptr <= ptr) {
			low = middle;
		} else {
			high = middle;
		}
	}
	return low;
}

uint64_t glake__layout_offset(const struct glake__layout *layout, glake_ptr ptr)
{
	const struct glake__weight *place = &layout->places[place_at(layout, ptr)];
	return place->offset + (ptr - place->ptr);
}

/* ---- the span --------------------------------------------------------------------------------- */

/* Does an extent reach into place @i from the one before it? */
static bool goes_on(const struct glake__layout *layout, size_t i)
{
	glake_ptr ptr = layout->places[i].ptr;
	const struct glake__extent *extent = glake__layout_extent_at(layout, ptr);
	return extent < &layout->extents[layout->n_extents] && extent->begin < ptr;
}

/* Number the rows by the first tensor that begins in them; one begins in each. */
static int number_rows(struct glake__layout *layout, const glake_ptr *tensors, size_t n_tensors)
{
	size_t *numbers = calloc(layout->n_places + 1, sizeof(*numbers)); /* by first place */
	size_t n = 0;
	if (!numbers) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < layout->n_places; i++) {
		layout->places[i].row = i > 0 && goes_on(layout, i) ? layout->places[i - 1].row : i;
	}
	for (size_t i = 0; i < n_tensors; i++) {
		size_t first = layout->places[place_at(layout, tensors[i])].row;
		numbers[first] = numbers[first] ? numbers[first] : ++n;
	}
	for (size_t i = 0; i < layout->n_places; i++) {
		layout->places[i].row = numbers[layout->places[i].row];
	}
	free(numbers);
	return 0;
}

static int by_row(const void *a, const void *b)
{
	const struct glake__weight *left = *(struct glake__weight *const *)a;
	const struct glake__weight *right = *(struct glake__weight *const *)b;
	return left->row != right->row ? (left->row > right->row) - (left->row < right->row)
	                               : (left->ptr > right->ptr) - (left->ptr < right->ptr);
}

static int arrange(struct glake__layout *layout, const glake_ptr *tensors, size_t n_tensors)
{
	int r = number_rows(layout, tensors, n_tensors);
	if (r < 0) {
		return r;
	}
	layout->in_span = calloc(layout->n_places + 1, sizeof(*layout->in_span));
	if (!layout->in_span) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < layout->n_places; i++) {
		layout->in_span[i] = &layout->places[i];
	}
	qsort(layout->in_span, layout->n_places, sizeof(*layout->in_span), by_row);
	for (size_t i = 0; i < layout->n_places; i++) {
		layout->in_span[i]->offset = layout->span_bytes;
		layout->span_bytes += layout->in_span[i]->n_bytes;
	}
	return 0;
}

int glake__layout_make(struct glake__layout *layout, const struct glake__device *device,
                       struct glake__extent *extents, size_t n_extents)
{
	*layout = (struct glake__layout){.extents = extents, .n_extents = n_extents};
	cleanup_free glake_ptr *tensors = calloc(n_extents + 1, sizeof(*tensors));
	if (!tensors) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n_extents; i++) {
		tensors[i] = extents[i].begin;
	}
	join(layout);
	int r = find_places(layout, device);
	return r < 0 ? r : arrange(layout, tensors, n_extents);
}
