/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/refuge.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/seal/look.h"
#include "libclient/seal/repiece.h"
#include "libclient/seal/spans.h"
#include "proto/cleanup.h"

struct refuge {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct refuge *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct refuge *refuges; /* owned */
static uint64_t n_all_bytes;   /* of refuges */

static void push(struct refuge *refuge)
{
	pthread_mutex_lock(&lock);
	refuge->next = refuges;
	refuges = refuge;
	n_all_bytes += refuge->n_bytes;
	pthread_mutex_unlock(&lock);
}

static struct refuge *take_all(void)
{
	pthread_mutex_lock(&lock);
	struct refuge *all = refuges;
	refuges = NULL;
	n_all_bytes = 0;
	pthread_mutex_unlock(&lock);
	return all;
}

void glake__refuge_note(glake_ptr ptr, uint64_t n_bytes)
{
	struct refuge *refuge = malloc(sizeof(*refuge));
	/* Without memory it stays where it is until it is freed. */
	if (refuge) {
		*refuge = (struct refuge){.ptr = ptr, .n_bytes = n_bytes};
		push(refuge);
	}
}

uint64_t glake__refuge_bytes(void)
{
	pthread_mutex_lock(&lock);
	uint64_t n_bytes = n_all_bytes;
	pthread_mutex_unlock(&lock);
	return n_bytes;
}

/* Whether it is, or is gone. */
static bool bring_back(const struct refuge *refuge, struct glake__spans *spans)
{
	const uint64_t last = glake__look_last();
	struct glake__wait wait = {.is_spare = true};
	const struct glake__look piece = glake__look_at(spans->list[0].held, refuge->ptr,
	                                                &spans->sessions);
	struct glake__repiecing repiecing = {
		.ptr = piece.ptr,
		.device = piece.device,
		.sizes = &piece.n_bytes,
		.n_sizes = 1,
		.last = last,
	};
	size_t n;
	if (piece.kind != GLAKE__PAGE_HOST || !piece.device) {
		return true;
	}
	glake__repiece(&repiecing, 1, glake__gate_close_soon, &wait, &n);
	return repiecing.result == 0;
}

static bool try_to_bring_back(const struct refuge *refuge)
{
	const struct glake_span span = {.ptr = refuge->ptr, .bytes = refuge->n_bytes};
	struct glake__spans spans;
	int r = glake__spans_hold(&spans, &span, 1, NULL);
	/* Memory that is no allocation any more has gone. */
	bool is_over = r == -EINVAL ||
	               (r == 0 && (!spans.list[0].held || bring_back(refuge, &spans)));
	glake__spans_let(&spans, 0);
	return is_over;
}

void glake__refuge_return(void)
{
	cleanup_cancel int cancel = cancel_disable();
	char *text = glake__error_save();
	bool has_room = true;
	for (struct refuge *next, *at = take_all(); at; at = next) {
		next = at->next;
		has_room = has_room && try_to_bring_back(at);
		if (has_room) {
			free(at);
		} else {
			push(at);
		}
	}
	glake__error_restore(text);
}
