/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines in which uids stand whose owner is to be looked up (owner.h).
 *
 * One user may connect with each of its 65,536 uids, and each of them needs a look-up. So there is one line for each owner
 * whose ranges are known, and one for each 65,536 uids of all others, which is the size of a range as tools give it. Lines
 * take turns, and have shares of what waits and of what is known.
 *
 * A range says in which line a uid stands, and nothing else. Another user may own a part of it, or a uid in it may be an
 * account: only a look-up of the uid itself tells whose it is.
 *
 * Owner: owners. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_OWNER_LINE_H
#define GLAKE_DAEMON_OWNER_LINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/hash.h"
#include "daemon/base/list.h"

/* A line exists while anything is in one of its lists. */
struct line {
	UT_hash_handle hh; /* lines.table */
	uint64_t key;
	struct list link;    /* link: lines.turns, while somebody waits */
	struct list waiting; /* of the caller's links, as is known */
	struct list known;
	unsigned n_waiting;
	unsigned n_known;
};

struct lines {
	struct line *table;
	struct list turns;
	struct list ranges;
	unsigned n_ranges;
};

void lines_init(struct lines *lines);

/* Ranges are valid for as long as what is known. Of one owner, and of all, the first go beyond some number. */
#define LINES_RANGE_MS 60000
void lines_add_range(struct lines *lines, uid_t owner, uint64_t start, uint64_t count,
                     uint64_t now_ms);
void lines_forget_ranges(struct lines *lines);

/* The line of @uid, or a new one, which stays only if something is put into it. NULL: no memory. */
struct line *line_of(struct lines *lines, uid_t uid, uint64_t now_ms);
bool line_is_of_owner(const struct line *line);

void line_enter(struct lines *lines, struct line *line, struct list *link);
void line_leave(struct lines *lines, struct line *line, struct list *link);
void line_forget(struct lines *lines, struct line *line, struct list *link);

/* The line whose turn it is; its next turn comes after those of all others. NULL: nobody waits. */
struct line *lines_next(struct lines *lines);

/* Half of what others leave of @total, but at least @least. */
unsigned line_share(unsigned total, unsigned n_all, unsigned n_own, unsigned least);

#endif
