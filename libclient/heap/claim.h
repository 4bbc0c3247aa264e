/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory as the shim and the library's own doors take it, find it, free it and park it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_CLAIM_H
#define GLAKE_LIBCLIENT_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/wait.h"
#include "libclient/space/allocation.h"

/* The bytes that a request for @n_bytes takes. */
uint64_t glake__heap_round(uint64_t n_bytes);

/*
 * Private memory of CUDA device @ordinal, not initialised, at least 512-byte aligned, with @tag.
 * glake__heap_take() serves it without a request, or returns NULL. glake__supply_get() asks glaked
 * if it must, and blocks; -ENODEV: glaked does not own the device.
 */
struct glake__allocation *glake__heap_take(struct glake_session *session, int ordinal,
                                           uint64_t n_bytes, const struct glake__tag *tag);
int glake__supply_get(struct glake_session *session, int ordinal, uint64_t n_bytes,
                      const struct glake__tag *tag, struct glake__wait *wait,
                      struct glake__allocation **allocation_out);

/* Is @address in an allocation that no thread has claimed? Then @facts_out (may be NULL) is set. */
bool glake__heap_find(glake_ptr address, struct glake__facts *facts_out);
/* Is @address in private memory at all, warm memory included? */
bool glake__heap_has(glake_ptr address);

/*
 * Claim the allocation that starts at @address: no other thread can free it. NULL if there is
 * none.
 */
struct glake__allocation *glake__heap_claim(glake_ptr address);
/* All of @ctx from before @generation, as a list by next. */
struct glake__allocation *glake__heap_claim_of(const void *ctx, uint64_t generation);
void glake__heap_unclaim(struct glake__allocation *allocation);

/*
 * Free the allocation that starts at @address, of @session or, if that is NULL, of any, in the order of @stream,
 * without an event: it joins one that is parked there and waits for the next mark (glake_order.h). *was_out (may be
 * NULL) is what it was. False: there is none, or it cannot; memory of graphs never can.
 */
bool glake__heap_join(const struct glake_session *session, glake_ptr address, uint64_t stream,
                      struct glake__allocation *was_out);
/* marking() of glake_order.h. */
void glake__heap_marking(struct glake__allocation *allocation);

/*
 * A claimed allocation leaves the program, in the order of @stream. park: before that is an event of the stream;
 * false: no memory of the host. Behind it, parked: the stream may have the memory at once; or unpark: the program
 * has it again.
 */
bool glake__heap_park(struct glake__allocation *allocation, uint64_t stream,
                      struct glake__parking *parking_out);
void glake__heap_parked(struct glake__parking *parking);
void glake__heap_unpark(struct glake__allocation *allocation, struct glake__parking *parking);
/* A parked allocation becomes another, live one. The connection of its tag stays. */
void glake__heap_reuse(struct glake__allocation *allocation, uint64_t n_bytes,
                       const struct glake__tag *tag);

/* Nothing uses a claimed allocation any more: make it warm or give it back. */
void glake__heap_release(struct glake_session *session, struct glake__allocation *allocation);

#endif
