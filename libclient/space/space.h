/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State that all ranges of the process have in common: one lock, the driver, the gate.
 *
 * The lock is innermost, but for that of the usage report, neither inside the other. It guards the
 * window, the ranges with their pieces and chunks, and the books of all sessions. No driver call, no
 * request and no callback happens under it: what is worked on is marked busy, or taken out of the
 * books, worked on, and put back.
 *
 * Owner: the process, which a forked child begins anew. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SPACE_H
#define GLAKE_LIBCLIENT_SPACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/space/gate.h"
#include "proto/cudrv.h"

/* More devices than any host has; memory of what lies beyond is not mapped. */
#define GLAKE__MAX_DEVICES 64

struct glake__space {
	pthread_mutex_t lock;
	pthread_cond_t let; /* somebody has let a backing that was held (heap.h) */
	struct cudrv drv;   /* written once */
	bool has_drv;
	struct glake__gate gate;        /* set before there is memory; none: close is NULL */
	struct glake__range *ranges;    /* owned by their users: all, for walks */
	struct glake__range *outside;   /* those of them that are not in the window */
	struct glake__errand *errands;  /* owned: work on the GPU that was given up (errand.h) */
	uint64_t n_errands;             /* of them, ever */
	uint64_t n_ids;                 /* given out by glake__next_id_locked() */
	uint64_t n_mappings;            /* ever: the last one's number (range.h) */
	_Atomic unsigned n_asleep;      /* sessions whose memory is (asleep.h), or falls asleep */
	struct glake_session *sessions; /* borrowed list, in the order of connecting (party.h) */
	pthread_mutex_t sleep_lock;     /* of the party, if all sleep together */
	_Atomic unsigned n_leaving;     /* sessions that end, and wait for sleep_lock */
	uint64_t readers
		[GLAKE__MAX_DEVICES]; /* of each device, those that read its private memory */
};
extern struct glake__space glake__space;

static inline void glake__lock(void)
{
	pthread_mutex_lock(&glake__space.lock);
}

/* An id that was never used. The driver does not give such to its own buffers: registration caches key on them. */
static inline uint64_t glake__next_id_locked(void)
{
	return (1ull << 62) + glake__space.n_ids++;
}

static inline void glake__unlock(void)
{
	pthread_mutex_unlock(&glake__space.lock);
}

/* A change waits at most this long for work under way. Meanwhile the program's new work is held back. */
#define GLAKE__GATE_PATIENCE_NS 20000000u

/*
 * Hold back the program's work, by the gate, until glake__gate_open() by the same thread, which cannot be
 * cancelled meanwhile. It nests: the outermost pair closes and opens, so several changes can share one
 * closing. Without a gate it does nothing. Returns 0; the gate's error, such as -EAGAIN; -EINVAL: this
 * thread has closed the gate, but not for all of @readers. No lock is held by the caller.
 */
int glake__gate_close(uint64_t readers, uint64_t patience_ns);
void glake__gate_open(void);

/* One of the ways to close it that follow, for whoever calls that for others. */
typedef int glake__close_fn(uint64_t readers);

/*
 * Closes the gate for changes that can wait: the program is held back for a few milliseconds at a time and goes on
 * in between, until its work has ended or half a second is over (-EBUSY).
 */
int glake__gate_close_soon(uint64_t readers);
/*
 * Closes the gate for one of many changes that somebody waits for. If the last one found no moment between the program's
 * work, this one does not look for it again, but holds the work back at once.
 */
int glake__gate_close_in_a_hurry(uint64_t readers);

/*
 * Closes the gate for a caller that cannot come back later: as long as queued work ends, it is tried again, with the gate
 * open in between. -EBUSY: for 10 s nothing has ended.
 */
int glake__gate_close_patiently(uint64_t readers);

/*
 * Wait for what is queued by now, half a second at most (-EBUSY), and hold nothing back. Nothing is waited for
 * without a gate, or while this thread has closed it.
 */
int glake__gate_wait_soon(uint64_t readers);

/*
 * Called between changes while the gate is closed: if it has been for some milliseconds, the program goes on for one,
 * and the gate is closed again for @readers. An error is that of closing: then it is open.
 */
int glake__gate_pause(uint64_t readers);

/* Until glake__gate_open(), what this thread changes is memory that no work uses: closings inside hold nothing back. */
void glake__gate_waive(void);
/* Whether closings of this thread hold anything back. */
bool glake__gate_holds(void);

/*
 * A context of CUDA @device for work of the library's own; all contexts of the process stay until glake__context_let()
 * by the same thread. *context_out is NULL if there is none: the caller may make one. -EBUSY: another thread is ending
 * a context; never if this one has closed the gate. GLAKE_E_CUDA: that of the memory has ended. Without a gate nothing is
 * held, and *context_out is NULL.
 */
int glake__context_hold(int device, void **context_out);
void glake__context_let(void);

/* How long this thread has held the program's work back: closings that failed count, too. */
struct glake__held_back {
	uint64_t sum_ns;
	uint64_t longest_ns;
};
/* Since the last call of this; begins anew. */
struct glake__held_back glake__gate_take_time(void);
/* The sum of all threads, since the process began. */
uint64_t glake__gate_held_ns(void);

/* A session begins in this process. */
void glake__space_begin(void);

/* In a forked child: it is its parent's until a session begins, and the lock may be held for ever. */
bool glake__space_is_parents(void);
/* And it has the driver: from now on there is a window, unless the driver has no addresses. */
void glake__space_open(const struct cudrv *drv);

#endif
