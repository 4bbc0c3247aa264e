/* SPDX-License-Identifier: Apache-2.0 */
/* The entry of every exported function, and cuInit. */
#include "sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum init_state {
	STATE_NEW,
	STATE_READY,
	STATE_FORKED, /* a child of a process that had called cuInit: unusable for good */
	STATE_ENDED,  /* exit() has called our handler */
};

static atomic_int state = STATE_NEW;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
	const char *name;
	enum call_need need;
} calls[CALL_COUNT] = {
#define CALL(NAME, VERSION, NEED) [CALL_##NAME] = {#NAME, NEED},
#include "calls.def"
#undef CALL
};

const char *call_name(enum call_id id)
{
	return calls[id].name;
}

CUresult call_enter(enum call_id id)
{
	bool is_early = atomic_load(&state) != STATE_ENDED;
	CUresult err = fault_check(id);

	if (is_early && atomic_load(&state) == STATE_ENDED) {
		/* A driver crashes here, if it is unlucky. */
		fprintf(stderr, "cudasim: exit() has torn down what %s works on\n", call_name(id));
		abort();
	}
	if (err != CUDA_SUCCESS || calls[id].need == NEED_NOTHING) {
		return err;
	}
	if (atomic_load(&state) == STATE_ENDED) {
		return CUDA_ERROR_DEINITIALIZED;
	}
	if (atomic_load(&state) != STATE_READY) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	return calls[id].need == NEED_CTX ? ctx_check_current() : CUDA_SUCCESS;
}

/* Takes no lock: another thread of the parent may have held any of them. */
static void after_fork_in_child(void)
{
	if (atomic_load(&state) == STATE_READY) {
		atomic_store(&state, STATE_FORKED);
	}
}

static void at_exit(void)
{
	int ready = STATE_READY;
	atomic_compare_exchange_strong(&state, &ready, STATE_ENDED);
}

/* Threads of streams run our code, so dlclose must not unmap it. */
static void stay_loaded(void)
{
	Dl_info info;

	if (dladdr((void *)&state, &info) && info.dli_fname) {
		void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
		if (self) {
			dlclose(self);
		}
	}
}

static CUresult init_locked(void)
{
	static bool has_hooks;

	if (!fault_config_is_valid()) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = device_init();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = registry_open();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	chunkfd_begin();
	stay_loaded();
	if (!has_hooks) {
		has_hooks = pthread_atfork(NULL, NULL, after_fork_in_child) == 0 &&
		            atexit(at_exit) == 0;
	}
	atomic_store(&state, STATE_READY);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	ENTER(cuInit);
	if (flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (atomic_load(&state) == STATE_FORKED) {
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	if (atomic_load(&state) == STATE_ENDED) {
		return CUDA_ERROR_DEINITIALIZED;
	}
	pthread_mutex_lock(&init_lock);
	CUresult err = atomic_load(&state) == STATE_READY ? CUDA_SUCCESS : init_locked();
	pthread_mutex_unlock(&init_lock);
	return err;
}

CUresult cuDriverGetVersion(int *version_out)
{
	ENTER(cuDriverGetVersion);
	if (!version_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*version_out = SIM_DRIVER_VERSION;
	return CUDA_SUCCESS;
}
