/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published weights. Publishing, step by step, and what a failure of each leaves behind:
 *
 *   begin     a draft at glaked, which checks the key
 *   seal      the tensors' memory, as glake_seal() does. What is sealed stays sealed
 *   layout    which blocks the tensors lie in, and which pages must be copied (weights_layout.h)
 *   copy      those pages, to blocks of their own, which are released in the end, whatever happens
 *   send      the manifest, page by page; the last one makes the draft the model of its key
 *
 * A failure gives the draft up.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/link/call.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/heap/backing.h"
#include "libclient/seal/block.h"
#include "libclient/space/context.h"
#include "libclient/space/held.h"
#include "libclient/space/range.h"
#include "libclient/space/fill.h"
#include "libclient/space/look.h"
#include "libclient/space/owner.h"
#include "libclient/space/program.h"
#include "libclient/space/page.h"
#include "libclient/heap/claim.h"
#include "libclient/model/model.h"
#include "libclient/model/model_fetch.h"
#include "libclient/model/weights_layout.h"
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/dtype.h"
#include "proto/limits.h"

struct publication {
	struct glake_session *session;
	struct glake__device *device;
	const char *key;
	bool pin;
	struct glake_tensor *tensors; /* owned; by name; bytes is set */
	size_t n_tensors;
	struct glake__layout layout;
	struct glake_published sum;
};

/* ---- the tensors ------------------------------------------------------------------------------ */

static bool is_row_major(const struct glake_tensor *tensor)
{
	uint64_t n = 1;
	for (uint32_t i = tensor->n_dims; i-- > 0;) {
		if (tensor->strides[i] != n) {
			return false;
		}
		n *= tensor->shape[i];
	}
	return true;
}

/* Nobody can map more, so a tensor does not have more. */
#define MAX_SPANS_PER_DEVICE 16u

/* A copy of the caller's, checked, with its bytes. */
static int take_tensor(const struct publication *publication, const struct glake_tensor *from,
                       struct glake_tensor *tensor)
{
	uint64_t max_bytes = MAX_SPANS_PER_DEVICE * publication->device->public.total_bytes;
	int r = glake__sized_in(from, tensor, sizeof(*tensor));
	if (r < 0) {
		return r;
	}
	if (!tensor->name || !tensor->name[0] || strlen(tensor->name) > GLAKE_MAX_NAME_BYTES) {
		return glake__fail(-EINVAL, "the name of a tensor is missing, empty or too long");
	}
	if (tensor->n_dims > GLAKE_MAX_DIMS || (tensor->n_dims > 0 && !tensor->shape)) {
		return glake__fail(-EINVAL, "tensor %.200s: it has no shape, or %u dimensions",
		                   tensor->name, tensor->n_dims);
	}
	if (!dtype_extent(tensor->dtype, tensor->shape, tensor->strides, tensor->n_dims,
	                  &tensor->bytes) ||
	    tensor->bytes > max_bytes ||
	    tensor->bytes > UINT64_MAX - GLAKE__PAGE_BYTES - tensor->ptr) {
		return glake__fail(-EINVAL, "tensor %.200s: its dtype or its size is impossible",
		                   tensor->name);
	}
	if (tensor->bytes > 0 && tensor->ptr == 0) {
		return glake__fail(-EINVAL, "tensor %.200s: it has no memory", tensor->name);
	}
	if (tensor->strides && is_row_major(tensor)) {
		tensor->strides = NULL;
	}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct glake_tensor *)a)->name,
	              ((const struct glake_tensor *)b)->name);
}

static int take_tensors(struct publication *publication, const struct glake_tensor *tensors,
                        size_t n_tensors)
{
	struct glake_tensor *taken = calloc(n_tensors + 1, sizeof(*taken));
	if (!taken) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	publication->tensors = taken;
	publication->n_tensors = n_tensors;
	for (size_t i = 0; i < n_tensors; i++) {
		/* The caller's struct may be of another size than ours. */
		const void *from = (const char *)tensors + i * tensors->size;
		int r = take_tensor(publication, from, &taken[i]);
		if (r < 0) {
			return r;
		}
	}
	qsort(taken, n_tensors, sizeof(*taken), by_name);
	for (size_t i = 1; i < n_tensors; i++) {
		if (strcmp(taken[i - 1].name, taken[i].name) == 0) {
			return glake__fail(-EINVAL, "two tensors are named %.200s", taken[i].name);
		}
	}
	return 0;
}

/* ---- sealing ---------------------------------------------------------------------------------- */

/* All of an allocation of the heap's, on that device. */
static struct glake_session *session_in_heap(const struct glake__range *range,
                                             const struct glake_tensor *tensor)
{
	const struct glake__backing *backing = range->user;
	uint64_t at = tensor->ptr - backing->ptr;
	bool is_in = backing->is_live && !backing->slab && at <= backing->whole.n_bytes &&
	             tensor->bytes <= backing->whole.n_bytes - at;
	return is_in ? backing->device->session : NULL;
}

/* The session whose chunk backs memory that the program has mapped itself. Sealing looks at the memory behind it. */
static struct glake_session *session_of_chunk(const struct glake__range *range,
                                              const struct glake_tensor *tensor)
{
	uint64_t at = tensor->ptr - range->ptr;
	const struct glake__chunk *chunk = glake__range_piece_locked(range, at)->chunk;
	bool is_in = chunk && chunk->owner && chunk->owner->device &&
	             tensor->bytes <= range->n_bytes - at;
	return is_in ? chunk->owner->device->session : NULL;
}

static bool can_be_sealed(const struct publication *publication, const struct glake_tensor *tensor)
{
	struct glake_session *session = NULL;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(tensor->ptr);
	const struct glake__chunk *chunk = piece ? piece->chunk : NULL;
	if (chunk && chunk->device == publication->device->handle) {
		session = piece->range->use == &glake__use_private
		                  ? session_in_heap(piece->range, tensor)
		          : piece->range->use == &glake__use_program
		                  ? session_of_chunk(piece->range, tensor)
		                  : NULL;
	}
	bool can = session && glake__layout_is_peer_locked(publication->session, session);
	glake__unlock();
	return can;
}

static int seal(const struct publication *publication)
{
	cleanup_free struct glake_span *spans = calloc(publication->n_tensors + 1, sizeof(*spans));
	size_t n = 0;
	if (!spans) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < publication->n_tensors; i++) {
		const struct glake_tensor *tensor = &publication->tensors[i];
		if (tensor->bytes > 0 && can_be_sealed(publication, tensor)) {
			spans[n++] = (struct glake_span){tensor->ptr, tensor->bytes};
		}
	}
	return glake_seal(spans, n, NULL);
}

/* ---- layout and copies ------------------------------------------------------------------------ */

static int lay_out(struct publication *publication)
{
	struct glake__extent *extents = calloc(publication->n_tensors + 1, sizeof(*extents));
	size_t n = 0;
	if (!extents) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < publication->n_tensors; i++) {
		const struct glake_tensor *tensor = &publication->tensors[i];
		if (tensor->bytes > 0) {
			extents[n++] = (struct glake__extent){tensor->ptr,
			                                      tensor->ptr + tensor->bytes};
		}
	}
	return glake__layout_make(&publication->layout, publication->device, extents, n);
}

/* Freed memory of ours may not be mapped any more: a read there ends the context. */
static bool is_freed(glake_ptr ptr)
{
	return glake__heap_has(ptr) || glake__space_look(ptr).kind == GLAKE__FREE;
}

/*
 * Where the allocation, model or block that has @from ends; at most @to. If the tensor's memory was freed, and another
 * has its address, what lies behind that is perhaps not mapped.
 */
static glake_ptr end_at(glake_ptr from, glake_ptr to)
{
	struct glake__facts facts;
	struct glake__address_info info = glake__space_look(from);
	glake_ptr end = to;
	if (glake__heap_find(from, &facts)) {
		end = facts.address + facts.n_bytes;
	} else if (info.kind == GLAKE__OWN) {
		end = info.address + info.n_bytes;
	}
	return end < to ? end : to;
}

/* Copies piece after piece. Nobody frees an allocation of 2 MiB and more meanwhile. @copy is 0: nothing is copied. */
static int copy_bytes(const struct publication *publication, glake_ptr copy, glake_ptr from,
                      glake_ptr to)
{
	int r = 0;
	while (r == 0 && from < to) {
		struct glake__held held;
		if (glake__held_begin(from, &held) == -ENOENT && is_freed(from)) {
			return glake__fail(-EINVAL, "the memory at 0x%llx is not allocated",
			                   (unsigned long long)from);
		}
		glake_ptr end = end_at(from, to);
		if (copy) {
			r = glake__context_copy(publication->device, copy, from, end - from);
			copy += end - from;
		}
		glake__held_end(&held);
		from = end;
	}
	return r;
}

/* The bytes of tensors alone: what lies between them may be anything. @copy is 0: are they all there? */
static int fill(const struct publication *publication, const struct glake__weight *place,
                glake_ptr copy)
{
	const struct glake__layout *layout = &publication->layout;
	const struct glake__extent *extent = glake__layout_extent_at(layout, place->ptr);
	const struct glake__extent *end = &layout->extents[layout->n_extents];
	glake_ptr place_end = place->ptr + place->n_bytes;
	int r = 0;
	for (; r == 0 && extent < end && extent->begin < place_end; extent++) {
		glake_ptr from = extent->begin > place->ptr ? extent->begin : place->ptr;
		glake_ptr to = extent->end < place_end ? extent->end : place_end;
		r = copy_bytes(publication, copy ? copy + (from - place->ptr) : 0, from, to);
	}
	return r;
}

static int copy_place(const struct publication *publication, struct glake__weight *place)
{
	struct glake_session *session = publication->session;
	glake_ptr copy;
	int r = glake_alloc(session, publication->device->public.index, place->n_bytes, GLAKE_ZERO,
	                    &copy);
	if (r < 0) {
		return r;
	}
	r = fill(publication, place, copy);
	if (r == 0) {
		r = glake_block_publish(session, copy, place->n_bytes, &place->copy);
	}
	if (r == 0) {
		place->block = place->copy->id;
		memcpy(place->key, session->link.key, sizeof(place->key));
	} else {
		char *text = glake__error_save();
		glake_free(session, copy);
		glake__error_restore(text);
	}
	return r;
}

static int copy_places(struct publication *publication)
{
	struct glake__layout *layout = &publication->layout;
	int r = 0;
	/* First, because a copy may come to lie where memory was freed. */
	for (size_t i = 0; r == 0 && i < layout->n_places; i++) {
		r = layout->places[i].is_block ? 0 : fill(publication, &layout->places[i], 0);
	}
	for (size_t i = 0; r == 0 && i < layout->n_places; i++) {
		struct glake__weight *place = &layout->places[i];
		if (place->is_block) {
			publication->sum.in_place_bytes += place->n_bytes;
		} else {
			publication->sum.copied_bytes += place->n_bytes;
			r = copy_place(publication, place);
		}
	}
	publication->sum.copied_why = layout->copied_why;
	return r;
}

/* ---- sending ---------------------------------------------------------------------------------- */

/* One WeightsPublish under construction. */
struct page {
	const struct publication *publication;
	uint64_t draft;
	bool was_published;
	size_t n_bytes; /* at most, when packed */
	size_t n_places;
	Glake__Wire__WeightsPublish body;
	Glake__Wire__WeightsBlocks *run_list[GLAKE_PAGE_RUNS];
	Glake__Wire__WeightsBlocks runs[GLAKE_PAGE_RUNS];
	Glake__Wire__Tensor *tensor_list[GLAKE_PAGE_TENSORS];
	Glake__Wire__Tensor tensors[GLAKE_PAGE_TENSORS];
	uint64_t ids[GLAKE_PAGE_BLOCKS]; /* by place */
};

static void clear(struct page *page)
{
	page->n_bytes = 0;
	page->n_places = 0;
	glake__wire__weights_publish__init(&page->body);
	page->body.draft = page->draft;
	page->body.blocks = page->run_list;
	page->body.tensors = page->tensor_list;
}

/* Not repeated by itself when the connection is lost: the page may have arrived. */
static int send_page(struct page *page)
{
	const struct publication *publication = page->publication;
	struct glake__link *link = &publication->session->link;
	Glake__Wire__Request *request = REQUEST_OF(WEIGHTS_PUBLISH, weights_publish, &page->body);
	if (page->draft == 0) {
		page->body.key = (char *)publication->key;
		page->body.device = publication->device->public.index;
	}
	struct glake__call call;
	int r = glake__call_start(link, &call, request, GLAKE__WIRE__ANSWER__BODY_WEIGHTS_PUBLISH,
	                          NULL, 0);
	if (r == 0) {
		r = glake__call_wait(link, &call, NULL, NULL);
	}
	if (r == 0) {
		page->draft = call.answer->weights_publish->draft;
		page->was_published = call.answer->weights_publish->was_published;
	}
	glake__call_end(link, &call);
	clear(page);
	return r;
}

/* Room for @n_bytes more. */
static int make_room(struct page *page, size_t n_bytes)
{
	bool is_full = page->n_bytes + n_bytes > GLAKE_PAGE_BYTES ||
	               page->n_places == GLAKE_PAGE_BLOCKS ||
	               page->body.n_blocks == GLAKE_PAGE_RUNS ||
	               page->body.n_tensors == GLAKE_PAGE_TENSORS;
	int r = is_full ? send_page(page) : 0;
	page->n_bytes += n_bytes;
	return r;
}

/* The run that the page ends with, if @place goes on with it. */
static Glake__Wire__WeightsBlocks *last_run(struct page *page, const struct glake__weight *place,
                                            const struct glake__weight *last)
{
	if (page->body.n_blocks == 0 || !last ||
	    memcmp(place->key, last->key, sizeof(place->key)) != 0 || place->model != last->model ||
	    (place->model != 0 && place->index != last->index + 1)) {
		return NULL;
	}
	return &page->runs[page->body.n_blocks - 1];
}

static Glake__Wire__WeightsBlocks *new_run(struct page *page, struct glake__weight *place)
{
	const struct glake__link *link = &page->publication->session->link;
	Glake__Wire__WeightsBlocks *run = &page->runs[page->body.n_blocks];
	page->run_list[page->body.n_blocks++] = run;
	glake__wire__weights_blocks__init(run);
	if (memcmp(place->key, link->key, sizeof(place->key)) != 0) {
		run->session_key.data = place->key;
		run->session_key.len = sizeof(place->key);
	}
	run->model = place->model;
	run->first = place->index;
	run->blocks = &page->ids[page->n_places];
	return run;
}

static int add_places(struct page *page)
{
	const struct glake__layout *layout = &page->publication->layout;
	struct glake__weight *last = NULL;
	int r = 0;
	for (size_t i = 0; r == 0 && i < layout->n_places; i++) {
		struct glake__weight *place = layout->in_span[i];
		/* A run, or an id. */
		r = make_room(page, 80);
		Glake__Wire__WeightsBlocks *run = last_run(page, place, last);
		run = run ? run : new_run(page, place);
		if (place->model != 0) {
			run->count++;
		} else {
			page->ids[page->n_places] = place->block;
			run->n_blocks++;
		}
		page->n_places++;
		last = place;
	}
	return r;
}

static int add_tensors(struct page *page)
{
	const struct publication *publication = page->publication;
	int r = 0;
	for (size_t i = 0; r == 0 && i < publication->n_tensors; i++) {
		const struct glake_tensor *from = &publication->tensors[i];
		/* Numbers have at most 10 bytes. */
		r = make_room(page, strlen(from->name) + 20 * (size_t)from->n_dims + 60);
		Glake__Wire__Tensor *tensor = &page->tensors[page->body.n_tensors];
		page->tensor_list[page->body.n_tensors++] = tensor;
		glake__wire__tensor__init(tensor);
		tensor->name = (char *)from->name;
		tensor->dtype = from->dtype;
		tensor->shape = (uint64_t *)from->shape;
		tensor->n_shape = from->n_dims;
		tensor->strides = (uint64_t *)from->strides;
		tensor->n_strides = from->strides ? from->n_dims : 0;
		tensor->bytes = from->bytes;
		tensor->offset = from->bytes ? glake__layout_offset(&publication->layout, from->ptr)
		                             : 0;
	}
	return r;
}

/* After a refusal it is gone already. */
static void give_up(struct page *page)
{
	if (page->draft != 0) {
		char *text = glake__error_save();
		glake__rpc_model_close(page->publication->session, page->draft);
		glake__error_restore(text);
	}
}

static int send_manifest(struct page *page)
{
	int r = add_places(page);
	if (r == 0) {
		r = add_tensors(page);
	}
	if (r == 0) {
		page->body.commit = true;
		page->body.pin = page->publication->pin;
		r = send_page(page);
	}
	return r;
}

/* ---- publishing ------------------------------------------------------------------------------- */

static int publish(struct publication *publication, struct page *page)
{
	int r = send_page(page);
	if (r == GLAKE_E_GONE) {
		r = send_page(page);
	}
	if (r == 0) {
		r = seal(publication);
	}
	if (r == 0) {
		r = lay_out(publication);
	}
	if (r == 0) {
		r = copy_places(publication);
	}
	if (r < 0) {
		return r;
	}
	r = send_manifest(page);
	if (r == GLAKE_E_GONE || r == GLAKE_E_BAD_REQUEST) {
		/* Again, perhaps on a new connection: blocks keep their ids. A restart has taken the draft. */
		give_up(page);
		page->draft = 0;
		clear(page);
		r = send_manifest(page);
	}
	publication->sum.was_published = page->was_published;
	return r;
}

static int publish_tensors(struct publication *publication)
{
	cleanup_free struct page *page = calloc(1, sizeof(*page));
	if (!page) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	page->publication = publication;
	clear(page);
	int r = publish(publication, page);
	if (r < 0) {
		give_up(page);
	}
	return r;
}

static void deinit(struct publication *publication)
{
	char *text = glake__error_save();
	for (size_t i = 0; i < publication->layout.n_places; i++) {
		glake_block_release(publication->layout.places[i].copy);
	}
	glake__error_restore(text);
	glake__layout_deinit(&publication->layout);
	free(publication->tensors);
}

static int check_key(const char *key)
{
	return key && key[0] && strlen(key) <= GLAKE_MAX_KEY_BYTES
	               ? 0
	               : glake__fail(-EINVAL, "a key has 1 to %u bytes", GLAKE_MAX_KEY_BYTES);
}

int glake_weights_publish(struct glake_session *session, const char *key,
                          const struct glake_tensor *tensors, size_t n_tensors,
                          const struct glake_publish_options *options,
                          struct glake_published *published_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct publication publication = {.session = session, .key = key};
	struct glake_publish_options full;
	int r = glake__session_check(session);
	if (r == 0) {
		r = glake__sized_in(options, &full, sizeof(full));
	}
	if (r == 0) {
		r = check_key(key);
	}
	if (r == 0 && n_tensors > 0 && !tensors) {
		r = glake__fail(-EINVAL, "the tensors are NULL");
	}
	if (r == 0 && published_out) {
		r = glake__sized_out(published_out, &publication.sum, sizeof(publication.sum));
	}
	if (r == 0) {
		r = glake__session_mappable(session, full.device, &publication.device);
	}
	if (r < 0) {
		return r;
	}
	if (glake__dedup_is_off()) {
		return glake__fail(-EPERM, "GLAKE_DEDUP=off: nothing is published");
	}
	publication.pin = full.pin != 0;
	r = take_tensors(&publication, tensors, n_tensors);
	if (r == 0) {
		r = publish_tensors(&publication);
	}
	deinit(&publication);
	if (r == 0 && published_out) {
		r = glake__sized_out(published_out, &publication.sum, sizeof(publication.sum));
	}
	return glake__leave(session, r);
}

/* ---- attaching -------------------------------------------------------------------------------- */

#define FIRST_PAUSE_NS 1000000u
#define LAST_PAUSE_NS 50000000u

struct attaching {
	const char *key;
	struct glake_attach_options options;
};

static int ask(struct glake_model *model, const void *how)
{
	const struct attaching *attaching = how;
	return glake__model_attach(model, attaching->key, attaching->options.pin != 0);
}

int glake_weights_attach(struct glake_session *session, const char *key,
                         const struct glake_attach_options *options, struct glake_model **model_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct attaching attaching = {.key = key};
	struct glake__device *device;
	uint64_t pause_ns = FIRST_PAUSE_NS;
	int r = glake__session_check(session);
	if (r == 0) {
		r = glake__sized_in(options, &attaching.options, sizeof(attaching.options));
	}
	if (r == 0) {
		r = check_key(key);
	}
	if (r == 0) {
		r = glake__session_mappable(session, attaching.options.device, &device);
	}
	if (r < 0) {
		return r;
	}
	uint64_t end_ns = clock_now_ns() + attaching.options.wait_ms * 1000000ull;
	for (;;) {
		r = glake__model_make(session, device, false, ask, &attaching, model_out);
		/* glake__leave() delivers notices: glaked may want memory back for what we wait for. */
		r = glake__leave(session, r);
		if (r != GLAKE_E_NOT_FOUND || clock_now_ns() >= end_ns) {
			return r;
		}
		nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
		pause_ns = 2 * pause_ns < LAST_PAUSE_NS ? 2 * pause_ns : LAST_PAUSE_NS;
	}
}
