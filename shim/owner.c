/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/owner.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/fork.h"
#include "shim/shim.h"

#define RETRY_NS 1000000000ull
#define RETRY_SHARE 10 /* times what the last attempt took */
/* Half of glaked's default limit: a request may be followed by another before it returns. */
#define MAX_REQUESTS 8

/* Never held for long: questions about pointers come this way. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct owner *current; /* owned */

/* Held while connecting: whoever wants memory then has to wait for the answer anyway. */
static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;
static uint64_t retry_ns; /* when it has failed: not before */
static bool was_refused;  /* and why */
static owner_new_fn *on_new;

void owner_on_new(owner_new_fn *fn)
{
	on_new = fn;
}

struct owner *owner_peek(void)
{
	pthread_mutex_lock(&lock);
	struct owner *owner = current ? owner_ref(current) : NULL;
	pthread_mutex_unlock(&lock);
	return owner;
}

struct owner *owner_ref(struct owner *owner)
{
	owner->n_refs++;
	return owner;
}

void owner_unref(struct owner *owner)
{
	if (owner && --owner->n_refs == 0) {
		shim_fork_forget(owner->watch);
		glake_disconnect(owner->session);
		free(owner);
	}
}

static struct owner *owner_new(void)
{
	struct owner *owner = calloc(1, sizeof(*owner));
	if (!owner) {
		return NULL;
	}
	struct glake_connect_options options = {
		.size = sizeof(options),
		.libcuda = shim_libcuda(),
	};
	int r = glake_connect(&options, &owner->session);
	was_refused = r == GLAKE_E_OVER_QUOTA || r == GLAKE_E_VERSION;
	if (r < 0) {
		free(owner);
		return NULL;
	}
	owner->n_refs = 1;
	owner->n_room = MAX_REQUESTS;
	sem_init(&owner->room, 0, MAX_REQUESTS);
	shim_note_init();
	owner->watch = shim_fork_watch(glake_fd(owner->session));
	shim_count(SHIM_COUNT_connects);
	if (on_new) {
		on_new(owner);
	}
	return owner;
}

/* Returns what was current, with its reference. */
static struct owner *replace(struct owner *owner)
{
	pthread_mutex_lock(&lock);
	struct owner *was = current;
	current = owner;
	pthread_mutex_unlock(&lock);
	return was;
}

static struct owner *peek_alive(void)
{
	struct owner *owner = owner_peek();
	if (owner && owner->is_dead) {
		owner_unref(owner);
		owner = NULL;
	}
	return owner;
}

/* Called while connecting. */
static void connect_current(void)
{
	uint64_t began_ns = clock_now_ns();
	struct owner *owner = NULL;
	if (began_ns >= retry_ns) {
		owner = owner_new();
		uint64_t pause_ns = (clock_now_ns() - began_ns) * RETRY_SHARE;
		retry_ns = owner ? 0 : clock_now_ns() + (pause_ns > RETRY_NS ? pause_ns : RETRY_NS);
	}
	owner_unref(replace(owner));
}

struct owner *owner_get(bool *is_refused_out)
{
	*is_refused_out = false;
	struct owner *owner = peek_alive();
	if (owner) {
		return owner;
	}
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&connecting);
	owner = peek_alive();
	if (!owner) {
		connect_current();
		owner = peek_alive();
		*is_refused_out = !owner && was_refused;
	}
	pthread_mutex_unlock(&connecting);
	return owner;
}

bool owner_note_error(struct owner *owner, int error)
{
	/* A lost connection is made anew, if glaked still knows us. */
	bool is_gone = glake_fd(owner->session) < 0 && glake_dispatch(owner->session) < 0 &&
	               glake_fd(owner->session) < 0;
	if (error == GLAKE_E_SHUTTING_DOWN || is_gone) {
		owner->is_dead = true;
	}
	shim_fork_watch_again(owner->watch, glake_fd(owner->session));
	return owner->is_dead;
}

/* ---- asking ----------------------------------------------------------------------------------- */

static void enter(struct owner *owner)
{
	while (sem_wait(&owner->room) < 0) {
		/* EINTR is the only reason. */
	}
}

/* Keep this request's room from later ones. False: there is no other. */
static bool shrink(struct owner *owner)
{
	int n_room = owner->n_room;
	while (n_room > 1) {
		if (atomic_compare_exchange_weak(&owner->n_room, &n_room, n_room - 1)) {
			return true;
		}
	}
	return false;
}

int owner_ask(struct owner *owner, owner_request_fn *request, void *user)
{
	cleanup_cancel int cancel = cancel_disable();
	enter(owner);
	int r = request(owner, user);
	if (r == GLAKE_E_GONE && !owner_note_error(owner, r)) {
		r = request(owner, user);
	}
	while (r == GLAKE_E_BUSY && shrink(owner)) {
		enter(owner);
		r = request(owner, user);
	}
	sem_post(&owner->room);
	if (r == 0) {
		return 0;
	}
	/* At its limit of open files a process can still have memory of the driver's. */
	return owner_note_error(owner, r) || r == -EMFILE ? OWNER_E_ABSENT : OWNER_E_FULL;
}

bool owner_device(struct owner *owner, int ordinal, struct glake_device *device_out)
{
	for (uint32_t i = 0; glake_device_at(owner->session, i, device_out) == 0; i++) {
		if (device_out->ordinal == ordinal) {
			return true;
		}
	}
	return false;
}
