/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sleeper: a holder whose memory has copies in host memory, or is there alone.
 *
 *             sleeper_copy()             sleeper_enter()              sleeper_wake()
 *   (none) ------------------> COPIED ------------------> ASLEEP <------------------> WAKING
 *      ^                       |    ^                                  failed           |
 *      '-----------------------'    '---------------------------------------------------'
 *           sleeper_leave()                         all of it is on the GPU again
 *
 * COPIED: nothing has changed but that there are copies. The process submits no work, so they stay equal. ASLEEP: each of
 * these things is a HELD_SLEPT, which has a copy and no memory of a GPU; its id stays. WAKING: memory is asked for at all
 * locations together, and all of it, before a byte is copied; if anything fails the holder is ASLEEP as before.
 *
 * The next glaked finds all of this (copies_park()). A private chunk is not parked: it is lost with glaked while its process
 * does not have it mapped. That is so from the answer to SleepCopy on, since the process then unmaps; and after a wake until it
 * has mapped. So the copies are on record and parked before that answer, and stay until the process says that it has all of it.
 * Whatever of a chunk is lost between the two, sleeper_enter() and another wake bring it back.
 *
 * What is copied is private chunks, and blocks: single ones, and those of models that the process has open. A block is left to
 * others, or to the cache; one that is still, or again, on the GPU when its sleeper wakes is used as it is. So a model may be
 * evicted, or replaced, while who has it open sleeps: store_return_model() says what he gets then.
 *
 * The parts: sleep_copy.c makes the copies, sleep_wake.c brings them back.
 *
 * Owner: its holder. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SLEEPER_H
#define GLAKE_DAEMON_SLEEPER_H

#include "daemon/base/events.h"
#include "daemon/holders/holder.h"
#include "daemon/holders/slept.h"
#include "daemon/store/copies.h"

/* The parts of glaked that this needs. */
struct sleep_context {
	struct copies *copies;
	struct allocator *allocator;
	const struct admit_context *admit;
	struct events *events; /* NULL: nobody wants any */
	uint64_t wake_wait_ms; /* a wake waits this long for room */
};

enum sleeper_state {
	SLEEPER_COPIED,
	SLEEPER_ASLEEP,
	SLEEPER_WAKING,
	N_SLEEPER_STATES,
};

/* The values are those of the schema. */
enum sleep_why {
	SLEEP_SELF,
	SLEEP_ASKED,
	SLEEP_IDLE,
	SLEEP_PRESSURE,
	N_SLEEP_WHYS,
};

/* Memory that stays on the GPU, as the process reports it. */
struct sleep_stay {
	char why[GLAKE_MAX_STAY_BYTES];
	uint64_t bytes;
};

/* Something of the holder's that has a copy: of a model, one of each block. */
struct slept {
	struct list link; /* link: sleeper.slept, in the order of naming */
	struct sleeper *sleeper;
	struct held *held;
	enum held_kind kind; /* of it while it is awake: HELD_CHUNK, HELD_BLOCK or HELD_MODEL */
	struct location *at; /* where it was, and will be */
	uint64_t bytes;
	uint64_t model;       /* the store's id of a model; it may be gone */
	char *name;           /* owned: its name; NULL of others */
	struct charge record; /* of a model: for glaked's memory */
	size_t n_copies;
	struct copy *copies[]; /* each held and parked in copies */
};

struct sleeper {
	struct list
		link; /* link: holders.sleepers, while ASLEEP or WAKING: the longest asleep first */
	struct holder *holder; /* borrowed */
	const struct sleep_context *context;
	enum sleeper_state state;
	struct list slept;
	uint64_t private_bytes;
	uint64_t shared_bytes;
	enum sleep_why why;
	uint64_t since_ms;
	uint64_t copy_ns; /* the time that copying took */
	struct sleep_stay stays[GLAKE_MAX_STAYS];
	uint32_t n_stays;
	struct sleep_wake *wake; /* WAKING: under way */
	bool has_entered;        /* an earlier glaked says so: sleepers_settle_adopted() */
};

/* The longest text of a refusal, one line. */
#define SLEEP_ERROR_BYTES 256u

/* @error is of one line, and valid during the call. */
typedef void (*sleep_done_fn)(void *user, enum status status, const char *error);

struct sleep_batch;

/*
 * Copies of these things of @holder, all or none: @done follows, perhaps at once. *batch_out is for sleep_batch_cancel(), and
 * becomes NULL before @done. STATUS_BAD_REQUEST, STATUS_BUSY: nothing has begun, @done is not called, and *error_out
 * (of SLEEP_ERROR_BYTES) says why.
 */
enum status sleeper_copy(struct holder *holder, const struct sleep_context *context,
                         const uint64_t *ids, size_t n_ids, sleep_done_fn done, void *user,
                         struct sleep_batch **batch_out, char *error_out);
/* None of these gets one, and @done is not called. */
void sleep_batch_cancel(struct sleep_batch *batch);

/*
 * The process has unmapped all that has copies: it goes, and only what is parked is left. STATUS_BAD_REQUEST: nothing has.
 * Harmless if it sleeps already.
 */
enum status sleeper_enter(struct holder *holder, enum sleep_why why, const struct sleep_stay *stays,
                          size_t n_stays);

/* COPIED: the copies go, but for what host memory keeps as cache: the chunks may be the same when they sleep again. */
void sleeper_leave(struct holder *holder);

/*
 * ASLEEP: have all of it back on the GPU. @done follows, perhaps at once; after STATUS_OK it is COPIED if @keeps_copies, or
 * there is no sleeper any more. It waits for room for @patience_ms, and never longer than wake_wait_ms; 0: as long. *wake_out
 * is for sleep_wake_cancel(), and becomes NULL before @done.
 */
void sleeper_wake(struct sleeper *sleeper, bool keeps_copies, uint64_t patience_ms,
                  sleep_done_fn done, void *user, struct sleep_wake **wake_out);
/* The sleeper sleeps on, and @done is not called. */
void sleep_wake_cancel(struct sleep_wake *wake);
/* Whether it waits for memory, and how long it has so far. */
bool sleep_wake_is_waiting(const struct sleep_wake *wake);
uint64_t sleep_wake_waited_ms(const struct sleep_wake *wake);
/* Among those that wait for memory, from 1 on: the one that waits for longest is the first. */
uint32_t sleep_wake_place(const struct sleep_wake *wake);
/* The bytes that the wake has brought back to the GPU, with their content. */
uint64_t sleep_wake_done_bytes(const struct sleep_wake *wake);

/* ---- from an earlier glaked ---- */

/* A thing that has copies. */
struct slept_from {
	enum held_kind kind;
	struct location *at;
	uint64_t model; /* of a HELD_MODEL, as the next */
	const char *name;
	struct charge record; /* taken over */
	struct copy *const *copies;
	size_t n_copies;
};

/*
 * The thing that @as says (see holder_adopt_chunk()) has the copies of @from; it may have been adopted as something on the GPU
 * already. Returns 0, -ENOMEM, or -EINVAL: that is something else.
 */
struct slept_adopted {
	const struct held *held;
	struct slept_from from;
};
int sleeper_adopt(struct holder *holder, const struct sleep_context *context,
                  const struct slept_adopted *as);
/*
 * Where one thing is asleep, SleepEnter or a wake was under way, and the process has mapped nothing: all of it sleeps.
 * The order is that of since_ms.
 */
void sleepers_settle_adopted(struct holders *holders);

/* The holder's sleeper, made if there is none; for the parts. NULL: no memory. */
struct sleeper *sleeper_of(struct holder *holder, const struct sleep_context *context);
/* @held has copies, which are taken over, held and parked. False: no memory. */
bool sleeper_add(struct sleeper *sleeper, struct held *held, const struct slept_from *from);
/* ASLEEP no more; the copies stay. */
void sleeper_wake_up(struct sleeper *sleeper);
void sleeper_set_state(struct sleeper *sleeper, enum sleeper_state state);
/* Free the sleeper if nothing is left of it. */
void sleeper_free_if_over(struct sleeper *sleeper);
void sleep_wake_forget(struct sleep_wake *wake, const struct slept *slept);

#endif
