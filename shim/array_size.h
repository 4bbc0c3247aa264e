/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that an array takes. The driver tells them only of arrays that the program backs itself,
 * so they are reckoned from the descriptor; a driver takes them in granules of its own.
 *
 * Threads: any; pure.
 */
#ifndef GLAKE_SHIM_ARRAY_SIZE_H
#define GLAKE_SHIM_ARRAY_SIZE_H

#include <stdint.h>

#include "proto/cudrv.h"

/* Of all @n_levels mip levels; 0 where it has no memory of its own. Cut to UINT64_MAX. */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels);

#endif
