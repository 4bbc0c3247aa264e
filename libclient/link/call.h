/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and their answers over one socket, from many threads.
 *
 * A call is started (sent) and waited for. Several may be under way, in one thread or in many.
 * Answers are matched by id. One of the waiting threads reads the socket and hands each answer to
 * its call; when it has its own answer, another thread takes over. So a model that loads for a
 * minute in one thread holds up no other thread, and the library needs no thread of its own.
 *
 * Incoming notices are queued; deliver.c delivers them when no lock is held.
 *
 * A stopped daemon must not block a thread forever. glaked answers a Ping at once, whatever else it
 * does. If an answer is awaited and nothing arrives for silence_ms, the library sends a Ping; after
 * another silence_ms the connection is gone. The answer to Hello is awaited for hello_ms.
 *
 * The next call replaces a lost connection (resume.h). Calls under way end with GLAKE_E_GONE, and
 * glaked takes back the memory that they granted; glake__call() repeats its request. A call that gives something
 * back succeeds, without an answer: the next Hello says what it gave back.
 *
 * Owner: a call belongs to its caller, usually on the stack: glake__call_end(). It must not be
 * moved between start and end, and its thread not be cancelled: cleanup_cancel. glake__call() sees
 * to that. Threads: any; a single call belongs to one thread.
 */
#ifndef GLAKE_LIBCLIENT_CALL_H
#define GLAKE_LIBCLIENT_CALL_H

#include <stddef.h>

#include "libclient/link/link.h"
#include "proto/request.h"

/*
 * Send @request, whose id is filled in, with copies of @fds. @expected: the answer's body, or
 * GLAKE__WIRE__ANSWER__BODY__NOT_SET. Returns 0 or an error (then the call needs no end).
 */
int glake__call_start(struct glake__link *link, struct glake__call *call,
                      Glake__Wire__Request *request, Glake__Wire__Answer__BodyCase expected,
                      const int *fds, size_t n_fds);

/*
 * Wait for the answer of a started call. @progress (may be NULL) is called as news come in, on this
 * thread with no lock held; so are notices delivered while the call waits for memory. Returns 0
 * with call->answer and call->fds, or an error: a refusal's own code and text, or that of a dead
 * connection.
 */
int glake__call_wait(struct glake__link *link, struct glake__call *call, glake_progress_fn progress,
                     void *progress_user);

/* These callbacks get the news of a call. Either may be NULL. */
struct glake__news {
	glake_progress_fn progress;
	glake_waiting_fn waiting;
	void *user;
};
/* glake__call_wait() with all news. */
int glake__call_wait_news(struct glake__link *link, struct glake__call *call,
                          const struct glake__news *news);

/* Whether its wait returns at once. glake__link_poll() looks for answers. */
bool glake__call_is_done(struct glake__link *link, const struct glake__call *call);

/* Waits some @ms at most for the call. Whether a wait for it returns at once then. */
bool glake__call_await(struct glake__link *link, const struct glake__call *call, unsigned ms);

/* Free the answer and its fds. A call still under way is waited for. Safe to repeat. */
void glake__call_end(struct glake__link *link, struct glake__call *call);

/* glake__call_start() and glake__call_wait(). */
int glake__call(struct glake__link *link, struct glake__call *call, Glake__Wire__Request *request,
                Glake__Wire__Answer__BodyCase expected, const int *fds, size_t n_fds);

/*
 * The error of a call whose fds are cut: -EMFILE, and its text. The caller returns the granted
 * ids.
 */
int glake__call_cut(void);

/* Send @request and drop its answer when it comes. */
void glake__call_forget(struct glake__link *link, Glake__Wire__Request *request);

/*
 * Read all packets that wait in the socket, without blocking. Returns 0 or the connection's error.
 */
int glake__link_poll(struct glake__link *link);

/* Whether some call has no answer yet. */
bool glake__link_is_awaited(struct glake__link *link);

/*
 * Say Goodbye, without waiting for its answer, and let the peer see the end, though others may
 * hold the socket too.
 */
void glake__link_leave(struct glake__link *link);

#endif
