/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "glake_shim.h"
#include "proto/cleanup.h"
#include "shim/capture.h"
#include "shim/code.h"
#include "shim/reader_files.h"
#include "shim/shim.h"

#define N_SLOTS 8192u /* a power of two */
#define MAX_PROBES 32u
/* Records are not freed, because a launch may be reading one. */
#define MAX_KERNELS 65536u
#define MAX_WORDS 4096u /* of the parameters of a kernel: 32 KiB less 4 bytes, since CUDA 12.1 */

static _Atomic(struct kernel *) kernels[N_SLOTS];
static atomic_uint n_kernels;

/* ---- code that ends --------------------------------------------------------------------------- */

/* Low bits: the calls under way that may unload code. Above them: how many have unloaded code. */
#define HIDDEN_MASK 0xffffu
static _Atomic uint64_t code_now;

void kernels_hide_code(void)
{
	atomic_fetch_add(&code_now, 1);
}

void kernels_show_code(bool is_gone)
{
	/* Subtract 1 from the low bits, and if @is_gone add 1 above them. */
	atomic_fetch_add(&code_now, is_gone ? (uint64_t)HIDDEN_MASK : UINT64_MAX);
}

/* ---- what the driver knows of a kernel -------------------------------------------------------- */

/* Libraries of CUDA 12 hand out CUkernels, which launches accept as functions, and other calls do not. */
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

static CUresult ask_param(const struct asked *asked, size_t i, size_t *offset_out,
                          size_t *n_bytes_out)
{
	return asked->is_kernel
	               ? real(cuKernelGetParamInfo)((CUkernel)asked->function, i, offset_out,
	                                            n_bytes_out)
	               : real(cuFuncGetParamInfo)(asked->function, i, offset_out, n_bytes_out);
}

/* The words of a parameter; n is 0 if no pointer fits in. */
static struct kernel_span span_of(size_t param, size_t offset, size_t n_bytes)
{
	size_t begin = (offset + 7) / 8;
	size_t end = (offset + n_bytes) / 8;
	return (struct kernel_span){
		.param = (uint16_t)param,
		.at = (uint16_t)(begin * 8 - offset),
		.first = (uint16_t)begin,
		.n = (uint16_t)(end > begin ? end - begin : 0),
	};
}

static size_t read_spans(const struct asked *asked, struct kernel_span *spans_out,
                         size_t *n_words_out)
{
	size_t n = 0;
	size_t offset;
	size_t n_bytes;
	*n_words_out = 0;
	for (size_t i = 0;
	     n < MAX_WORDS && ask_param(asked, i, &offset, &n_bytes) == CUDA_SUCCESS &&
	     offset + n_bytes <= MAX_WORDS * 8;
	     i++) {
		struct kernel_span span = span_of(i, offset, n_bytes);
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
		free(kernel->known);
		free(kernel->name);
		free(kernel);
	}
}

static struct kernel *new_kernel(const struct kernel_span *spans, size_t n_spans, size_t n_words)
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

/* ---- what tables know of it ------------------------------------------------------------------- */

/* Read all parameters. NULL: the driver does not tell them, or there is no memory. */
static struct kernel_known *read_params(const struct asked *asked,
                                        const struct reader_function *function)
{
	struct kernel_known *known = malloc(sizeof(*known) + MAX_WORDS * sizeof(known->params[0]));
	CUresult result = CUDA_SUCCESS;
	size_t offset;
	size_t n_bytes;
	if (!known) {
		return NULL;
	}
	*known = (struct kernel_known){.function = function};
	while (known->n_params < MAX_WORDS &&
	       (result = ask_param(asked, known->n_params, &offset, &n_bytes)) == CUDA_SUCCESS &&
	       offset + n_bytes <= MAX_WORDS * 8) {
		known->params[known->n_params++] = (struct kernel_param){(uint16_t)offset,
		                                                         (uint16_t)n_bytes};
	}
	/* With this error the driver says that there are no more parameters. */
	if (result != CUDA_ERROR_INVALID_VALUE) {
		free(known);
		return NULL;
	}
	return known;
}

static bool is_within(const struct kernel_known *known, unsigned at, unsigned n_bytes)
{
	size_t i = 0;
	while (i < known->n_params &&
	       !(at >= known->params[i].offset &&
	         at + n_bytes <= (unsigned)known->params[i].offset + known->params[i].n_bytes)) {
		i++;
	}
	return i < known->n_params;
}

/* A table that names bytes beyond the parameters is of another kernel. */
static bool fits(const struct kernel_known *known)
{
	const struct reader_function *function = known->function;
	bool fits = true;
	for (size_t i = 0; fits && i < function->n_words; i++) {
		const struct reader_word *word = &function->words[i];
		fits = is_within(known, word->at, 8);
		for (unsigned j = 0; fits && j < word->n_conditions; j++) {
			fits = is_within(known, word->conditions[j].at,
			                 word->conditions[j].n_bytes);
		}
	}
	return fits;
}

static void look_up(const struct asked *asked, struct kernel *kernel)
{
	if (shim_dedup() == SHIM_DEDUP_ASKED) {
		return;
	}
	kernel->image = code_of(asked->function, asked->is_kernel);
	if (shim_dedup() == SHIM_DEDUP_LEARN) {
		return;
	}
	const struct reader_function *function = reader_files_find(&kernel->image, asked->name);
	kernel->known = function ? read_params(asked, function) : NULL;
	if (kernel->known && !fits(kernel->known)) {
		free(kernel->known);
		kernel->known = NULL;
	}
}

/* ---- asking ----------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct kernel *ask_kernel(CUfunction function, uint64_t code)
{
	struct asked asked = ask_name(function);
	size_t n_words = 0;
	cleanup_free struct kernel_span *spans = malloc(MAX_WORDS * sizeof(*spans));
	size_t n_spans = spans ? read_spans(&asked, spans, &n_words) : 0;
	struct kernel *kernel = spans ? new_kernel(spans, n_spans, n_words) : NULL;
	if (!kernel) {
		return NULL;
	}
	kernel->function = function;
	kernel->code = code;
	/* A table needs the whole name. */
	kernel->name = shim_dedup() == SHIM_DEDUP_LEARN
	                       ? strdup(asked.name)
	                       : strndup(asked.name, GLAKE_MAX_KERNEL_NAME_BYTES);
	if (!kernel->name) {
		free_kernel(kernel);
		return NULL;
	}
	look_up(&asked, kernel);
	return kernel;
}

/* Like ask_kernel(), but a driver that loads the function now does not end a capture. */
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
	return a->n_spans == b->n_spans && !a->known == !b->known &&
	       (!a->known || a->known->function == b->known->function) &&
	       memcmp(&a->image, &b->image, sizeof(a->image)) == 0 &&
	       strcmp(a->name, b->name) == 0 &&
	       memcmp(a->spans, b->spans, a->n_spans * sizeof(*a->spans)) == 0;
}

/* ---- all kernels ------------------------------------------------------------------------------ */

/* Ask the driver and store the record in @slot. NULL: no memory, or another kernel has taken the slot meanwhile. */
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

/* NULL: the kernel is not known; it may be the next time. */
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

struct kernel *kernels_find(CUfunction function)
{
	uint64_t code = atomic_load_explicit(&code_now, memory_order_acquire);
	return kernels_are_told() && function && !(code & HIDDEN_MASK) ? find(function, code)
	                                                               : NULL;
}

struct kernel *kernels_ask(CUfunction function)
{
	return kernels_are_told() && function ? ask_quietly(function, 0) : NULL;
}

void kernels_forget(struct kernel *kernel)
{
	free_kernel(kernel);
}

bool kernels_are_told(void)
{
	return real(cuFuncGetParamInfo) != NULL;
}

bool kernels_buffer_of(void *const *extra, const char **buffer_out, size_t *n_bytes_out)
{
	*buffer_out = NULL;
	*n_bytes_out = 0;
	for (;
	     extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER || extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE;
	     extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
			*buffer_out = extra[1];
		} else if (extra[1]) {
			*n_bytes_out = *(const size_t *)extra[1];
		}
	}
	return extra[0] == CU_LAUNCH_PARAM_END;
}
