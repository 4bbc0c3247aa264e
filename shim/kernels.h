/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's kernels: their names, and where their parameters are. The driver is asked once for
 * each handle, and again after code may have been unloaded, since a handle may then be another kernel's.
 *
 * Launches read the table without a lock. The record of a kernel is never freed, because a launch may be reading it.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_KERNELS_H
#define GLAKE_SHIM_KERNELS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cudrv.h"
#include "shim/readers.h"

/* Words of 8 bytes of one parameter, aligned as pointers are. */
struct kernel_span {
	uint16_t param;
	uint16_t at; /* byte of the parameter where the first word is */
	uint16_t
		first; /* the first word's number among all words of the kernel's parameters, side by side */
	uint16_t n;
};

struct kernel_param {
	uint16_t offset;
	uint16_t n_bytes;
};

/* A kernel that a table knows. */
struct kernel_known {
	const struct reader_function *function;
	size_t n_params;
	struct kernel_param params[];
};

/*
 * All but @code and kernel_seen() is written before other threads can find the record. A launch that follows other work finds
 * none of it in the processor's caches, so it is one piece, of few cache lines.
 */
struct kernel {
	_Alignas(64) CUfunction function;
	_Atomic uint64_t code;      /* kernels.c's code_now when the driver was last asked */
	char *name;                 /* owned */
	struct kernel_known *known; /* owned; NULL: no table knows it, or none is wanted */
	struct image_id image;      /* unknown if no tables are wanted */
	uint32_t n_spans;
	uint32_t n_words;
	struct kernel_span spans[]; /* kernel_seen() follows them */
};

/* A mark for each word, for eyes.c. */
static inline _Atomic uint32_t *kernel_seen(struct kernel *kernel)
{
	return (_Atomic uint32_t *)(void *)(kernel->spans + kernel->n_spans);
}

/* NULL: the kernel is not known now; it may be the next time. */
struct kernel *kernels_find(CUfunction function);

/*
 * Ask the driver, for one launch whose kernel kernels_find() does not know. The record is the caller's, until
 * kernels_forget(). NULL: the driver does not tell, or there is no memory.
 */
struct kernel *kernels_ask(CUfunction function);
/* NULL is allowed. */
void kernels_forget(struct kernel *kernel);

/* False: the driver does not tell where parameters are. */
bool kernels_are_told(void);

/* Hide before, and show after, a call that may unload code. @is_gone: it has, and function handles may be other kernels'. */
void kernels_hide_code(void);
void kernels_show_code(bool is_gone);

/* The buffer with all parameters side by side, as cuLaunchKernel() takes it by @extra. False: @extra has other entries. */
bool kernels_buffer_of(void *const *extra, const char **buffer_out, size_t *n_bytes_out);

#endif
