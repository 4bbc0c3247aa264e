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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/map.h"
#include "libclient/space/piece.h"
#include "libclient/space/space.h"

/* ---- chunks ----------------------------------------------------------------------------------- */

/* With one use, the caller's. Its release is glake__chunk_free(). NULL without memory, the error set. */
struct glake__chunk *glake__chunk_new(uint64_t id, uint64_t n_bytes, int device,
                                      enum glake__page_kind kind);

/* One use less, and released if it is dead. Takes the lock. */
void glake__chunk_put(struct glake__chunk *chunk);
/* No lock is held. NULL is fine. */
void glake__chunks_release(struct glake__chunk *dead);

/* And the library's handle of it. No lock is held. */
void glake__chunk_free(struct glake__chunk *chunk);

/* @pin is a reason from now on, or no longer. */
static inline void glake__chunk_note_pin_locked(struct glake__chunk *chunk, enum glake__pin pin,
                                                bool is_pinned)
{
	chunk->pins = is_pinned ? chunk->pins | 1u << pin : chunk->pins & ~(1u << pin);
}

/* Changes the chunk's kind, wherever it is mapped. */
void glake__chunk_set_kind_locked(struct glake__chunk *chunk, enum glake__page_kind kind);

/* Why @chunk is pinned; GLAKE__PIN_NONE: it is not. Others may map it meanwhile, once unlocked. */
enum glake__pin glake__chunk_pin_locked(const struct glake__chunk *chunk);

/* More than GLAKE__MAX_PLACES. Our own, which come and go while it is held, do not count. */
bool glake__chunk_has_too_many_places_locked(const struct glake__chunk *chunk);

/* ---- ranges ----------------------------------------------------------------------------------- */

/*
 * Addresses for @n_bytes, a multiple of 2 MiB, one hole: from the window, else of the driver. They and
 * the range are the caller's. @alignment and @hint as in cuMemAddressReserve(). Returns 0, -ENOMEM or
 * GLAKE_E_CUDA, the text set.
 */
int glake__range_reserve(const struct glake__use *use, void *user, int device, uint64_t n_bytes,
                         uint64_t alignment, glake_ptr hint, struct glake__range **range_out);

/* Out of the map, its addresses given back, unless it has memory mapped: -EBUSY. Frees it if 0. */
int glake__range_drop(struct glake__range *range);

/* In a forked child: free it, and nothing else. */
void glake__range_forget(struct glake__range *range);

/* The piece that @address lies in, and with it the range; NULL: none of ours. */
struct glake__piece *glake__piece_at_locked(glake_ptr address);

/* The range that @address lies in if it is of @use; NULL if not. */
struct glake__range *glake__range_at_locked(glake_ptr address, const struct glake__use *use);

/* ---- changes: whoever makes the driver's calls himself notes here what they do ---------------- */

/* One part of the new memory of a place. */
struct glake__part {
	struct glake__chunk *chunk; /* NULL: a hole */
	uint64_t n_bytes;
	enum glake__access access;
	int fd;                              /* reback: to import it from; -1: */
	CUmemGenericAllocationHandle handle; /* the caller's; 0: it is mapped, and that is asked */
};

/*
 * Mapped pieces that only the holder changes: to look at their content and replace it (reback.h). The chunks in them are
 * held with all their places: the pieces of other ranges where they are mapped, and the numbers that name them. They
 * are taken at once, under one lock, and nobody waits with something held, so nobody waits in a circle. Others that
 * want to change, pin, map or free the memory wait for the end of the hold, so the holder must not be cancelled.
 */
struct glake__hold {
	struct glake__range *range; /* stays as long as the hold; NULL: nothing is mapped there */
	uint64_t offset;
	uint64_t n_bytes;
	const void
		*owner; /* marks what is held: itself, or the first of those that began together */
};

/*
 * Hold all pieces with memory that [ptr, ptr + n_bytes) touches, of one range. Waits for other holds and
 * changes if @waits. Returns 0; -ENOENT: @ptr is in no range; -EBUSY. No lock is held by the caller.
 */
int glake__hold_begin(struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes, bool waits);
void glake__hold_end(struct glake__hold *hold);

/* One place to hold. */
struct glake__holding {
	struct glake__hold *hold;
	struct glake__range
		*range; /* NULL: the range that ptr lies in; else ptr is an offset in it */
	glake_ptr ptr;
	uint64_t n_bytes;
	bool is_here; /* only these pieces, to be left as they are: their chunks may change elsewhere */
	int result; /* out: 0; -ENOENT; -EALREADY: another of the list has some of it, at some place */
};
/* All of @list at once. 0 and the results; or -EBUSY, when nothing is held. Each ends by itself. */
int glake__holds_begin(struct glake__holding *list, size_t n, bool waits);

/* A place where a chunk that is held is mapped, or named. Others come and go only when the hold has ended. */
struct glake__place {
	struct glake__range *range;
	uint64_t offset;
};
/* The other places of the chunk of @piece, which is held. Returns how many; the first @n_max are in @list. */
size_t glake__places_locked(const struct glake__piece *piece, struct glake__place *list,
                            size_t n_max);

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
	const struct glake__use *use;
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
/* Several at once, of one part each; @sites say the same of waiting. */
int glake__changes_begin(struct glake__change *changes, const struct glake__site *sites,
                         const struct glake__part *parts, size_t n);
/* The change has happened. Chunks that lost their last use are put onto @dead. Cannot fail. */
void glake__change_commit(struct glake__change *change, struct glake__chunk **dead);
/* The change did not happen: all stays, but pieces noted as unmapped become holes. */
void glake__change_cancel(struct glake__change *change, struct glake__chunk **dead);
/* Commit and cancel several changes at once. */
void glake__changes_commit(struct glake__change *changes, size_t n, struct glake__chunk **dead);
void glake__changes_cancel(struct glake__change *changes, size_t n, struct glake__chunk **dead);

/* Whether some of what is there has left our sight, and has to stay. It is busy, so nothing of it is pinned behind this. */
bool glake__change_is_pinned(const struct glake__change *change);

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
