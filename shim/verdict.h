/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program is told of an attempt to allocate for it.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_VERDICT_H
#define GLAKE_SHIM_VERDICT_H

#include "shim/connection.h"
#include "shim/shim.h"

enum verdict {
	ANSWERED,
	LEFT_TO_DRIVER,
};

/* Of 0 or CONNECTION_E_*, counted. If ANSWERED, *result_out is the answer. */
static inline enum verdict verdict_of(int error, CUresult *result_out)
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
	*result_out = CUDA_ERROR_OUT_OF_MEMORY;
	return ANSWERED;
}

#endif
