/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an order, which its files share, and the functions that work on it under its lock.
 *
 *   order_lines.c     streams, and what is parked on each
 *   order_marks.c     the events behind what is parked
 *   order_park.c      parking, taking again, waiting of one stream for another
 *   order_collect.c   what streams are done with
 *   order_contexts.c  contexts that end
 *   order_make.c      the order itself; asking the driver about streams
 */
#ifndef GLAKE_LIBCLIENT_ORDER_PARTS_H
#define GLAKE_LIBCLIENT_ORDER_PARTS_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/order/order.h"
#include "libclient/space/ptr_table.h"
#include "proto/clock.h"

/* At most this many frees are released at a time, without the lock. */
#define GLAKE__MAX_DONE 64u

/* Calls that older drivers lack, or that exist twice, for the two default streams. */
struct glake__order_calls {
	__typeof__(cuStreamGetId) *get_id;
	CUresult (*get_ctx)(CUstream stream, CUcontext *ctx); /* before its _v2 */
	CUresult (*get_ctx_v2)(CUstream stream, CUcontext *ctx, CUgreenCtx *green); /* CUDA 12.5 */
	__typeof__(cuEventRecord) *record;
	__typeof__(cuStreamWaitEvent) *wait;
	__typeof__(cuStreamIsCapturing) *is_capturing;
	__typeof__(cuStreamQuery) *query;
};

/*
 * An event that has been recorded behind frees of one stream. Each free could have its own, but an event between two
 * kernels costs the GPU microseconds; so a stream gets one now and then, for all of its frees since the last one. Those
 * without one are marked when somebody wants them. Such a mark is late: it is also behind what the stream has got since.
 */
struct glake__mark {
	CUevent event;       /* owned; it dies with its context */
	uint64_t generation; /* of that */
	uint64_t upto;       /* it is behind all of its stream that have a number up to this one */
	unsigned n_parked;
	bool is_done;             /* then its event may be of earlier work */
	bool is_lost;             /* its context is, so nobody will know */
	struct glake__mark *next; /* link: spares */
};

/* An allocation that waits. */
struct glake__parked {
	void *allocation;
	uint64_t n_bytes;
	int ordinal;
	uint64_t number;                /* grows */
	struct glake__mark *mark;       /* shared; NULL: none yet */
	bool is_late;                   /* the mark was not recorded with this free */
	struct glake__parked *next;     /* link: a stream's, from old to new; spares */
	struct glake__parked *previous; /* link: a stream's */
	struct glake__parked *next_fit; /* link: those of them that can serve, with n_bytes */
	struct glake__parked *previous_fit;
};

/* One generation of a context: once it has ended, a new context may have its handle. */
struct glake__order_context {
	CUcontext ctx;
	uint64_t generation;               /* from 1 on */
	bool is_hidden;                    /* it may be ending: its events must not be touched */
	uint64_t round;                    /* the last one in which it was collected from */
	unsigned n_unmarked;               /* parked, without a mark */
	struct glake__mark *spares;        /* owned */
	struct glake__order_context *next; /* link: order.contexts */
};

struct glake__order_line {
	struct glake_stream stream;
	struct glake__order_context *of; /* borrowed */
	struct glake__parked *oldest;    /* owned */
	struct glake__parked *newest;
	struct glake__parked *newest_fit; /* by previous_fit */
	unsigned n_parked;
	unsigned n_unmarked; /* without a mark */
	void *handle;        /* of the last free; it may be gone if nothing is unmarked, or: */
	bool is_ended;       /* the program has told so, or the driver */
	bool has_waits;      /* for others; it lends nothing */
	bool is_refused;     /* it could not be marked last time: it is being captured */
	unsigned flags;      /* GLAKE_PER_THREAD or 0 */
	unsigned n_marking;  /* threads that use the handle now, without the lock */
	uint64_t round;      /* the last one in which it was marked by its handle */
	uint64_t marked_ns;  /* when it got its last mark */
	uint64_t asked_ns;   /* when a free last looked for what is done */
	struct glake__order_line *next; /* link: order.lines */
};

/* Allocations that nothing uses any more and that have left the order. */
struct glake__order_done {
	size_t n;
	void *allocations[GLAKE__MAX_DONE];
};

struct glake_order {
	/* Threads remember streams as long as the epoch is the same; no other order has or had it. */
	_Atomic uint64_t epoch;
	struct glake_order_options options;
	uint64_t fork_generation; /* of the process that made it */
	struct cudrv drv;
	__typeof__(cuCtxPushCurrent) *push;
	__typeof__(cuCtxPopCurrent) *pop;
	__typeof__(cuCtxGetDevice) *get_device;
	struct glake__order_calls calls[2]; /* [1]: GLAKE_PER_THREAD */
	atomic_uint n_parked;               /* over all streams: spares others the lock */
	atomic_uint n_releasing;     /* some thread has taken them, and is about to release them */
	_Atomic uint64_t n_released; /* so far */

	/*
	 * Taken before the other one. Held while a context may end, or is entered to collect. Recursive: whoever
	 * holds the contexts for long enters them as well.
	 */
	pthread_mutex_t context_lock;
	struct glake__parked *dropped; /* owned; under it: of contexts that ended, to be released */
	pthread_mutex_t lock;          /* for what follows */
	struct glake__parked *spares;  /* owned */
	uint64_t n_numbers;
	uint64_t
		wanted_ns; /* when a stream wanted what another one had freed, with a late mark; 0: never */
	struct glake__order_line *lines; /* owned list */
	unsigned n_lines;
	struct glake__ptr_table by_id;         /* lines, by key_of() */
	struct glake__order_context *contexts; /* owned list */
	uint64_t n_generations;
	uint64_t n_rounds;
};

/* ---- lines: all of it with the lock held ------------------------------------------------------ */

/* NULL: nothing was ever parked there, or the line was forgotten. */
struct glake__order_line *glake__order_find_line(const struct glake_order *order, uint64_t id);
/* Finds the line, or makes it. NULL without memory. */
struct glake__order_line *glake__order_line_of(struct glake_order *order,
                                               const struct glake_stream *stream);
/* Drop the line that @link points to. Nothing is parked on it. */
void glake__order_forget_line(struct glake_order *order, struct glake__order_line **link);
/* The generation of @ctx that is not ending; NULL without memory. */
struct glake__order_context *glake__order_context_of(struct glake_order *order, CUcontext ctx);

/* @parked, with its mark if it has one, is the line's newest. */
void glake__order_append(struct glake_order *order, struct glake__order_line *line,
                         struct glake__parked *parked);
void glake__order_take_out(struct glake_order *order, struct glake__order_line *line,
                           struct glake__parked *parked);
/* Takes @parked out of its line, and returns its allocation. */
void *glake__order_take_allocation(struct glake_order *order, struct glake__order_line *line,
                                   struct glake__parked *parked);
void glake__order_free_nodes(struct glake__parked *list);

/* ---- marks ------------------------------------------------------------------------------------ */

/*
 * Can the calling thread alone name the stream? Then what is freed there gets its mark with the free. So it is with
 * default streams of threads, and with that of a green context.
 */
bool glake__order_is_own(const struct glake_order *order, void *handle, unsigned flags,
                         const struct glake_stream *stream);
/*
 * With the lock held: does @stream get a mark with a free now? Then it is to be recorded at once, and will be behind all
 * that have a number up to *upto_out.
 */
bool glake__order_is_mark_due(struct glake_order *order, bool is_own,
                              const struct glake_stream *stream, uint64_t now_ns,
                              uint64_t *upto_out);
/* Record a mark behind the free of @allocation, the caller's, without the lock. 0, or an error as of glake_order_park(). */
int glake__order_record_mark(struct glake_order *order, void *handle, unsigned flags,
                             const struct glake_stream *stream, void *allocation,
                             struct glake__mark **mark_out);
/*
 * Record marks behind all that is parked in @ctx and has none. What is parked on a captured stream keeps waiting for
 * one. The lock is not held. Returns the newest; NULL: there is no new one.
 */
CUevent glake__order_mark_all(struct glake_order *order, CUcontext ctx);

/* The rest with the lock held. @mark is behind all of @line's that have a number up to @upto. */
void glake__order_set_mark(struct glake__order_line *line, struct glake__mark *mark, uint64_t upto,
                           uint64_t now_ns);
/* @parked needs its mark no longer. */
void glake__order_put_mark(struct glake__order_context *context, struct glake__parked *parked);
/* Nothing is parked behind @mark, which was the caller's. Its context may have ended. */
void glake__order_give_mark(struct glake_order *order, struct glake__mark *mark);
/* NULL: it is not. */
bool glake__order_is_done(const struct glake_order *order, struct glake__mark *mark);
/* Their events are gone. */
void glake__order_free_marks(struct glake__mark *list);
/* The order ends. */
void glake__order_end_marks(struct glake_order *order, CUcontext ctx, struct glake__mark *list);

/* A thread sleeps for this long between two looks at what another one, or the GPU, does. */
#define GLAKE__PAUSE_NS 20000u
void glake__order_pause(uint64_t ns);

/* ---- collecting ------------------------------------------------------------------------------- */

/*
 * Take the allocations of a stream that are no longer in use. The queries happen with the lock
 * held: they do not wait, and the first "not yet" ends them.
 */
void glake__order_take_done(struct glake_order *order, struct glake__order_line *line,
                            struct glake__order_done *done);
/* Release what was taken, without the lock. */
void glake__order_release_done(struct glake_order *order, const struct glake__order_done *done);

/* ---- the driver ------------------------------------------------------------------------------- */

const struct glake__order_calls *glake__order_calls_of(const struct glake_order *order,
                                                       unsigned flags);

/* Streams have ended with their context: threads ask anew. */
void glake__order_forget_streams(struct glake_order *order);

/*
 * While a stream of the process is captured, no other thread may query events, or the capture
 * fails; and a capture may begin at any moment. In relaxed mode a thread may, because no capture
 * records our events.
 */
CUstreamCaptureMode glake__order_relax(const struct glake_order *order);
void glake__order_restore(const struct glake_order *order, CUstreamCaptureMode mode);

#endif
