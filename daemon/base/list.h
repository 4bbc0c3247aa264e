/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked list, circular: the head is a link of its own that no object contains.
 *
 * Owner: the list owns no object. A link says in a comment which list it is in.
 * Lifetime: a link must leave its list before its object is freed.
 * Threads: none of its own.
 */
#ifndef GLAKE_DAEMON_LIST_H
#define GLAKE_DAEMON_LIST_H

#include <stdbool.h>

#include "proto/cleanup.h"

struct list {
	struct list *prev;
	struct list *next;
};

/* Initialises a static or local head: struct list sessions = LIST_INIT(sessions); */
#define LIST_INIT(name) \
	{ \
		&(name), &(name) \
	}

/* Makes an empty head, or a link that is in no list. */
static inline void list_init(struct list *list)
{
	list->prev = list;
	list->next = list;
}

/* Inserts @link before @next: a head inserts at the tail, head->next at the front. */
static inline void list_insert(struct list *next, struct list *link)
{
	link->prev = next->prev;
	link->next = next;
	next->prev->next = link;
	next->prev = link;
}

/* Takes @link off its list and re-initialises it, so that removing it twice is harmless. */
static inline void list_remove(struct list *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	list_init(link);
}

/* Moves all links of the head @from to the tail of @to. */
static inline void list_move(struct list *to, struct list *from)
{
	if (from->next != from) {
		from->next->prev = to->prev;
		to->prev->next = from->next;
		from->prev->next = to;
		to->prev = from->prev;
		list_init(from);
	}
}

/* Whether the list of a head is empty, or a link is in no list. */
static inline bool list_is_empty(const struct list *list)
{
	return list->next == list;
}

/* The object at the front; the list must not be empty. */
#define list_first(head, type, member) container_of((head)->next, type, member)

#define list_entry_(link, pos, member) container_of(link, __typeof__(*(pos)), member)

/* @pos walks over the objects, front to tail. After a full walk it points at none of them. */
#define list_for_each(pos, head, member) \
	for ((pos) = list_entry_((head)->next, pos, member); &(pos)->member != (head); \
	     (pos) = list_entry_((pos)->member.next, pos, member))

/* Go through the list like list_for_each(); the body may remove or free @pos, but not @spare, the object behind it. */
#define list_for_each_safe(pos, spare, head, member) \
	for ((pos) = list_entry_((head)->next, pos, member), \
	    (spare) = list_entry_((pos)->member.next, pos, member); \
	     &(pos)->member != (head); \
	     (pos) = (spare), (spare) = list_entry_((spare)->member.next, pos, member))

#endif
