/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists that are linked both ways by two members of their entries, @previous and @next. An entry can be in several, by
 * other members. @first and @last are where the list begins and ends; most lists need no end. Arguments are evaluated more
 * than once.
 *
 * Threads: as for what is linked.
 */
#ifndef GLAKE_LIBCLIENT_CHAIN_H
#define GLAKE_LIBCLIENT_CHAIN_H

#define CHAIN_PUSH(first, at, previous, next) \
	do { \
		(at)->previous = NULL; \
		(at)->next = (first); \
		if (first) { \
			(first)->previous = (at); \
		} \
		(first) = (at); \
	} while (0)

#define CHAIN_APPEND(first, last, at, previous, next) \
	do { \
		(at)->next = NULL; \
		(at)->previous = (last); \
		*((last) ? &(last)->next : &(first)) = (at); \
		(last) = (at); \
	} while (0)

/* Behind @before; NULL: at the beginning. */
#define CHAIN_LINK(first, at, before, previous, next) \
	do { \
		(at)->previous = (before); \
		(at)->next = (before) ? (before)->next : (first); \
		*((before) ? &(before)->next : &(first)) = (at); \
		if ((at)->next) { \
			(at)->next->previous = (at); \
		} \
	} while (0)

/* @at keeps its links, so that a walk can go on. */
#define CHAIN_REMOVE(first, at, previous, next) \
	do { \
		*((at)->previous ? &(at)->previous->next : &(first)) = (at)->next; \
		if ((at)->next) { \
			(at)->next->previous = (at)->previous; \
		} \
	} while (0)

#define CHAIN_REMOVE_OF(first, last, at, previous, next) \
	do { \
		if (!(at)->next) { \
			(last) = (at)->previous; \
		} \
		CHAIN_REMOVE(first, at, previous, next); \
	} while (0)

#endif
