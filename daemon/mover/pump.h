/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader threads and their staging memory, shared by all loads.
 *
 * A load posts units of work; a thread takes a unit of the next load in turn, so loads that run at
 * the same time get equal shares. Each thread has a ring of a few pinned slots: it fills one while
 * the GPU copies from the others, and sleeps when the GPU is behind. Threads begin with the first
 * load and keep their memory until the process ends.
 *
 * Owner: the mover. Lifetime: pump_init() to pump_deinit(); a pump_job from pump_add() to
 * pump_remove().
 * Threads: pump_add/post/remove from any; the pump_worker belongs to its thread.
 */
#ifndef GLAKE_MOVER_PUMP_H
#define GLAKE_MOVER_PUMP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/device.h"
#include "daemon/mover/fault.h"
#include "daemon/mover/pinned.h"

#define PUMP_MAX_THREADS 64u
#define PUMP_SLOTS 4u

struct pump;
struct pump_worker;
struct pump_job;

/* Do one unit. Called on a reader thread, with no context guaranteed. */
typedef void (*pump_work_fn)(struct pump_job *job, struct pump_worker *worker);

struct pump_job {
	struct pump_job *next; /* link: pump.jobs, a ring */
	struct pump_job *prev;
	uint64_t n_units; /* under pump.lock: posted, not taken yet */
	pump_work_fn work;
};

struct slot {
	void *memory;             /* borrowed from the worker's pinned memory; page-aligned */
	struct device *device;    /* whose copy may still read it; NULL = none */
	CUevent sent[DEVICE_MAX]; /* owned, made on first use; by device index */
};

struct pump_worker {
	struct pump *pump; /* borrowed */
	pthread_t thread;
	struct pinned pinned;
	struct slot slots[PUMP_SLOTS];
	unsigned next_slot;
	void *bounce; /* owned, made on first use; PUMP_BOUNCE_BYTES and some for alignment */
};

#define PUMP_BOUNCE_BYTES (2ull * 1024 * 1024)

struct pump {
	const struct cudrv *drv; /* borrowed */
	uint64_t slot_bytes;     /* content of a slot; there is some more room for alignment */
	unsigned n_threads;      /* wanted */
	pthread_mutex_t lock;
	pthread_cond_t posted;
	struct pump_job *jobs; /* under lock: whose turn it is; NULL = none */
	unsigned n_workers;    /* under lock: started */
	struct device *first;  /* under lock: of the first load */
	bool is_stopping;      /* under lock */
	struct pump_worker workers[PUMP_MAX_THREADS];
};

/* @slot_bytes: a multiple of 4096. */
void pump_init(struct pump *pump, const struct cudrv *drv, unsigned n_threads, uint64_t slot_bytes);
/* No job is left, and the devices are still open. */
void pump_deinit(struct pump *pump);

/*
 * Take part. Starts the threads if there are none yet, which then pin their slots at once, in
 * @device's context and beside whatever the load does before its first unit. 0, or a fault.
 */
int pump_add(struct pump *pump, struct pump_job *job, struct device *device, struct fault *fault);
void pump_post(struct pump *pump, struct pump_job *job, uint64_t n_units);
/* All units posted have been worked off. */
void pump_remove(struct pump *pump, struct pump_job *job);

/*
 * The worker's next slot, free to be filled, for a copy to @device, which the thread has entered.
 * Waits for the copy that used it before.
 */
int pump_take_slot(struct pump_worker *worker, struct device *device, struct slot **slot_out,
                   struct fault *fault);
/* A copy from the slot has been queued on the device's copy stream. */
int pump_slot_sent(struct pump_worker *worker, struct device *device, struct slot *slot,
                   struct fault *fault);
/* PUMP_BOUNCE_BYTES and twice SOURCE_ALIGN_BYTES, page-aligned; NULL when out of memory. */
void *pump_bounce(struct pump_worker *worker);

#endif
