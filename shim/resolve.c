/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the real driver's calls for shim_table, and answers cuGetProcAddress().
 *
 * cudart gets nearly all its calls from cuGetProcAddress(). The real one is asked first. If it
 * returns the address of a call that the shim hooks, the program gets our entry instead. So the
 * driver chooses among versions and per-thread variants, and cuGetProcAddress() asked for itself
 * yields our wrapper with the right parameters.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glake_shim.h"
#include "proto/cleanup.h"
#include "shim/connection.h"
#include "shim/drain.h"
#include "shim/fork.h"
#include "shim/gate.h"
#include "shim/gates.h"
#include "shim/library.h"
#include "shim/service.h"
#include "shim/shim.h"
#include "shim/sleep.h"

static const char *const names[] = {
#define NAME(symbol, number) #symbol,
#include "shim/names.def"
#undef NAME
};
#define N_NAMES n_elements(names)

/* The tables of trampolines.S, in the order of names. */
extern _Atomic(void *) shim_table[N_NAMES];
extern void *const shim_entries[N_NAMES];

struct hook {
	const char *symbol;
	void *body;
	size_t real_offset;
	int version;
	int flags;
};

static const struct hook hooks[] = {
#define HOOK(symbol, prototype, class, version, flags) \
	{#symbol, (void *)shim_##symbol, offsetof(struct shim_real, real_##symbol), version, flags},
#include "shim/hooks.def"
};
#define N_HOOKS n_elements(hooks)

struct need {
	const char *symbol;
	size_t real_offset;
	bool is_vital;
};

static const struct need needs[] = {
#define NEED(symbol) {#symbol, offsetof(struct shim_real, real_##symbol), true},
#define WANT(symbol, prototype) {#symbol, offsetof(struct shim_real, real_##symbol), false},
#include "shim/hooks.def"
};

/* From a real address to our entry. Up to two per hook: the resolver may know another address. */
struct route {
	uintptr_t real;
	void *entry;
};

struct shim_real shim_real;
static struct route routes[2 * N_HOOKS + N_NAMES];
static size_t n_routes;
static char libcuda[PATH_MAX];
static bool can_own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- answers where there is nothing to call --------------------------------------------------- */

static CUresult no_driver(void)
{
	return CUDA_ERROR_NO_DEVICE;
}

static CUresult no_call(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- tables ----------------------------------------------------------------------------------- */

static int compare_names(const void *name, const void *element)
{
	return strcmp(name, *(const char *const *)element);
}

/* -1: the toolkit of the build does not have the call. */
static ssize_t number_of(const char *symbol)
{
	const char *const *at = bsearch(symbol, names, N_NAMES, sizeof(names[0]), compare_names);
	return at ? at - names : -1;
}

static void **real_slot(size_t offset)
{
	return (void **)(void *)((char *)&shim_real + offset);
}

static int compare_routes(const void *left, const void *right)
{
	uintptr_t a = ((const struct route *)left)->real;
	uintptr_t b = ((const struct route *)right)->real;
	return (a > b) - (a < b);
}

static void *entry_for(void *real)
{
	struct route key = {.real = (uintptr_t)real};
	const struct route *route = bsearch(&key, routes, n_routes, sizeof(routes[0]),
	                                    compare_routes);
	return route ? route->entry : NULL;
}

static void add_route(void *real, void *entry)
{
	routes[n_routes++] = (struct route){.real = (uintptr_t)real, .entry = entry};
}

/* Drops _ptsz and _vN: cuStreamBeginCapture_v2_ptsz becomes cuStreamBeginCapture. */
static void base_name(const char *symbol, char *base_out, size_t capacity)
{
	snprintf(base_out, capacity, "%s", symbol);
	char *suffix = strstr(base_out, "_ptsz");
	if (suffix) {
		*suffix = '\0';
	}
	size_t n = strlen(base_out);
	if (n > 3 && base_out[n - 3] == '_' && base_out[n - 2] == 'v') {
		base_out[n - 3] = '\0';
	}
}

/* Does the real driver export the address by a name? Then its route is known. */
static bool is_exported(void *const reals[N_NAMES], const void *address)
{
	for (size_t i = 0; i < N_NAMES; i++) {
		if (reals[i] == address) {
			return true;
		}
	}
	return false;
}

static void add_aliases(void *const reals[N_NAMES])
{
	if (!real(cuGetProcAddress_v2)) {
		return;
	}
	for (size_t i = 0; i < N_HOOKS; i++) {
		char base[128];
		void *found = NULL;
		base_name(hooks[i].symbol, base, sizeof(base));
		CUresult result = real(cuGetProcAddress_v2)(base, &found, hooks[i].version,
		                                            (cuuint64_t)hooks[i].flags, NULL);
		if (result == CUDA_SUCCESS && found && *real_slot(hooks[i].real_offset) &&
		    !is_exported(reals, found)) {
			add_route(found, shim_entries[number_of(hooks[i].symbol)]);
		}
	}
}

static const struct hook *hook_of(const char *symbol)
{
	for (size_t i = 0; i < N_HOOKS; i++) {
		if (strcmp(hooks[i].symbol, symbol) == 0) {
			return &hooks[i];
		}
	}
	return NULL;
}

static void install_hooks(void *library, void *const reals[N_NAMES], void *slots[N_NAMES])
{
	for (size_t i = 0; i < n_elements(needs); i++) {
		void *real = dlsym(library, needs[i].symbol);
		*real_slot(needs[i].real_offset) = real;
		can_own = can_own && (real || !needs[i].is_vital);
	}
	for (size_t i = 0; i < N_HOOKS; i++) {
		ssize_t number = number_of(hooks[i].symbol);
		void *real = number < 0 ? NULL : reals[number];
		*real_slot(hooks[i].real_offset) = real;
		if (real) {
			slots[number] = hooks[i].body;
			add_route(real, shim_entries[number]);
		}
	}
	add_aliases(reals);
}

/*
 * A gated call with a hook passes the gate where the hook makes the real call. A call that wakes the process does so before
 * its hook, because our own use of the real call must wake nobody.
 */
static void install_gate(const struct gated_call *call, void *real, void **slot, void *entry)
{
	const struct hook *hook = hook_of(call->symbol);
	*call->real = real;
	if (!hook) {
		*slot = call->body;
		add_route(real, entry);
	} else if (call->kind == GATES_WAKES) {
		*call->real = hook->body;
		*slot = call->body;
	} else {
		*real_slot(hook->real_offset) = call->body;
	}
}

static void install_gates(void *const reals[N_NAMES], void *slots[N_NAMES])
{
	for (size_t i = 0; i < n_gated_calls; i++) {
		ssize_t number = number_of(gated_calls[i].symbol);
		if (number >= 0 && reals[number]) {
			install_gate(&gated_calls[i], reals[number], &slots[number],
			             shim_entries[number]);
		}
	}
}

static void fill_table(void *library)
{
	void *reals[N_NAMES];
	void *slots[N_NAMES];
	for (size_t i = 0; i < N_NAMES; i++) {
		reals[i] = library ? dlsym(library, names[i]) : (void *)no_driver;
		slots[i] = reals[i] ? reals[i] : (void *)no_call;
	}
	if (library && !shim_policy()->is_off) {
		can_own = true;
		install_hooks(library, reals, slots);
		if (gate_init() == 0) {
			install_gates(reals, slots);
		}
		qsort(routes, n_routes, sizeof(routes[0]), compare_routes);
	}
	for (size_t i = 0; i < N_NAMES; i++) {
		atomic_store_explicit(&shim_table[i], slots[i], memory_order_release);
	}
}

static void resolve(void)
{
	void *library = shim_library_open(&shim_library_cuda, shim_entries, libcuda);
	n_routes = 0;
	shim_fork_init();
	fill_table(library);
	sleep_init();
	connection_init(libcuda, service_start);
	if (can_own) {
		/* Open the driver's calls now, so that a session does not call the loader with locks held. */
		struct cudrv drv;
		cudrv_open(&drv, libcuda, NULL, 0);
	}
}

__attribute__((visibility("hidden"))) void shim_resolve(void)
{
	pthread_once(&once, resolve);
}

const char *shim_libcuda(void)
{
	return libcuda;
}

bool shim_can_own(void)
{
	return can_own;
}

/* ---- the driver's resolver -------------------------------------------------------------------- */

static void reroute(CUresult result, void **entry)
{
	void *ours = result == CUDA_SUCCESS && entry && *entry ? entry_for(*entry) : NULL;
	if (ours) {
		*entry = ours;
	}
}

CUresult shim_cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags)
{
	CUresult result = real(cuGetProcAddress)(symbol, entry, version, flags);
	reroute(result, entry);
	return result;
}

CUresult shim_cuGetProcAddress_v2(const char *symbol, void **entry, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *status)
{
	CUresult result = real(cuGetProcAddress_v2)(symbol, entry, version, flags, status);
	reroute(result, entry);
	return result;
}

/* Release a primary context that the library has retained, perhaps as its last user, so the hook is called. */
static void release_primary(void *user, int device)
{
	(void)user;
	shim_cuDevicePrimaryCtxRelease_v2(device);
}

CUresult shim_cuInit(unsigned flags)
{
	struct glake__gate all = drain_gate;
	CUresult result = real(cuInit)(flags);
	all.release_primary = release_primary;
	if (result == CUDA_SUCCESS) {
		shim_note_init();
		if (can_own) {
			glake__space_start(libcuda, &all);
		}
	}
	return result;
}
