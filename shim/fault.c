/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/fault.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "shim/auto.h"
#include "shim/connection.h"
#include "shim/eyes.h"
#include "shim/learn.h"
#include "shim/shim.h"
#include "shim/turn.h"

#define PATIENCE_S 1
#define KIB 1024ull
#define MIB (KIB * 1024)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
/* In stage TOLD nobody waits any more. */
enum stage { NO_FAULT, SEEN, TOLD };

static _Atomic(enum stage) stage; /* written under the lock */
static struct glake__fault fault;

/* A driver that shuts down in order is no fault. */
static bool is_fault(CUresult result)
{
	return cudrv_is_lost(result) && result != CUDA_ERROR_DEINITIALIZED &&
	       result != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void look_around(CUresult result)
{
	fault.error = (int)result;
	fault.name = "unknown";
	if (real(cuGetErrorName)) {
		real(cuGetErrorName)(result, &fault.name);
	}
	fault.sealed_bytes = glake__sealed_bytes();
	fault.is_alone = auto_has_sealed();
	fault.n_suspects = eyes_suspects(fault.suspects, n_elements(fault.suspects));
}

/* ---- stderr ----------------------------------------------------------------------------------- */

static void print_suspects(void)
{
	for (size_t i = 0; i < fault.n_suspects; i++) {
		const struct glake__suspect *suspect = &fault.suspects[i];
		if (!suspect->ptr) {
			dprintf(STDERR_FILENO, "glake:   %s\n", suspect->kernel);
			continue;
		}
		bool is_small = suspect->range_bytes < MIB;
		dprintf(STDERR_FILENO, "glake:   %s at 0x%llx, in %llu %s at 0x%llx\n",
		        suspect->kernel, (unsigned long long)suspect->ptr,
		        (unsigned long long)suspect->range_bytes / (is_small ? KIB : MIB),
		        is_small ? "KiB" : "MiB", (unsigned long long)suspect->range);
	}
}

static void print(void)
{
	const char *list =
		!eyes_can_see() ? "Which kernels use it cannot be told before CUDA 12.4."
		: fault.n_suspects > 0
			? "The last kernels that were given sealed memory for the first time:"
			: "No kernel was seen that was given sealed memory.";
	dprintf(STDERR_FILENO,
	        "glake: CUDA error %d (%s) while %llu MiB are sealed, which kernels must not write "
	        "to. %s\n",
	        fault.error, fault.name, (unsigned long long)fault.sealed_bytes / MIB, list);
	print_suspects();
	if (fault.is_alone) {
		dprintf(STDERR_FILENO,
		        "glake: Some was sealed without being asked: a table of readers may be "
		        "wrong. The program is not sealed by itself again until \"glakectl dedup "
		        "--forgive\" says so.\n");
		return;
	}
	dprintf(STDERR_FILENO,
	        "glake: If one of them writes there, call glake_unseal() before, or set "
	        "GLAKE_DEDUP=off.\n");
}

/* ---- glaked ----------------------------------------------------------------------------------- */

static void set_told(void)
{
	pthread_mutex_lock(&lock);
	stage = TOLD;
	pthread_cond_broadcast(&told);
	pthread_mutex_unlock(&lock);
}

static void *tell(void *user)
{
	struct connection *connection = user;
	glake__report_fault(connection->session, &fault);
	set_told();
	connection_unref(connection);
	return NULL;
}

/* A program that has glaked's memory only by sessions of its own has no connection, so only stderr is told. */
static void report(CUresult result)
{
	look_around(result);
	if (fault.sealed_bytes > 0) {
		print();
	}
	struct connection *connection = connection_peek();
	if (!connection || !turn_start_thread(tell, connection)) {
		connection_unref(connection);
		set_told();
	}
}

static void wait_until_told(void)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += PATIENCE_S;
	pthread_mutex_lock(&lock);
	while (stage != TOLD && pthread_cond_timedwait(&told, &lock, &end) == 0) {
	}
	/* The next calls do not wait again. */
	stage = TOLD;
	pthread_mutex_unlock(&lock);
}

void fault_look_closer(CUresult result)
{
	if (shim_dedup() == SHIM_DEDUP_LEARN && is_fault(result)) {
		learn_wait_for_turn();
	}
	if (stage == TOLD || !is_fault(result) || shim_is_forked()) {
		return;
	}
	cleanup_cancel int cancel = cancel_disable();
	const int saved = errno;
	pthread_mutex_lock(&lock);
	bool is_first = stage == NO_FAULT;
	stage = is_first ? SEEN : stage;
	pthread_mutex_unlock(&lock);
	if (is_first) {
		report(result);
	}
	wait_until_told();
	errno = saved;
}
