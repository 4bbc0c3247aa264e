/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private memory of each process, and how well it is used.
 *
 * What a program has in stream order and stitches has a row per device. All else of a session is one row:
 * the library does not say on which device it is live.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; memory_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_MEMORY_H
#define GLAKE_CTL_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "ctl/ctl.h"
#include "ctl/rows.h"
#include "glake_admin.h"

/* Numbers may be FIELD_NONE, unless it says that they are known. */
struct memory_row {
	uint64_t session; /* known, as the next */
	uint32_t pid;
	const char *program; /* owned */
	const char *label;   /* owned; identity_label() */
	uint64_t device;     /* FIELD_NONE: several */
	int stitches;
	uint64_t live_bytes;     /* known */
	uint64_t reserved_bytes; /* known */
	double utilization;      /* live / reserved; -1 with nothing reserved */
	double fragmentation;    /* 1 - (live + reusable) / reserved: what nobody can use; -1 */
	uint64_t warm_bytes;
	uint64_t
		reusable_bytes; /* the program can use them again at once; FIELD_NONE: its library does not tell */
	struct glake_session_pool
		pool;         /* peak_live_bytes may be known of a row that does not stitch */
	uint64_t n_vmm_calls; /* mapped and unmapped */
};

struct memory_device {
	uint32_t device;
	uint64_t others_bytes; /* private memory of sessions that are not in the rows */
};

struct memory {
	struct rows list;    /* struct memory_row */
	struct rows devices; /* struct memory_device */
	bool is_found;       /* a session that was meant is there, with memory or without */
};

void memory_deinit(struct memory *memory);

/* Add glaked's devices. Before memory_gather(), if at all. Returns as that does. */
int memory_find_devices(struct ctl *ctl, struct memory *memory);

/*
 * Add the sessions that @number means, a pid or a session; 0: all. Sessions without memory are left out.
 * Returns 0 or a code of glake.h.
 */
int memory_gather(struct ctl *ctl, uint64_t number, struct memory *memory);

/* The driver's memory of the process on all devices, without managed memory: by NVML, or as the process reports if NVML does not know it. */
uint64_t memory_driver_bytes(const struct glake_session_row *row);
/* The driver's memory of the process on one device. */
uint64_t memory_device_driver_bytes(const struct glake_session_device *device);

/* @bytes without @part, and 0 where that is more: numbers that meet here can be of different moments. */
uint64_t memory_without(uint64_t bytes, uint64_t part);

/* The device's memory that glaked keeps though nobody uses it: blocks, and of processes that have ended. */
uint64_t memory_cached_bytes(const struct glake_device_status *device);

/* Each byte of the device once, as far as it is known: private, blocks in use, cached, made ahead, driver, others', unaccounted. */
#define MEMORY_N_USES 7u
void memory_uses(const struct glake_device_status *device, uint64_t bytes_out[MEMORY_N_USES]);

/* The device that stands for what is known of the session as a whole: the first with private memory, else the first. */
uint32_t memory_first_device(const struct glake_session_row *row);

/* Live over reserved, where what is live beyond it does not count; -1: nothing is reserved. */
double memory_utilization(uint64_t live_bytes, uint64_t reserved_bytes);

#endif
