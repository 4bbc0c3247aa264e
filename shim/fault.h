/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of the program's contexts: an error after which all calls fail, such as that of a kernel that
 * writes to sealed memory. On the first call that returns it the shim tells glaked, once per process. If memory is
 * sealed, a few lines on stderr say which kernels may have done it.
 *
 * That call waits until glaked knows, at most a second, because the program may end at once with the error. A thread that is
 * started for it talks to glaked.
 *
 * Threads: any, without locks of the shim.
 */
#ifndef GLAKE_SHIM_FAULT_H
#define GLAKE_SHIM_FAULT_H

#include "proto/cudrv.h"

void fault_look_closer(CUresult result);

/* The result of a driver call goes through here. Returns it. */
static inline CUresult fault_look(CUresult result)
{
	if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
		fault_look_closer(result);
	}
	return result;
}

#endif
