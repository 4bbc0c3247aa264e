/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One load of a model into the store: it talks to the mover, grants it fresh chunks a bounded
 * window ahead, and admits each loaded block (admit.h).
 *
 *   PLANNING -- plan --> FILLING -- all loaded --> SETTLING -- all admitted --> READY
 *       '------------------.--'----------------------'
 *                           '- failed, or nobody waits -> FAILED
 *
 *   PLANNING  the mover reads headers
 *   FILLING   chunks are granted, come back loaded, and are admitted
 *   SETTLING  the mover has found the files unchanged; some blocks are still being compared
 *   FAILED    there is no model; some chunks may still be in the mover
 *
 * A model that is DEMOTED needs no plan: such a load begins at FILLING. Its blocks are copied from host memory, each by a
 * job of its own, and if it fails the model is DEMOTED as before, unless a copy, or a block that it shares, was damaged.
 *
 * Requests for the model wait on the load. The first waiter's tenant pays for the loaded blocks.
 * When the last waiter leaves, the load is cancelled. A failed load leaves no model.
 *
 * But the memory of a chunk exists as long as the mover has it, and a file that does not answer can
 * keep the mover from ending a load. So the chunks of a load that is over stay in the books,
 * charged to their payer, until the mover is done with them or is gone.
 *
 * Owner: itself. It is freed when the model is ready, or when it has failed and the mover is done
 * with it. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LOAD_H
#define GLAKE_DAEMON_LOAD_H

#include "daemon/memory/alloc.h"
#include "daemon/store/admit.h"
#include "daemon/store/store.h"

/* The parts that all loads use. */
struct load_context {
	const struct admit_context *admit; /* borrowed */
	struct copies *copies;             /* borrowed */
	struct stats *stats;
	uint64_t window_bytes;
	bool trust_file_times;
};

struct load_waiter;

/*
 * STATUS_OK: the model is READY, and the load holds it until all waiters were called, so the callee
 * can hold it. Otherwise there is no model, and @error is one line. The callee may free the waiter.
 */
typedef void (*load_done_fn)(struct load_waiter *waiter, enum status status, const char *error);
typedef void (*load_progress_fn)(struct load_waiter *waiter, uint64_t done_bytes,
                                 uint64_t total_bytes);

/* Embedded in a pending request. */
struct load_waiter {
	struct list link; /* link: load.waiters; initialised by the owner */
	struct load *load;
	struct tenant *tenant; /* borrowed; stays as long as the waiter */
	uid_t uid;             /* the user of the files */
	load_done_fn done;
	load_progress_fn progress; /* NULL: not wanted */
	struct refusal
		refusal; /* zeroed by the owner; set before @done if a bound ended the load */
};

/* The result of a load, for the answer. Valid in load_done_fn. */
struct load_result {
	uint64_t deduplicated_bytes;
	uint64_t ns;
};

/*
 * Start loading @model, which is new in the store, from @fds (duplicated) with the base names
 * @names, for @waiter. Returns 0, or -errno: the model is dropped, and @waiter is not called.
 */
int load_start(const struct load_context *context, struct model *model, const char *const *names,
               const char *index, const int *fds, size_t n_fds, bool may_direct,
               struct load_waiter *waiter);

/*
 * Load @model, which is DEMOTED, from host memory for @waiter, which may be called, and be gone, before this returns.
 * @payer pays for the manifest.
 */
void load_promote(const struct load_context *context, struct model *model, struct payer payer,
                  struct load_waiter *waiter);

/* @waiter waits as well. */
void load_join(struct load *load, struct load_waiter *waiter);

/* @waiter does not wait any more. May cancel the load. */
void load_leave(struct load_waiter *waiter);

/* Returns pressure_wait_of() of the memory that the load wants. */
struct pressure_wait load_wait_of(const struct load_waiter *waiter);

struct load_result load_result(const struct load *load);

#endif
