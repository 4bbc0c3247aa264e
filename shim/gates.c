/* SPDX-License-Identifier: Apache-2.0 */
/* Every version and variant of a call has a symbol of its own in here. */
#define __CUDA_API_VERSION_INTERNAL
#include "shim/gates.h"

#include "proto/cudrv.h"
#include "shim/gate.h"

#define EXCUSED(symbol)
#define UNKNOWN(symbol)

#define GATE(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		struct gate_thread *thread_ = gate_enter(); \
		CUresult result = real_##symbol arguments; \
		gate_leave(thread_); \
		return result; \
	}
#include "shim/gates.def"
#undef GATE

const struct gated_call gated_calls[] = {
#define GATE(symbol, parameters, arguments) \
	{#symbol, (void *)gated_##symbol, (void **)&real_##symbol},
#include "shim/gates.def"
#undef GATE
};
const size_t n_gated_calls = sizeof(gated_calls) / sizeof(gated_calls[0]);
