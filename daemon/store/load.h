/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One load of a model into the store: the conversation with the mover, the fresh chunks it is
 * given a bounded window ahead, and the admission of each loaded block (admit.h).
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
 * Whoever wants the model waits on the load. The first waiter's tenant pays for what is loaded;
 * when the last waiter goes the load is cancelled. A load that fails leaves no model.
 *
 * But the memory of a chunk lasts as long as the mover has it, and a file that does not answer can
 * keep the mover from ending a load. So what the mover has of a load that is over stays in the books,
 * charged to whoever paid for it, until the mover has done with it or is gone.
 *
 * Owner: itself; it is freed when the model is ready, or has failed and the mover has done with it.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LOAD_H
#define GLAKE_DAEMON_LOAD_H

#include "daemon/memory/alloc.h"
#include "daemon/store/admit.h"
#include "daemon/store/store.h"

/* What a load works with; the server's, for all of them. */
struct load_context {
	const struct admit_context *admit; /* borrowed */
	struct stats *stats;
	uint64_t window_bytes;
	bool trust_file_times;
};

struct load_waiter;

/*
 * STATUS_OK: the model is READY and held by the load until all waiters were told, so the waiter
 * can hold it. Otherwise @error says why in one line, and there is no model.
 * The waiter is the callee's again and may be freed.
 */
typedef void (*load_done_fn)(struct load_waiter *waiter, enum status status, const char *error);
typedef void (*load_progress_fn)(struct load_waiter *waiter, uint64_t done_bytes,
                                 uint64_t total_bytes);

/* Embedded in a pending request. */
struct load_waiter {
	struct list link; /* link: load.waiters; initialised by whoever embeds it */
	struct load *load;
	struct tenant *tenant; /* borrowed; stays as long as the waiter */
	uid_t uid;             /* whose files a load begins with */
	load_done_fn done;
	load_progress_fn progress; /* NULL: not wanted */
};

/* What a load did, for the answer. Valid in load_done_fn. */
struct load_result {
	uint64_t deduplicated_bytes;
	uint64_t ns;
};

/*
 * Start loading @model, which is new in the store, from @fds (duplicated) with the base names
 * @names, on behalf of @waiter. Returns 0, or -errno: then the model is dropped and nobody is told.
 */
int load_start(const struct load_context *context, struct model *model, const char *const *names,
               const char *index, const int *fds, size_t n_fds, bool may_direct,
               struct load_waiter *waiter);

/* Wait as well. */
void load_join(struct load *load, struct load_waiter *waiter);

/* Wait no more; may cancel the load. */
void load_leave(struct load_waiter *waiter);

/* Who pays for what it loads: the first that waits for it. Not after its end. */
struct tenant *load_payer(const struct load *load);

struct load_result load_result(const struct load *load);

#endif
