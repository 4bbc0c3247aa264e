/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/seal_steps.h"

#include "libclient/link/error.h"
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
		if (parts[i].state != GLAKE__PART_GONE) {
			glake__unsealed_note(parts[i].device->session, parts[i].ptr,
			                     parts[i].ptr + parts[i].n_bytes,
			                     glake__unsealed_by_pin(parts[i].pin));
		}
	}
}
