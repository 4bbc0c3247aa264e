/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/may.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "glake_shim.h"
#include "proto/clock.h"
#include "shim/capture.h"
#include "shim/context.h"
#include "shim/gate.h"
#include "shim/order.h"
#include "shim/shim.h"

/* Devices that read and write GPU memory past its page tables. Paths begin with these. */
static const char *const bypasses[] = {"/dev/infiniband/uverbs", "/dev/gdrdrv", "/dev/nvidia-fs"};

/* The bypass that @path begins with, static; NULL: none. */
static const char *find_bypass(const char *path)
{
	for (size_t i = 0; path && i < sizeof(bypasses) / sizeof(bypasses[0]); i++) {
		if (strncmp(path, bypasses[i], strlen(bypasses[i])) == 0) {
			return bypasses[i];
		}
	}
	return NULL;
}

static const char *find_open_bypass(void)
{
	const char *found = NULL;
	DIR *fds = opendir("/proc/self/fd");
	const struct dirent *entry;
	while (fds && !found && (entry = readdir(fds))) {
		char path[64] = "";
		if (readlinkat(dirfd(fds), entry->d_name, path, sizeof(path) - 1) > 0) {
			found = find_bypass(path);
		}
	}
	if (fds) {
		closedir(fds);
	}
	return found;
}

/* A mapping outlives its fd. */
static const char *find_mapped_bypass(void)
{
	const char *found = NULL;
	FILE *maps = fopen("/proc/self/maps", "re");
	char *line = NULL;
	size_t n_line = 0;
	while (maps && !found && getline(&line, &n_line, maps) > 0) {
		found = find_bypass(strchr(line, '/'));
	}
	free(line);
	if (maps) {
		fclose(maps);
	}
	return found;
}

/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which is new in CUDA 12.5. */
#define MPS_ENABLED ((CUdevice_attribute)133)

static bool has_mps_control(void)
{
	char path[4096];
	const char *folder = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
	snprintf(path, sizeof(path), "%s/control", folder ? folder : "/tmp/nvidia-mps");
	return access(path, F_OK) == 0;
}

static bool is_mps_client(void)
{
	int is_client = 0;
	CUresult result = real(cuDeviceGetAttribute)(&is_client, MPS_ENABLED, 0);
	if (result != CUDA_SUCCESS) {
		return has_mps_control();
	}
	for (CUdevice device = 1; result == CUDA_SUCCESS && !is_client; device++) {
		result = real(cuDeviceGetAttribute)(&is_client, MPS_ENABLED, device);
	}
	return is_client != 0;
}

/* Contexts of a program with more are not checked. */
#define MAX_CONTEXTS 256u
/* How often contexts are looked at: one that a thread makes meanwhile is seen by the next try. */
#define MAX_TRIES 4u
/* The longest wait for another thread that ends a context. */
#define PATIENCE_NS 200000000u

struct contexts {
	void *all[MAX_CONTEXTS];
	size_t n;
	uint64_t generation;
};

static void note_context(void *user, CUcontext ctx, CUdevice device)
{
	struct contexts *contexts = user;
	(void)device;
	if (contexts->n < MAX_CONTEXTS) {
		contexts->all[contexts->n++] = ctx;
	}
}

/* False: another thread is ending a context all the time, or there are too many. */
static bool find_contexts(struct contexts *contexts)
{
	contexts->n = 0;
	if (!order_try_hold_contexts(clock_now_ns() + PATIENCE_NS)) {
		return false;
	}
	contexts->generation = context_generation();
	context_each(note_context, contexts);
	order_let_contexts();
	return contexts->n < MAX_CONTEXTS;
}

/*
 * A part of the program may have opened the driver by its path, and call it past the gate. A context that it has made so
 * shows when others allocate memory in it. Memory from before a context ended does not count, as it may be that context's.
 */
static bool has_unseen_context(struct glake_session *session)
{
	struct contexts contexts;
	bool has_unseen = false;
	for (unsigned i = 0; i < MAX_TRIES && find_contexts(&contexts); i++) {
		if (glake__candidates_are_in(session, contexts.all, contexts.n,
		                             contexts.generation)) {
			return false;
		}
		has_unseen = true;
	}
	return has_unseen;
}

/* Checks for both: all writes must come from work that the shim sees. */
static int may_change(struct glake_session *session, char *why, size_t n_why)
{
	const char *bypass = find_open_bypass();
	bypass = bypass ? bypass : find_mapped_bypass();
	if (bypass) {
		snprintf(
			why, n_why,
			"it has %s open, which writes past the GPU's page tables: only the program "
			"itself may ask",
			bypass);
		return -EPERM;
	}
	if (capture_is_any()) {
		snprintf(why, n_why, "it captures a stream now");
		return -EBUSY;
	}
	if (has_unseen_context(session)) {
		snprintf(why, n_why,
		         "it has memory in a context that it made past the shim: only the program "
		         "itself may ask");
		return -EPERM;
	}
	return 0;
}

int may_seal(struct glake_session *session, char *why, size_t n_why)
{
	if (glake__dedup_is_off()) {
		snprintf(why, n_why, "GLAKE_DEDUP=off");
		return -EPERM;
	}
	if (is_mps_client()) {
		snprintf(why, n_why,
		         "it is a client of MPS, where a fault ends other clients too: only the "
		         "program itself may ask");
		return -EPERM;
	}
	if (gate_is_asleep()) {
		snprintf(why, n_why, "it is asleep");
		return -EBUSY;
	}
	return may_change(session, why, n_why);
}

int may_sleep(struct glake_session *session, char *why, size_t n_why)
{
	if (!real(cuCtxRecordEvent)) {
		snprintf(why, n_why,
		         "its driver is older than CUDA 12.5, which cannot tell when its work is "
		         "done");
		return -EPERM;
	}
	return may_change(session, why, n_why);
}
