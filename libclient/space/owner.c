/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/owner.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/grant.h"

struct glake__owner *glake__owner_new(const struct glake__owner *values)
{
	struct glake__owner *owner = malloc(sizeof(*owner));
	if (!owner) {
		glake__fail(-ENOMEM, "out of memory");
		return NULL;
	}
	*owner = *values;
	owner->n_refs = 1;
	return owner;
}

static void end(struct glake__owner *owner)
{
	if (owner->device) {
		struct glake_session *session = owner->device->session;
		glake__lock();
		session->books.live_bytes -= owner->n_bytes;
		glake__unlock();
		session->report(session);
	}
	owner->end(owner->user);
	free(owner);
}

void glake__owner_put(struct glake__owner *owner)
{
	if (!owner) {
		return;
	}
	glake__lock();
	bool is_last = --owner->n_refs == 0;
	glake__unlock();
	if (is_last) {
		end(owner);
	}
}

/* A chunk without an id of glaked's goes with its handle. */
static void release_owned(struct glake__chunk *chunk)
{
	struct glake__owner *owner = chunk->owner;
	chunk->owner = NULL;
	chunk->next = NULL;
	chunk->release = glake__chunk_free;
	if (owner->device) {
		glake__grant_return(owner->device->session, chunk);
	} else {
		chunk->release(chunk);
	}
	glake__owner_put(owner);
}

void glake__owner_join_locked(struct glake__owner *owner, struct glake__chunk *chunk)
{
	if (owner) {
		owner->n_refs++;
		chunk->owner = owner;
		chunk->release = release_owned;
	}
}
