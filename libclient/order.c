/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/order.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "libclient/error.h"
#include "libclient/fork.h"
#include "libclient/ptr_table.h"
#include "libclient/sized.h"

/* So many may be parked on a stream before a free looks for those that are done. */
#define MANY_PARKED 16u
/* A stream without parked memory may be forgotten when there are more. */
#define MANY_STREAMS 64u
/* How many are looked at for one that fits: the newest, as they are the likeliest. */
#define MAX_LOOKS 256u
/* More contexts than these wait for the next time. */
#define MAX_CONTEXTS 64u

/* The calls that older drivers lack, and that there are two of, for the two default streams. */
struct calls {
	__typeof__(cuStreamGetId) *get_id;
	CUresult (*get_ctx)(CUstream stream, CUcontext *ctx); /* before its _v2 */
	__typeof__(cuEventRecord) *record;
	__typeof__(cuStreamIsCapturing) *is_capturing;
};

/* One event, and the allocation that waits for it; or a spare one. */
struct parked {
	void *allocation; /* while parked */
	uint64_t n_bytes;
	int ordinal;
	CUevent event;           /* owned; it dies with its context */
	struct parked *next;     /* link: a stream's, from old to new; spares; a list in passing */
	struct parked *previous; /* link: a stream's */
};

struct line {
	struct glake_stream stream;
	struct parked *oldest; /* owned */
	struct parked *newest;
	unsigned n_parked;
	struct line *next; /* link: order.lines */
};

/* The spare events of a context. */
struct spares {
	CUcontext ctx;
	struct parked *first; /* owned */
	struct spares *next;  /* link: order.spares */
};

struct glake_order {
	struct glake_order_options options;
	uint64_t fork_generation; /* of the process that made it */
	struct cudrv drv;
	__typeof__(cuCtxPushCurrent) *push;
	__typeof__(cuCtxPopCurrent) *pop;
	__typeof__(cuCtxGetDevice) *get_device;
	struct calls calls[2]; /* [1]: GLAKE_PER_THREAD */
	atomic_uint n_parked;  /* over all streams: spares others the lock */

	/* Taken before the other one. Held while a context ends, or is entered to collect. */
	pthread_mutex_t context_lock;
	pthread_mutex_t lock; /* for what follows */
	struct line *lines;   /* owned list */
	unsigned n_lines;
	struct glake__ptr_table by_id; /* lines, by key_of() */
	struct spares *spares;         /* owned list */
};

/* ---- with the lock held ----------------------------------------------------------------------- */

/* 0 is no key, and may be an id. */
static uint64_t key_of(uint64_t id)
{
	return id + 1;
}

static void append(struct glake_order *order, struct line *line, struct parked *parked)
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
	order->n_parked++;
}

static void take_out(struct glake_order *order, struct line *line, struct parked *parked)
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
	order->n_parked--;
}

static struct spares *spares_of(struct glake_order *order, CUcontext ctx)
{
	struct spares *spares = order->spares;
	while (spares && spares->ctx != ctx) {
		spares = spares->next;
	}
	if (!spares && (spares = calloc(1, sizeof(*spares)))) {
		spares->ctx = ctx;
		spares->next = order->spares;
		order->spares = spares;
	}
	return spares;
}

/* Drop the line that @link points to. Nothing is parked on it. */
static void forget_line(struct glake_order *order, struct line **link)
{
	struct line *line = *link;
	*link = line->next;
	order->n_lines--;
	glake__ptr_table_remove(&order->by_id, key_of(line->stream.id));
	free(line);
}

static void forget_idle_lines(struct glake_order *order)
{
	struct line **link = &order->lines;
	while (*link) {
		if ((*link)->n_parked == 0) {
			forget_line(order, link);
		} else {
			link = &(*link)->next;
		}
	}
}

static struct line *find_line(const struct glake_order *order, uint64_t id)
{
	return glake__ptr_table_get(&order->by_id, key_of(id));
}

static struct line *line_of(struct glake_order *order, const struct glake_stream *stream)
{
	struct line *line = find_line(order, stream->id);
	if (line) {
		return line;
	}
	if (order->n_lines >= MANY_STREAMS) {
		forget_idle_lines(order);
	}
	line = calloc(1, sizeof(*line));
	if (!line || glake__ptr_table_add(&order->by_id, key_of(stream->id), line) < 0) {
		free(line);
		return NULL;
	}
	line->stream = *stream;
	line->next = order->lines;
	order->lines = line;
	order->n_lines++;
	return line;
}

/* Memory may be freed on a stream of another device. */
static struct parked *find_fit(const struct line *line, uint64_t n_bytes)
{
	struct parked *parked = line->newest;
	for (unsigned i = 0; parked && i < MAX_LOOKS; i++, parked = parked->previous) {
		if (parked->n_bytes >= n_bytes && parked->n_bytes - n_bytes <= n_bytes / 8 &&
		    parked->ordinal == line->stream.ordinal) {
			return parked;
		}
	}
	return NULL;
}

/*
 * Onto @list: what is done with on a stream. The queries happen with the lock held; they do not wait,
 * and the first one that says "not yet" is the last.
 */
static void take_done(struct glake_order *order, struct line *line, struct parked **list)
{
	struct parked *parked;
	while ((parked = line->oldest) && order->drv.cuEventQuery(parked->event) == CUDA_SUCCESS) {
		take_out(order, line, parked);
		parked->next = *list;
		*list = parked;
	}
}

/* Onto @list: all that is parked on a stream. */
static void take_all(struct glake_order *order, struct line *line, struct parked **list)
{
	while (line->oldest) {
		struct parked *parked = line->oldest;
		take_out(order, line, parked);
		parked->next = *list;
		*list = parked;
	}
}

/* ---- without it ------------------------------------------------------------------------------- */

static bool is_capturing(const struct glake_order *order)
{
	return order->options.is_capturing && order->options.is_capturing(order->options.user);
}

static void keep_spare(struct glake_order *order, CUcontext ctx, struct parked *parked)
{
	parked->allocation = NULL;
	pthread_mutex_lock(&order->lock);
	struct spares *spares = spares_of(order, ctx);
	if (spares) {
		parked->next = spares->first;
		spares->first = parked;
	}
	pthread_mutex_unlock(&order->lock);
	if (!spares) {
		order->drv.cuEventDestroy(parked->event);
		free(parked);
	}
}

static bool release_list(struct glake_order *order, CUcontext ctx, struct parked *list)
{
	bool is_any = list != NULL;
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		order->options.release(order->options.user, parked->allocation);
		keep_spare(order, ctx, parked);
	}
	return is_any;
}

static CUresult make_event(struct glake_order *order, CUcontext ctx, CUevent *event_out)
{
	CUcontext popped;
	CUresult result = order->push(ctx);
	if (result == CUDA_SUCCESS) {
		result = order->drv.cuEventCreate(event_out, CU_EVENT_DISABLE_TIMING);
		order->pop(&popped);
	}
	return result;
}

static int take_spare(struct glake_order *order, CUcontext ctx, struct parked **parked_out)
{
	pthread_mutex_lock(&order->lock);
	struct spares *spares = spares_of(order, ctx);
	struct parked *parked = spares ? spares->first : NULL;
	if (parked) {
		spares->first = parked->next;
	}
	pthread_mutex_unlock(&order->lock);
	if (!parked) {
		parked = calloc(1, sizeof(*parked));
		CUresult result = parked ? make_event(order, ctx, &parked->event) : CUDA_SUCCESS;
		if (!parked || result != CUDA_SUCCESS) {
			free(parked);
			return parked ? glake__fail(GLAKE_E_CUDA, "cuEventCreate: %s",
			                            cudrv_error(&order->drv, result))
			              : glake__fail(-ENOMEM, "out of memory");
		}
	}
	*parked_out = parked;
	return 0;
}

/* ---- streams ---------------------------------------------------------------------------------- */

static CUresult ask_place(struct glake_order *order, const struct calls *calls, CUstream handle,
                          struct glake_stream *stream)
{
	CUcontext ctx = NULL;
	CUcontext popped;
	CUdevice device;
	CUresult result = calls->get_ctx(handle, &ctx);
	if (result != CUDA_SUCCESS || !ctx) {
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : result;
	}
	result = order->push(ctx);
	if (result == CUDA_SUCCESS) {
		result = order->get_device(&device);
		order->pop(&popped);
		stream->context = ctx;
		stream->ordinal = device;
	}
	return result;
}

static const struct calls *calls_of(const struct glake_order *order, unsigned flags)
{
	return &order->calls[(flags & GLAKE_PER_THREAD) != 0];
}

int glake_order_stream(struct glake_order *order, void *handle, unsigned flags,
                       struct glake_stream *stream_out)
{
	const struct calls *calls = calls_of(order, flags);
	unsigned long long id = 0;
	if (!calls->get_id || !calls->get_ctx || !calls->record || !calls->is_capturing) {
		return glake__fail(-ENOSYS, "the driver has no default streams by thread");
	}
	CUresult result = calls->get_id(handle, &id);
	if (result == CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		const struct line *line = find_line(order, id);
		if (line) {
			*stream_out = line->stream;
		}
		pthread_mutex_unlock(&order->lock);
		if (line) {
			return 0;
		}
	}
	struct glake_stream stream = {.id = id};
	if (result == CUDA_SUCCESS) {
		result = ask_place(order, calls, handle, &stream);
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "the driver knows no such stream: %s",
		                   cudrv_error(&order->drv, result));
	}
	pthread_mutex_lock(&order->lock);
	bool is_known = line_of(order, &stream) != NULL;
	pthread_mutex_unlock(&order->lock);
	if (!is_known) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	*stream_out = stream;
	return 0;
}

bool glake__order_is_captured(const struct glake_order *order, CUstream handle, unsigned flags)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return calls_of(order, flags)->is_capturing(handle, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- parking ---------------------------------------------------------------------------------- */

void *glake_order_take(struct glake_order *order, const struct glake_stream *stream, uint64_t bytes)
{
	if (order->n_parked == 0) {
		return NULL;
	}
	pthread_mutex_lock(&order->lock);
	struct line *line = find_line(order, stream->id);
	struct parked *parked = line && line->n_parked ? find_fit(line, bytes) : NULL;
	if (parked) {
		take_out(order, line, parked);
	}
	pthread_mutex_unlock(&order->lock);
	if (!parked) {
		return NULL;
	}
	void *allocation = parked->allocation;
	keep_spare(order, stream->context, parked);
	return allocation;
}

int glake_order_park(struct glake_order *order, void *handle, unsigned flags,
                     const struct glake_stream *stream, void *allocation, int ordinal,
                     uint64_t bytes)
{
	struct parked *list = NULL;
	struct parked *parked = NULL;
	int r = take_spare(order, stream->context, &parked);
	if (r < 0) {
		return r;
	}
	CUresult result = calls_of(order, flags)->record(parked->event, handle);
	if (result != CUDA_SUCCESS) {
		keep_spare(order, stream->context, parked);
		return glake__fail(GLAKE_E_CUDA, "cuEventRecord: %s",
		                   cudrv_error(&order->drv, result));
	}
	parked->allocation = allocation;
	parked->n_bytes = bytes;
	parked->ordinal = ordinal;
	pthread_mutex_lock(&order->lock);
	struct line *line = line_of(order, stream);
	if (line) {
		append(order, line, parked);
		if (line->n_parked > MANY_PARKED && !is_capturing(order)) {
			take_done(order, line, &list);
		}
	}
	pthread_mutex_unlock(&order->lock);
	if (!line) {
		keep_spare(order, stream->context, parked);
		return glake__fail(-ENOMEM, "out of memory");
	}
	release_list(order, stream->context, list);
	return 0;
}

/* ---- collecting ------------------------------------------------------------------------------- */

static struct parked *take_done_of(struct glake_order *order, CUcontext ctx)
{
	struct parked *list = NULL;
	pthread_mutex_lock(&order->lock);
	for (struct line *line = order->lines; line; line = line->next) {
		if (line->stream.context == ctx) {
			take_done(order, line, &list);
		}
	}
	pthread_mutex_unlock(&order->lock);
	return list;
}

/* Some parked allocation of @ctx, with its stream; NULL if there is none. */
static struct parked *take_any_of(struct glake_order *order, CUcontext ctx,
                                  struct glake_stream *stream_out)
{
	struct parked *parked = NULL;
	pthread_mutex_lock(&order->lock);
	for (struct line *line = order->lines; !parked && line; line = line->next) {
		if (line->stream.context == ctx && line->oldest) {
			parked = line->oldest;
			*stream_out = line->stream;
			take_out(order, line, parked);
		}
	}
	pthread_mutex_unlock(&order->lock);
	return parked;
}

static void put_back(struct glake_order *order, const struct glake_stream *stream,
                     struct parked *parked)
{
	pthread_mutex_lock(&order->lock);
	struct line *line = line_of(order, stream);
	if (line) {
		append(order, line, parked);
	}
	pthread_mutex_unlock(&order->lock);
}

int glake_order_collect(struct glake_order *order, void *context, int waits)
{
	if (order->n_parked == 0 || is_capturing(order)) {
		return false;
	}
	bool is_any = release_list(order, context, take_done_of(order, context));
	struct glake_stream stream;
	struct parked *parked;
	while (waits && (parked = take_any_of(order, context, &stream))) {
		if (order->drv.cuEventSynchronize(parked->event) != CUDA_SUCCESS) {
			/* The context is lost, and what its work still touches nobody knows. */
			put_back(order, &stream, parked);
			break;
		}
		parked->next = NULL;
		is_any = release_list(order, context, parked);
	}
	return is_any;
}

int glake_order_collect_all(struct glake_order *order, int waits)
{
	CUcontext contexts[MAX_CONTEXTS];
	size_t n_contexts = 0;
	CUcontext popped;
	bool is_any = false;
	if (order->n_parked == 0) {
		return false;
	}
	pthread_mutex_lock(&order->context_lock);
	pthread_mutex_lock(&order->lock);
	for (const struct spares *at = order->spares; at && n_contexts < MAX_CONTEXTS;
	     at = at->next) {
		contexts[n_contexts++] = at->ctx;
	}
	pthread_mutex_unlock(&order->lock);
	for (size_t i = 0; i < n_contexts; i++) {
		if (order->push(contexts[i]) == CUDA_SUCCESS) {
			is_any |= glake_order_collect(order, contexts[i], waits);
			order->pop(&popped);
		}
	}
	pthread_mutex_unlock(&order->context_lock);
	return is_any;
}

/* ---- contexts that end ------------------------------------------------------------------------ */

void glake_order_hold_contexts(struct glake_order *order)
{
	pthread_mutex_lock(&order->context_lock);
}

void glake_order_let_contexts(struct glake_order *order)
{
	pthread_mutex_unlock(&order->context_lock);
}

/* Called with the lock held. Their events are gone. */
static void drop_spares(struct glake_order *order, CUcontext ctx)
{
	struct spares **link = &order->spares;
	while (*link && (*link)->ctx != ctx) {
		link = &(*link)->next;
	}
	struct spares *spares = *link;
	if (!spares) {
		return;
	}
	*link = spares->next;
	while (spares->first) {
		struct parked *parked = spares->first;
		spares->first = parked->next;
		free(parked);
	}
	free(spares);
}

void glake_order_drop_context(struct glake_order *order, void *context)
{
	struct parked *list = NULL;
	pthread_mutex_lock(&order->lock);
	drop_spares(order, context);
	struct line **link = &order->lines;
	while (*link) {
		if ((*link)->stream.context == context) {
			take_all(order, *link, &list);
			forget_line(order, link);
		} else {
			link = &(*link)->next;
		}
	}
	pthread_mutex_unlock(&order->lock);
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		order->options.release(order->options.user, parked->allocation);
		free(parked);
	}
}

/* ---- making and ending ------------------------------------------------------------------------ */

static bool find_calls(struct glake_order *order)
{
	const struct {
		const char *symbol;
		void **entry;
		bool is_vital; /* programs without default streams by thread do without the others */
	} wanted[] = {
		{"cuCtxPushCurrent_v2", (void **)&order->push, true},
		{"cuCtxPopCurrent_v2", (void **)&order->pop, true},
		{"cuCtxGetDevice", (void **)&order->get_device, true},
		{"cuStreamGetId", (void **)&order->calls[0].get_id, true},
		{"cuStreamGetCtx", (void **)&order->calls[0].get_ctx, true},
		{"cuEventRecord", (void **)&order->calls[0].record, true},
		{"cuStreamIsCapturing", (void **)&order->calls[0].is_capturing, true},
		{"cuStreamGetId_ptsz", (void **)&order->calls[1].get_id, false},
		{"cuStreamGetCtx_ptsz", (void **)&order->calls[1].get_ctx, false},
		{"cuEventRecord_ptsz", (void **)&order->calls[1].record, false},
		{"cuStreamIsCapturing_ptsz", (void **)&order->calls[1].is_capturing, false},
	};
	for (size_t i = 0; i < n_elements(wanted); i++) {
		*wanted[i].entry = dlsym(order->drv.library, wanted[i].symbol);
		if (!*wanted[i].entry && wanted[i].is_vital) {
			glake__fail(-ENOSYS, "the CUDA driver library has no call named %s",
			            wanted[i].symbol);
			return false;
		}
	}
	return true;
}

int glake__order_over(const struct cudrv *drv, const struct glake_order_options *options,
                      struct glake_order **order_out)
{
	struct glake_order *order = calloc(1, sizeof(*order));
	if (!order) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	order->options = *options;
	order->fork_generation = glake__fork_generation();
	order->drv = *drv;
	if (!find_calls(order)) {
		free(order);
		return -ENOSYS;
	}
	pthread_mutex_init(&order->context_lock, NULL);
	pthread_mutex_init(&order->lock, NULL);
	*order_out = order;
	return 0;
}

int glake_order_new(const struct glake_order_options *options, struct glake_order **order_out)
{
	struct glake_order_options full;
	struct cudrv drv;
	char text[512] = "";
	int r = glake__sized_in(options, &full, sizeof(full));
	if (r < 0) {
		return r;
	}
	if (!full.release) {
		return glake__fail(-EINVAL, "an order needs to be told how to release");
	}
	r = cudrv_open(&drv, full.libcuda, text, sizeof(text));
	if (r < 0) {
		return glake__fail(r == -ENOSYS ? r : GLAKE_E_NO_DRIVER, "%s", text);
	}
	return glake__order_over(&drv, &full, order_out);
}

/* A context that cannot be entered has ended and taken its events along. In a child all have. */
static void end_parked(struct glake_order *order, CUcontext ctx, struct parked *list)
{
	CUcontext popped;
	bool is_alive = order->fork_generation == glake__fork_generation() && list &&
	                order->push(ctx) == CUDA_SUCCESS;
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		if (parked->allocation) {
			order->options.release(order->options.user, parked->allocation);
		}
		if (is_alive) {
			order->drv.cuEventDestroy(parked->event);
		}
		free(parked);
	}
	if (is_alive) {
		order->pop(&popped);
	}
}

void glake_order_free(struct glake_order *order)
{
	if (!order) {
		return;
	}
	while (order->lines) {
		struct line *line = order->lines;
		end_parked(order, line->stream.context, line->oldest);
		forget_line(order, &order->lines);
	}
	while (order->spares) {
		struct spares *spares = order->spares;
		order->spares = spares->next;
		end_parked(order, spares->ctx, spares->first);
		free(spares);
	}
	glake__ptr_table_deinit(&order->by_id);
	free(order);
}
