/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of a range, which range.h explains.
 */
#ifndef GLAKE_LIBCLIENT_PIECE_H
#define GLAKE_LIBCLIENT_PIECE_H

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/link/why.h"
#include "libclient/space/kind.h"
#include "libclient/space/page.h"
#include "proto/cudrv.h"

/* Ordered: a change to a lesser one takes access away. */
enum glake__access {
	GLAKE__ACCESS_NONE,
	GLAKE__ACCESS_READ,
	GLAKE__ACCESS_WRITE, /* and read */
};

struct glake__held;
struct glake__owner;
struct glake__range;
struct glake_session;

/*
 * What a range is used for, and what range.user points to. Each user of ranges has one, and others compare with it
 * or ask it; the space itself asks only what is in here.
 */
struct glake__use {
	const char *name;
	enum glake__address_kind kind; /* for those that look (look.h) */
	bool is_private;  /* memory of the program, that all readers of its device may have */
	bool is_programs; /* the program alone says which devices have access */
	bool is_ours;     /* nobody is told the address */
	bool is_worked_on; /* by work on the GPU that nobody can call back: what is written there is no other's */
	bool is_nowhere;    /* it has no addresses: the row of chunks that a number names */
	bool keeps_handles; /* its chunks are mapped again and again */
	bool has_seconds; /* what is read-only in it is so for good: a guard, or a second place of memory that others write to */

	/*
	 * For held.h; without hold, its memory can be neither held nor sealed. Called with the lock held, they wait
	 * for nobody. hold: 0: the allocation that @address, in @range, lies in is held, as *held_out says, which
	 * is {0} before; -EBUSY: it is already, and this is asked again when somebody lets something; -ENOTSUP: it
	 * shares its pages with other memory; -ENOENT: nothing is allocated there. let may be NULL: there is
	 * nothing to do.
	 */
	int (*hold)(struct glake__range *range, glake_ptr address, struct glake__held *held_out);
	void (*let)(struct glake__held *held);

	/*
	 * For asleep.h: whose memory it is. NULL: each chunk says it by its owner, where it has one; memory without
	 * one does not sleep. Called with the lock held.
	 */
	struct glake_session *(*session)(const struct glake__range *range);
	/*
	 * The id by which glaked knows all of @range, whose chunks have none: they sleep together, or none does. NULL: each
	 * sleeps by itself. Called with the lock held.
	 */
	uint64_t (*whole)(const struct glake__range *range);
};

/* Nobody's: the driver has not unmapped it. */
extern const struct glake__use glake__use_lost;

/* A chunk that is mapped more often keeps its content: one page of zeroes may stand at all places of a KV cache. */
#define GLAKE__MAX_PLACES 256u

struct glake__chunk {
	struct glake__chunk *next;     /* link: a list of dead ones */
	struct glake__piece *mappings; /* link: piece.next_mapping */
	uint64_t id;                   /* glaked's, of the chunk or block; 0: not glaked's */
	uint64_t n_bytes;
	int device;                 /* CUDA's; -1: none */
	enum glake__page_kind kind; /* CHUNK, BLOCK or HOST */
	uint32_t n_uses;            /* mappings, handles and others that keep it */
	uint32_t n_mappings;
	const void *holder; /* of a hold that has it, wherever it is mapped (range.h); NULL: none */
	uint32_t n_coming;  /* changes under way that map it once more */
	uint32_t n_handles; /* that the program has */
	CUmemGenericAllocationHandle handle; /* the library's own; 0: it keeps none */
	uint32_t pins;                       /* bit per enum glake__pin */
	bool is_unfinished; /* read-only, but not published, or not replaced by an equal block (seal.c) */
	void (*release)(struct glake__chunk *chunk); /* it is dead; no lock is held */
	struct glake__owner *owner; /* one reference (owner.h); NULL: whoever has the chunk knows */
	struct glake__piece *row;   /* its place in the row of a number; NULL: it is in none */
};

struct glake__piece {
	_Alignas(16) struct glake__range *range;
	uint64_t offset;
	uint64_t n_bytes;
	struct glake__chunk *chunk; /* one use; NULL: a hole */
	uint64_t readers;           /* bit per CUDA device that has this access */
	uint64_t writers;           /* those that the program lets write, in its own reservations */
	enum glake__access access;
	uint64_t
		number; /* of the mapping, in their order; what takes its place under a hold has the same */
	const void *holder; /* the change or hold that works on it; NULL: none, it is not busy */
	bool is_unmapped; /* set by who works on it: the driver has taken the chunk away; it may be asleep (asleep.h) */
	struct glake__piece *next; /* link: range.first */
	struct glake__piece *previous;
	struct glake__piece *next_mapping; /* link: chunk.mappings */
	struct glake__piece *previous_mapping;
	RB_ENTRY(glake__piece) by_offset; /* link: range.tree */
};

struct glake__range {
	glake_ptr ptr;
	uint64_t n_bytes;
	const struct glake__use *use;
	void *user;
	int device;       /* CUDA's, of the memory in it; -1: of no one */
	uint64_t readers; /* bit per CUDA device that gets access to what will be mapped */
	bool is_outside;  /* of the window: no entries in the page map */
	bool is_asleep;   /* a whole, held by who sleeps, until that lets it (asleep.h) */
	struct glake__piece *first;                    /* owned list, by offset */
	RB_HEAD(glake__piece_tree, glake__piece) tree; /* the same pieces, if it is outside */
	struct glake__range *next;                     /* link: space.ranges */
	struct glake__range *previous;
	struct glake__range *next_outside; /* link: space.outside */
	struct glake__chunk *guard;        /* borrowed: stands where no other memory is (guard.h) */
	int8_t *unsealed; /* owned: a cause for each page (unsealed.h); NULL: none has one */
	struct glake__books *books; /* borrowed: that count them */
};

/* The piece of @range that holds @offset. */
struct glake__piece *glake__range_piece_locked(const struct glake__range *range, uint64_t offset);

/* One use less; onto the list @dead if that was the last. */
void glake__chunk_put_locked(struct glake__chunk *chunk, struct glake__chunk **dead);

#endif
