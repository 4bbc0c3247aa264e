/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate keeps a stream busy until the test opens it, however fast or slow the machine is. One per test, which has
 * opened the driver (world.h).
 */
#ifndef GLAKE_TESTS_GATE_H
#define GLAKE_TESTS_GATE_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/harness/world.h"

static _Atomic bool gate_is_open;

static void CUDA_CB gate_wait(void *user)
{
	(void)user;
	while (!gate_is_open) {
		usleep(1000);
	}
}

/* Work that is queued on @stream from now on waits for gate_open(). */
static inline void gate_close(CUstream stream)
{
	__typeof__(cuLaunchHostFunc) *launch;
	*(void **)&launch = dlsym(drv.library, "cuLaunchHostFunc");
	gate_is_open = false;
	ck_assert_int_eq(launch(stream, gate_wait, NULL), CUDA_SUCCESS);
}

static inline void gate_open(void)
{
	gate_is_open = true;
}

#endif
