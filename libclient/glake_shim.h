/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the library has for the shim and for nobody else: not installed, not in glake.map, and changed
 * as the two need it. It is linked into the shim with the library's archive.
 *
 * Threads: any. Errors: as in glake.h.
 */
#ifndef GLAKE_SHIM_PRIVATE_H
#define GLAKE_SHIM_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake.h"
#include "glake_order.h"

/* ---- the heap --------------------------------------------------------------------------------- */

/* What its allocator notes of an allocation; the library looks at ctx and era only to find them. */
struct glake__tag {
	void *ctx; /* which has allocated it: it dies with it */
	uint64_t era;
	void *pool;
	void *owner;
};

/*
 * A piece of private memory, live or parked: all of a range of its own, or part of a slab. It is read
 * by who has claimed it, else under the heap's lock.
 */
struct glake__allocation {
	glake_ptr address;
	uint64_t n_bytes;    /* as asked for */
	uint64_t n_capacity; /* that it takes */
	uint64_t id;         /* of this allocation; never used again */
	int ordinal;         /* of its CUDA device */
	bool is_claimed;     /* somebody is about to free it */
	bool is_parked;      /* freed in the order of a stream, which may still use it */
	struct glake__tag tag;
	struct glake__allocation *next;  /* link: a list of claimed ones */
	struct glake__backing *backing;  /* borrowed: what it is in */
	struct glake__slab_block *block; /* borrowed; NULL: all of the backing */
};

/* What there is to know of an allocation, by any address in it. */
struct glake__facts {
	glake_ptr address;
	uint64_t n_bytes;
	uint64_t id;
	int ordinal;
	struct glake__tag tag;
	glake_ptr region_address; /* what is mapped: the range */
	uint64_t region_bytes;
	uint64_t region_id;
};

/* The bytes that a request for @n_bytes takes. */
uint64_t glake__heap_round(uint64_t n_bytes);

/*
 * Private memory of CUDA device @ordinal, not initialised, at least 512-byte aligned, and named @tag.
 * take: what is there, without a request; NULL if nothing is. get: from glaked if need be; blocks. -ENODEV:
 * the device is not glaked's.
 */
struct glake__allocation *glake__heap_take(struct glake_session *session, int ordinal,
                                           uint64_t n_bytes, const struct glake__tag *tag);
int glake__heap_get(struct glake_session *session, int ordinal, uint64_t n_bytes,
                    const struct glake__tag *tag, struct glake__allocation **allocation_out);

/* Is @address anywhere in an allocation that nobody has claimed? Then @facts_out (may be NULL). */
bool glake__heap_find(glake_ptr address, struct glake__facts *facts_out);
/* Or at least in memory that is mapped for the next ones? */
bool glake__heap_has(glake_ptr address);

/* The allocation that starts at @address, now nobody else's to free; NULL if there is none. */
struct glake__allocation *glake__heap_claim(glake_ptr address);
/* All of @ctx from before @era, as a list by next. */
struct glake__allocation *glake__heap_claim_of(const void *ctx, uint64_t era);
void glake__heap_unclaim(struct glake__allocation *allocation);

/*
 * A claimed one is not the program's any more. Returns the bytes that one may have that it becomes: none if
 * it must be given back. And the program's again.
 */
uint64_t glake__heap_park(struct glake__allocation *allocation);
void glake__heap_unpark(struct glake__allocation *allocation);
/* A parked one becomes another one, live. It keeps the tag's owner. */
void glake__heap_reuse(struct glake__allocation *allocation, uint64_t n_bytes,
                       const struct glake__tag *tag);

/* Nothing uses a claimed one any more: warm, or given back. */
void glake__heap_release(struct glake_session *session, struct glake__allocation *allocation);

/* glake_share() of all that is mapped with @ptr: the region of an allocation, perhaps of many. */
int glake__share_region(struct glake_session *session, glake_ptr ptr,
                        struct glake_share *share_out);

/*
 * CUDA device @reader may read and write private memory of @device from now on: what there is and what
 * there will be. GLAKE_E_CUDA: then what there will be is not opened.
 */
int glake__space_add_reader(int device, int reader);

/* ---- memory in the order of streams: contexts that end ---------------------------------------- */

/*
 * A context may end: around the call that may end it, so that nobody else makes use of it meanwhile.
 * Its handle may be another's before that call has returned, so what there is of it is hidden first.
 * Then it has ended, its work uses nothing any more, and its events went with it: drop what is hidden,
 * and all that was parked is released when contexts are let. Or it has not: show it again.
 */
void glake__order_hold_contexts(struct glake_order *order);
void glake__order_let_contexts(struct glake_order *order);
void glake__order_hide_context(struct glake_order *order, void *context);
void glake__order_show_context(struct glake_order *order, void *context);
void glake__order_drop_context(struct glake_order *order);

/* ---- what the program says of itself ---------------------------------------------------------- */

/* What a program has of the driver itself on one device, beside its contexts and code. */
struct glake__driver_memory {
	uint32_t device;        /* glaked's index */
	uint64_t managed_bytes; /* as asked for: how much of it is on the device is not known */
	uint64_t array_bytes;
	uint64_t graph_bytes; /* kept for the allocations of graphs */
	uint64_t other_bytes; /* allocations and pools */
};

struct glake__program_usage {
	uint64_t n_owned;  /* allocations served with memory of glaked */
	uint64_t n_passed; /* allocations left to the driver that glaked should have served */
	const struct glake__driver_memory *driver; /* borrowed; each device at most once */
	size_t n_driver;
};

/*
 * What the library cannot know of the program that it works for: told to glaked with the next report,
 * for listings. It replaces what was set before. Local. -ENODEV: no such device, -EINVAL: one that is
 * there twice; nothing is changed then.
 */
int glake__set_program_usage(struct glake_session *session,
                             const struct glake__program_usage *usage);

#endif
