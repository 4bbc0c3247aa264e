/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to glaked about a device of NVML's. Each is a session of its own, without CUDA, that ends
 * with the answer: nothing is kept that a fork could spoil. A child that is forked meanwhile has the
 * socket too, which is shut down with the session and closed by exec().
 *
 * No answer where glaked is not there, does not let us in, or does not have the device: it is found
 * by the UUID of a whole GPU, which a MIG instance's is not.
 *
 * Threads: any. Blocking: some round trips.
 */
#ifndef GLAKE_SHIM_NVML_QUESTION_H
#define GLAKE_SHIM_NVML_QUESTION_H

#include <stdbool.h>
#include <stddef.h>

#include "shim/view.h"

/* view_apply() on @device. False: no answer, nothing changed. */
bool question_view(void *device, struct view *view);

/*
 * To each of @n rows of processes, @row_bytes each, that begin as struct nvml_process: add what the
 * process has of glaked on @device, which the driver counts to nobody. That of processes of our
 * realm, since others' is none of our business.
 */
void question_add(void *device, void *rows, unsigned n, size_t row_bytes);

#endif
