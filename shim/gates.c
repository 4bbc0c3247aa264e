/* SPDX-License-Identifier: Apache-2.0 */
/* Every version and variant of a call has a symbol of its own in here. */
#define __CUDA_API_VERSION_INTERNAL
#include "shim/gates.h"

#include "proto/cudrv.h"
#include "shim/capture.h"
#include "shim/fills.h"
#include "shim/gate.h"
#include "shim/graphs.h"
#include "shim/writes.h"

#define EXCUSED(symbol)
#define UNKNOWN(symbol)
#define UNDECIDED(symbol)

#define GATE(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		struct gate_thread *thread_ = gate_enter(); \
		CUresult result = real_##symbol arguments; \
		gate_leave(thread_); \
		return result; \
	}

#define LIST(...) __VA_ARGS__

/* Looked at inside, where no memory is sealed meanwhile; and again whenever it was outside. */
#define WRITE(symbol, parameters, arguments, stream, flags, find, where) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		CUresult result = CUDA_SUCCESS; \
		struct writes_span sealed_; \
		struct gate_thread *thread_ = gate_enter(); \
		while (writes_are_watched() && (sealed_ = writes_##find where).n_bytes > 0 && \
		       writes_give_copies(&thread_, sealed_, stream, flags, &result)) { \
		} \
		if (result == CUDA_SUCCESS) { \
			fills_##find(capture_may_have(stream, (flags) ? GLAKE_PER_THREAD : 0), \
			             LIST where); \
			result = real_##symbol arguments; \
		} \
		gate_leave(thread_); \
		return result; \
	}
#include "shim/gates.def"
#undef GATE
#undef WRITE

const struct gated_call gated_calls[] = {
#define GATE(symbol, parameters, arguments) \
	{#symbol, (void *)gated_##symbol, (void **)&real_##symbol},
#define WRITE(symbol, parameters, arguments, stream, flags, find, where) \
	GATE(symbol, parameters, arguments)
#include "shim/gates.def"
#undef GATE
#undef WRITE
};
const size_t n_gated_calls = sizeof(gated_calls) / sizeof(gated_calls[0]);
