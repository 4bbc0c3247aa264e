/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing, step by step, and what a failure of each leaves behind:
 *
 *   hold      nobody frees or shares the allocations meanwhile; the program goes on using them
 *   plan      spans are joined where they touch, and rounded inward to whole pages
 *   separate  a chunk that is not one part, or too large for a block, is copied to several, and several that
 *             a part lies in to one. A failure leaves the chunks as they were
 *   flip      the parts become read-only, so that nobody can write to the bytes that are compared later. A
 *             failure undoes it. Where the driver does not, the part is marked as sealed, and the next sealing
 *             publishes it
 *   publish   glaked makes the chunk a block, or finds an equal one and compares all bytes. A refusal makes
 *             the part writable again
 *   collapse  an equal block is mapped in the part's place, and the chunk goes. A failure keeps the chunk
 *             mapped, as the block: the bytes are the same, but its memory is not saved. It stays charged, and the
 *             next sealing collapses it. If not even that can be mapped again, the bytes are lost, as with block.c
 *
 * seal_plan.c, seal_separate.c and seal_publish.c have the steps; the last has three.
 */
#include "libclient/seal/seal.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/rpc.h"
#include "libclient/link/sized.h"
#include "libclient/space/fill.h"
#include "libclient/space/reback.h"
#include "libclient/seal/seal_steps.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Seals the held spans. */
static int run(struct glake__seal *seal)
{
	seal->last = glake__look_last();
	int r = glake__seal_plan(seal);
	if (r < 0) {
		return r;
	}
	glake__seal_separate(seal);
	r = glake__seal_publish(seal);
	glake__seal_note_causes(seal->parts, seal->n_parts);
	return r;
}

static void count_seal(struct glake__seal *seal, uint64_t since_ns)
{
	glake__lock();
	for (size_t i = 0; i < seal->spans.sessions.n; i++) {
		struct glake__books *books = &seal->spans.sessions.list[i]->books;
		books->n_seals++;
		books->seal_ns += clock_now_ns() - since_ns;
	}
	glake__unlock();
}

int glake__seal_still(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      bool is_alone, struct glake_sealed *sealed_out)
{
	cleanup_cancel int cancel = cancel_disable();
	uint64_t since_ns = clock_now_ns();
	struct glake__seal seal = {.is_alone = is_alone};
	struct glake_sealed nothing = {0};
	int r = sealed_out ? glake__sized_out(sealed_out, &nothing, sizeof(nothing)) : 0;
	if (r < 0) {
		return r;
	}
	if (glake__dedup_is_off()) {
		return glake__fail(-EPERM, "GLAKE_DEDUP=off: nothing is sealed");
	}
	glake__gate_take_time();
	r = glake__spans_hold(&seal.spans, spans, n_spans, is_still);
	r = r < 0 ? r : run(&seal);
	struct glake__held_back held = glake__gate_take_time();
	seal.sum.held_ns = held.sum_ns;
	seal.sum.longest_held_ns = held.longest_ns;
	if (seal.spans.sessions.n > 0) {
		count_seal(&seal, since_ns);
	}
	free(seal.parts);
	if (seal.error) {
		glake__error_restore(seal.text);
		r = seal.error;
	}
	if (sealed_out) {
		glake__sized_out(sealed_out, &seal.sum, sizeof(seal.sum));
	}
	return glake__spans_let(&seal.spans, r);
}

/* Blocks are left out: what is sealed is not private. */
static int list_parts(const struct glake__seal *seal, struct glake_span **parts_out, size_t *n_out)
{
	struct glake_span *parts = calloc(seal->n_parts + 1, sizeof(*parts));
	size_t n = 0;
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < seal->n_parts; i++) {
		const struct glake__seal_part *part = &seal->parts[i];
		if (!part->is_again) {
			parts[n++] = (struct glake_span){part->ptr, part->n_bytes};
		}
	}
	*parts_out = parts;
	*n_out = n;
	return 0;
}

int glake__seal_apart(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      struct glake_span **parts_out, size_t *n_parts_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__seal seal = {.n_parts = 0};
	int r = glake__spans_hold(&seal.spans, spans, n_spans, is_still);
	seal.last = glake__look_last();
	r = r < 0 ? r : glake__seal_plan(&seal);
	if (r == 0) {
		glake__seal_separate(&seal);
		r = seal.n_parts == 0 ? seal.error : 0;
	}
	if (r < 0 && seal.error) {
		glake__error_restore(seal.text);
		seal.text = NULL;
	}
	r = r < 0 ? r : list_parts(&seal, parts_out, n_parts_out);
	free(seal.parts);
	free(seal.text);
	return glake__spans_let(&seal.spans, r);
}

int glake_seal(const struct glake_span *spans, size_t n_spans, struct glake_sealed *sealed_out)
{
	return glake__seal_still(spans, n_spans, NULL, false, sealed_out);
}

int glake_seal_idle(const struct glake_span *spans, size_t n_spans, struct glake_sealed *sealed_out)
{
	glake__gate_waive();
	int r = glake_seal(spans, n_spans, sealed_out);
	glake__gate_open();
	return r;
}
