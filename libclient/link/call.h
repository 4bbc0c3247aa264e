/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and their answers over one socket, from many threads.
 *
 * A call is started (sent) and waited for. Several may be under way, in one thread or in many.
 * Answers are matched by id. One of the waiting threads reads the socket and hands each answer to
 * its call; when it has its own answer, another thread takes over. So a model that loads for a
 * minute in one thread holds up no other thread, and the library needs no thread of its own.
 *
 * Incoming notices are queued; notice.c delivers them when no lock is held.
 *
 * The program shares the table of fds and may close the socket or put another file on its number.
 * So the library checks before each use that the number is still its socket. If not, the connection
 * is gone, and the library leaves the number alone.
 *
 * A stopped daemon must not block a thread forever. glaked answers a Ping at once, whatever else it
 * does. If an answer is awaited and nothing arrives for silence_ms, the library sends a Ping; after
 * another silence_ms the connection is gone. The answer to Hello is awaited for hello_ms.
 *
 * The next call replaces a lost connection (resume.h). Calls under way end with GLAKE_E_GONE, and
 * glaked takes back what they granted; glake__call() repeats its request.
 *
 * Owner: a call belongs to its caller, usually on the stack: glake__call_end(). It must not be
 * moved between start and end, and its thread not be cancelled: cleanup_cancel. glake__call() sees
 * to that. Threads: any; a single call belongs to one thread.
 */
#ifndef GLAKE_LIBCLIENT_CALL_H
#define GLAKE_LIBCLIENT_CALL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "proto/fdlist.h"
#include "proto/glake.pb-c.h"
#include "proto/limits.h"
#include "libclient/glake.h"

/* glaked needs microseconds for either. This much is for hosts that have no time for it. */
struct glake__patience {
	unsigned hello_ms;   /* 5000 */
	unsigned silence_ms; /* 10000 */
};

/* Only tests change it. */
extern struct glake__patience glake__patience;

struct glake_session;
struct glake__notice;

struct glake__link {
	/* Outermost: one packet at a time. Sending may block, so it is not the lock of the rest. */
	pthread_mutex_t send_lock;
	uint8_t *send_buffer; /* owned; under send_lock */

	pthread_mutex_t lock; /* for what follows; never held while something blocks */
	pthread_cond_t changed;
	int socket; /* owned while it is this file; closed by glake__link_deinit() only */
	dev_t socket_device;
	ino_t socket_inode;
	bool is_greeted;           /* Hello was answered; until then, one thread */
	_Atomic int error;         /* not 0: the connection is dead, and this is why: */
	_Atomic(const char *) why; /* static; set before error */
	bool is_lost;              /* dead, and may come back (resume.h) */
	uint64_t retry_ns;         /* not before */
	uint64_t n_connections;    /* under both locks */
	bool has_key;              /* set by Hello, as is the key */
	uint8_t key[GLAKE_KEY_BYTES];
	uint64_t
		unanswered[GLAKE_MAX_UNANSWERED]; /* requests that the lost connection took along */
	size_t n_unanswered;
	uint64_t next_id;
	struct glake__call *pending; /* borrowed list of calls under way */
	bool is_reading;             /* some thread reads the socket, into receive_buffer */
	uint8_t *receive_buffer;     /* owned; of the reading thread */
	struct fdlist receive_fds;   /* of the reading thread */

	struct glake__notice *notices; /* owned list, oldest first */
	struct glake__notice **last_notice;
	_Atomic unsigned n_notices;
	bool is_delivering;
	pthread_t deliverer; /* valid while is_delivering */
	glake_notice_fn handler;
	void *handler_user;
};

struct glake__call {
	uint64_t id;              /* 0: not started */
	uint64_t connection;      /* link.n_connections when it was started */
	struct glake__call *next; /* link: link.pending; under link.lock until done */
	Glake__Wire__Answer__BodyCase expected;
	bool is_done;
	int error;                   /* when done: 0, or why there is no answer */
	Glake__Wire__Answer *answer; /* owned, when done without error */
	struct fdlist fds;           /* owned, of the answer: may be cut */
	bool wants_memory;           /* glaked may let it wait for some */
	bool wants_progress;         /* of a ModelOpen, whose news are: */
	bool has_progress;
	uint64_t done_bytes;
	uint64_t total_bytes;
};

/* Takes @socket over, on success only. Returns 0 or -errno. */
int glake__link_init(struct glake__link *link, int socket);
/* For a forked child too: touches neither the peer nor the locks. */
void glake__link_deinit(struct glake__link *link);

/* Dead for good. Called with link.lock held. */
void glake__link_give_up(struct glake__link *link);
/* Takes no lock for an answer that may be old. */
bool glake__link_is_gone(struct glake__link *link);

/* Is the socket's number still our socket? A system call. */
bool glake__link_has_socket(const struct glake__link *link);

/*
 * Say Goodbye, without waiting for its answer, and let the peer see the end, though others may hold the
 * socket too.
 */
void glake__link_leave(struct glake_session *session);

/*
 * Send @request, whose id is filled in, with copies of @fds. @expected: the answer's body, or
 * GLAKE__WIRE__ANSWER__BODY__NOT_SET. Returns 0 or an error (then the call needs no end).
 */
int glake__call_start(struct glake_session *session, struct glake__call *call,
                      Glake__Wire__Request *request, Glake__Wire__Answer__BodyCase expected,
                      const int *fds, size_t n_fds);

/*
 * Wait for the answer of a started call. @progress (may be NULL) is called as news come in, on this
 * thread with no lock held; so are notices delivered while the call waits for memory. Returns 0
 * with call->answer and call->fds, or an error: a refusal's own code and text, or that of a dead
 * connection.
 */
int glake__call_wait(struct glake_session *session, struct glake__call *call,
                     glake_progress_fn progress, void *progress_user);

/* Free the answer and its fds. A call still under way is waited for. Safe to repeat. */
void glake__call_end(struct glake_session *session, struct glake__call *call);

/* glake__call_start() and glake__call_wait(). */
int glake__call(struct glake_session *session, struct glake__call *call,
                Glake__Wire__Request *request, Glake__Wire__Answer__BodyCase expected,
                const int *fds, size_t n_fds);

/* The error of a call whose fds are cut: -EMFILE, and its text. What was granted is the caller's. */
int glake__call_cut(void);

/* Send @request and drop its answer when it comes. For what nobody depends on. */
void glake__call_forget(struct glake_session *session, Glake__Wire__Request *request);

/* Take in what waits in the socket, without blocking. Returns 0 or the connection's error. */
int glake__link_poll(struct glake_session *session);

/* The connection has broken the protocol: @error, and its text. Returns @error. */
int glake__link_kill(struct glake_session *session, int error, const char *why);

#endif
