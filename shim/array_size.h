/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that an array takes. The driver tells this only for arrays that the program backs
 * itself, so it is computed from the descriptor. A driver rounds it up to granules of its own.
 *
 * Threads: any; pure.
 */
#ifndef GLAKE_SHIM_ARRAY_SIZE_H
#define GLAKE_SHIM_ARRAY_SIZE_H

#include <stdint.h>

#include "proto/cudrv.h"

/*
 * The bytes of all @n_levels mip levels, UINT64_MAX at most. 0: the array has no memory of its own,
 * because it is sparse or the program maps it later.
 */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels);

#endif
