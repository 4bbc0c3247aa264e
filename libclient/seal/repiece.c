/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/repiece.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/seal/look.h"
#include "libclient/space/errand.h"
#include "libclient/space/reback.h"
#include "libclient/heap/supply.h"
#include "proto/cleanup.h"

/* One of those that change together. */
struct exchange {
	struct glake__repiecing *what;
	uint64_t n_bytes;
	struct glake__part *parts; /* owned: the fresh chunks */
	struct glake__range
		*scratch; /* owned: where they are until then; NULL: an errand has them */
	struct glake__range *mirror; /* owned: of what is there */
	struct glake__hold hold;
};

/* Fresh chunks on their way to a place. */
static const struct glake__use scratch_use = {
	.name = "scratch", .kind = GLAKE__FREE, .is_ours = true};

/* One request for each run of equal sizes. */
static int fill_once(const struct glake__repiecing *repiecing, struct glake__range *scratch,
                     struct glake__wait *wait)
{
	const uint64_t *sizes = repiecing->sizes;
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < repiecing->n_sizes;) {
		uint64_t chunk_bytes = sizes[i];
		uint64_t n_bytes = 0;
		for (; i < repiecing->n_sizes && sizes[i] == chunk_bytes; i++) {
			n_bytes += chunk_bytes;
		}
		r = glake__grant_fill(repiecing->device, scratch, offset, n_bytes, chunk_bytes,
		                      wait);
		offset += n_bytes;
	}
	return r;
}

/* Fresh memory of the driver: nobody pays for it, and it ends with its mapping. */
static int create_one(const struct glake__device *device, struct glake__range *scratch,
                      uint64_t offset, uint64_t n_bytes)
{
	struct glake__part part = {
		.chunk = glake__chunk_new(0, n_bytes, device->handle, GLAKE__PAGE_CHUNK),
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
	if (!part.chunk) {
		return -ENOMEM;
	}
	int r = glake__map_create(device->handle, n_bytes, &part.handle);
	if (r == 0) {
		r = glake__range_fill(scratch, offset, &part, 1);
		glake__map_release(part.handle);
	}
	glake__chunk_put(part.chunk);
	return r;
}

static int create(const struct glake__repiecing *repiecing, struct glake__range *scratch)
{
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < repiecing->n_sizes; i++) {
		r = create_one(repiecing->device, scratch, offset, repiecing->sizes[i]);
		offset += repiecing->sizes[i];
	}
	return r;
}

/* Unmap what is in @scratch; the chunks that nothing else has go back. */
static int empty(struct glake_session *session, struct glake__range *scratch)
{
	struct glake__chunk *dead = NULL;
	int r = glake__range_clear(scratch, 0, scratch->n_bytes, &dead);
	glake__grant_return(session, dead);
	return r;
}

static int fill_host(const struct glake__repiecing *repiecing, struct glake__range *scratch,
                     struct glake__wait *wait)
{
	uint64_t offset = 0;
	int r = 0;
	for (size_t i = 0; r == 0 && i < repiecing->n_sizes; i++) {
		r = glake__grant_fill_host(repiecing->device, scratch, offset, repiecing->sizes[i],
		                           wait);
		offset += repiecing->sizes[i];
	}
	return r;
}

static bool is_lack(int error)
{
	return error == GLAKE_E_NO_DEVICE_MEMORY || error == GLAKE_E_OVER_QUOTA ||
	       error == GLAKE_E_NO_FDS;
}

/*
 * The GPU has no room, as *r says: in host memory, or *r stays. What is left of the same write does not wait for room on the
 * GPU again; for host memory it does, there is nothing beyond.
 */
static void take_refuge(struct glake__repiecing *repiecing, struct glake__range *scratch,
                        struct glake__wait *wait, int *r)
{
	struct glake_session *session = repiecing->device->session;
	char *text = glake__error_save();
	wait->no_wait = false;
	if (fill_host(repiecing, scratch, wait) == 0) {
		repiecing->is_host = true;
		wait->no_wait = true;
		*r = 0;
	} else {
		empty(session, scratch);
	}
	glake__error_restore(text);
}

static int fill(struct glake__repiecing *repiecing, struct glake__range *scratch,
                struct glake__wait *wait)
{
	struct glake__device *device = repiecing->device;
	int r = fill_once(repiecing, scratch, wait);
	while (r < 0 && !wait->is_spare && glake__supply_make_room(device, r, wait) &&
	       empty(device->session, scratch) == 0) {
		r = fill_once(repiecing, scratch, wait);
	}
	/* Whoever wants to write must not notice that glaked has gone, or leaves. */
	bool is_absent = r == GLAKE_E_GONE || r == GLAKE_E_SHUTTING_DOWN ||
	                 glake__link_is_gone(&device->session->link);
	if (r < 0 && is_absent && empty(device->session, scratch) == 0) {
		r = create(repiecing, scratch);
	}
	if (is_lack(r) && repiecing->may_be_host && !wait->is_spare) {
		take_refuge(repiecing, scratch, wait, &r);
	}
	return r;
}

/* All chunks of the scratch; nobody else changes it. */
static void list_parts(const struct exchange *exchange)
{
	struct glake__part *parts = exchange->parts;
	glake__lock();
	for (const struct glake__piece *at = exchange->scratch->first; at; at = at->next) {
		*parts++ = (struct glake__part){
			.chunk = at->chunk,
			.n_bytes = at->n_bytes,
			.access = GLAKE__ACCESS_WRITE,
			.fd = -1,
		};
	}
	glake__unlock();
}

/* ---- fresh memory ------------------------------------------------------------------------------ */

static void end_exchange(struct exchange *exchange)
{
	struct glake_session *session = exchange->what->device->session;
	glake__errand_end(session, &exchange->mirror);
	glake__errand_end(session, &exchange->scratch);
	free(exchange->parts);
	exchange->parts = NULL;
}

static int begin_exchange(struct exchange *exchange, struct glake__repiecing *what,
                          struct glake__wait *wait)
{
	*exchange = (struct exchange){.what = what};
	wait->unseals = what->unseals;
	for (size_t i = 0; i < what->n_sizes; i++) {
		exchange->n_bytes += what->sizes[i];
	}
	exchange->parts = calloc(what->n_sizes, sizeof(*exchange->parts));
	int r = exchange->parts ? glake__range_reserve(&scratch_use, NULL, what->device->handle,
	                                               exchange->n_bytes, 0, 0, &exchange->scratch)
	                        : glake__fail(-ENOMEM, "out of memory");
	r = r < 0 ? r : fill(what, exchange->scratch, wait);
	if (r < 0) {
		end_exchange(exchange);
	} else {
		list_parts(exchange);
	}
	return r;
}

/* The first, and as many more as are free. Returns how many have memory; 0: the first has an error. */
static size_t begin_all(struct exchange *list, struct glake__repiecing *whats, size_t n,
                        struct glake__wait *wait)
{
	struct glake__wait spare = {.is_spare = true};
	whats[0].result = begin_exchange(&list[0], &whats[0], wait);
	if (whats[0].result < 0) {
		return 0;
	}
	char *text = glake__error_save();
	size_t i = 1;
	while (i < n && glake__rpc_knows_spare(whats[i].device->session) &&
	       begin_exchange(&list[i], &whats[i], &spare) == 0) {
		whats[i].result = 0;
		i++;
	}
	glake__error_restore(text);
	return i;
}

/* ---- what is there ----------------------------------------------------------------------------- */

/* Nobody else changes, names or pins it from now on. */
static int check_held(const struct exchange *exchange)
{
	const struct glake__repiecing *what = exchange->what;
	enum glake__pin pin;
	if (!glake__look_is_still(&exchange->hold, what->ptr, exchange->n_bytes, what->last,
	                          &pin)) {
		return glake__fail(-ESTALE, "0x%llx: mapped anew meanwhile",
		                   (unsigned long long)what->ptr);
	}
	return pin ? glake__fail(-EBUSY, "the memory at 0x%llx is pinned: %s",
	                         (unsigned long long)what->ptr, glake__pin_text(pin))
	           : 0;
}

/* @holding has its result. */
static int see_held(struct exchange *exchange, const struct glake__holding *holding)
{
	const struct glake__repiecing *what = exchange->what;
	if (holding->result < 0) {
		return glake__fail(-ESTALE, "0x%llx: unmapped meanwhile",
		                   (unsigned long long)what->ptr);
	}
	int r = check_held(exchange);
	return r < 0 ? r
	             : glake__errand_mirror(what->device, exchange->hold.range,
	                                    exchange->hold.offset, exchange->n_bytes,
	                                    GLAKE__ACCESS_READ, &exchange->mirror);
}

/*
 * Holds the old memory, all at once. Returns how many have a result: those before the first whose memory one of them has
 * already, at another place.
 */
static size_t hold_all(struct exchange *list, size_t n, struct glake__holding *holdings)
{
	size_t n_held = 0;
	for (size_t i = 0; i < n; i++) {
		holdings[i] = (struct glake__holding){.hold = &list[i].hold,
		                                      .ptr = list[i].what->ptr,
		                                      .n_bytes = list[i].n_bytes};
	}
	glake__holds_begin(holdings, n, true);
	while (n_held < n && holdings[n_held].result != -EALREADY) {
		n_held++;
	}
	for (size_t i = 0; i < n_held; i++) {
		list[i].what->result = see_held(&list[i], &holdings[i]);
	}
	return n_held;
}

/* ---- the exchange ------------------------------------------------------------------------------ */

/* The exchanges of one closing of the gate. */
struct turn {
	struct exchange **list; /* borrowed: in the order of their turns */
	uint64_t readers;
	uint64_t last; /* errand before it was closed */
	bool is_drained;
};

/* No work that reads what is there is under way, so the copy is done soon, and nobody writes meanwhile. */
static int copy(void *user, size_t i)
{
	struct turn *turn = user;
	struct exchange *exchange = turn->list[i];
	if (!turn->is_drained) {
		turn->is_drained = true;
		glake__errands_drained(turn->last, turn->readers);
	}
	return glake__errand_copy(exchange->what->device, &exchange->scratch, &exchange->mirror);
}

/* All @turns, which have no error so far. */
static void exchange_all(struct exchange **turns, size_t n, struct glake__rebacking *rebackings,
                         glake__close_fn *close)
{
	struct turn turn = {.list = turns, .last = glake__errands_last()};
	for (size_t i = 0; i < n; i++) {
		rebackings[i] = (struct glake__rebacking){
			.hold = &turns[i]->hold,
			.parts = turns[i]->parts,
			.n_parts = turns[i]->what->n_sizes,
		};
		turn.readers |= glake__hold_readers(&turns[i]->hold);
	}
	const struct glake__rebacking_way way = {
		.close = close, .readers = turn.readers, .before = copy, .user = &turn};
	glake__hold_reback_all(rebackings, n, &way);
	for (size_t i = 0; i < n; i++) {
		struct glake_session *session = turns[i]->what->device->session;
		turns[i]->what->result = rebackings[i].result;
		glake__errand_end(session, &turns[i]->mirror);
		glake__grant_return(session, rebackings[i].dead);
	}
}

/* ---- all of it --------------------------------------------------------------------------------- */

/* Exchanges those that have memory. */
static size_t exchange_held(struct exchange *list, size_t n, glake__close_fn *close)
{
	cleanup_free struct glake__holding *holdings = calloc(n, sizeof(*holdings));
	cleanup_free struct glake__rebacking *rebackings = calloc(n, sizeof(*rebackings));
	cleanup_free struct exchange **turns = calloc(n, sizeof(struct exchange *));
	size_t n_turns = 0;
	if (!holdings || !rebackings || !turns) {
		list[0].what->result = glake__fail(-ENOMEM, "out of memory");
		return 1;
	}
	size_t n_held = hold_all(list, n, holdings);
	for (size_t i = 0; i < n_held; i++) {
		if (list[i].what->result == 0) {
			turns[n_turns++] = &list[i];
		}
	}
	if (n_turns > 0) {
		exchange_all(turns, n_turns, rebackings, close);
	}
	for (size_t i = 0; i < n; i++) {
		glake__hold_end(&list[i].hold);
	}
	return n_held;
}

static int first_error(const struct glake__repiecing *list, size_t n)
{
	size_t i = 0;
	while (i < n && (list[i].result == 0 || list[i].result == -ESTALE)) {
		i++;
	}
	return i < n ? list[i].result : 0;
}

int glake__repiece(struct glake__repiecing *list, size_t n, glake__close_fn *close,
                   struct glake__wait *wait, size_t *n_out)
{
	cleanup_free struct exchange *exchanges = calloc(n, sizeof(*exchanges));
	*n_out = 1;
	if (!exchanges) {
		list[0].result = glake__fail(-ENOMEM, "out of memory");
		return list[0].result;
	}
	size_t n_begun = begin_all(exchanges, list, n, wait);
	if (n_begun > 0) {
		*n_out = exchange_held(exchanges, n_begun, close);
	}
	for (size_t i = 0; i < n_begun; i++) {
		end_exchange(&exchanges[i]);
	}
	glake__errands_collect();
	return first_error(list, *n_out);
}
