/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto.h has the states, guard.h says why sealing cannot make a kernel fault. What can go wrong here, and why it does not.
 * Memory may be freed, and its address be another allocation's: an allocation is known by an id that is never used again, and
 * the library asks may_be_sealed() while it holds the memory. A free that fails gives the memory back, so only a candidate that
 * several looks have not found is dropped. A graph may write to the memory: it was marked before the notes of graphs are
 * searched (graphs.c). The program may end: sealing goes by batches, and stops when the turn is the last. Two service threads
 * may be here, of a dead connection and of the current one: the second one skips its turn.
 */
#include "shim/auto.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "proto/limits.h"
#include "shim/doubts.h"
#include "shim/graphs.h"
#include "shim/guard.h"
#include "shim/learn.h"
#include "shim/may.h"
#include "shim/reader_files.h"
#include "shim/shim.h"
#include "shim/turn.h"

_Static_assert(sizeof(((struct glake__alone *)0)->why) == GUARD_WHY_BYTES, "they are copied");

#define TURN_MS 250u
#define MAX_CANDIDATES 4096u
/* The first back-off, in quiet times. */
#define FIRST_BACK_OFF 12u
/* One call seals at most this much or one span, so that the program can end between two calls. */
#define BATCH_BYTES (1ull << 30)
/* Sealing that fails because the GPU is busy is tried again so often. */
#define MAX_BUSY 40u
#define MAX_GONE 4u
/* Looking takes at most one part in this many of a processor's time. Waits do not count: a look may wait while the program loads. */
#define LOOK_PART 50u
#define MAX_BACK_OFF_NS 3600000000000ull
#define MAX_UNSEALED 2u
/* A candidate to learn with is cut into this many: those before a word of a launch are closed (learn.h). */
#define PIECES 8u
/* How often may_seal() is asked whether anybody writes past the GPU's page tables. */
#define MAY_NS 5000000000ull

enum state { FILLING, QUIET, SEALED, REFUSED };

struct candidate {
	uint64_t id; /* the allocation's */
	CUdeviceptr ptr;
	uint64_t n_bytes;
	uint64_t n_filled; /* bytes of its pages that look like weights */
	uint64_t n_found;  /* n_filled as of the look under way */
	uint64_t since_ns; /* when n_filled changed last, or a new try began */
	uint64_t not_before_ns;
	uint64_t back_off_ns;
	unsigned n_unsealed;
	unsigned n_gone; /* looks in a row that have not found it */
	unsigned n_busy; /* failed tries in a row; 0: nothing is left to seal */
	enum state state;
	char why[GUARD_WHY_BYTES]; /* if REFUSED */
};

static struct candidate candidates[MAX_CANDIDATES];
static size_t n_candidates;
static pthread_mutex_t lock =
	PTHREAD_MUTEX_INITIALIZER; /* a dead connection's service thread may still be here */
static uint64_t look_ns;           /* no look before then */
static uint64_t may_ns; /* when may_seal() said yes last; 0: never, or it said no since */
static atomic_bool has_sealed;
/* Memory that looks like weights, and that the program maps itself, is never sealed by itself (docs/decisions/073). */
static CUdeviceptr mapped_ptr; /* the first such page */
static uint64_t mapped_bytes;
static const char mapped_why[] =
	"the program maps it itself: which part of it a pointer is for is not known";

/* The processor's time that this thread has taken. */
static uint64_t cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t quiet_ns(void)
{
	static uint64_t ns;
	if (ns == 0) {
		const char *text = secure_getenv("GLAKE_DEDUP_QUIET_MS");
		unsigned long ms = text ? strtoul(text, NULL, 10) : 0;
		ns = (ms > 0 && ms <= 3600000 ? ms : 5000) * 1000000ull;
	}
	return ns;
}

bool auto_has_sealed(void)
{
	return has_sealed;
}

void auto_begin(struct connection *connection)
{
	const enum shim_dedup dedup = shim_dedup();
	char *text = NULL;
	size_t n_bytes = 0;
	if ((dedup != SHIM_DEDUP_AUTO && dedup != SHIM_DEDUP_OBSERVED) || !reader_files_wants()) {
		return;
	}
	if (glake__readers_get(connection->session, &text, &n_bytes) == 0 && text &&
	    reader_files_take(text, n_bytes)) {
		/* Ask for all kernels again, because tables may know them now. */
		kernels_hide_code();
		kernels_show_code(true);
	}
	free(text);
}

unsigned auto_turn_ms(void)
{
	return shim_dedup() <= SHIM_DEDUP_ASKED ? 0 : TURN_MS;
}

/* ---- states ----------------------------------------------------------------------------------- */

static void set_refused(struct candidate *candidate, const char *why, uint64_t now_ns)
{
	uint64_t back_off_ns = candidate->back_off_ns ? 2 * candidate->back_off_ns
	                                              : FIRST_BACK_OFF * quiet_ns();
	candidate->n_unsealed += candidate->state == SEALED;
	candidate->state = REFUSED;
	candidate->back_off_ns = back_off_ns < MAX_BACK_OFF_NS ? back_off_ns : MAX_BACK_OFF_NS;
	candidate->not_before_ns = candidate->n_unsealed >= MAX_UNSEALED
	                                   ? UINT64_MAX
	                                   : now_ns + candidate->back_off_ns;
	snprintf(candidate->why, sizeof(candidate->why), "%s", why);
}

/* Make the candidate private and take the mark away. False: that is impossible now. */
static bool let(struct candidate *candidate, const char *why)
{
	if (guard_make_private(candidate->id, why) < 0) {
		return false;
	}
	guard_unmark(candidate->id);
	return true;
}

static void refuse(struct candidate *candidate, const char *why, uint64_t now_ns)
{
	if (let(candidate, why)) {
		set_refused(candidate, why, now_ns);
	}
}

/* ---- looking ---------------------------------------------------------------------------------- */

static struct candidate *get_candidate(const struct heap_facts *facts, uint64_t now_ns)
{
	size_t i = 0;
	while (i < n_candidates && candidates[i].id != facts->id) {
		i++;
	}
	if (i == n_candidates && n_candidates < MAX_CANDIDATES) {
		candidates[n_candidates++] = (struct candidate){
			.id = facts->id,
			.ptr = facts->address,
			.n_bytes = facts->n_bytes,
			.since_ns = now_ns,
		};
	}
	return i < n_candidates ? &candidates[i] : NULL;
}

static void add_spans(const struct glake__candidates *found, uint64_t now_ns)
{
	mapped_bytes = 0;
	for (size_t i = 0; i < found->n_spans; i++) {
		struct heap_facts facts;
		bool is_ours = heap_find(found->spans[i].ptr, &facts);
		struct candidate *candidate = is_ours ? get_candidate(&facts, now_ns) : NULL;
		if (candidate) {
			candidate->n_found += found->spans[i].bytes;
		} else if (!is_ours) {
			mapped_ptr = mapped_bytes ? mapped_ptr : found->spans[i].ptr;
			mapped_bytes += found->spans[i].bytes;
		}
	}
}

static bool is_there(const struct candidate *candidate)
{
	struct heap_facts facts;
	return heap_find(candidate->ptr, &facts) && facts.id == candidate->id;
}

/* Drop candidates that are freed; nobody can write to them. A free that fails gives the memory back at once, so look again. */
static void drop_gone(void)
{
	size_t n_kept = 0;
	for (size_t i = 0; i < n_candidates; i++) {
		struct candidate *candidate = &candidates[i];
		candidate->n_gone = is_there(candidate) ? 0 : candidate->n_gone + 1;
		if (candidate->n_gone < MAX_GONE) {
			candidates[n_kept++] = *candidate;
		} else {
			guard_unmark(candidate->id);
			learn_drop(candidate->id);
		}
	}
	n_candidates = n_kept;
}

/* ---- sealing ---------------------------------------------------------------------------------- */

/* Called by the library while the memory is held. False: it is another allocation now, or its mark was taken away. */
static bool may_be_sealed(glake_ptr ptr, uint64_t n_bytes)
{
	struct heap_facts facts;
	(void)n_bytes;
	return heap_find(ptr, &facts) && guard_may_seal(facts.id);
}

static bool is_busy(int error)
{
	return error == -EBUSY || error == GLAKE_E_BUSY;
}

/* How many spans come next: BATCH_BYTES or one span. */
static size_t next_batch(const struct glake_span *spans, size_t n)
{
	uint64_t n_bytes = 0;
	size_t i = 0;
	while (i < n && n_bytes < BATCH_BYTES) {
		n_bytes += spans[i++].bytes;
	}
	return i;
}

static void seal_spans(struct candidate *candidate, const struct glake_span *spans, size_t n,
                       uint64_t now_ns)
{
	char why[GUARD_WHY_BYTES] = "no page of it could be sealed";
	uint64_t n_sealed = 0;
	int r = 0;
	has_sealed = true;
	for (size_t i = 0; r == 0 && i < n && !turn_is_last();) {
		struct glake_sealed sealed = {.size = sizeof(sealed)};
		size_t n_batch = next_batch(spans + i, n - i);
		r = glake__candidates_seal_if(spans + i, n_batch, may_be_sealed, &sealed);
		n_sealed += sealed.sealed_bytes;
		i += n_batch;
	}
	if (r < 0) {
		snprintf(why, sizeof(why), "%s", glake_error());
	}
	candidate->n_busy = is_busy(r) && candidate->n_busy < MAX_BUSY ? candidate->n_busy + 1 : 0;
	/* After an error, sealed memory stays sealed and guarded. */
	if (n_sealed > 0) {
		shim_count_add(SHIM_COUNT_sealed_alone, candidate->state != SEALED);
		candidate->state = SEALED;
	} else if (candidate->n_busy == 0 && candidate->state != SEALED) {
		refuse(candidate, why, now_ns);
	}
}

/* The spans of a candidate; NULL: no memory. */
static struct glake_span *spans_of(const struct candidate *candidate,
                                   const struct glake__candidates *found, size_t *n_out)
{
	struct glake_span *spans = calloc(found->n_spans + 1, sizeof(*spans));
	size_t n = 0;
	for (size_t i = 0; spans && i < found->n_spans; i++) {
		if (found->spans[i].ptr - candidate->ptr < candidate->n_bytes) {
			spans[n++] = found->spans[i];
		}
	}
	*n_out = n;
	return spans;
}

static void seal(struct candidate *candidate, const struct glake__candidates *found,
                 uint64_t now_ns)
{
	struct graphs_use use;
	char why[sizeof(use.kernel) + 96];
	size_t n;
	struct glake_span *spans = spans_of(candidate, found, &n);
	/* The candidate is marked already, so graphs that are made from now on are judged. */
	if (graphs_find_use(candidate->ptr, candidate->n_bytes, &use)) {
		snprintf(why, sizeof(why),
		         use.ptr ? "%s of a graph has it, and is not known to read it only"
		                 : "a graph: %s",
		         use.kernel);
		refuse(candidate, why, now_ns);
	} else if (n > 0) {
		seal_spans(candidate, spans, n, now_ns);
	}
	free(spans);
}

/* ---- learning --------------------------------------------------------------------------------- */

/* Cut spans of the candidate into pieces; NULL: no memory. */
static struct glake_span *cut(const struct candidate *candidate, const struct glake_span *spans,
                              size_t n, size_t *n_out)
{
	const uint64_t step = glake_chunk_bytes(candidate->n_bytes / PIECES);
	size_t n_pieces = 0;
	for (size_t i = 0; i < n; i++) {
		n_pieces += (spans[i].bytes + step - 1) / step;
	}
	struct glake_span *pieces = calloc(n_pieces + 1, sizeof(*pieces));
	*n_out = 0;
	for (size_t i = 0; pieces && i < n; i++) {
		for (uint64_t at = 0; at < spans[i].bytes; at += step) {
			const uint64_t rest = spans[i].bytes - at;
			pieces[(*n_out)++] = (struct glake_span){spans[i].ptr + at,
			                                         rest < step ? rest : step};
		}
	}
	return pieces;
}

/* Make the candidate of chunks of its own. Kernels may write to pages that cannot be cut off. */
static void learn_with(struct candidate *candidate, const struct glake__candidates *found,
                       uint64_t now_ns)
{
	struct heap_facts facts;
	struct glake_span *parts = NULL;
	size_t n_parts = 0;
	size_t n_pieces = 0;
	size_t n;
	struct glake_span *spans = spans_of(candidate, found, &n);
	struct glake_span *pieces = spans ? cut(candidate, spans, n, &n_pieces) : NULL;
	int r = pieces ? glake__candidates_part(pieces, n_pieces, &parts, &n_parts) : -ENOMEM;
	if (r == 0 && n_parts > 0 && heap_find(candidate->ptr, &facts) &&
	    facts.id == candidate->id && learn_add(&facts, parts, n_parts)) {
		candidate->state = QUIET;
	} else if (is_busy(r) && candidate->n_busy < MAX_BUSY) {
		/* The program's work did not end in time: the next turn tries again. */
		candidate->n_busy++;
	} else {
		set_refused(candidate, r < 0 ? glake_error() : "no page of it could be cut off",
		            now_ns);
	}
	free(parts);
	free(pieces);
	free(spans);
}

static void step_to_learn(struct candidate *candidate, const struct glake__candidates *found,
                          uint64_t now_ns)
{
	if (candidate->n_found != candidate->n_filled) {
		candidate->n_filled = candidate->n_found;
		candidate->since_ns = now_ns;
		candidate->state = FILLING;
		learn_drop(candidate->id);
	} else if (candidate->state == FILLING && candidate->n_filled > 0 &&
	           now_ns - candidate->since_ns >= quiet_ns()) {
		learn_with(candidate, found, now_ns);
	}
}

/* ---- turns ------------------------------------------------------------------------------------ */

static void step(struct candidate *candidate, const struct glake__candidates *found,
                 uint64_t now_ns)
{
	char why[GUARD_WHY_BYTES];
	bool has_more = candidate->n_found != candidate->n_filled;
	if (learn_is_wanted()) {
		step_to_learn(candidate, found, now_ns);
		return;
	}
	if (candidate->state == REFUSED) {
		if (now_ns >= candidate->not_before_ns) {
			candidate->state = FILLING;
			candidate->since_ns = now_ns;
		}
		return;
	}
	if (guard_was_taken(candidate->id, why)) {
		refuse(candidate, why, now_ns);
		return;
	}
	if (has_more) {
		/* Private copies may have taken pages of a sealed candidate; the rest stays sealed. */
		candidate->n_filled = candidate->n_found;
		candidate->since_ns = now_ns;
		if (candidate->state == QUIET && let(candidate, "it is filled")) {
			candidate->state = FILLING;
		}
		return;
	}
	uint64_t for_ns = now_ns - candidate->since_ns;
	struct heap_facts facts;
	if (candidate->state == FILLING && candidate->n_filled > 0 && for_ns >= quiet_ns() / 2 &&
	    heap_find(candidate->ptr, &facts) && facts.id == candidate->id && guard_mark(&facts)) {
		candidate->state = QUIET;
	} else if ((candidate->state == QUIET && for_ns >= quiet_ns() && guard_has_launched()) ||
	           (candidate->state == SEALED && candidate->n_busy > 0)) {
		seal(candidate, found, now_ns);
	}
}

/* False: nothing may be sealed now. If that is for good, memory that was sealed by itself becomes private. */
static bool may_go_on(struct connection *connection, uint64_t now_ns)
{
	char why[GUARD_WHY_BYTES];
	if (guard_is_refused(why)) {
		return false;
	}
	if (doubts_why()) {
		guard_refuse(doubts_why());
		return false;
	}
	if (!kernels_are_told()) {
		guard_refuse("the driver is older than CUDA 12.4, and does not tell parameters");
		return false;
	}
	if (now_ns - may_ns < MAY_NS && may_ns > 0) {
		return true;
	}
	int r = may_seal(connection->session, why, sizeof(why));
	if (r == -EPERM) {
		guard_refuse(why);
	}
	may_ns = r == 0 ? now_ns : 0;
	return r == 0;
}

/* All candidates are private, or becoming so. */
static void refuse_all(void)
{
	for (size_t i = 0; i < n_candidates; i++) {
		candidates[i].state = REFUSED;
		candidates[i].not_before_ns = UINT64_MAX;
		guard_is_refused(candidates[i].why);
	}
}

static void look(struct connection *connection, uint64_t now_ns)
{
	struct glake__candidates found;
	const uint64_t began_ns = cpu_ns();
	drop_gone();
	if (glake__candidates_find(connection->session, &found) < 0) {
		return;
	}
	for (size_t i = 0; i < n_candidates; i++) {
		candidates[i].n_found = 0;
	}
	add_spans(&found, now_ns);
	look_ns = now_ns + LOOK_PART * (cpu_ns() - began_ns);
	for (size_t i = 0; i < n_candidates && !turn_is_last(); i++) {
		step(&candidates[i], &found, now_ns);
	}
	free(found.spans);
}

/* A candidate counts as sealed until its service thread has seen that it is private. */
static void note_sealed(void)
{
	bool has = false;
	for (size_t i = 0; i < n_candidates; i++) {
		has = has || candidates[i].state == SEALED;
	}
	has_sealed = has;
}

void auto_serve(struct connection *connection)
{
	const uint64_t now_ns = clock_now_ns();
	if (auto_turn_ms() == 0 || now_ns < look_ns || pthread_mutex_trylock(&lock) != 0) {
		return;
	}
	char why[GUARD_WHY_BYTES];
	if (may_go_on(connection, now_ns)) {
		look(connection, now_ns);
	} else if (guard_is_refused(why)) {
		refuse_all();
	}
	note_sealed();
	pthread_mutex_unlock(&lock);
}

static int compare_size(const void *left, const void *right)
{
	const struct candidate *a = &candidates[*(const size_t *)left];
	const struct candidate *b = &candidates[*(const size_t *)right];
	return a->n_filled != b->n_filled ? (a->n_filled < b->n_filled ? 1 : -1)
	       : a->ptr != b->ptr         ? (a->ptr < b->ptr ? -1 : 1)
	                                  : 0;
}

static void fill_list_locked(struct auto_list *list)
{
	static size_t order[MAX_CANDIDATES];
	for (size_t i = 0; i < n_candidates; i++) {
		order[i] = i;
	}
	qsort(order, n_candidates, sizeof(order[0]), compare_size);
	list->list.n_all = n_candidates;
	if (mapped_bytes > 0) {
		list->list.n_all++;
	}
	list->list.n = n_candidates < GLAKE_MAX_CANDIDATES ? n_candidates : GLAKE_MAX_CANDIDATES;
	for (size_t i = 0; i < list->list.n; i++) {
		const struct candidate *from = &candidates[order[i]];
		memcpy(list->whys[i], from->state == REFUSED ? from->why : "",
		       from->state == REFUSED ? GUARD_WHY_BYTES : 1);
		list->rows[i] = (struct glake__candidate){
			.ptr = from->ptr,
			.n_bytes = from->n_bytes,
			.filled_bytes = from->n_filled,
			.state = (uint32_t)from->state,
			.n_unsealed = from->n_unsealed,
			.why = list->whys[i],
		};
	}
	if (mapped_bytes > 0 && list->list.n < GLAKE_MAX_CANDIDATES) {
		list->rows[list->list.n++] = (struct glake__candidate){
			.ptr = mapped_ptr,
			.n_bytes = mapped_bytes,
			.filled_bytes = mapped_bytes,
			.state = REFUSED,
			.why = mapped_why,
		};
	}
}

struct auto_list *auto_list(void)
{
	struct auto_list *list = calloc(1, sizeof(*list));
	if (list) {
		list->list.rows = list->rows;
		pthread_mutex_lock(&lock);
		fill_list_locked(list);
		pthread_mutex_unlock(&lock);
	}
	return list;
}

/* A page counts in the state of its candidate. */
void auto_describe(struct glake__alone *alone_out)
{
	uint64_t most = 0;
	uint64_t bytes[REFUSED + 1] = {0};
	memset(alone_out, 0, sizeof(*alone_out));
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n_candidates; i++) {
		const struct candidate *candidate = &candidates[i];
		bytes[candidate->state] += candidate->n_filled;
		if (candidate->state == REFUSED && candidate->n_filled >= most) {
			most = candidate->n_filled;
			memcpy(alone_out->why, candidate->why, sizeof(alone_out->why));
		}
	}
	bytes[REFUSED] += mapped_bytes;
	if (mapped_bytes > most) {
		memcpy(alone_out->why, mapped_why, sizeof(mapped_why));
	}
	pthread_mutex_unlock(&lock);
	alone_out->filling_bytes = bytes[FILLING];
	alone_out->quiet_bytes = bytes[QUIET];
	alone_out->sealed_bytes = bytes[SEALED];
	alone_out->refused_bytes = bytes[REFUSED];
	alone_out->n_refused_launches = shim_count_of(SHIM_COUNT_unlaunched);
	guard_is_refused(alone_out->why);
	/* Clear the rest, because reports are compared as bytes. */
	size_t n = strlen(alone_out->why);
	memset(alone_out->why + n, 0, sizeof(alone_out->why) - n);
}
