/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to glaked about an NVML device. Each question is a session of its own, without CUDA,
 * that ends with the answer, so a fork cannot spoil anything. A child that is forked meanwhile
 * inherits the socket, which is shut down with the session and closed by exec().
 *
 * There is no answer if glaked is absent, refuses the session, or does not own the device. The
 * device is found by the UUID of the whole GPU, so not for a MIG instance.
 *
 * Threads: any. Blocking: some round trips.
 */
#ifndef GLAKE_SHIM_NVML_QUESTION_H
#define GLAKE_SHIM_NVML_QUESTION_H

#include <stdbool.h>
#include <stddef.h>

#include "shim/view.h"

/* view_apply() for @device. False: no answer, and @view is unchanged. */
bool question_view(void *device, struct view *view);

/*
 * Add to each of @n rows (@row_bytes each, beginning with a struct nvml_process) the bytes that the
 * process has from glaked on @device. The driver counts those for no process. Only processes of the
 * caller's realm are completed.
 */
void question_add(void *device, void *rows, unsigned n, size_t row_bytes);

#endif
