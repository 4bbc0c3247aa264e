/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/seal_ask.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/ask.h"
#include "shim/auto.h"
#include "shim/may.h"
#include "shim/turn.h"

/* One call seals at most this much or one span. Between two calls glaked hears of it, and the program may end. */
#define BATCH_BYTES (4ull << 30)
/* A batch for which the program's work cannot be held back is tried again. */
#define TRIES 5u
#define PAUSE_NS 100000000

/* ---- sealing ---------------------------------------------------------------------------------- */

struct work {
	struct connection *connection;
	uint64_t id;
	bool is_dry_run;
	struct glake__candidates candidates;
	struct glake_sealed sum;
	struct glake__seal_report report;
	char why[128]; /* the first error; "": none */
};

/* Add the numbers that every try contributes to. */
static void add_try(struct glake_sealed *sum, const struct glake_sealed *sealed)
{
	sum->shared_bytes += sealed->shared_bytes;
	sum->held_ns += sealed->held_ns;
	if (sealed->longest_held_ns > sum->longest_held_ns) {
		sum->longest_held_ns = sealed->longest_held_ns;
	}
}

/* Add the numbers that only the last try knows. */
static void add_last(struct glake_sealed *sum, const struct glake_sealed *sealed)
{
	sum->sealed_bytes += sealed->sealed_bytes;
	sum->pinned_bytes += sealed->pinned_bytes;
	sum->pinned_why = sealed->pinned_why ? sealed->pinned_why : sum->pinned_why;
}

/* Sealing is tried again, because queued work may take longer than it waits. */
static int seal_batch(struct work *work, const struct glake_span *spans, size_t n)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	int r = -EBUSY;
	for (unsigned i = 0; r == -EBUSY && i < TRIES && !turn_is_last(); i++) {
		if (i > 0) {
			clock_sleep_ns(PAUSE_NS);
		}
		sealed = (struct glake_sealed){.size = sizeof(sealed)};
		r = glake__candidates_seal(spans, n, &sealed);
		add_try(&work->sum, &sealed);
	}
	add_last(&work->sum, &sealed);
	work->report.done_bytes = work->sum.sealed_bytes + work->sum.pinned_bytes;
	return r;
}

/* How many spans come next: BATCH_BYTES or one span. */
static size_t next_batch(const struct glake__candidates *candidates, size_t first)
{
	uint64_t n_bytes = 0;
	size_t n = 0;
	while (first + n < candidates->n_spans && n_bytes < BATCH_BYTES) {
		n_bytes += candidates->spans[first + n].bytes;
		n++;
	}
	return n;
}

/* Stops at the first error and returns it, because later ones would be the same. */
static int seal_all(struct work *work)
{
	int r = 0;
	for (size_t i = 0; !work->why[0] && i < work->candidates.n_spans;) {
		size_t n = next_batch(&work->candidates, i);
		if (turn_is_last()) {
			snprintf(work->why, sizeof(work->why), "the program ends");
			return 0;
		}
		r = seal_batch(work, &work->candidates.spans[i], n);
		if (r < 0) {
			snprintf(work->why, sizeof(work->why), "%s", glake_error());
		}
		glake__seal_tell(work->connection->session, work->id, &work->report);
		i += n;
	}
	connection_note(work->connection, r);
	return r;
}

/*
 * Count the candidates again, by reason. The program went on meanwhile: memory that it has filled since counts as not filled.
 */
static int look_again(struct work *work)
{
	struct glake__candidates *candidates = &work->candidates;
	free(candidates->spans);
	int r = glake__candidates_find(work->connection->session, candidates);
	uint64_t n_done = candidates->sealed_bytes + work->sum.pinned_bytes;
	uint64_t n_left = candidates->n_bytes > n_done ? candidates->n_bytes - n_done : 0;
	if (work->why[0]) {
		work->report.failed_bytes = n_left;
		work->report.failed_why = work->why;
	} else {
		candidates->unfilled_bytes += n_left;
	}
	return r;
}

static bool is_busy(int error)
{
	return error == -EBUSY || error == GLAKE_E_BUSY;
}

/* Returns 0; or an error, for which the asker gets no numbers. */
static int run(struct work *work)
{
	int r = may_seal(work->connection->session, work->why, sizeof(work->why));
	if (r < 0) {
		return r;
	}
	r = glake__candidates_find(work->connection->session, &work->candidates);
	const uint64_t before = work->candidates.sealed_bytes;
	int error = 0;
	work->report.total_bytes = work->candidates.n_bytes;
	if (r == 0 && work->is_dry_run) {
		work->candidates.sealed_bytes = work->candidates.n_bytes;
	} else if (r == 0) {
		error = seal_all(work);
		r = look_again(work);
	}
	free(work->candidates.spans);
	if (r == 0 && is_busy(error) && work->candidates.sealed_bytes <= before) {
		/* Nothing was sealed, so the asker may try again. */
		return error;
	}
	if (r < 0) {
		snprintf(work->why, sizeof(work->why), "out of memory");
	}
	return r;
}

static void serve(struct work *work)
{
	struct glake_session *session = work->connection->session;
	uint64_t began_ns = clock_now_ns();
	work->report.candidates = &work->candidates;
	work->report.sealed = &work->sum;
	/* glaked waits only for programs that answer. */
	glake__seal_tell(session, work->id, &work->report);
	work->report.error = run(work);
	work->report.why = work->why;
	work->report.is_over = true;
	work->report.took_ns = clock_now_ns() - began_ns;
	ask_clear(&work->connection->seal_ask);
	glake__seal_tell(session, work->id, &work->report);
}

/* If there is no memory, glaked is told of no candidates. */
static void tell_candidates(struct connection *connection, uint64_t id)
{
	struct auto_list *list = auto_list();
	const struct glake__candidate_list none = {.n = 0};
	ask_clear(&connection->seal_ask);
	glake__candidates_tell(connection->session, id, list ? &list->list : &none);
	free(list);
}

/* ---- asking ----------------------------------------------------------------------------------- */

static void on_ask(void *user, uint64_t id, enum glake__seal_what what)
{
	struct connection *connection = user;
	if (!ask_put(&connection->seal_ask, id, what)) {
		const struct glake__seal_report report = {
			.is_over = true,
			.error = -EBUSY,
			.why = "it is sealing already",
		};
		glake__seal_tell(connection->session, id, &report);
	}
}

void seal_ask_follow(struct connection *connection)
{
	glake__seal_follow(connection->session, on_ask, connection);
}

void seal_ask_serve(struct connection *connection)
{
	const struct ask ask = ask_look(&connection->seal_ask);
	if (ask.id && ask.what == GLAKE__SEAL_CANDIDATES) {
		tell_candidates(connection, ask.id);
	} else if (ask.id) {
		struct work work = {
			.connection = connection,
			.id = ask.id,
			.is_dry_run = ask.what == GLAKE__SEAL_DRY_RUN,
		};
		serve(&work);
	}
}
