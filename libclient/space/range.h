/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range: addresses that stay, whatever backs them. The one map of address to thing.
 *
 * A range is a row of pieces, side by side, without a gap. A piece is a hole, or one whole chunk in its
 * place: private, or a block, or of host memory. A chunk knows all its mappings, and what was handed out
 * of it: only one that is mapped once and that nobody else can name may be sealed or moved; any other is
 * pinned, for a reason.
 *
 *   range   reserve -> (reback | change)* -> clear -> drop
 *   piece   a hole, or a chunk; busy while some thread works on it without the lock
 *   chunk   lives as long as it has uses: mappings, handles that the program has, calls under way
 *
 * Invariants (glake__space_is_valid()): pieces fill their range; no two holes that are not busy lie side by
 * side; the page map's entries of a piece's pages point to it; a chunk's list of mappings has exactly the
 * pieces that have it.
 *
 * Owner: ranges are their user's. Lifetime: glake__range_reserve() .. glake__range_drop().
 * Threads: any; _locked: called with the lock of the space held.
 */
#ifndef GLAKE_LIBCLIENT_RANGE_H
#define GLAKE_LIBCLIENT_RANGE_H

#include <bsd/sys/tree.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/glake_shim.h"
#include "libclient/space/map.h"
#include "libclient/space/page.h"
#include "libclient/space/space.h"

/* Whose a range is: what user points to. */
enum glake__range_use {
	GLAKE__RANGE_PRIVATE,  /* struct glake__backing: glake_alloc(), live or warm */
	GLAKE__RANGE_POOL,     /* struct glake__pool: memory in stream order */
	GLAKE__RANGE_STITCHED, /* struct glake__stitched: the same memory, side by side */
	GLAKE__RANGE_PLACED,   /* struct glake__placed: glake_reserve() */
	GLAKE__RANGE_BLOCK,    /* struct glake_block */
	GLAKE__RANGE_MODEL,    /* struct glake_model */
	GLAKE__RANGE_OPENED,   /* glake_share_open(): another process's */
	GLAKE__RANGE_PROGRAM,  /* the program's own reservation, under the shim */
	GLAKE__RANGE_SCRATCH,  /* nobody's: fresh chunks on their way to a place (repiece.h) */
	GLAKE__RANGE_MIRROR,   /* nobody's: memory of others, for work of our own (errand.h) */
	GLAKE__RANGE_LOST,     /* nobody's: the driver has not unmapped it */
};

struct glake__chunk {
	struct glake__chunk *next;     /* link: a list of dead ones */
	struct glake__piece *mappings; /* link: piece.next_mapping */
	uint64_t id;                   /* glaked's, of the chunk or block; 0: not glaked's */
	uint64_t n_bytes;
	int device;                 /* CUDA's; -1: none */
	enum glake__page_kind kind; /* CHUNK, BLOCK or HOST */
	uint32_t n_uses;            /* mappings, handles and others that keep it */
	uint32_t n_mappings;
	uint32_t n_handles;                  /* that the program has */
	CUmemGenericAllocationHandle handle; /* the library's own; 0: it keeps none */
	uint32_t pins;                       /* bit per enum glake__pin */
	bool is_unfinished; /* read-only, but not published, or not replaced by an equal block (seal.c) */
	void (*release)(struct glake__chunk *chunk); /* it is dead; no lock is held */
	void *user;                                  /* program.c */
	void (*user_release)(void *user);
};

struct glake__piece {
	_Alignas(16) struct glake__range *range;
	uint64_t offset;
	uint64_t n_bytes;
	struct glake__chunk *chunk; /* one use; NULL: a hole */
	uint64_t readers;           /* bit per CUDA device that has this access */
	uint64_t writers;           /* those that the program lets write, in its own reservations */
	enum glake__access access;
	const void *holder; /* the change or hold that works on it; NULL: none, it is not busy */
	bool is_unmapped;   /* set by who works on it: the driver has taken the chunk away */
	struct glake__piece *next; /* link: range.first */
	struct glake__piece *previous;
	struct glake__piece *next_mapping; /* link: chunk.mappings */
	struct glake__piece *previous_mapping;
	RB_ENTRY(glake__piece) by_offset; /* link: range.tree */
};

struct glake__range {
	glake_ptr ptr;
	uint64_t n_bytes;
	enum glake__range_use use;
	void *user;
	int device;       /* CUDA's, of the memory in it; -1: of no one */
	uint64_t readers; /* bit per CUDA device that gets access to what will be mapped */
	bool is_outside;  /* of the window: no entries in the page map */
	struct glake__piece *first;                    /* owned list, by offset */
	RB_HEAD(glake__piece_tree, glake__piece) tree; /* the same pieces, if it is outside */
	struct glake__range *next;                     /* link: space.ranges */
	struct glake__range *previous;
	struct glake__range *next_outside; /* link: space.outside */
};

/* ---- chunks ----------------------------------------------------------------------------------- */

/* With one use, the caller's. Its release is free(). NULL without memory, the error set. */
struct glake__chunk *glake__chunk_new(uint64_t id, uint64_t n_bytes, int device,
                                      enum glake__page_kind kind);

/* One use less; onto the list @dead if that was the last. */
void glake__chunk_put_locked(struct glake__chunk *chunk, struct glake__chunk **dead);
/* The same, and released if it is dead. Takes the lock. */
void glake__chunk_put(struct glake__chunk *chunk);
/* No lock is held. NULL is fine. */
void glake__chunks_release(struct glake__chunk *dead);

/* It is something else now, wherever it is mapped. */
void glake__chunk_set_kind_locked(struct glake__chunk *chunk, enum glake__page_kind kind);

/* Why @chunk is pinned; GLAKE__PIN_NONE: it is not. Others may map it meanwhile, once unlocked. */
enum glake__pin glake__chunk_pin_locked(const struct glake__chunk *chunk);

/* ---- ranges ----------------------------------------------------------------------------------- */

/*
 * Addresses for @n_bytes, a multiple of 2 MiB, one hole: from the window, else of the driver. They and
 * the range are the caller's. @alignment and @hint as in cuMemAddressReserve(). Returns 0, -ENOMEM or
 * GLAKE_E_CUDA, the text set.
 */
int glake__range_reserve(enum glake__range_use use, void *user, int device, uint64_t n_bytes,
                         uint64_t alignment, glake_ptr hint, struct glake__range **range_out);

/* Private memory of the program, that all readers of its device may have. */
static inline bool glake__range_is_private(const struct glake__range *range)
{
	return range->use == GLAKE__RANGE_PRIVATE || range->use == GLAKE__RANGE_POOL ||
	       range->use == GLAKE__RANGE_STITCHED;
}

/* Out of the map, its addresses given back, unless it has memory mapped: -EBUSY. Frees it if 0. */
int glake__range_drop(struct glake__range *range);

/* In a forked child: free it, and nothing else. */
void glake__range_forget(struct glake__range *range);

/* The piece that @address lies in, and with it the range; NULL: none of ours. */
struct glake__piece *glake__piece_at_locked(glake_ptr address);

/* The range that @address lies in if it is of @use; NULL if not. */
struct glake__range *glake__range_at_locked(glake_ptr address, enum glake__range_use use);

/* The piece of @range that holds @offset. */
struct glake__piece *glake__range_piece_locked(const struct glake__range *range, uint64_t offset);

/* ---- changes: whoever makes the driver's calls himself notes here what they do ---------------- */

/* What is to stand in a place. */
struct glake__part {
	struct glake__chunk *chunk; /* NULL: a hole */
	uint64_t n_bytes;
	enum glake__access access;
	int fd;                              /* reback: to import it from; -1: */
	CUmemGenericAllocationHandle handle; /* the caller's; 0: it is mapped, and that is asked */
};

/*
 * Mapped pieces that only the holder changes: to look at their content and replace it (reback.h). Others that
 * want to change, pin or free the memory wait for the end of the hold, so the holder must not be cancelled.
 */
struct glake__hold {
	struct glake__range *range; /* stays as long as the hold; NULL: nothing is mapped there */
	uint64_t offset;
	uint64_t n_bytes;
};

/*
 * Hold all pieces with memory that [ptr, ptr + n_bytes) touches, of one range. Waits for other holds and
 * changes if @waits. Returns 0; -ENOENT: @ptr is in no range; -EBUSY. No lock is held by the caller.
 */
int glake__hold_begin(struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes, bool waits);
void glake__hold_end(struct glake__hold *hold);

/* For whoever finds busy pieces: sleep a moment, without the lock, and look again. */
void glake__busy_pause(void);

struct glake__change {
	struct glake__range *range;
	uint64_t offset;
	uint64_t n_bytes;
	const struct glake__hold *hold; /* that the pieces are in; or NULL */
	struct glake__piece *fresh;     /* owned list */
	struct glake__piece *edges[2];  /* owned spares */
};

/* The site of a change. */
struct glake__site {
	struct glake__range
		*range; /* NULL: the range of @use at @ptr, looked up when the change begins */
	enum glake__range_use use;
	glake_ptr ptr;
	const struct glake__hold
		*hold; /* the caller's, that all pieces with memory are in; or NULL */
	bool waits;    /* for other changes of the pieces, instead of -EBUSY */
};

/*
 * Begin to put @parts, of @n_bytes together, at @site: what is there is busy until the end of the change.
 * It must be whole pieces, or parts of holes. -EINVAL: it is not, or not in a range; -EBUSY; -ENOMEM.
 */
int glake__change_begin(struct glake__change *change, const struct glake__site *site,
                        const struct glake__part *parts, size_t n_parts);
/* The change has happened. Chunks that lost their last use are put onto @dead. Cannot fail. */
void glake__change_commit(struct glake__change *change, struct glake__chunk **dead);
/* It has not: all stays, but for the pieces that are noted as unmapped, which become holes. */
void glake__change_cancel(struct glake__change *change, struct glake__chunk **dead);

/* The first piece of what is changed, busy: its row up to the change's end stays as it is. */
struct glake__piece *glake__change_first(const struct glake__change *change);
/* The one behind @piece; NULL: it is the last. What lies behind that, other threads may change. */
static inline struct glake__piece *glake__change_next(const struct glake__change *change,
                                                      const struct glake__piece *piece)
{
	bool is_last = piece->offset + piece->n_bytes >= change->offset + change->n_bytes;
	return is_last ? NULL : piece->next;
}

/* For tests: the invariants at the top, of all ranges and the window. Takes the lock. */
bool glake__space_is_valid(void);

#endif
