/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's connection to glaked: one session of the library, and everybody who uses it.
 *
 * There is one current connection, made when memory is first wanted. The library makes a lost
 * socket anew, for the same session, and waits some seconds for a glaked that is restarted. Only when
 * glaked does not know the session any more, or is about to end, the connection is dead: the next request
 * makes a new one. Attempts are at least a second apart, and short after one that was in vain. The memory
 * of a dead connection stays valid, because a mapping keeps it; its session stays until the last of it is
 * freed.
 *
 * A child of fork() cannot use a connection, and closes its socket (fork.h).
 *
 * Ownership: counted references: of the current connection, of its service thread, of each
 * allocation (heap.c), chunk (vmm.c) and opened region (ipc.c), and of each call under way.
 * Threads: any.
 */
#ifndef GLAKE_SHIM_CONNECTION_H
#define GLAKE_SHIM_CONNECTION_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "glake.h"

enum {
	CONNECTION_E_REFUSED = 1, /* glaked is there, and refuses */
	CONNECTION_E_ABSENT,  /* glaked is not there, or this process cannot take what it gives */
	CONNECTION_E_FOREIGN, /* the device is not glaked's */
};

struct connection {
	struct glake_session *session; /* owned */
	atomic_uint n_refs;
	atomic_bool is_dead;
	sem_t room; /* requests that may begin now */
	atomic_int n_room;
	int watch; /* its socket's, see fork.h */
	/* Wishes of glaked (ask.h). */
	_Atomic uint64_t seal_ask;
	_Atomic uint64_t sleep_ask;
};

/*
 * Before the first connection: @libcuda is the path of the driver, which stays where it is. @fn is called with each new
 * connection, by the thread that makes it, before any request. NULL: nobody is told.
 */
typedef void connection_new_fn(struct connection *connection);
void connection_init(const char *libcuda, connection_new_fn *fn);

/*
 * A reference to the current connection. If there is none, it is made now, which blocks until glaked answers, 5
 * seconds at most. NULL: glaked is not there (*is_refused_out is false), or refuses us (true).
 */
struct connection *connection_get(bool *is_refused_out);
/* A reference to the current connection, dead or not; NULL if there is none. Never blocks. */
struct connection *connection_peek(void);
struct connection *connection_ref(struct connection *connection);
/* NULL is allowed. The last reference ends the session: all its memory has been freed by then. */
void connection_unref(struct connection *connection);

/* Returns 0 and keeps the reference, or CONNECTION_E_*. */
typedef int connection_use_fn(struct connection *connection, void *user);

/*
 * Call @use with a reference to the current connection. If that turns out to be dead, call it once
 * more, with a new one. Returns what @use returned, or CONNECTION_E_REFUSED or _ABSENT without any.
 */
int connection_use(connection_use_fn *use, void *user);

/* One request for memory. Returns 0, or the library's error. */
typedef int connection_request_fn(struct connection *connection, void *user);

/*
 * Ask glaked for memory: calls @request, perhaps several times. Returns 0 or CONNECTION_E_*. Blocks
 * until glaked answers; the thread cannot be cancelled meanwhile.
 *
 * glaked may let a request wait, and refuses a session with too many waiting requests. A program
 * may have any number of threads, so only some requests are made at a time, fewer after a refusal.
 * A free must not go this way, because the waiting requests may need it.
 */
int connection_ask(struct connection *connection, connection_request_fn *request, void *user);

/*
 * Note the result of a call of the session: 0 or the library's error. Returns whether the
 * connection is dead.
 */
bool connection_note(struct connection *connection, int error);

#endif
