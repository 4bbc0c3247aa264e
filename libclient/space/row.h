/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row of a range from inside, for those that change it (chunk.c, range.c, change.c).
 *
 * Threads: all is called with the lock of the space held.
 */
#ifndef GLAKE_LIBCLIENT_ROW_H
#define GLAKE_LIBCLIENT_ROW_H

#include "libclient/space/piece.h"

/* In no row yet. NULL without memory. */
struct glake__piece *glake__piece_new(struct glake__range *range);
/* Into its row, behind @before; NULL: as the first. */
void glake__piece_link(struct glake__piece *piece, struct glake__piece *before);
void glake__piece_take_out(struct glake__piece *piece);
/* Cut @hole at @offset, into two; @spare becomes the smaller one. Returns the one behind the cut. */
struct glake__piece *glake__piece_cut(struct glake__piece *hole, uint64_t offset,
                                      struct glake__piece *spare);
/* The access of @piece when @access is asked for: a number has none, and the program's own memory keeps its own. */
enum glake__access glake__piece_most(const struct glake__piece *piece, enum glake__access access);
bool glake__piece_is_free_hole(const struct glake__piece *piece);
/* Every free hole that touches [offset, end) and has a neighbour of its kind. */
void glake__range_merge_holes(struct glake__range *range, uint64_t offset, uint64_t end);

/* Write the entries of @piece in the page map. */
void glake__piece_enter(const struct glake__piece *piece);

/* The chunk of @piece has a mapping more, or one less, and may be onto @dead: the piece is a hole then. */
void glake__piece_map(struct glake__piece *piece);
void glake__piece_unmap(struct glake__piece *piece, struct glake__chunk **dead);

/* Is it a block that the program sees? It counts (sealed.h). */
bool glake__piece_is_sealed(const struct glake__piece *piece);
void glake__sealed_count(const struct glake__piece *piece);

#endif
