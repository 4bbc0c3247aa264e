/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds memory that looks like weights, and seals it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_CANDIDATES_H
#define GLAKE_LIBCLIENT_CANDIDATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/report.h"

/* 0 or -ENOMEM. */
int glake__candidates_find(struct glake_session *session, struct glake__candidates *candidates_out);

/* Was all that it would look at allocated in one of these contexts, in none, or before @generation? */
bool glake__candidates_are_in(struct glake_session *session, void *const *contexts, size_t n,
                              uint64_t generation);

/* glake_seal() of @n of the spans. What has been freed or written to meanwhile is left out. */
int glake__candidates_seal(const struct glake_span *spans, size_t n,
                           struct glake_sealed *sealed_out);

/* Sealing that nobody has asked for: only spans that @may allows, which is asked while they are held. */
int glake__candidates_seal_if(const struct glake_span *spans, size_t n,
                              bool (*may)(glake_ptr ptr, uint64_t n_bytes),
                              struct glake_sealed *sealed_out);

/*
 * They stay private, and the whole pages of each become pieces of their own, so that the driver can change access to
 * them: *parts_out, the caller's. What has been freed or written to meanwhile is left out, and what cannot be cut; if
 * that is all, the error says why.
 */
int glake__candidates_part(const struct glake_span *spans, size_t n, struct glake_span **parts_out,
                           size_t *n_parts_out);

#endif
