/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session with glaked, over its comings and goings.
 *
 * There is one current session, made when memory is first wanted. When glaked dies, its session is
 * marked dead and later calls make a new one, not more often than once a second. Memory of a dead
 * session stays valid, since the mappings hold it; it keeps its session until it is freed.
 *
 * Owner: references, counted: the current one, its thread's, one per region of heap.c, per chunk of vmm.c
 * and per region that ipc.c has opened, one per call under way.
 * Threads: any.
 */
#ifndef GLAKE_SHIM_OWNER_H
#define GLAKE_SHIM_OWNER_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "glake.h"

enum {
	OWNER_E_FULL = 1, /* no memory: the tenant's, the device's, or this process's */
	OWNER_E_ABSENT,   /* glaked is not there, or cannot serve this process */
	OWNER_E_FOREIGN,  /* the device is not glaked's */
};

struct owner {
	struct glake_session *session; /* owned */
	atomic_uint n_refs;
	atomic_bool is_dead;
	sem_t room; /* for calls under way */
};

/*
 * A reference to the current session, made now if there is none. NULL when glaked is not there, or,
 * with *is_refused_out set, does not let us in: that is its answer, and no reason to go without it.
 */
struct owner *owner_get(bool *is_refused_out);
/* The same if there is one already, else NULL. */
struct owner *owner_peek(void);
struct owner *owner_ref(struct owner *owner);
/* NULL is fine. The last one disconnects: all its memory has been freed by then. */
void owner_unref(struct owner *owner);

/*
 * Around every call that asks glaked for memory: it may let it wait, and refuses a session that has
 * too many waiting, while a program may have any number of threads. Not around others, which it
 * answers at once: a free may be what those wait for.
 */
void owner_enter(struct owner *owner);
void owner_leave(struct owner *owner);

/*
 * A call of @owner's session has failed with @error: is glaked gone? Then the next owner_get() makes
 * a new session.
 */
bool owner_is_gone(struct owner *owner, int error);

/* What a failed request for memory means: OWNER_E_*. Notes when glaked is gone. */
int owner_judge(struct owner *owner, int error);

/* glaked's device that is CUDA device @ordinal here; false if it has none. Local. */
bool owner_device(struct owner *owner, int ordinal, struct glake_device *device_out);

#endif
