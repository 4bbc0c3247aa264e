/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls as programs built with CUDA_API_PER_THREAD_DEFAULT_STREAM make them: stream 0 is the
 * calling thread's own default stream (_ptsz), and calls without a stream happen on it (_ptds).
 */
#include "sim.h"

#define OWN(SYMBOL, SUFFIX, VERSION, PARAMS, ARGS) \
	CUresult SYMBOL##SUFFIX PARAMS \
	{ \
		stream_zero_is_own = true; \
		CUresult err = SYMBOL ARGS; \
		stream_zero_is_own = false; \
		return err; \
	}
#include "perthread.def"
