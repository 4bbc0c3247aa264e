/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that runs while a range changes could fault, or write to memory that has left the range. So the space (space.h)
 * closes the program's gate around such a change. This file has the gate, and what is set once: driver, gate, readers.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_GATE_H
#define GLAKE_LIBCLIENT_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"

/*
 * Holds back the program's work while a range changes. Without a gate (the library without the shim)
 * the caller of a change must do that.
 *
 * close() returns 0 when no submitted work uses any memory any more, of whatever device: copies run on streams of all.
 * No new work is submitted until open(), which the same thread calls. Otherwise it returns a negative error, and the
 * change does not happen:
 *   -EAGAIN  work did not end within @patience_ns, or a stream is being captured: try again later
 *   others   this process can never hold back its work
 * wait() (may be NULL) waits for the work that is submitted by now, and holds nothing back meanwhile. What it
 * returns means the same.
 * left() (may be NULL) is told that work of the library's own goes on.
 * The library calls it without its locks.
 *
 * hold_context() finds a context of CUDA @device for work of the library's own, one that the program has, since a
 * new one takes 500 MiB and 0.2 s. No context of the process ends until let_context(), which the same thread calls.
 * *context_out is NULL if the program has never had one. Otherwise it returns a negative error, and holds nothing:
 *   -EAGAIN  another thread is ending a context, and did not get ready within @patience_ns. Never if the calling
 *            thread has closed the gate
 *   -ENOENT  those that the program had have ended
 * sleep() is called by the thread that has closed the gate: from then on nobody passes, whoever opens it, until wake(),
 * which any thread calls, and which does nothing without a sleep(). With it, all sessions of the process sleep together. Otherwise it returns a negative error, and nothing has changed. wanted() says that a thread of the
 * library waits for memory that is asleep: it should be woken, by another thread. It may be called often, and does not wait.
 * is_wanted() tells whether a thread, of the library or at the gate, waits for that.
 * All four may be NULL.
 *
 * release_primary() gives back a primary context that the library has retained while others could end: it may be
 * the last user, so whoever notes things about the context has to know.
 */
struct glake__gate {
	int (*close)(void *user, uint64_t patience_ns);
	void (*open)(void *user);
	void *user;
	int (*wait)(void *user, uint64_t patience_ns);
	void (*left)(void *user);
	int (*hold_context)(void *user, int device, uint64_t patience_ns, void **context_out);
	void (*let_context)(void *user);
	void (*release_primary)(void *user, int device);
	int (*sleep)(void *user);
	void (*wake)(void *user);
	void (*wanted)(void *user);
	bool (*is_wanted)(void *user);
};

/*
 * The driver, by path, is initialised: from now on there is a window, and changes pass @gate. 0, or an
 * error of cudrv_open().
 */
int glake__space_start(const char *libcuda, const struct glake__gate *gate);

/*
 * CUDA device @reader may read and write all private memory of @device from now on. After
 * GLAKE_E_CUDA, later memory is not opened to it. Waits for changes that are under way.
 */
int glake__space_add_reader(int device, int reader);

/* Is there private memory of @device that @reader may not access? */
bool glake__space_is_closed_to(int device, int reader);

#endif
