/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes over what the books of an earlier glaked say, as far as it can be true: blocks, models whose blocks are all
 * there, and holders whose process lives, with what they hold. Blocks whose fd was not kept, and models with them,
 * are for those holders only.
 *
 * The books are trusted like the program, because nobody else may write the file. But they need not be complete:
 * whatever does not fit is left out, and counted.
 *
 * Owner: books. Threads: start-up.
 */
#ifndef GLAKE_DAEMON_BOOKS_ADOPT_H
#define GLAKE_DAEMON_BOOKS_ADOPT_H

#include "daemon/holders/holder.h"
#include "daemon/keep/fdstore.h"
#include "daemon/holders/sleeper.h"
#include "daemon/keep/journal.h"

/* All borrowed. What is adopted goes there. */
struct books_parts {
	uv_loop_t *loop;
	struct fdstore *fdstore;
	const struct config *config;
	struct device *devices;
	uint32_t n_devices;
	struct location *const *locations; /* by slot */
	uint32_t n_locations;
	struct chunk_books *chunk_books;
	struct promises *promises;
	struct tenant_table *tenants;
	struct store *store;
	struct holders *holders;
	const struct sleep_context *sleep; /* NULL: nothing sleeps */
};

struct adopt_count {
	uint64_t n;
	uint64_t bytes;
};

struct adopt_report {
	struct adopt_count blocks;
	struct adopt_count chunks; /* private ones, without their fds */
	uint64_t n_models;
	uint64_t n_holders;
	/* Not adopted, or only for those who hold them. */
	struct adopt_count lost_blocks; /* without an fd, or at a location that is gone */
	struct adopt_count slept;       /* things that sleep, or have a copy */
	struct adopt_count lost_slept;  /* whose copy was not kept, or at a location that is gone */
	uint64_t n_lost_models;         /* without one of their blocks */
	struct adopt_count lost_chunks; /* private ones, at a location that is gone */
	uint64_t n_ended;               /* holders whose process has ended */
	struct adopt_count ended_chunks; /* their private ones */
	struct adopt_count kept;         /* steps that outlived their processes */
	bool is_renumbered; /* adopted things name their devices by numbers of others now */
};

/*
 * Adopt what @image says. Entries that were not adopted have no user afterwards, and are to be deleted. Nothing is noted.
 * store_settle_adopted(), sleepers_settle_adopted() and copies_settle_adopted() come later, in this order, when it is.
 */
void adopt_all(const struct books_parts *parts, struct journal_image *image,
               struct adopt_report *report_out);

#endif
