/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers' part of a load: its blocks are read window by window into slots and sent to the GPU, and
 * digested behind their last window. What comes of a block is told by a callback.
 *
 * Owner: embedded in a load. Lifetime: load_window_init() to load_window_deinit(), with no block mapped.
 * Threads: blocks are mapped and posted by one thread; reader threads and the digester's call back.
 */
#ifndef GLAKE_MOVER_LOAD_WINDOW_H
#define GLAKE_MOVER_LOAD_WINDOW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "daemon/mover/catalog.h"
#include "daemon/mover/device.h"
#include "daemon/mover/plan.h"
#include "daemon/mover/pump.h"
#include "daemon/mover/source.h"

struct load_windows;

/* Any thread may call these. */
struct load_window_ops {
	/* Something failed; the rest is not read any more. */
	void (*fail)(struct load_windows *windows, const struct fault *fault);
	/*
	 * The block is unmapped. @digest means nothing with has_failed. The load may end in here if this was
	 * its last.
	 */
	void (*block_done)(struct load_windows *windows, size_t number,
	                   const struct digest *digest);
};

struct load_block {
	struct load_windows *windows; /* borrowed: back from the digester */
	struct ticket *ticket;        /* borrowed from the digester while mapped */
	atomic_uint n_windows;        /* not worked off yet */
};

struct load_windows {
	struct pump_job pump_job; /* link: pump.jobs */
	const struct load_window_ops *ops;
	atomic_bool has_failed; /* set by the load */
	atomic_ullong read_bytes;
	atomic_ullong direct_bytes;

	/* Set before anything is mapped, and borrowed but for the blocks. */
	struct pump *pump;
	struct device *device;
	struct source *sources;
	const struct catalog *catalog;
	const struct plan *plan;
	CUdeviceptr span;          /* of plan.span_bytes; 0 = not reserved */
	struct load_block *blocks; /* owned */

	pthread_mutex_t lock;
	size_t take_block; /* under lock: the next window to work on */
	uint64_t take_offset;
};

void load_window_init(struct load_windows *windows, const struct load_window_ops *ops);
void load_window_deinit(struct load_windows *windows);

/* Map block @number, the next one; takes @fd. On failure nothing is mapped. */
int load_window_map(struct load_windows *windows, size_t number, int fd, struct fault *fault);
/* Have the windows of the block that was mapped worked off. */
void load_window_post(struct load_windows *windows, size_t number);

#endif
