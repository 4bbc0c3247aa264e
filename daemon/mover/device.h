/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs as the mover uses them: the primary context of each, the kernels, the stream for copies
 * from the host and the digester. Made on first use, since a context costs half a GiB and 100 ms. A device
 * that has no room for the digester is opened without: only loads need it, and a full device is where programs
 * are to sleep.
 *
 * Owner: the mover. Lifetime: devices_init() to devices_deinit(); a device stays open in between.
 * Threads: devices_find() from any; a device found may be used by any thread after device_enter().
 */
#ifndef GLAKE_MOVER_DEVICE_H
#define GLAKE_MOVER_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/mover/digester.h"
#include "daemon/mover/fault.h"
#include "daemon/mover/kernels.h"
#include "proto/cudrv.h"

#define DEVICE_MAX 64u

struct device {
	const struct cudrv *drv; /* borrowed */
	CUdevice ordinal;
	unsigned index; /* in the table */
	uint8_t uuid[16];

	/* From here on only while it is open. */
	bool is_open; /* under devices.lock */
	CUcontext context;
	CUstream copy_stream; /* host to device, in order */
	struct kernels kernels;
	struct digester digester; /* of loads; see device_need_digester() */
};

struct devices {
	const struct cudrv *drv; /* borrowed */
	pthread_mutex_t lock;
	size_t n_devices;
	struct device devices[DEVICE_MAX];
};

/* List the devices, after cuInit(). */
int devices_init(struct devices *devices, const struct cudrv *drv, struct fault *fault);
/* Close the devices, of which nothing is in use any more. */
void devices_deinit(struct devices *devices);

/* The device with this UUID, open and entered by the calling thread. */
int devices_find(struct devices *devices, const uint8_t *uuid, size_t n_uuid_bytes,
                 struct device **device_out, struct fault *fault);

/* Make the device's digester before it is used: it is missing if the device was full. The device is entered. */
int device_need_digester(struct devices *devices, struct device *device, struct fault *fault);

/* Make its context the calling thread's. */
int device_enter(const struct device *device, struct fault *fault);

/*
 * The fault for a driver call named @call that answered @result: out of memory, a lost device, or
 * an internal error. Always returns MOVER_E_FAULT.
 */
int device_fault(const struct cudrv *drv, CUresult result, const char *call, struct fault *fault);

/* ---- chunks in the mover's address space ---------------------------------------------------- */

enum chunk_access {
	CHUNK_READ = CU_MEM_ACCESS_FLAGS_PROT_READ,
	CHUNK_WRITE = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* Address space for chunks; a multiple of 2 MiB. */
int chunk_reserve(const struct cudrv *drv, uint64_t bytes, CUdeviceptr *address_out,
                  struct fault *fault);
void chunk_unreserve(const struct cudrv *drv, CUdeviceptr address, uint64_t bytes);

/*
 * Map the whole chunk behind @fd, of @bytes, at @address, for @device. The fd stays the caller's and
 * may be closed at once: the mapping keeps the memory.
 */
int chunk_map(const struct device *device, int fd, CUdeviceptr address, uint64_t bytes,
              enum chunk_access access, struct fault *fault);
/* No work that uses it is under way. */
int chunk_unmap(const struct cudrv *drv, CUdeviceptr address, uint64_t bytes, struct fault *fault);

#endif
