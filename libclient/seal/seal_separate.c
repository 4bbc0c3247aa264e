/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts become pieces of their own: a chunk that is not one part, or too large for a block, is copied to
 * several, and several that a part lies in to one.
 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/seal/repiece.h"
#include "proto/cleanup.h"

static void add_size(uint64_t *sizes, size_t *n, uint64_t n_bytes)
{
	if (n_bytes > 0) {
		sizes[(*n)++] = n_bytes;
	}
}

/* @parts, of the pieces that fill [begin, end), become pieces of their own. @is_one: it is one piece now. */
static int separate(const struct glake__seal *seal, struct glake__seal_part *parts, size_t n_parts,
                    glake_ptr begin, glake_ptr end, bool is_one)
{
	cleanup_free uint64_t *sizes = calloc(2 * n_parts + 1, sizeof(*sizes));
	struct glake__wait wait = {0};
	glake_ptr at = begin;
	size_t n = 0;
	if (!sizes) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n_parts; i++) {
		add_size(sizes, &n, parts[i].ptr - at);
		add_size(sizes, &n, parts[i].n_bytes);
		at = parts[i].ptr + parts[i].n_bytes;
	}
	add_size(sizes, &n, end - at);
	struct glake__repiecing repiecing = {
		.ptr = begin,
		.device = parts[0].device,
		.sizes = sizes,
		.n_sizes = n,
		.last = seal->last,
	};
	if (n > 1 || !is_one) {
		glake__repiece(&repiecing, 1, glake__gate_close_in_a_hurry, &wait, &n);
	}
	return repiecing.result;
}

/*
 * Those of the first piece. The last of them may lie in the next pieces as well, and what it leaves of those is a
 * piece for the parts that follow: so never more than two chunks are copied at a time. Returns how many.
 */
static size_t separate_first(struct glake__seal *seal, struct glake__seal_part *parts,
                             size_t n_left, int *result_out)
{
	const struct glake__held *held = parts[0].held;
	struct glake__look piece = glake__look_at(held, parts[0].ptr, &seal->spans.sessions);
	const glake_ptr begin = piece.ptr;
	glake_ptr end = piece.ptr + piece.n_bytes;
	bool is_one = true;
	size_t n = 1;
	while (n < n_left && parts[n].held == held && parts[n].ptr < end) {
		n++;
	}
	while (end < parts[n - 1].ptr + parts[n - 1].n_bytes) {
		piece = glake__look_at(held, end, &seal->spans.sessions);
		end = piece.ptr + piece.n_bytes;
		is_one = false;
	}
	*result_out = separate(seal, parts, n, begin, end, is_one);
	return n;
}

/* Parts whose pieces cannot be cut are dropped. What is there no more is nobody's error. */
void glake__seal_separate(struct glake__seal *seal)
{
	size_t n_kept = 0;
	for (size_t i = 0; i < seal->n_parts;) {
		struct glake__seal_part *first = &seal->parts[i];
		int r;
		size_t n = separate_first(seal, first, seal->n_parts - i, &r);
		if (r == 0) {
			memmove(&seal->parts[n_kept], first, n * sizeof(*first));
			n_kept += n;
		} else if (r != -ESTALE) {
			glake__seal_note(seal, r);
			glake__seal_note_causes(first, n);
		}
		i += n;
	}
	seal->n_parts = n_kept;
}
