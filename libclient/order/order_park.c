/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream that waits on the GPU for another one can deadlock, if that one's later work waits for it. So a follower never
 * waits for a late mark, which is also behind later work. Following happens under the order's lock, because a mark that is let
 * go is recorded anew.
 */
#include "libclient/order/order_parts.h"

#include "libclient/space/fit.h"

/* With more parked on a stream, a free looks for those no longer in use. */
#define MANY_PARKED 4u
/* At most this many frees are searched for one that fits, the newest first, because they fit most often. */
#define MAX_LOOKS 256u
/* A free that finds many parked looks for what is done no more often. */
#define ASK_NS 20000u

/* Memory may be freed on a stream of another device. */
static struct glake__parked *find_fit(const struct glake__order_line *line, uint64_t n_bytes)
{
	struct glake__parked *parked = line->newest_fit;
	for (unsigned i = 0; parked && i < MAX_LOOKS; i++, parked = parked->previous_fit) {
		if (glake__fits(parked->n_bytes, n_bytes) &&
		    parked->ordinal == line->stream.ordinal) {
			return parked;
		}
	}
	return NULL;
}

void *glake_order_take(struct glake_order *order, const struct glake_stream *stream, uint64_t bytes)
{
	if (order->n_parked == 0) {
		return NULL;
	}
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = glake__order_find_line(order, stream->id);
	struct glake__parked *parked = line && !line->of->is_hidden ? find_fit(line, bytes) : NULL;
	void *allocation = parked ? glake__order_take_allocation(order, line, parked) : NULL;
	pthread_mutex_unlock(&order->lock);
	return allocation;
}

/* Take allocations that are no longer in use, if many are parked on the stream. The GPU may be far behind. */
static void take_some(struct glake_order *order, struct glake__order_line *line, uint64_t now_ns,
                      struct glake__order_done *done)
{
	if (line->n_parked > MANY_PARKED && now_ns - line->asked_ns >= ASK_NS &&
	    !line->of->is_hidden) {
		line->asked_ns = now_ns;
		CUstreamCaptureMode mode = glake__order_relax(order);
		glake__order_take_done(order, line, done);
		glake__order_restore(order, mode);
	}
}

/* Called with the lock held. NULL without memory. */
static struct glake__parked *take_spare(struct glake_order *order)
{
	struct glake__parked *parked = order->spares;
	if (parked) {
		order->spares = parked->next;
	}
	return parked ? parked : malloc(sizeof(*parked));
}

/* One free of the program: the memory and its stream. */
struct freed {
	void *handle;
	unsigned flags;
	const struct glake_stream *stream;
	void *allocation;
	int ordinal;
	uint64_t n_bytes;
};

/* Called with the lock held. False: no memory. It is behind @mark, if that is not NULL, as all up to @upto are. */
static bool park_locked(struct glake_order *order, const struct freed *freed,
                        struct glake__mark *mark, uint64_t upto, uint64_t now_ns,
                        struct glake__order_done *done)
{
	struct glake__order_line *line = glake__order_line_of(order, freed->stream);
	struct glake__parked *parked = line ? take_spare(order) : NULL;
	if (!parked) {
		return false;
	}
	*parked = (struct glake__parked){
		.allocation = freed->allocation,
		.n_bytes = freed->n_bytes,
		.ordinal = freed->ordinal,
		.number = ++order->n_numbers,
	};
	if (mark) {
		/* The free is behind this mark, too, but perhaps not behind those that have come since. */
		glake__order_set_mark(line, mark, upto, now_ns);
		parked->mark = mark;
		mark->n_parked++;
	}
	line->handle = freed->handle;
	line->flags = freed->flags;
	line->is_ended = false;
	glake__order_append(order, line, parked);
	take_some(order, line, now_ns, done);
	return true;
}

static int park_marked(struct glake_order *order, const struct freed *freed, uint64_t upto,
                       uint64_t now_ns, struct glake__order_done *done)
{
	struct glake__mark *mark;
	int r = glake__order_record_mark(order, freed->handle, freed->flags, freed->stream,
	                                 freed->allocation, &mark);
	if (r < 0) {
		return r;
	}
	pthread_mutex_lock(&order->lock);
	bool is_parked = park_locked(order, freed, mark, upto, now_ns, done);
	if (!is_parked) {
		glake__order_give_mark(order, mark);
	}
	pthread_mutex_unlock(&order->lock);
	return is_parked ? 0 : glake__fail(-ENOMEM, "out of memory");
}

int glake_order_park(struct glake_order *order, void *handle, unsigned flags,
                     const struct glake_stream *stream, void *allocation, int ordinal,
                     uint64_t bytes)
{
	const struct freed freed = {handle, flags, stream, allocation, ordinal, bytes};
	struct glake__order_done done = {.n = 0};
	uint64_t now_ns = clock_now_ns();
	uint64_t upto;
	bool is_own = glake__order_is_own(order, handle, flags, stream);
	pthread_mutex_lock(&order->lock);
	bool is_due = glake__order_is_mark_due(order, is_own, stream, now_ns, &upto);
	bool is_parked = !is_due && park_locked(order, &freed, NULL, 0, now_ns, &done);
	pthread_mutex_unlock(&order->lock);
	int r = is_due      ? park_marked(order, &freed, upto, now_ns, &done)
	        : is_parked ? 0
	                    : glake__fail(-ENOMEM, "out of memory");
	glake__order_release_done(order, &done);
	return r;
}

/* A stream that waits, and for what: NULL is all. */
struct follower {
	CUstream handle;
	unsigned flags;
	bool (*is_enough)(const void *allocation, void *user);
	void *user;
};

static CUresult follow_mark(struct glake_order *order, const struct follower *follower,
                            const struct glake__mark *mark)
{
	if (!mark) {
		return CUDA_ERROR_NOT_READY;
	}
	return mark->is_done ? CUDA_SUCCESS
	                     : glake__order_calls_of(order, follower->flags)
	                               ->wait(follower->handle, mark->event, 0);
}

/*
 * What the lender got behind its free may need what the follower's stream does next: then neither ever goes on. So the
 * follower waits for no late mark. What the lender got before that may need it, too, which is not always known.
 */
static CUresult follow_oldest(struct glake_order *order, const struct glake__order_line *line,
                              const struct follower *follower)
{
	const struct glake__parked *at = line->oldest;
	while (at && !follower->is_enough(at->allocation, follower->user)) {
		at = at->next;
	}
	if (!at || glake__order_is_done(order, at->mark)) {
		return CUDA_SUCCESS;
	}
	if (line->has_waits) {
		return CUDA_ERROR_NOT_READY;
	}
	if (at->is_late || !at->mark) {
		order->wanted_ns = clock_now_ns();
		return CUDA_ERROR_NOT_READY;
	}
	return follow_mark(order, follower, at->mark);
}

/* Threads that parked at the same time may have marks of their own, which the newest one is not behind. */
static CUresult follow_all(struct glake_order *order, const struct glake__order_line *line,
                           const struct follower *follower)
{
	uint64_t n_followed = 0;
	CUresult result = CUDA_SUCCESS;
	const struct glake__parked *at = line->newest;
	while (result == CUDA_SUCCESS && at && at->number > n_followed) {
		const struct glake__mark *mark = at->mark;
		result = follow_mark(order, follower, mark);
		n_followed = mark && mark->upto > n_followed ? mark->upto : n_followed;
		at = at->previous;
	}
	return result;
}

/* All of it with the lock held: a mark that is let go is recorded anew. CUDA_ERROR_NOT_READY: some have no mark. */
static CUresult follow_once(struct glake_order *order, uint64_t from,
                            const struct follower *follower, bool *is_any_out)
{
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = glake__order_find_line(order, from);
	*is_any_out = line && line->n_parked > 0;
	if (*is_any_out && line->of->is_hidden) {
		result = CUDA_ERROR_NOT_READY;
	} else if (*is_any_out) {
		result = follower->is_enough ? follow_oldest(order, line, follower)
		                             : follow_all(order, line, follower);
	}
	pthread_mutex_unlock(&order->lock);
	return result;
}

void glake__order_stream_waits(struct glake_order *order, const struct glake_stream *stream)
{
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = glake__order_line_of(order, stream);
	if (line) {
		line->has_waits = true;
	}
	pthread_mutex_unlock(&order->lock);
}

static CUcontext context_with(struct glake_order *order, uint64_t id)
{
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = glake__order_find_line(order, id);
	CUcontext ctx = line && !line->of->is_hidden ? line->of->ctx : NULL;
	pthread_mutex_unlock(&order->lock);
	return ctx;
}

/* The context of the caller's stream does not end meanwhile; another one could. False: it may be ending. */
static bool mark_stream(struct glake_order *order, CUstream handle, unsigned flags, uint64_t id)
{
	struct glake_stream own;
	bool is_own = glake_order_stream(order, handle, flags, &own) == 0 &&
	              own.context == context_with(order, id);
	if (!is_own && !glake__order_try_hold_contexts(order)) {
		return false;
	}
	CUcontext ctx = context_with(order, id);
	if (ctx) {
		glake__order_mark_all(order, ctx);
	}
	if (!is_own) {
		pthread_mutex_unlock(&order->context_lock);
	}
	return ctx != NULL;
}

int glake__order_follow(struct glake_order *order, CUstream handle, unsigned flags, uint64_t from,
                        bool (*is_enough)(const void *allocation, void *user), void *user)
{
	const struct follower follower = {handle, flags, is_enough, user};
	bool is_any;
	if (glake__order_is_captured(order, handle, flags)) {
		return glake__fail(-EBUSY, "the stream is being captured");
	}
	CUstreamCaptureMode mode = glake__order_relax(order);
	CUresult result = follow_once(order, from, &follower, &is_any);
	if (result == CUDA_ERROR_NOT_READY && mark_stream(order, handle, flags, from)) {
		result = follow_once(order, from, &follower, &is_any);
	}
	glake__order_restore(order, mode);
	if (!is_any) {
		return glake__fail(-ENOENT, "nothing is parked on stream %llu",
		                   (unsigned long long)from);
	}
	if (result == CUDA_ERROR_NOT_READY) {
		return glake__fail(-EBUSY, "the other stream cannot be waited for now");
	}
	return result == CUDA_SUCCESS ? 0
	                              : glake__fail(GLAKE_E_CUDA, "cuStreamWaitEvent: %s",
	                                            cudrv_error(&order->drv, result));
}

int glake_order_follow(struct glake_order *order, void *handle, unsigned flags, uint64_t from)
{
	return glake__order_follow(order, handle, flags, from, NULL, NULL);
}
