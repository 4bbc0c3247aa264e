/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides the result of an attempt to allocate: memory, out of memory, or the driver's answer.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_ALLOC_RESULT_H
#define GLAKE_SHIM_ALLOC_RESULT_H

#include "shim/connection.h"
#include "shim/refused.h"
#include "shim/shim.h"

enum alloc_result {
	ANSWERED,       /* the program gets our answer */
	LEFT_TO_DRIVER, /* the driver makes the call */
};

/* @error is 0 or CONNECTION_E_*. Counts the result. *result_out is the answer if it is ours. */
static inline enum alloc_result alloc_result_of(int error, CUresult *result_out)
{
	*result_out = CUDA_SUCCESS;
	if (error == 0) {
		shim_count(SHIM_COUNT_owned);
		return ANSWERED;
	}
	if (error == CONNECTION_E_FOREIGN) {
		return LEFT_TO_DRIVER;
	}
	if (error == CONNECTION_E_ABSENT && !shim_policy()->refuses_absent) {
		shim_count(SHIM_COUNT_passed);
		return LEFT_TO_DRIVER;
	}
	shim_count(SHIM_COUNT_refused);
	refused_say(error);
	*result_out = CUDA_ERROR_OUT_OF_MEMORY;
	return ANSWERED;
}

#endif
