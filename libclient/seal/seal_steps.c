/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>

#include "libclient/link/dispatch.h"
#include "libclient/seal/unsealed.h"

void glake__seal_note(struct glake__seal *seal, int r)
{
	if (r < 0 && seal->error == 0) {
		seal->error = r;
		seal->text = glake__error_save();
	}
}

struct glake__look glake__look_at(const struct glake__backing *backing, uint64_t offset)
{
	glake__lock();
	const struct glake__piece *piece = glake__range_piece_locked(backing->range, offset);
	struct glake__look look = {
		.offset = piece->offset,
		.n_bytes = piece->n_bytes,
		.kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE,
		.is_unfinished = piece->chunk && piece->chunk->is_unfinished,
		.pin = piece->chunk ? glake__chunk_pin_locked(piece->chunk) : GLAKE__PIN_NONE,
	};
	glake__unlock();
	return look;
}

void glake__seal_note_causes(const struct glake__seal_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		glake__unsealed_note(parts[i].backing, parts[i].offset,
		                     parts[i].offset + parts[i].n_bytes,
		                     glake__unsealed_by_pin(parts[i].pin));
	}
}

int glake__seal_hold(const void *holder, struct glake__seal_span *span)
{
	if (glake__space_is_parents()) {
		return glake__fail(GLAKE_E_FORKED, "the memory was allocated before a fork");
	}
	if (span->n_bytes == 0 || !glake__heap_hold(span->ptr, holder, &span->held)) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are not memory of glake_alloc()",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	if (!span->held.backing) {
		return 0;
	}
	span->begin = span->ptr - span->held.backing->ptr;
	if (span->n_bytes > span->held.end - span->begin) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are more than the allocation has",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	span->end = span->begin + span->n_bytes;
	return glake__session_check(span->held.backing->device->session);
}
