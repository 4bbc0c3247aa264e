/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/owner_line.h"

#include <stdlib.h>

#define MAX_RANGES 256
#define MAX_RANGES_OF_ONE 16
#define RANGE_BITS 16
#define KEY_OF_OWNER (1ull << 32)

struct range {
	struct list link; /* link: lines.ranges, the first came first */
	uid_t owner;
	uint64_t start;
	uint64_t count;
	uint64_t since_ms;
};

void lines_init(struct lines *lines)
{
	*lines = (struct lines){0};
	list_init(&lines->turns);
	list_init(&lines->ranges);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void forget_range(struct lines *lines, struct range *range)
{
	list_remove(&range->link);
	lines->n_ranges--;
	free(range);
}

void lines_forget_ranges(struct lines *lines)
{
	while (!list_is_empty(&lines->ranges)) {
		forget_range(lines, list_first(&lines->ranges, struct range, link));
	}
}

/* The range at the same @start goes, or the first of too many. */
static void make_room(struct lines *lines, uid_t owner, uint64_t start)
{
	struct range *first = NULL;
	struct range *range;
	struct range *spare;
	unsigned n = 0;
	list_for_each_safe (range, spare, &lines->ranges, link) {
		if (range->owner == owner && range->start == start) {
			forget_range(lines, range);
		} else if (range->owner == owner) {
			first = first ? first : range;
			n++;
		}
	}
	if (n >= MAX_RANGES_OF_ONE) {
		forget_range(lines, first);
	} else if (lines->n_ranges >= MAX_RANGES) {
		forget_range(lines, list_first(&lines->ranges, struct range, link));
	}
}

void lines_add_range(struct lines *lines, uid_t owner, uint64_t start, uint64_t count,
                     uint64_t now_ms)
{
	struct range *range = calloc(1, sizeof(*range));
	if (!range) {
		return;
	}
	make_room(lines, owner, start);
	range->owner = owner;
	range->start = start;
	range->count = count;
	range->since_ms = now_ms;
	list_insert(&lines->ranges, &range->link);
	lines->n_ranges++;
}

static uint64_t key_of(struct lines *lines, uid_t uid, uint64_t now_ms)
{
	struct range *range;
	struct range *spare;
	list_for_each_safe (range, spare, &lines->ranges, link) {
		if (now_ms - range->since_ms >= LINES_RANGE_MS) {
			forget_range(lines, range);
		} else if (uid >= range->start && uid - range->start < range->count) {
			return KEY_OF_OWNER | range->owner;
		}
	}
	return uid >> RANGE_BITS;
}

/* ---- lines ----------------------------------------------------------------------------------- */

bool line_is_of_owner(const struct line *line)
{
	return line->key & KEY_OF_OWNER;
}

static struct line *add_line(struct lines *lines, uint64_t key)
{
	struct line *line = calloc(1, sizeof(*line));
	if (!line) {
		return NULL;
	}
	line->key = key;
	list_init(&line->link);
	list_init(&line->waiting);
	list_init(&line->known);
	HASH_ADD(hh, lines->table, key, sizeof(line->key), line);
	if (!hash_has(line)) {
		free(line);
		return NULL;
	}
	return line;
}

struct line *line_of(struct lines *lines, uid_t uid, uint64_t now_ms)
{
	uint64_t key = key_of(lines, uid, now_ms);
	struct line *line;
	HASH_FIND(hh, lines->table, &key, sizeof(key), line);
	return line ? line : add_line(lines, key);
}

static void free_if_empty(struct lines *lines, struct line *line)
{
	if (line->n_waiting == 0 && line->n_known == 0) {
		HASH_DEL(lines->table, line);
		free(line);
	}
}

void line_enter(struct lines *lines, struct line *line, struct list *link)
{
	if (line->n_waiting++ == 0) {
		list_insert(&lines->turns, &line->link);
	}
	list_insert(&line->waiting, link);
}

void line_leave(struct lines *lines, struct line *line, struct list *link)
{
	list_remove(link);
	if (--line->n_waiting == 0) {
		list_remove(&line->link);
	}
	free_if_empty(lines, line);
}

void line_forget(struct lines *lines, struct line *line, struct list *link)
{
	list_remove(link);
	line->n_known--;
	free_if_empty(lines, line);
}

struct line *lines_next(struct lines *lines)
{
	if (list_is_empty(&lines->turns)) {
		return NULL;
	}
	struct line *line = list_first(&lines->turns, struct line, link);
	list_remove(&line->link);
	list_insert(&lines->turns, &line->link);
	return line;
}

unsigned line_share(unsigned total, unsigned n_all, unsigned n_own, unsigned least)
{
	unsigned n_others = n_all - n_own;
	unsigned share = n_others < total ? (total - n_others) / 2 : 0;
	return share > least ? share : least;
}
