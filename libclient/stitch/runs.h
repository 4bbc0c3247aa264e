/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: the books of memory that is split and merged. No driver call, no lock, no memory behind it.
 *
 * A row of units of 512 bytes is cut into runs, side by side, without a gap: holes (no memory is mapped),
 * free ones and used ones. A free run belongs to a line, the work of one stream: the line may use it at
 * once, because its work comes later than what freed it; others may once the line has passed the run's
 * number, or once their own work waits for that: they follow the line. Nobody's memory is that of a line which has passed everything.
 *
 *   hole -> (grown) -> used <-> free -> used -> (given back) -> hole
 *
 * A request takes the best fit: the smallest run of its bin (fit.h) that is large enough, else of the next
 * bin with any. What is left over is a free run of the same line. A run that becomes free merges with free
 * neighbours of its line, and with nobody's.
 *
 * Invariants (glake__runs_are_valid()): runs fill the row; no two free neighbours have one line, no two
 * holes touch; a free run or hole hangs in exactly one bin; pages[p] is the run that the first unit of page p
 * lies in.
 *
 * Owner: embedded in its user. Lifetime: glake__runs_init() .. glake__runs_deinit().
 * Threads: none of its own.
 */
#ifndef GLAKE_LIBCLIENT_RUNS_H
#define GLAKE_LIBCLIENT_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/page.h"
#include "libclient/space/ptr_table.h"

#define RUN_UNIT_BYTES 512u
#define RUN_PAGE_UNITS (GLAKE__PAGE_BYTES / RUN_UNIT_BYTES)
#define RUN_BINS 128u
/* A line remembers this many lines that it follows. */
#define RUN_FOLLOWED 4u
/* From this stream on, what is free is tied: others have it when all frees of its line have been passed. */
#define RUN_TIED_STREAMS (1ull << 63)

enum glake__run_state {
	GLAKE__RUN_HOLE,
	GLAKE__RUN_FREE,
	GLAKE__RUN_USED,
};

struct glake__run {
	uint64_t first; /* unit */
	uint64_t n_units;
	enum glake__run_state state;
	struct glake__line *line; /* borrowed; of a free run */
	uint64_t number;          /* of a free run: that the line must have passed */
	uint64_t stream; /* of a used run: + 1, of the line that had it, with number; 0: nobody */
	void *user;      /* of a used run: the user's */
	struct glake__run *next; /* link: by address */
	struct glake__run *previous;
	struct glake__run *next_in_bin;
	struct glake__run *previous_in_bin;
};

/* Free runs of one line, or the holes. */
struct glake__run_bins {
	uint64_t filled[RUN_BINS / 64]; /* bit per bin */
	struct glake__run *first[RUN_BINS];
	size_t n_runs;
	uint64_t n_units;
};

/* The line of @stream is waited for up to @number. */
struct glake__followed {
	uint64_t stream;
	uint64_t number;
};

struct glake__line {
	uint64_t stream;          /* the driver's id; nobody's has none */
	_Atomic uint64_t n_freed; /* the last number given out */
	uint64_t n_passed;        /* all up to this one have been passed */
	size_t n_holders;         /* whoever keeps it, such as the frees that wait */
	size_t n_waiting; /* the user's: frees that wait, but for those that others have joined */
	void *waiting;    /* the user's: a free that waits, which others may join */
	struct glake__followed followed[RUN_FOLLOWED]; /* by its work: the last ones */
	unsigned n_followed;
	struct glake__run_bins bins;
	uint64_t *n_tied;         /* of runs, where what it has free counts; NULL: it is not tied */
	struct glake__line *next; /* link: runs.lines */
};

struct glake__runs {
	uint64_t n_units;
	struct glake__run *first;  /* owned list */
	struct glake__run **pages; /* owned; by page */
	struct glake__run *spares; /* owned */
	struct glake__run_bins holes;
	struct glake__line nobody; /* has passed all: number 0 */
	struct glake__line *lines; /* owned list, without nobody */
	size_t n_lines;
	struct glake__ptr_table by_stream; /* lines, by stream + 1 */
	uint64_t n_tied;                   /* free units that are tied */
	uint64_t
		n_ended; /* the highest number of lines that have ended: new ones go on from there */
};

/* One hole of @n_units, a multiple of RUN_PAGE_UNITS. 0 or -ENOMEM. */
int glake__runs_init(struct glake__runs *runs, uint64_t n_units);
/* Frees all runs and lines. Zeroes are fine. */
void glake__runs_deinit(struct glake__runs *runs);

/* The line of @stream, made now if it is new; lines without runs that nobody holds end. NULL: no memory. */
struct glake__line *glake__runs_line(struct glake__runs *runs, uint64_t stream);

/*
 * The line has passed all numbers up to @number: work that was queued before they were given out is done. Threads may
 * tell so in any order.
 */
void glake__line_pass(struct glake__line *line, uint64_t number);

/* May others have nothing of it, free or not? */
static inline bool glake__line_is_tied(const struct glake__line *line)
{
	return line->n_tied != NULL;
}

/* All that comes on @line is behind what @other has freed up to @number. */
void glake__line_follow(struct glake__line *line, const struct glake__line *other, uint64_t number);

static inline bool glake__line_follows(const struct glake__line *line, const struct glake__run *run)
{
	bool follows = false;
	for (unsigned i = 0; !follows && i < RUN_FOLLOWED; i++) {
		follows = line->followed[i].stream == run->line->stream &&
		          run->number <= line->followed[i].number;
	}
	return follows;
}

/* May @line use the free run @run, now? */
static inline bool glake__run_serves(const struct glake__run *run, const struct glake__line *line)
{
	return run->line == line || run->number <= run->line->n_passed ||
	       (!glake__line_is_tied(run->line) && glake__line_follows(line, run));
}

static inline uint64_t glake__run_end(const struct glake__run *run)
{
	return run->first + run->n_units;
}

/* The run that holds @unit. */
struct glake__run *glake__runs_at(const struct glake__runs *runs, uint64_t unit);

/*
 * The best fit for @n_units among free runs of @line, then nobody's, then those of other lines that serve it. NULL:
 * there is none. It is still free.
 */
struct glake__run *glake__runs_find(struct glake__runs *runs, const struct glake__line *line,
                                    uint64_t n_units);
/*
 * Find, among the free runs of other lines that do not serve @line yet, the one that its line passes soonest: one that fits
 * (fit.h), else a larger one. NULL: there is none.
 */
struct glake__run *glake__runs_find_early(struct glake__runs *runs, const struct glake__line *line,
                                          uint64_t n_units);
/* The best fit among holes. */
struct glake__run *glake__runs_find_hole(struct glake__runs *runs, uint64_t n_units);

/*
 * [first, first + n_units) of @run, which is free or a hole, becomes a used run; what is left of it
 * stays what it is. NULL without memory: nothing has changed.
 */
struct glake__run *glake__runs_use(struct glake__runs *runs, struct glake__run *run, uint64_t first,
                                   uint64_t n_units);
/* The used @run, and @next behind it, which is used as well, become one. */
struct glake__run *glake__runs_join(struct glake__runs *runs, struct glake__run *run);
/* The used @run is two from @first on. Returns the one behind; @run may be either. NULL without memory. */
struct glake__run *glake__runs_split(struct glake__runs *runs, struct glake__run *run,
                                     uint64_t first);

/* The used @run is free, for @line at once and for others once @number has been passed. It may be gone. */
void glake__runs_free(struct glake__runs *runs, struct glake__run *run, struct glake__line *line,
                      uint64_t number);
/* The used @run, which no work has used, is free again, for the line that had it. It may be gone. */
void glake__runs_give_back(struct glake__runs *runs, struct glake__run *run);
/* Runs that their lines have passed become nobody's and merge: pages that two lines have are whole again. */
void glake__runs_unite(struct glake__runs *runs);
/* The used @run is a hole. It may be gone. */
void glake__runs_unmap(struct glake__runs *runs, struct glake__run *run);

/* For tests: the invariants above. */
bool glake__runs_are_valid(const struct glake__runs *runs);

#endif
