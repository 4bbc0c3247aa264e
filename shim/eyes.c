/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/eyes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "shim/capture.h"
#include "shim/heap.h"
#include "shim/shim.h"

#define N_SLOTS 8192u /* a power of two */
#define MAX_PROBES 32u
/* Records are not freed, because a launch may be reading one. */
#define MAX_KERNELS 65536u
#define MAX_WORDS 4096u /* of the parameters of a kernel: 32 KiB less 4 bytes, since CUDA 12.1 */
#define N_NOTES 64u

/* Words of one parameter. */
struct span {
	uint16_t param;
	uint16_t at;    /* byte of the parameter where the first one is */
	uint16_t first; /* its number among all words of the kernel's parameters, side by side */
	uint16_t n;
};

/*
 * All but @code and what was seen is written before others know of it. A launch behind other work finds nothing of it
 * in the processor's caches: so it is one piece, of few lines.
 */
struct kernel {
	_Alignas(64) CUfunction function;
	_Atomic uint64_t code; /* what is known here was right then */
	char *name;            /* owned */
	uint32_t n_spans;
	uint32_t n_words;
	struct span spans[]; /* behind them seen_of() */
};

/* Of each word, the low bits of glake__sealed.n_sealings when it was noted. */
static _Atomic uint32_t *seen_of(struct kernel *kernel)
{
	return (_Atomic uint32_t *)(void *)(kernel->spans + kernel->n_spans);
}

static _Atomic(struct kernel *) kernels[N_SLOTS];
static atomic_uint n_kernels;

/* ---- code that ends --------------------------------------------------------------------------- */

/* Calls under way that may unload code, in the low bits; above, how many there were. */
#define HIDDEN_MASK 0xffffu
static _Atomic uint64_t code_now;

void eyes_hide_code(void)
{
	atomic_fetch_add(&code_now, 1);
}

void eyes_show_code(bool is_gone)
{
	/* One less there, and perhaps one more above. */
	atomic_fetch_add(&code_now, is_gone ? (uint64_t)HIDDEN_MASK : UINT64_MAX);
}

/* ---- what the driver knows of a kernel -------------------------------------------------------- */

/* Libraries of CUDA 12 hand out kernels, which launches take for functions, and other calls do not. */
struct asked {
	CUfunction function;
	bool is_kernel;
	const char *name;
};

static struct asked ask_name(CUfunction function)
{
	struct asked asked = {.function = function};
	const char *name = NULL;
	if (!real(cuFuncGetName) || real(cuFuncGetName)(&name, function) != CUDA_SUCCESS) {
		asked.is_kernel = real(cuKernelGetName) && real(cuKernelGetParamInfo) &&
		                  real(cuKernelGetName)(&name, (CUkernel)function) == CUDA_SUCCESS;
	}
	asked.name = name ? name : "a kernel without a name";
	return asked;
}

static bool ask_param(const struct asked *asked, size_t i, size_t *offset_out, size_t *n_bytes_out)
{
	CUresult result = asked->is_kernel ? real(cuKernelGetParamInfo)((CUkernel)asked->function,
	                                                                i, offset_out, n_bytes_out)
	                                   : real(cuFuncGetParamInfo)(asked->function, i,
	                                                              offset_out, n_bytes_out);
	return result == CUDA_SUCCESS && *offset_out + *n_bytes_out <= MAX_WORDS * 8;
}

/* The words of a parameter; n is 0 if it can have no pointer. */
static struct span span_of(size_t param, size_t offset, size_t n_bytes)
{
	size_t begin = (offset + 7) / 8;
	size_t end = (offset + n_bytes) / 8;
	return (struct span){
		.param = (uint16_t)param,
		.at = (uint16_t)(begin * 8 - offset),
		.first = (uint16_t)begin,
		.n = (uint16_t)(end > begin ? end - begin : 0),
	};
}

static size_t read_spans(const struct asked *asked, struct span *spans_out, size_t *n_words_out)
{
	size_t n = 0;
	size_t offset;
	size_t n_bytes;
	*n_words_out = 0;
	for (size_t i = 0; n < MAX_WORDS && ask_param(asked, i, &offset, &n_bytes); i++) {
		struct span span = span_of(i, offset, n_bytes);
		if (span.n > 0) {
			spans_out[n++] = span;
			*n_words_out = span.first + span.n;
		}
	}
	return n;
}

static void free_kernel(struct kernel *kernel)
{
	if (kernel) {
		free(kernel->name);
		free(kernel);
	}
}

static struct kernel *new_kernel(const struct span *spans, size_t n_spans, size_t n_words)
{
	size_t n_bytes = sizeof(struct kernel) + n_spans * sizeof(*spans) +
	                 n_words * sizeof(_Atomic uint32_t);
	struct kernel *kernel = aligned_alloc(_Alignof(struct kernel), (n_bytes + 63) / 64 * 64);
	if (kernel) {
		memset(kernel, 0, n_bytes);
		kernel->n_spans = (uint32_t)n_spans;
		kernel->n_words = (uint32_t)n_words;
		memcpy(kernel->spans, spans, n_spans * sizeof(*spans));
	}
	return kernel;
}

/* NULL without memory. */
static struct kernel *ask_kernel(CUfunction function, uint64_t code)
{
	struct asked asked = ask_name(function);
	size_t n_words = 0;
	cleanup_free struct span *spans = malloc(MAX_WORDS * sizeof(*spans));
	size_t n_spans = spans ? read_spans(&asked, spans, &n_words) : 0;
	struct kernel *kernel = spans ? new_kernel(spans, n_spans, n_words) : NULL;
	if (!kernel) {
		return NULL;
	}
	kernel->function = function;
	kernel->code = code;
	kernel->name = strndup(asked.name, GLAKE_MAX_KERNEL_NAME_BYTES);
	if (!kernel->name) {
		free_kernel(kernel);
		return NULL;
	}
	return kernel;
}

/* The same; a driver that loads the function now must not end a capture. */
static struct kernel *ask_quietly(CUfunction function, uint64_t code)
{
	if (!capture_is_any()) {
		return ask_kernel(function, code);
	}
	CUstreamCaptureMode mode = capture_relax();
	struct kernel *kernel = ask_kernel(function, code);
	capture_restore(mode);
	return kernel;
}

static bool is_same(const struct kernel *a, const struct kernel *b)
{
	return a->n_spans == b->n_spans && strcmp(a->name, b->name) == 0 &&
	       memcmp(a->spans, b->spans, a->n_spans * sizeof(*a->spans)) == 0;
}

/* ---- all kernels ------------------------------------------------------------------------------ */

/* Put into @slot what the driver knows now. NULL: no memory, or the slot was taken meanwhile. */
static struct kernel *learn(_Atomic(struct kernel *) *slot, struct kernel *old, CUfunction function,
                            uint64_t code)
{
	struct kernel *kernel = n_kernels < MAX_KERNELS ? ask_quietly(function, code) : NULL;
	if (kernel && old && is_same(kernel, old)) {
		old->code = code;
		free_kernel(kernel);
		return old;
	}
	if (kernel && !atomic_compare_exchange_strong(slot, &old, kernel)) {
		free_kernel(kernel);
		return old->function == function ? old : NULL;
	}
	n_kernels += kernel != NULL;
	return kernel;
}

/* NULL: it is not known; it may be the next time. */
static struct kernel *find(CUfunction function, uint64_t code)
{
	size_t at = (size_t)(((uint64_t)(uintptr_t)function >> 4) * 0x9e3779b97f4a7c15u >> 32);
	for (unsigned i = 0; i < MAX_PROBES; i++) {
		_Atomic(struct kernel *) *slot = &kernels[(at + i) % N_SLOTS];
		struct kernel *kernel = atomic_load_explicit(slot, memory_order_acquire);
		if (kernel && kernel->function != function) {
			continue;
		}
		if (kernel && atomic_load_explicit(&kernel->code, memory_order_relaxed) == code) {
			return kernel;
		}
		return learn(slot, kernel, function, code);
	}
	return NULL;
}

/* ---- notes ------------------------------------------------------------------------------------ */

/* A ring. A note is whole if its number is the same before and after it is read. */
static struct note {
	_Atomic uint64_t number; /* from 1 on; 0: it is being written */
	_Atomic(struct kernel *) kernel;
	_Atomic uint64_t ptr;
} notes[N_NOTES];
static _Atomic uint64_t n_notes;

static void add_note(struct kernel *kernel, uint64_t ptr)
{
	uint64_t number = atomic_fetch_add(&n_notes, 1) + 1;
	struct note *note = &notes[number % N_NOTES];
	note->number = 0;
	note->kernel = kernel;
	note->ptr = ptr;
	note->number = number;
}

static bool is_sealed(uint64_t word)
{
	return glake__page_kind(glake__page_of(word)) == GLAKE__PAGE_BLOCK;
}

/* What all words of a launch are compared with. */
struct look {
	uint64_t base; /* where anything is sealed */
	uint64_t n_bytes;
	uint32_t now; /* of glake__sealed.n_sealings */
};

/* @words may lie anywhere; @first is the number of the first one. Some kernels have hundreds of them. */
static inline void look_at_words(struct kernel *kernel, const struct look *look, const char *words,
                                 size_t first, size_t n)
{
	_Atomic uint32_t *all = seen_of(kernel);
	for (size_t i = 0; i < n; i++) {
		uint64_t word;
		memcpy(&word, words + 8 * i, 8);
		if (__builtin_expect(word - look->base >= look->n_bytes, 1)) {
			continue;
		}
		_Atomic uint32_t *seen = &all[first + i];
		if (atomic_load_explicit(seen, memory_order_relaxed) != look->now &&
		    is_sealed(word)) {
			atomic_store_explicit(seen, look->now, memory_order_relaxed);
			add_note(kernel, word);
		}
	}
}

/* All parameters side by side. */
static void look_at_buffer(struct kernel *kernel, const struct look *look, void *const *extra)
{
	const char *buffer = NULL;
	size_t n_bytes = 0;
	for (;
	     extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER || extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE;
	     extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
			buffer = extra[1];
		} else if (extra[1]) {
			n_bytes = *(const size_t *)extra[1];
		}
	}
	size_t n_words = n_bytes / 8 < kernel->n_words ? n_bytes / 8 : kernel->n_words;
	look_at_words(kernel, look, buffer, 0, buffer ? n_words : 0);
}

void eyes_look(CUfunction function, void *const *params, void *const *extra)
{
	uint64_t code = atomic_load_explicit(&code_now, memory_order_acquire);
	if (!eyes_can_see() || !function || code & HIDDEN_MASK) {
		return;
	}
	struct kernel *kernel = find(function, code);
	const struct look look = {
		.n_bytes = atomic_load_explicit(&glake__sealed.n_bytes, memory_order_relaxed),
		.base = atomic_load_explicit(&glake__sealed.base, memory_order_relaxed),
		.now = (uint32_t)atomic_load_explicit(&glake__sealed.n_sealings,
	                                              memory_order_relaxed),
	};
	if (kernel && extra) {
		look_at_buffer(kernel, &look, extra);
	}
	for (uint32_t i = 0; kernel && params && i < kernel->n_spans; i++) {
		struct span span = kernel->spans[i];
		const char *param = params[span.param];
		if (param) {
			look_at_words(kernel, &look, param + span.at, span.first, span.n);
		}
	}
}

/* What may be any of its kernels. */
static struct kernel any_of_graph = {.name = (char *)"a CUDA graph"};

void eyes_look_at_graph(uint64_t *seen)
{
	uint64_t now = glake__sealed.n_sealings;
	if (*seen != now) {
		*seen = now;
		add_note(&any_of_graph, 0);
	}
}

bool eyes_can_see(void)
{
	return real(cuFuncGetParamInfo) != NULL;
}

/* ---- suspects --------------------------------------------------------------------------------- */

static struct glake__suspect suspect_of(const struct kernel *kernel, uint64_t ptr)
{
	struct glake__suspect suspect = {.kernel = kernel->name, .ptr = ptr};
	struct heap_facts facts;
	if (!ptr) {
		return suspect;
	}
	if (heap_find(ptr, &facts)) {
		suspect.range = facts.address;
		suspect.range_bytes = facts.n_bytes;
	} else {
		struct glake__address_info info = glake__space_look(ptr);
		suspect.range = info.address;
		suspect.range_bytes = info.n_bytes;
	}
	return suspect;
}

/* A pointer that is there twice is one suspect. */
static bool has_suspect(const struct glake__suspect *suspects, size_t n,
                        const struct kernel *kernel, uint64_t ptr)
{
	size_t i = 0;
	while (i < n && (suspects[i].kernel != kernel->name || suspects[i].ptr != ptr)) {
		i++;
	}
	return i < n;
}

size_t eyes_suspects(struct glake__suspect *suspects_out, size_t max)
{
	size_t n = 0;
	uint64_t last = n_notes;
	uint64_t first = last > N_NOTES ? last - N_NOTES : 0;
	for (uint64_t number = last; number > first && n < max; number--) {
		struct note *note = &notes[number % N_NOTES];
		uint64_t before = note->number;
		const struct kernel *kernel = note->kernel;
		uint64_t ptr = note->ptr;
		if (before == number && note->number == number && (!ptr || is_sealed(ptr)) &&
		    !has_suspect(suspects_out, n, kernel, ptr)) {
			suspects_out[n++] = suspect_of(kernel, ptr);
		}
	}
	return n;
}
