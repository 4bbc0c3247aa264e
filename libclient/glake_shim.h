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
#include "libclient/memory/ptr_table.h"

/* ---- the heap --------------------------------------------------------------------------------- */

/* What its allocator notes of an allocation; the library looks at ctx and generation only to find them. */
struct glake__tag {
	void *ctx; /* which has allocated it: it dies with it */
	uint64_t generation;
	void *pool;
	void *connection;
};

/* Since when one allocation waits for glaked, over all requests that are made for it. Begins as zeroes. */
struct glake__wait {
	uint64_t since_ns;
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
int glake__supply_get(struct glake_session *session, int ordinal, uint64_t n_bytes,
                      const struct glake__tag *tag, struct glake__wait *wait,
                      struct glake__allocation **allocation_out);

/* Is @address anywhere in an allocation that nobody has claimed? Then @facts_out (may be NULL). */
bool glake__heap_find(glake_ptr address, struct glake__facts *facts_out);
/* Or at least in memory that is mapped for the next ones? */
bool glake__heap_has(glake_ptr address);

/* The allocation that starts at @address, now nobody else's to free; NULL if there is none. */
struct glake__allocation *glake__heap_claim(glake_ptr address);
/* All of @ctx from before @generation, as a list by next. */
struct glake__allocation *glake__heap_claim_of(const void *ctx, uint64_t generation);
void glake__heap_unclaim(struct glake__allocation *allocation);

/*
 * A claimed one is not the program's any more. Returns the bytes that one may have that it becomes: none if
 * it must be given back. And the program's again.
 */
uint64_t glake__heap_park(struct glake__allocation *allocation);
void glake__heap_unpark(struct glake__allocation *allocation);
/* A parked one becomes another one, live. It keeps the tag's connection. */
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

/* ---- the map ---------------------------------------------------------------------------------- */

/* The driver, by path, is initialised: from now on there is a window. 0, or an error of cudrv_open(). */
int glake__space_start(const char *libcuda);

/* What an address is. */
enum glake__place {
	GLAKE__ELSEWHERE, /* none of ours */
	GLAKE__FREE,      /* of the window, and nobody's */
	GLAKE__OWN,       /* private memory, live or warm; models; blocks */
	GLAKE__OPENED,    /* another process's */
	GLAKE__PROGRAMS,  /* in a reservation of the program */
};

struct glake__place_info {
	enum glake__place place;
	glake_ptr address; /* of the range, unless it is free */
	uint64_t n_bytes;
	void *user; /* glake__opened_set_user() */
};
struct glake__place_info glake__space_look(glake_ptr address);

/* What glake_share_open() gave: the caller's, for glake__space_look(). */
void glake__opened_set_user(glake_ptr address, void *user);

/* Why a chunk must stay what and where it is. */
enum glake__pin {
	GLAKE__PIN_NONE,
	GLAKE__PIN_ALIASED,     /* from what the chunk knows: it is mapped more than once */
	GLAKE__PIN_HANDLE,      /* and this: the program has a handle of it */
	GLAKE__PIN_SHARED,      /* noted, and stays: another process may map it */
	GLAKE__PIN_FOREIGN,     /* it is another process's */
	GLAKE__PIN_EXPORTED,    /* its fd was handed out */
	GLAKE__PIN_DMABUF,      /* another device may have it */
	GLAKE__PIN_SYNC_MEMOPS, /* the driver waits by its address */
	GLAKE__PIN_MULTICAST,   /* it is bound to a multicast object */
	GLAKE__N_PINS
};
const char *glake__pin_text(enum glake__pin pin);

/* Of the memory at @address; GLAKE__PIN_NONE as well where there is none of ours. */
enum glake__pin glake__pin_at(glake_ptr address);

/* Note that what is mapped in [address, address + n_bytes) is pinned; or not for this reason, after all. */
void glake__pin_range(glake_ptr address, uint64_t n_bytes, enum glake__pin pin, bool is_pinned);

/* ---- the program's own virtual memory management ---------------------------------------------- */

/*
 * The shim makes the driver's calls, and books here what they do. So each call that can fail has a
 * beginning, before it, and an end, which is told how it went.
 */
struct glake__chunk;

/*
 * Addresses of the window for cuMemAddressReserve(), or, where that has none, the driver's. -EINVAL: not a
 * multiple of 2 MiB, or before glake__space_start(); else as the driver: GLAKE_E_CUDA, -ENOMEM.
 */
int glake__program_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint,
                           glake_ptr *ptr_out);
/* -ENOENT: it is no reservation of those; -EINVAL: another size, or not empty. */
int glake__program_unreserve(glake_ptr ptr, uint64_t n_bytes);

/*
 * The driver has made @handle. When its last handle, mapping and use is gone, @release is called with @user
 * and no lock held. @device: CUDA's, -1: none. With one use and one handle. NULL without memory.
 */
struct glake__chunk *glake__program_made(unsigned long long handle, uint64_t n_bytes, int device,
                                         void *user, void (*release)(void *user));
/* The same, of memory of another process, or of ours that has come back by an fd. */
void glake__program_imported(unsigned long long handle, int device);

/*
 * The chunk of a handle, with a use more, until glake__program_give(); NULL if it is not known. Around each
 * call of the driver that takes or gives up a handle or a mapping.
 */
struct glake__chunk *glake__program_take(unsigned long long handle);
void glake__program_give(struct glake__chunk *chunk);
void *glake__program_user(const struct glake__chunk *chunk);
void glake__program_pin(struct glake__chunk *chunk, enum glake__pin pin);

/* The driver has released @handle once; has given one more to what is mapped at @address. */
void glake__program_released(unsigned long long handle);
void glake__program_retained(unsigned long long handle, glake_ptr address);

/* Around a mapping. */
struct glake__mapping;
/*
 * 0 and *mapping_out; -ENOENT: nothing of ours is there, the driver knows; -EINVAL: it must not be.
 * @chunk may be NULL, of a handle that is not known.
 */
int glake__program_map(glake_ptr ptr, uint64_t n_bytes, struct glake__chunk *chunk,
                       struct glake__mapping **mapping_out);
/* The same around an unmapping. */
int glake__program_unmap(glake_ptr ptr, uint64_t n_bytes, struct glake__mapping **mapping_out);
/* NULL is fine. */
void glake__program_settle(struct glake__mapping *mapping, bool is_done);

/* May the program change the access to all of it? 0, -ENOENT, -EINVAL as above. */
int glake__program_check(glake_ptr ptr, uint64_t n_bytes);
/* It has: @device may read it, or also write it. */
void glake__program_opened(glake_ptr ptr, uint64_t n_bytes, int device, bool may_write);

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

/* ---- the session ------------------------------------------------------------------------------ */

/* True: the session has no connection and gets none any more. False while the library may make one. Local. */
bool glake__session_is_gone(struct glake_session *session);

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
