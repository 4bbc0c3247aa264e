/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/seal_steps.h"

#include <errno.h>

#include "libclient/link/dispatch.h"
#include "libclient/space/unsealed.h"

void glake__seal_note(struct glake__seal *seal, int r)
{
	if (r < 0 && seal->error == 0) {
		seal->error = r;
		seal->text = glake__error_save();
	}
}

void glake__seal_note_causes(const struct glake__seal_part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (!parts[i].is_gone) {
			glake__unsealed_note(parts[i].device->session, parts[i].ptr,
			                     parts[i].ptr + parts[i].n_bytes,
			                     glake__unsealed_by_pin(parts[i].pin));
		}
	}
}

int glake__seal_hold_in(struct glake__seal_span *span, const struct glake__held *held)
{
	span->held = held;
	if (span->n_bytes > held->end - span->ptr) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are more than the allocation has",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	return held->device ? glake__session_check(held->device->session) : 0;
}

int glake__seal_hold(struct glake__seal_span *span, struct glake__held *held_out)
{
	if (glake__space_is_parents()) {
		return glake__fail(GLAKE_E_FORKED, "the memory was allocated before a fork");
	}
	int r = span->n_bytes ? glake__held_begin(span->ptr, held_out) : -ENOENT;
	if (r == -ENOENT) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are not memory of glake_alloc()",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	return r < 0 ? 0 : glake__seal_hold_in(span, held_out);
}
