/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a trace for `glake replay`: one event for each allocation and free of glaked's memory, to
 * FILE.PID for device 0 and FILE.PID.N for device N. FILE is GLAKE_SHIM_RECORD. Off without it.
 *
 * Events are kept until there are many of them, some time has gone by (service.c), or the process
 * exits. Events that cannot be written are counted and dropped.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_RECORD_H
#define GLAKE_SHIM_RECORD_H

#include <stdbool.h>

#include "shim/shim.h"

/* Set before the program's constructors run, and at exit. */
extern bool record_is_on;

void record_add_alloc(CUdevice device, CUdeviceptr address, uint64_t n_bytes, uint64_t stream);
void record_add_free(CUdevice device, CUdeviceptr address, uint64_t stream);

/* Record an allocation, after it is made. @stream is the driver's id, 0 for memory in no stream's order. */
static inline void record_alloc(CUdevice device, CUdeviceptr address, uint64_t n_bytes,
                                uint64_t stream)
{
	if (record_is_on) {
		record_add_alloc(device, address, n_bytes, stream);
	}
}

/* Record a free, before it happens: another thread may get the address at once. */
static inline void record_free(CUdevice device, CUdeviceptr address, uint64_t stream)
{
	if (record_is_on) {
		record_add_free(device, address, stream);
	}
}

/* Write all kept events. */
void record_flush(void);

#endif
