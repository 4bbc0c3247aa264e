/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/held.h"

#include <errno.h>

#include "libclient/link/session.h"
#include "proto/cleanup.h"

void glake__held_wait_locked(void)
{
	cleanup_cancel int cancel = cancel_disable();
	pthread_cond_wait(&glake__space.let, &glake__space.lock);
}

/* The session of held memory stays as long as that (glake__heap_wait_left()). */
static void count(const struct glake__held *held, int n)
{
	if (held->device) {
		held->device->session->books.n_holds += (uint32_t)n;
	}
}

static int try_locked(glake_ptr address, struct glake__held *held_out)
{
	const struct glake__piece *piece = glake__piece_at_locked(address);
	const struct glake__use *use = piece ? piece->range->use : NULL;
	*held_out = (struct glake__held){.use = NULL};
	int r = use && use->hold ? use->hold(piece->range, address, held_out) : -ENOENT;
	if (r == 0) {
		held_out->use = use;
		count(held_out, 1);
	}
	return r;
}

int glake__held_begin(glake_ptr address, struct glake__held *held_out)
{
	int r;
	glake__lock();
	while ((r = try_locked(address, held_out)) == -EBUSY) {
		glake__held_wait_locked();
	}
	glake__unlock();
	return r;
}

void glake__held_end(struct glake__held *held)
{
	glake__lock();
	if (held->use) {
		if (held->use->let) {
			held->use->let(held);
		}
		count(held, -1);
		pthread_cond_broadcast(&glake__space.let);
	}
	held->use = NULL;
	glake__unlock();
}
