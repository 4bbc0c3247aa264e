/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection to glaked: its socket, the requests under way and the notices that wait.
 *
 * The program shares the table of fds and may close the socket or put another file on its number.
 * So the library checks before each use that the number is still its socket. If not, the connection
 * is gone, and the library leaves the number alone.
 *
 * A connection that is lost may be replaced by another one (resume.h).
 *
 * Lock order of the library, outermost first:
 *   sleep_lock              of the party (sleep/party.h); requests and driver calls happen under it
 *   promise_lock            of a session; one request happens under it
 *   context_lock, lock      of a stream order (order/order_parts.h), in this order; driver calls happen under both
 *   send_lock, lock         of a link, in this order; only send_lock is held while something blocks
 *   space.lock, usage_lock, the locks of refuge.c and torch_uses.c: innermost; no other lock is taken under them
 *
 * Owner: a link is embedded in its session. A call belongs to its caller (call.h).
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_LINK_H
#define GLAKE_LIBCLIENT_LINK_H

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
#include "libclient/link/notice.h"
#include "libclient/link/state.h"
#include "libclient/link/report.h"

struct glake__link {
	char *path;               /* owned; of glaked's socket */
	bool is_high;             /* the socket gets a high number */
	uint64_t fork_generation; /* of the process that connected */

	/* Outermost: one packet at a time. Sending may block, so it is not the lock of the rest. */
	pthread_mutex_t send_lock;
	uint8_t *send_buffer; /* owned; under send_lock */

	pthread_mutex_t lock; /* for what follows; never held while something blocks */
	pthread_cond_t changed;
	int socket; /* owned while it is this file: */
	dev_t socket_device;
	ino_t socket_inode;
	_Atomic(enum glake__link_state) state;
	unsigned hello_ms;         /* the answer to Hello is awaited for this long */
	_Atomic int error;         /* why it has no connection; 0: it has one. And in words: */
	_Atomic(const char *) why; /* static; set before error */
	uint64_t
		patience_end_ns; /* calls wait for glaked until then; 0: none has looked for it yet */
	uint64_t retry_ns;       /* not before, by others */
	uint64_t n_connections; /* under both locks */
	/* Other threads may read them while one connects. */
	_Atomic bool
		has_hosts; /* this connection's glaked has chunks in host memory, by its answer to Hello */
	_Atomic bool knows_spare; /* the same: it heeds ChunkAlloc.is_spare */
	bool has_key;             /* set by the answer to Hello */
	uint8_t key[GLAKE_KEY_BYTES];
	/* Requests that the lost connection took along. */
	uint64_t unanswered[GLAKE_MAX_UNANSWERED];
	size_t n_unanswered;
	/* Chunks given back while the connection was lost. The list does not change while some thread connects. */
	uint64_t *released; /* owned */
	size_t n_released;
	size_t released_capacity;
	uint64_t next_id;
	struct glake__call *pending; /* borrowed list of calls under way */
	bool is_reading;             /* some thread reads the socket, into receive_buffer */
	uint8_t *receive_buffer;     /* owned; of the reading thread */
	struct fdlist receive_fds;   /* of the reading thread */

	struct glake__notices notices;
	/* Called by the delivering thread with no lock held: glaked wants warm memory back. */
	void (*reclaim)(void *user, uint32_t device, uint64_t n_bytes, uint64_t id);
	void *reclaim_user;
	/* Called like reclaim: glaked wants the memory sealed that looks like weights. NULL: nobody does that. */
	void (*seal)(void *user, uint64_t id, enum glake__seal_what what);
	void *seal_user;
	/* Called like reclaim: glaked wants the program to sleep, or to wake. NULL: the program never does. */
	void (*sleep)(void *user, uint64_t id, bool wakes, uint32_t why);
	void *sleep_user;
	/* Called like reclaim: the program is not to be sealed unasked any more. NULL: it never is. */
	void (*doubt)(void *user, const char *why);
	void *doubt_user;
	bool is_delivering;
	pthread_t deliverer; /* valid while is_delivering */
	glake_notice_fn handler;
	void *handler_user;
};

enum glake__call_state {
	GLAKE__CALL_UNDER_WAY,
	GLAKE__CALL_DONE,
	GLAKE__CALL_OWED, /* glaked will be told so with the next connection: that is success */
};

struct glake__call {
	uint64_t id;              /* 0: not started */
	uint64_t connection;      /* link.n_connections when it was started */
	struct glake__call *next; /* link: link.pending; under link.lock until done */
	Glake__Wire__Answer__BodyCase expected;
	const uint64_t *released; /* borrowed from the request: what it gives back */
	size_t n_released;
	enum glake__call_state state;
	int error;                   /* when DONE: 0, or why there is no answer */
	Glake__Wire__Answer *answer; /* owned, when DONE without error */
	struct fdlist fds;           /* owned, of the answer: may be cut */
	bool wants_hosts;            /* an earlier glaked would do it to a GPU */
	bool wants_memory;           /* glaked may let it wait for some */
	bool wants_progress;         /* of a ModelOpen, whose news are: */
	bool has_progress;
	uint64_t done_bytes;
	uint64_t total_bytes;
	uint32_t place; /* it waits for room, in a queue; 0: it does not */
	uint64_t waiting_ms;
};

/* Connect to glaked at @path within @timeout_ms, without a greeting. Returns 0 or an error with its text. */
int glake__link_open(struct glake__link *link, const char *path, bool is_high, unsigned timeout_ms);
/* For a forked child too: touches neither the peer nor the locks. */
void glake__link_deinit(struct glake__link *link);

/* Is the socket's number still our socket? A system call. */
bool glake__link_has_socket(const struct glake__link *link);

/* Let the peer see the end, though others may hold the socket too. Called with link.lock held. */
void glake__link_shut_down(struct glake__link *link);

/* The connection has failed: calls under way end with @error. @why: static. link.lock is held. */
void glake__link_fail(struct glake__link *link, int error, const char *why);
/* The connection has broken the protocol: @error, and its text. Returns @error. */
int glake__link_kill(struct glake__link *link, int error, const char *why);
/* Notes what @call gives back, for the next connection. False: that is not possible. Called with link.lock held. */
bool glake__link_owe(struct glake__link *link, const struct glake__call *call);
/* Dead for good. Called with link.lock held. */
void glake__link_give_up(struct glake__link *link);
/* Is the connection dead for good? */
bool glake__link_is_gone(struct glake__link *link);

#endif
