/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session with glaked, over its comings and goings.
 *
 * There is one current session, made when memory is first wanted. The library makes a lost connection
 * anew; when glaked dies, its session is
 * marked dead and later calls make a new one, not more often than once a second, and so that no more
 * than a tenth of the program's time goes to a glaked that does not answer. Memory of a dead session
 * stays valid, since the mappings hold it; it keeps its session until it is freed.
 *
 * Owner: references, counted: the current one, its thread's, one per region of heap.c, per chunk of
 * vmm.c and per region that ipc.c has opened, one per call under way.
 * Threads: any.
 */
#ifndef GLAKE_SHIM_OWNER_H
#define GLAKE_SHIM_OWNER_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "glake.h"

enum {
	OWNER_E_FULL = 1, /* glaked's answer is no, whatever for */
	OWNER_E_ABSENT,   /* glaked is not there, or this process cannot take what it gives */
	OWNER_E_FOREIGN,  /* the device is not glaked's */
};

struct owner {
	struct glake_session *session; /* owned */
	atomic_uint n_refs;
	atomic_bool is_dead;
	sem_t room; /* for requests under way: */
	atomic_int n_room;
	int watch; /* see fork.h */
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

/* One request for memory: 0, or the library's error. */
typedef int owner_request_fn(struct owner *owner, void *user);

/*
 * Ask glaked for memory: 0 or OWNER_E_*. It may let the request wait, and refuses a session that has
 * too many waiting, while a program may have any number of threads: so there is room for some at a
 * time, less once glaked has said that it is too much. Not for others, which it answers at once: a free
 * may be what those wait for. The thread is not cancelled meanwhile.
 */
int owner_ask(struct owner *owner, owner_request_fn *request, void *user);

/*
 * A call of @owner's session has ended with @error: is glaked gone? Then the next owner_get() makes a
 * new session.
 */
bool owner_note_error(struct owner *owner, int error);

/*
 * @fn is called with each new session, by the thread that makes it, before any request. Set it before the
 * first session; NULL: nobody is told.
 */
typedef void owner_new_fn(struct owner *owner);
void owner_on_new(owner_new_fn *fn);

/* glaked's device that is CUDA device @ordinal here; false if it has none. Local. */
bool owner_device(struct owner *owner, int ordinal, struct glake_device *device_out);

#endif
