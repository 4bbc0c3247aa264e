/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/order.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "shim/index.h"
#include "shim/quiesce.h"

/* So many may be parked on a stream before a free looks for those that are done. */
#define MANY_PARKED 16u
/* A stream without parked memory may be forgotten when there are more. */
#define MANY_STREAMS 64u
/* How many are looked at for one that fits: the newest, as they are the likeliest. */
#define MAX_LOOKS 256u

/* One event, and the allocation that waits for it; or a spare one. */
struct parked {
	struct allocation *allocation; /* owned while parked */
	uint64_t capacity_bytes;
	CUevent event;           /* owned; it dies with its context */
	struct parked *next;     /* link: a stream's, from old to new; spares; a list in passing */
	struct parked *previous; /* link: a stream's */
};

struct line {
	struct order_stream stream;
	struct parked *oldest; /* owned */
	struct parked *newest;
	unsigned n_parked;
};

/* The spare events of a context. */
struct spares {
	CUcontext ctx;
	struct parked *first; /* owned */
	struct spares *next;  /* link: all_spares */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct index lines; /* by the stream's id */
static struct spares *all_spares;
static atomic_uint n_parked; /* over all streams: spares others the lock */

/* Taken before the other one. Held while a context ends, or is made use of by our own thread. */
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- with the lock held ----------------------------------------------------------------------- */

static void append(struct line *line, struct parked *parked)
{
	parked->next = NULL;
	parked->previous = line->newest;
	if (line->newest) {
		line->newest->next = parked;
	} else {
		line->oldest = parked;
	}
	line->newest = parked;
	line->n_parked++;
	n_parked++;
}

static void take_out(struct line *line, struct parked *parked)
{
	if (parked->previous) {
		parked->previous->next = parked->next;
	} else {
		line->oldest = parked->next;
	}
	if (parked->next) {
		parked->next->previous = parked->previous;
	} else {
		line->newest = parked->previous;
	}
	line->n_parked--;
	n_parked--;
}

static struct spares *spares_of(CUcontext ctx)
{
	struct spares *spares = all_spares;
	while (spares && spares->ctx != ctx) {
		spares = spares->next;
	}
	if (!spares && (spares = calloc(1, sizeof(*spares)))) {
		spares->ctx = ctx;
		spares->next = all_spares;
		all_spares = spares;
	}
	return spares;
}

static void forget_idle_lines(void)
{
	for (size_t i = lines.n; i-- > 0;) {
		struct line *line = lines.entries[i].value;
		if (line->n_parked == 0) {
			index_remove(&lines, line->stream.id);
			free(line);
		}
	}
}

static struct line *line_of(const struct order_stream *stream)
{
	struct line *line = index_get(&lines, stream->id);
	if (line) {
		return line;
	}
	if (lines.n >= MANY_STREAMS) {
		forget_idle_lines();
	}
	line = calloc(1, sizeof(*line));
	if (line) {
		line->stream = *stream;
		if (!index_add(&lines, stream->id, line)) {
			free(line);
			line = NULL;
		}
	}
	return line;
}

/* What fits without wasting more than an eighth. Memory may be freed on another device's stream. */
static struct parked *find_fit(const struct line *line, uint64_t n_bytes)
{
	uint64_t want = heap_round(n_bytes);
	struct parked *parked = line->newest;
	for (unsigned i = 0; parked && i < MAX_LOOKS; i++, parked = parked->previous) {
		if (parked->capacity_bytes >= want && parked->capacity_bytes - want <= want / 8 &&
		    heap_device_of(parked->allocation) == line->stream.place.device) {
			return parked;
		}
	}
	return NULL;
}

/*
 * Onto @list: what is done with on a stream. The queries happen with the lock held; they do not wait,
 * and the first one that says "not yet" is the last.
 */
static void take_done(struct line *line, struct parked **list)
{
	struct parked *parked;
	while ((parked = line->oldest) && real(cuEventQuery)(parked->event) == CUDA_SUCCESS) {
		take_out(line, parked);
		parked->next = *list;
		*list = parked;
	}
}

/* ---- without it ------------------------------------------------------------------------------- */

static void keep_spare(CUcontext ctx, struct parked *parked)
{
	parked->allocation = NULL;
	pthread_mutex_lock(&lock);
	struct spares *spares = spares_of(ctx);
	if (spares) {
		parked->next = spares->first;
		spares->first = parked;
	}
	pthread_mutex_unlock(&lock);
	if (!spares) {
		real(cuEventDestroy_v2)(parked->event);
		free(parked);
	}
}

static bool release_list(CUcontext ctx, struct parked *list)
{
	bool is_any = list != NULL;
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		heap_release(parked->allocation);
		keep_spare(ctx, parked);
	}
	return is_any;
}

static CUresult make_event(CUcontext ctx, CUevent *event_out)
{
	CUcontext popped;
	CUresult result = real(cuCtxPushCurrent_v2)(ctx);
	if (result == CUDA_SUCCESS) {
		result = real(cuEventCreate)(event_out, CU_EVENT_DISABLE_TIMING);
		real(cuCtxPopCurrent_v2)(&popped);
	}
	return result;
}

static struct parked *take_spare(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	struct spares *spares = spares_of(ctx);
	struct parked *parked = spares ? spares->first : NULL;
	if (parked) {
		spares->first = parked->next;
	}
	pthread_mutex_unlock(&lock);
	if (parked) {
		return parked;
	}
	parked = calloc(1, sizeof(*parked));
	if (parked && make_event(ctx, &parked->event) != CUDA_SUCCESS) {
		free(parked);
		parked = NULL;
	}
	return parked;
}

/* ---- streams ---------------------------------------------------------------------------------- */

static bool ask_place(const struct order_calls *calls, CUstream handle, struct heap_place *place)
{
	CUcontext popped;
	if (calls->get_ctx(handle, &place->ctx) != CUDA_SUCCESS || !place->ctx ||
	    real(cuCtxPushCurrent_v2)(place->ctx) != CUDA_SUCCESS) {
		return false;
	}
	CUresult result = real(cuCtxGetDevice)(&place->device);
	real(cuCtxPopCurrent_v2)(&popped);
	return result == CUDA_SUCCESS;
}

bool order_find_stream(const struct order_calls *calls, CUstream handle,
                       struct order_stream *stream_out)
{
	unsigned long long id;
	if (!calls->get_id || !calls->get_ctx || !calls->record ||
	    calls->get_id(handle, &id) != CUDA_SUCCESS) {
		return false;
	}
	pthread_mutex_lock(&lock);
	const struct line *line = index_get(&lines, id);
	if (line) {
		*stream_out = line->stream;
	}
	pthread_mutex_unlock(&lock);
	if (line) {
		return true;
	}
	struct order_stream stream = {.id = id};
	if (!ask_place(calls, handle, &stream.place)) {
		return false;
	}
	pthread_mutex_lock(&lock);
	bool is_known = line_of(&stream) != NULL;
	pthread_mutex_unlock(&lock);
	*stream_out = stream;
	return is_known;
}

/* ---- allocating and freeing ------------------------------------------------------------------- */

static struct parked *take_fit(const struct order_stream *stream, uint64_t n_bytes)
{
	pthread_mutex_lock(&lock);
	struct line *line = index_get(&lines, stream->id);
	struct parked *parked = line && line->n_parked ? find_fit(line, n_bytes) : NULL;
	if (parked) {
		take_out(line, parked);
	}
	pthread_mutex_unlock(&lock);
	return parked;
}

int order_alloc(const struct order_stream *stream, struct pool *pool, uint64_t n_bytes,
                CUdeviceptr *address_out)
{
	struct heap_place place = stream->place;
	place.pool = pool;
	struct parked *parked = take_fit(stream, n_bytes);
	if (parked) {
		*address_out = heap_reuse(parked->allocation, &place, n_bytes);
		keep_spare(stream->place.ctx, parked);
		return 0;
	}
	order_collect(place.ctx, false);
	int r = heap_alloc(&place, n_bytes, address_out);
	if (r == OWNER_E_FULL && order_collect(place.ctx, true)) {
		r = heap_alloc(&place, n_bytes, address_out);
	}
	return r;
}

CUresult order_free(const struct order_calls *calls, CUstream handle,
                    const struct order_stream *stream, struct allocation *allocation)
{
	struct parked *list = NULL;
	struct parked *parked = take_spare(stream->place.ctx);
	if (!parked) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult result = calls->record(parked->event, handle);
	if (result != CUDA_SUCCESS) {
		keep_spare(stream->place.ctx, parked);
		return result;
	}
	heap_park(allocation);
	parked->allocation = allocation;
	parked->capacity_bytes = heap_capacity(allocation);
	pthread_mutex_lock(&lock);
	struct line *line = line_of(stream);
	if (line) {
		append(line, parked);
		if (line->n_parked > MANY_PARKED && !quiesce_is_capturing()) {
			take_done(line, &list);
		}
	}
	pthread_mutex_unlock(&lock);
	if (!line) {
		real(cuEventSynchronize)(parked->event);
		heap_release(allocation);
		keep_spare(stream->place.ctx, parked);
	}
	release_list(stream->place.ctx, list);
	return CUDA_SUCCESS;
}

/* ---- collecting ------------------------------------------------------------------------------- */

static struct parked *take_done_of(CUcontext ctx)
{
	struct parked *list = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < lines.n; i++) {
		struct line *line = lines.entries[i].value;
		if (line->stream.place.ctx == ctx) {
			take_done(line, &list);
		}
	}
	pthread_mutex_unlock(&lock);
	return list;
}

/* Some parked allocation of @ctx, with its stream; NULL if there is none. */
static struct parked *take_any_of(CUcontext ctx, struct order_stream *stream_out)
{
	struct parked *parked = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; !parked && i < lines.n; i++) {
		struct line *line = lines.entries[i].value;
		if (line->stream.place.ctx == ctx && line->oldest) {
			parked = line->oldest;
			*stream_out = line->stream;
			take_out(line, parked);
		}
	}
	pthread_mutex_unlock(&lock);
	return parked;
}

static void put_back(const struct order_stream *stream, struct parked *parked)
{
	pthread_mutex_lock(&lock);
	struct line *line = line_of(stream);
	if (line) {
		append(line, parked);
	}
	pthread_mutex_unlock(&lock);
}

bool order_collect(CUcontext ctx, bool waits)
{
	if (n_parked == 0 || quiesce_is_capturing()) {
		return false;
	}
	bool is_any = release_list(ctx, take_done_of(ctx));
	struct order_stream stream;
	struct parked *parked;
	while (waits && (parked = take_any_of(ctx, &stream))) {
		if (real(cuEventSynchronize)(parked->event) != CUDA_SUCCESS) {
			/* The context is lost, and what its work still touches nobody knows. */
			put_back(&stream, parked);
			break;
		}
		parked->next = NULL;
		is_any = release_list(ctx, parked);
	}
	return is_any;
}

void order_collect_all(void)
{
	CUcontext contexts[SHIM_MAX_DEVICES];
	size_t n_contexts = 0;
	CUcontext popped;
	if (n_parked == 0) {
		return;
	}
	pthread_mutex_lock(&context_lock);
	pthread_mutex_lock(&lock);
	for (const struct spares *at = all_spares; at && n_contexts < SHIM_MAX_DEVICES;
	     at = at->next) {
		contexts[n_contexts++] = at->ctx;
	}
	pthread_mutex_unlock(&lock);
	for (size_t i = 0; i < n_contexts; i++) {
		if (real(cuCtxPushCurrent_v2)(contexts[i]) == CUDA_SUCCESS) {
			order_collect(contexts[i], false);
			real(cuCtxPopCurrent_v2)(&popped);
		}
	}
	pthread_mutex_unlock(&context_lock);
}

/* ---- contexts that end ------------------------------------------------------------------------ */

void order_hold_contexts(void)
{
	pthread_mutex_lock(&context_lock);
}

void order_let_contexts(void)
{
	pthread_mutex_unlock(&context_lock);
}

static struct parked *drop_spares_locked(CUcontext ctx)
{
	for (struct spares **at = &all_spares; *at; at = &(*at)->next) {
		struct spares *spares = *at;
		if (spares->ctx == ctx) {
			struct parked *first = spares->first;
			*at = spares->next;
			free(spares);
			return first;
		}
	}
	return NULL;
}

void order_release_ctx(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	struct parked *list = drop_spares_locked(ctx);
	for (size_t i = lines.n; i-- > 0;) {
		struct line *line = lines.entries[i].value;
		if (line->stream.place.ctx == ctx) {
			while (line->oldest) {
				struct parked *parked = line->oldest;
				take_out(line, parked);
				parked->next = list;
				list = parked;
			}
			index_remove(&lines, line->stream.id);
			free(line);
		}
	}
	pthread_mutex_unlock(&lock);
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		if (parked->allocation) {
			heap_release(parked->allocation);
		}
		free(parked);
	}
}
