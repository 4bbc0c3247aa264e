/* SPDX-License-Identifier: Apache-2.0 */
/* Fills shim_table with the real library's calls and our hooks. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "proto/cleanup.h"
#include "shim/library.h"
#include "shim/nvml/nvml.h"
#include "shim/policy.h"

static const char *const names[] = {
#define NAME(symbol, number) #symbol,
#include "shim/nvml/names.def"
#undef NAME
};
#define N_NAMES n_elements(names)

enum {
#define NAME(symbol, number) NUMBER_##symbol = number,
#include "shim/nvml/names.def"
#undef NAME
};

/* The tables of trampolines.S, in the order of names. */
extern _Atomic(void *) shim_table[N_NAMES];
extern void *const shim_entries[N_NAMES];

struct hook {
	unsigned number;
	void *body; /* NULL: the shim only calls the real one */
	size_t real_offset;
};

static const struct hook hooks[] = {
#define HOOK(symbol, prototype) \
	{NUMBER_##symbol, (void *)shim_##symbol, offsetof(struct nvml_real, symbol)},
#define NEED(symbol, prototype) {NUMBER_##symbol, NULL, offsetof(struct nvml_real, symbol)},
#include "shim/nvml/hooks.def"
};

struct nvml_real nvml_real;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- answers where there is nothing to call --------------------------------------------------- */

static int no_library(void)
{
	return NVML_LIBRARY_NOT_FOUND;
}

static int no_call(void)
{
	return NVML_FUNCTION_NOT_FOUND;
}

/* The only call that does not return a code. */
static const char *no_library_text(int error)
{
	return error == NVML_LIBRARY_NOT_FOUND ? "NVML Shared Library Not Found" : "Unknown Error";
}

/* ---- tables ----------------------------------------------------------------------------------- */

static void install_hooks(void *const reals[N_NAMES], void *slots[N_NAMES])
{
	for (size_t i = 0; i < n_elements(hooks); i++) {
		void *real = reals[hooks[i].number];
		*(void **)(void *)((char *)&nvml_real + hooks[i].real_offset) = real;
		if (real && hooks[i].body) {
			slots[hooks[i].number] = hooks[i].body;
		}
	}
}

static void resolve(void)
{
	char path[PATH_MAX];
	void *reals[N_NAMES];
	void *slots[N_NAMES];
	void *library = shim_library_open(&shim_library_nvml, shim_entries, path);
	for (size_t i = 0; i < N_NAMES; i++) {
		reals[i] = library ? dlsym(library, names[i]) : (void *)no_library;
		slots[i] = reals[i] ? reals[i] : (void *)no_call;
	}
	if (!library) {
		slots[NUMBER_nvmlErrorString] = (void *)no_library_text;
	} else if (shim_policy_owns_any() && reals[NUMBER_nvmlDeviceGetUUID]) {
		install_hooks(reals, slots);
	}
	for (size_t i = 0; i < N_NAMES; i++) {
		atomic_store_explicit(&shim_table[i], slots[i], memory_order_release);
	}
}

__attribute__((visibility("hidden"))) void shim_resolve(void)
{
	pthread_once(&once, resolve);
}
