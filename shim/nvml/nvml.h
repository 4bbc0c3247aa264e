/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libglake-nvml.so: what all its files share.
 *
 * The library has the SONAME libnvidia-ml.so.1. Preloaded by path behind libglake-shim.so, it is
 * what a program gets when it opens NVML. Like the shim's, its entries (trampolines.S) jump through
 * shim_table: to the real library, or to a hook of ours, shim_<name>(), for the calls of hooks.def,
 * which show the program its tenant's view of memory.
 *
 * It never calls CUDA and keeps nothing between calls, because programs ask NVML to avoid
 * initialising CUDA, and fork afterwards.
 *
 * A hook returns NVML's codes, prints nothing and never exits. It makes the real call first, whose
 * answer stands if glaked does not answer.
 *
 * Lifetime: nothing happens before the first call of the process; see shim_resolve().
 * Threads: any.
 */
#ifndef GLAKE_SHIM_NVML_NVML_H
#define GLAKE_SHIM_NVML_NVML_H

#include <stdint.h>

/* ---- of nvml.h of CUDA 13, which not every toolkit brings; an nvmlDevice_t is a pointer ---- */

enum {
	NVML_SUCCESS = 0,
	NVML_LIBRARY_NOT_FOUND = 12,
	NVML_FUNCTION_NOT_FOUND = 13,
};

#define NVML_UUID_BYTES 96         /* the longest, NUL included */
#define NVML_UNKNOWN_BYTES (~0ull) /* NVML_VALUE_NOT_AVAILABLE */

/* used = total - free */
struct nvml_memory {
	uint64_t total;
	uint64_t free;
	uint64_t used;
};

/* total = reserved + free + used */
struct nvml_memory_v2 {
	uint32_t version; /* set by the caller */
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

#define NVML_MEMORY_V2 (2u << 24 | (unsigned)sizeof(struct nvml_memory_v2))

/* All rows of processes begin with this. */
struct nvml_process {
	uint32_t pid;
	uint64_t used_bytes;
};

/* A row of the calls _v2 and _v3. */
struct nvml_process_v2 {
	struct nvml_process process;
	uint32_t gpu_instance;
	uint32_t compute_instance;
};

struct nvml_process_detail {
	struct nvml_process process;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint64_t protected_bytes;
};

struct nvml_process_list {
	uint32_t version; /* set by the caller, like mode and rows */
	uint32_t mode;
	uint32_t n_rows;
	struct nvml_process_detail *rows;
};

#define NVML_PROCESS_LIST_V1 (1u << 24 | (unsigned)sizeof(struct nvml_process_list))

typedef int nvml_uuid_fn(void *device, char *uuid_out, unsigned n_bytes);
typedef int nvml_memory_fn(void *device, struct nvml_memory *memory_out);
typedef int nvml_memory_v2_fn(void *device, struct nvml_memory_v2 *memory);
/* *n: in, the rows there is room for; out, the rows there are. Too little room is an error. */
typedef int nvml_processes_v1_fn(void *device, unsigned *n, struct nvml_process *rows);
typedef int nvml_processes_v2_fn(void *device, unsigned *n, struct nvml_process_v2 *rows);
typedef int nvml_process_list_fn(void *device, struct nvml_process_list *list);

/* ---- ours ---- */

/* The real calls. */
struct nvml_real {
#define HOOK(symbol, prototype) prototype *symbol;
#define NEED(symbol, prototype) prototype *symbol;
#include "shim/nvml/hooks.def"
};
extern struct nvml_real nvml_real;

#define HOOK(symbol, prototype) prototype shim_##symbol;
#include "shim/nvml/hooks.def"

/* Exported, for tests and debugging: sessions that this process has made for NVML. */
uint64_t glake_nvml_connects(void);

/* Open the real library and fill shim_table, once per process, on its first NVML call. */
void shim_resolve(void);

#endif
