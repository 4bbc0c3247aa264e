/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/owner.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "shim/fork.h"
#include "shim/service.h"
#include "shim/shim.h"

#define RETRY_NS 1000000000ull
/* Half of glaked's default limit: a call may be followed by another before it returns. */
#define MAX_CALLS 8

/* Held while connecting: whoever wants memory then has to wait for the answer anyway. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct owner *current; /* owned */
static uint64_t failed_ns;    /* when connecting last failed; 0 = never */
static bool was_refused;      /* and why */

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
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
		glake_disconnect(owner->session);
		free(owner);
	}
}

void owner_enter(struct owner *owner)
{
	while (sem_wait(&owner->room) < 0) {
		/* EINTR is the only reason. */
	}
}

void owner_leave(struct owner *owner)
{
	sem_post(&owner->room);
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
	was_refused = r == GLAKE_E_OVER_QUOTA || r == GLAKE_E_NO_PERMISSION;
	if (r < 0) {
		free(owner);
		return NULL;
	}
	owner->n_refs = 1;
	sem_init(&owner->room, 0, MAX_CALLS);
	shim_note_init();
	shim_fork_watch(glake_fd(owner->session));
	shim_count(SHIM_COUNT_connects);
	service_start(owner);
	return owner;
}

/* Called with the lock held. The reference that was current's, or NULL. */
static struct owner *drop_dead_locked(void)
{
	struct owner *dead = NULL;
	if (current && current->is_dead) {
		dead = current;
		current = NULL;
	}
	return dead;
}

struct owner *owner_get(bool *is_refused_out)
{
	pthread_mutex_lock(&lock);
	struct owner *dead = drop_dead_locked();
	if (!current && (failed_ns == 0 || now_ns() - failed_ns >= RETRY_NS)) {
		current = owner_new();
		failed_ns = current ? 0 : now_ns();
	}
	struct owner *owner = current ? owner_ref(current) : NULL;
	*is_refused_out = !owner && was_refused;
	pthread_mutex_unlock(&lock);
	owner_unref(dead);
	return owner;
}

bool owner_is_gone(struct owner *owner, int error)
{
	switch (error) {
	case GLAKE_E_GONE:
	case GLAKE_E_PROTOCOL:
	case GLAKE_E_SHUTTING_DOWN:
		owner->is_dead = true;
		return true;
	default:
		return false;
	}
}

int owner_judge(struct owner *owner, int error)
{
	if (owner_is_gone(owner, error)) {
		return OWNER_E_ABSENT;
	}
	switch (error) {
	case GLAKE_E_OVER_QUOTA:
	case GLAKE_E_NO_DEVICE_MEMORY:
	case GLAKE_E_NO_HOST_MEMORY:
	case GLAKE_E_NO_FDS:
	case GLAKE_E_BAD_REQUEST: /* larger than glaked would ever give */
	case -ENOMEM:
	case -EINVAL: /* does not even round up */
		return OWNER_E_FULL;
	default:
		return OWNER_E_ABSENT;
	}
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
