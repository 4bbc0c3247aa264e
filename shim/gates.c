/* SPDX-License-Identifier: Apache-2.0 */
/* Every version and variant of a call has a symbol of its own in here. */
#define __CUDA_API_VERSION_INTERNAL
#include "shim/gates.h"

#include "shim/capture.h"
#include "shim/code.h"
#include "shim/drain.h"
#include "shim/eyes.h"
#include "shim/fault.h"
#include "shim/fills.h"
#include "shim/gate.h"
#include "shim/guard.h"
#include "shim/kernels.h"
#include "shim/learn.h"
#include "shim/order.h"
#include "shim/reach.h"
#include "shim/writes.h"

/* @flags, here and below: not 0 if the default stream is the thread's. */
static void note_wait(CUstream stream, unsigned flags)
{
	flags = flags ? GLAKE_PER_THREAD : 0;
	if (shim_policy()->stitches && !shim_is_forked() && !capture_may_have(stream, flags)) {
		order_stream_waits(stream, flags);
	}
}

static void note_waits(CUstream stream, unsigned flags, const CUstreamBatchMemOpParams *ops,
                       unsigned n)
{
	unsigned i = 0;
	while (ops && i < n && ops[i].operation != CU_STREAM_MEM_OP_WAIT_VALUE_32 &&
	       ops[i].operation != CU_STREAM_MEM_OP_WAIT_VALUE_64) {
		i++;
	}
	if (ops && i < n) {
		note_wait(stream, flags);
	}
}

/* Called inside the gate, before work is submitted to @stream. */
static inline void look_at_stream(CUstream stream, bool is_per_thread)
{
	if (__builtin_expect(atomic_load_explicit(&drain_is_calm, memory_order_relaxed), 0)) {
		drain_look_at(stream, is_per_thread);
	}
}

/* Code after this macro is inside the gate. */
#define ENTER \
	struct gate_thread *thread_ = gate_enter(); \
	if (!thread_) { \
		return CUDA_ERROR_DEINITIALIZED; \
	}

#define GATE(symbol, parameters, arguments, stream, flags) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		ENTER \
		look_at_stream(stream, flags); \
		CUresult result = real_##symbol arguments; \
		gate_leave(thread_); \
		return fault_look(result); \
	}

#define CAPTURE(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		ENTER \
		CUresult result = real_##symbol arguments; \
		gate_leave(thread_); \
		return fault_look(result); \
	}

/* Memory that is freed on the stream from now on becomes free only when somebody writes the word. */
#define AWAIT(symbol, parameters, arguments, stream, flags) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		ENTER \
		look_at_stream(stream, flags); \
		note_wait(stream, flags); \
		CUresult result = real_##symbol arguments; \
		gate_leave(thread_); \
		return fault_look(result); \
	}

#define LIST(...) __VA_ARGS__
#define ONLY(argument) argument

/* The driver gets the call only if the guard lets it pass. */
#define SUBMIT_GUARDED(symbol, arguments) \
	if (result == CUDA_SUCCESS) { \
		result = real_##symbol arguments; \
	} else if (!thread_) { \
		return result; \
	} \
	gate_leave(thread_); \
	return fault_look(result);

/* Under GLAKE_DEDUP=learn a launch runs and ends in here (learn.h). @begin gets the turn. */
#define LEARN(symbol, arguments, begin, what) \
	if (learn_is_wanted()) { \
		struct learn_turn turn_; \
		begin(&turn_, &thread_, LIST what); \
		return fault_look( \
			learn_end(&turn_, thread_, \
		                  thread_ ? real_##symbol arguments : CUDA_ERROR_DEINITIALIZED)); \
	}
#define LEARN_GRAPH(symbol, arguments, where) \
	if (guard_is_awake()) { \
		LEARN(symbol, arguments, learn_begin_graph, where) \
	}

#define LAUNCH(symbol, parameters, arguments, stream, flags, what) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		CUresult result = CUDA_SUCCESS; \
		ENTER \
		if (guard_is_awake()) { \
			LEARN(symbol, arguments, learn_begin, what) \
			result = guard_launch(&thread_, stream, flags, LIST what); \
		} \
		if (result == CUDA_SUCCESS) { \
			look_at_stream(stream, flags); \
			if (writes_are_watched()) { \
				eyes_look what; \
			} \
		} \
		SUBMIT_GUARDED(symbol, arguments) \
	}

#define OPAQUE(symbol, parameters, arguments, stream, flags) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		CUresult result = CUDA_SUCCESS; \
		ENTER \
		if (guard_is_awake()) { \
			result = guard_opaque(&thread_, #symbol "() tells no parameters"); \
		} \
		if (result == CUDA_SUCCESS) { \
			look_at_stream(stream, flags); \
		} \
		SUBMIT_GUARDED(symbol, arguments) \
	}

#define ASK(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		return fault_look(real_##symbol arguments); \
	}

#define UNLOAD(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		kernels_hide_code(); \
		code_unloads(ONLY arguments); \
		CUresult result = real_##symbol arguments; \
		kernels_show_code(result == CUDA_SUCCESS); \
		return result; \
	}

/* A sleep that begins after gate_pass() is harmless: memory that the call makes stays awake, and the library holds the rest. */
#define WAKE(symbol, parameters, arguments) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		return gate_pass() ? real_##symbol arguments : CUDA_ERROR_DEINITIALIZED; \
	}

/* @what notes the loaded handle, which the caller's pointer has by then. */
#define LOAD(symbol, parameters, arguments, what) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		if (!gate_pass()) { \
			return CUDA_ERROR_DEINITIALIZED; \
		} \
		CUresult result = real_##symbol arguments; \
		if (result == CUDA_SUCCESS) { \
			ONLY what; \
		} \
		return result; \
	}

/* Destinations are looked at inside the gate, where no memory is sealed meanwhile, and again after the thread was outside. */
#define WRITE_NOTING(symbol, parameters, arguments, stream, flags, find, where, note) \
	static CUresult(*real_##symbol) parameters; \
	static CUresult gated_##symbol parameters \
	{ \
		CUresult result = CUDA_SUCCESS; \
		struct writes_span sealed_ = {.n_bytes = 0}; \
		bool is_counted_ = false; /* what it fills: once, however often it is tried */ \
		ENTER \
		note; \
		do { \
			while (result == CUDA_SUCCESS && writes_are_watched() && \
			       (sealed_ = writes_##find where).n_bytes > 0 && \
			       writes_give_copies(&thread_, sealed_, stream, flags, &result)) { \
			} \
			if (result == CUDA_SUCCESS) { \
				look_at_stream(stream, flags); \
				if (!is_counted_) { \
					fills_##find( \
						capture_may_have(stream, \
					                         (flags) ? GLAKE_PER_THREAD : 0), \
						LIST where); \
				} \
				is_counted_ = true; \
				result = real_##symbol arguments; \
				if (__builtin_expect(result == CUDA_ERROR_INVALID_VALUE, 0) && \
				    sealed_.n_bytes > 0) { \
					result = writes_refused(result, sealed_, stream, flags); \
				} \
			} else if (!thread_) { \
				return result; \
			} \
		} while (__builtin_expect(result == CUDA_ERROR_INVALID_VALUE, 0) && \
		         reach_others(&thread_, &result)); \
		gate_leave(thread_); \
		return fault_look(result); \
	}
#define WRITE(symbol, parameters, arguments, stream, flags, find, where) \
	WRITE_NOTING(symbol, parameters, arguments, stream, flags, find, where, )
#define WRITE_OR_AWAIT(symbol, parameters, arguments, stream, flags, find, where) \
	WRITE_NOTING(symbol, parameters, arguments, stream, flags, find, where, \
	             note_waits(stream, flags, LIST where))
#define REPLAY(symbol, parameters, arguments, stream, flags, find, where) \
	WRITE_NOTING(symbol, parameters, arguments, stream, flags, find, where, \
	             LEARN_GRAPH(symbol, arguments, where))
#include "shim/gates.def"

const struct gated_call gated_calls[] = {
#define ROW(symbol, kind) {#symbol, (void *)gated_##symbol, (void **)&real_##symbol, kind},
#define GATE(symbol, parameters, arguments, stream, flags) ROW(symbol, GATES_PASSES)
#define CAPTURE(symbol, parameters, arguments) ROW(symbol, GATES_PASSES)
#define WRITE(symbol, parameters, arguments, stream, flags, find, where) ROW(symbol, GATES_PASSES)
#define WRITE_OR_AWAIT(symbol, parameters, arguments, stream, flags, find, where) \
	ROW(symbol, GATES_PASSES)
#define REPLAY(symbol, parameters, arguments, stream, flags, find, where) ROW(symbol, GATES_PASSES)
#define AWAIT(symbol, parameters, arguments, stream, flags) ROW(symbol, GATES_PASSES)
#define LAUNCH(symbol, parameters, arguments, stream, flags, what) ROW(symbol, GATES_PASSES)
#define OPAQUE(symbol, parameters, arguments, stream, flags) ROW(symbol, GATES_PASSES)
#define LOAD(symbol, parameters, arguments, what) ROW(symbol, GATES_WAKES)
#define ASK(symbol, parameters, arguments) ROW(symbol, GATES_LOOKS)
#define UNLOAD(symbol, parameters, arguments) ROW(symbol, GATES_LOOKS)
#define WAKE(symbol, parameters, arguments) ROW(symbol, GATES_WAKES)
#include "shim/gates.def"
};
const size_t n_gated_calls = sizeof(gated_calls) / sizeof(gated_calls[0]);
