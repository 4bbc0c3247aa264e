/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/connection.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "glake_shim.h"
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/fork.h"
#include "shim/shim.h"

#define RETRY_NS 1000000000ull
/* The longest time to connect; and the longest after an attempt that took so long in vain. */
#define CONNECT_MS 5000u
#define CONNECT_AGAIN_MS 250u
/* Half of glaked's default limit, because a request may make another one before it returns. */
#define MAX_REQUESTS 8

/* How an attempt to connect ended. */
enum attempt {
	WELL, /* or none was made */
	FAILED,
	SILENT,  /* somebody listens, and has not answered */
	REFUSED, /* glaked is there, and refuses us */
};

/* Held for a few instructions only: questions about pointers take it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *current; /* owned */

/* Held while connecting. Other threads that want memory wait for the outcome. */
static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;
static uint64_t retry_ns; /* after a failure: no attempt before then */
static enum attempt last;
static const char *driver_path;
static connection_new_fn *on_new;

void connection_init(const char *libcuda, connection_new_fn *fn)
{
	driver_path = libcuda;
	on_new = fn;
}

struct connection *connection_peek(void)
{
	pthread_mutex_lock(&lock);
	struct connection *connection = current ? connection_ref(current) : NULL;
	pthread_mutex_unlock(&lock);
	return connection;
}

struct connection *connection_ref(struct connection *connection)
{
	connection->n_refs++;
	return connection;
}

void connection_unref(struct connection *connection)
{
	if (connection && --connection->n_refs == 0) {
		shim_fork_forget(connection->watch);
		glake_disconnect(connection->session);
		free(connection);
	}
}

static void note_attempt(int error, uint64_t took_ns)
{
	bool is_refused = error == GLAKE_E_OVER_QUOTA || error == GLAKE_E_VERSION ||
	                  error == GLAKE_E_DRAINED ||
	                  error == -EINVAL; /* GLAKE_PROMISE is no size */
	bool is_silent = error == GLAKE_E_GONE && took_ns >= CONNECT_AGAIN_MS * 1000000ull;
	last = error == 0 ? WELL : is_refused ? REFUSED : is_silent ? SILENT : FAILED;
}

/* The tenant's choice, for programs that make none. */
static enum shim_dedup wanted_of(const struct glake_session *session)
{
	switch (glake__session_dedup(session)) {
	case GLAKE__DEDUP_AUTO:
		return SHIM_DEDUP_AUTO;
	case GLAKE__DEDUP_OBSERVED:
		return SHIM_DEDUP_OBSERVED;
	default:
		return SHIM_DEDUP_ASKED;
	}
}

static struct connection *connection_new(void)
{
	struct connection *connection = calloc(1, sizeof(*connection));
	if (!connection) {
		return NULL;
	}
	struct glake_connect_options options = {
		.size = sizeof(options),
		.libcuda = driver_path,
		.stitch = shim_policy()->stitches,
	};
	uint64_t began_ns = clock_now_ns();
	int r = glake__connect(&options, last == SILENT ? CONNECT_AGAIN_MS : CONNECT_MS,
	                       &connection->session);
	note_attempt(r, clock_now_ns() - began_ns);
	if (r < 0) {
		free(connection);
		return NULL;
	}
	connection->n_refs = 1;
	connection->n_room = MAX_REQUESTS;
	sem_init(&connection->room, 0, MAX_REQUESTS);
	shim_note_init();
	shim_dedup_tell(wanted_of(connection->session));
	connection->watch = shim_fork_watch(connection->session);
	shim_count(SHIM_COUNT_connects);
	if (on_new) {
		on_new(connection);
	}
	return connection;
}

/* Returns the connection that was current, with its reference. */
static struct connection *replace(struct connection *connection)
{
	pthread_mutex_lock(&lock);
	struct connection *was = current;
	current = connection;
	pthread_mutex_unlock(&lock);
	return was;
}

static struct connection *peek_alive(void)
{
	struct connection *connection = connection_peek();
	if (connection && connection->is_dead) {
		connection_unref(connection);
		connection = NULL;
	}
	return connection;
}

/* Called while connecting. */
static void connect_current(void)
{
	struct connection *connection = NULL;
	if (clock_now_ns() >= retry_ns) {
		connection = connection_new();
		retry_ns = connection ? 0 : clock_now_ns() + RETRY_NS;
	}
	connection_unref(replace(connection));
}

struct connection *connection_get(bool *is_refused_out)
{
	struct connection *connection = peek_alive();
	*is_refused_out = false;
	if (connection) {
		return connection;
	}
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&connecting);
	connection = peek_alive();
	if (!connection) {
		connect_current();
		connection = peek_alive();
		*is_refused_out = !connection && last == REFUSED;
	}
	pthread_mutex_unlock(&connecting);
	return connection;
}

bool connection_note(struct connection *connection, int error)
{
	if (error == GLAKE_E_SHUTTING_DOWN || glake__session_is_gone(connection->session)) {
		connection->is_dead = true;
	}
	/* The library may have made the socket anew. */
	shim_fork_watch_again(connection->watch, connection->session);
	return connection->is_dead;
}

int connection_use(connection_use_fn *use, void *user)
{
	int r = CONNECTION_E_ABSENT;
	for (int attempt = 0; attempt < 2 && r == CONNECTION_E_ABSENT; attempt++) {
		bool is_refused;
		struct connection *connection = connection_get(&is_refused);
		if (!connection) {
			return is_refused ? CONNECTION_E_REFUSED : CONNECTION_E_ABSENT;
		}
		r = use(connection, user);
		if (r != 0) {
			connection_unref(connection);
		}
	}
	return r;
}

/* ---- asking ----------------------------------------------------------------------------------- */

static void enter(struct connection *connection)
{
	while (sem_wait(&connection->room) < 0) {
		/* EINTR: again. */
	}
}

/* Allow one request less from now on. False: this is the last one. */
static bool shrink(struct connection *connection)
{
	int n_room = connection->n_room;
	while (n_room > 1) {
		if (atomic_compare_exchange_weak(&connection->n_room, &n_room, n_room - 1)) {
			return true;
		}
	}
	return false;
}

int connection_ask(struct connection *connection, connection_request_fn *request, void *user)
{
	cleanup_cancel int cancel = cancel_disable();
	enter(connection);
	int r = request(connection, user);
	while (r == GLAKE_E_BUSY && shrink(connection)) {
		enter(connection);
		r = request(connection, user);
	}
	sem_post(&connection->room);
	if (r == 0) {
		return 0;
	}
	/* A process at its limit of open files can still get memory from the driver. */
	bool is_absent = connection_note(connection, r) || r == GLAKE_E_GONE || r == -EMFILE;
	return is_absent ? CONNECTION_E_ABSENT : CONNECTION_E_REFUSED;
}
