/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One load: files become blocks.
 *
 *   load thread    device, room for the headers (budget.h), plan, plan reported; then for each chunk granted: map, post
 *   reader threads windows of a block: read into a slot, queue its copy; after the last window of a
 *                  block, queue its digest (pump.h)
 *   digester       block copied and digested: unmap, report (digester.h)
 *   load thread    all blocks loaded: the files unchanged? report the end
 *
 * A window is as much of a block as a slot holds. Any fault makes the load fail once: readers then
 * only count their windows down, so that every mapped block still comes to its end and is unmapped
 * after the last copy to it. A load that failed or was cancelled ends when no block is mapped.
 *
 * Loads run beside each other and share readers and copy stream in turns; none waits for another.
 *
 * Owner: jobs.c. Lifetime: load_launch() until the ended callback, after which the load reports and
 * frees itself.
 * Threads: load_grant() and load_fail() from any, until the ended callback has returned.
 */
#ifndef GLAKE_MOVER_LOAD_H
#define GLAKE_MOVER_LOAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/budget.h"
#include "daemon/mover/catalog.h"
#include "daemon/mover/device.h"
#include "daemon/mover/load_window.h"
#include "daemon/mover/plan.h"
#include "daemon/mover/pump.h"
#include "daemon/mover/report.h"
#include "daemon/mover/source.h"
#include "proto/fdlist.h"

struct load;

/* The parts that loads share. All borrowed. */
struct load_host {
	const struct cudrv *drv;
	struct devices *devices;
	struct pump *pump;
	struct budget *budget;
	struct report *report;
	/* The load takes no more orders: forget it. On the load's thread, no lock held. */
	void (*ended)(void *user, struct load *load);
	/* The last thing its thread does; the load is gone. */
	void (*freed)(void *user);
	void *user;
};

struct load {
	struct load_windows windows;
	struct load *next; /* link: jobs.loads */
	const struct load_host *host;
	uint64_t job;
	uint64_t started_ns;

	/* The order. */
	uint8_t device_uuid[16];
	size_t n_uuid_bytes;
	bool may_direct;
	struct budget_claim claim; /* with the uid */
	size_t n_files;
	int *fds;             /* owned: of the files, then the index; -1 once a source has it */
	char **names;         /* owned: of the files */
	char *index;          /* owned: its name; NULL = none */
	uint64_t index_bytes; /* of it, that memory was claimed for */

	/* Made by the load's thread before anything is posted, then only read. */
	struct source *sources; /* owned */
	struct catalog catalog;
	struct plan plan;
	bool is_pumped;          /* the windows are in the pump */
	char reload_reason[200]; /* "", or why which file is not settled: settle.h */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct fault fault; /* under lock; of the first failure */
	bool is_planned;    /* under lock: grants may come */
	int *grants;        /* under lock, owned: fds by block; -1 once mapped */
	size_t n_granted;   /* under lock */
	size_t n_mapped;    /* under lock */
	size_t n_ended;     /* under lock: loaded, or given up */
};

/* The content of LoadStart. Strings and fds are copied or taken by load_launch(). */
struct load_order {
	uint64_t job;
	const uint8_t *device_uuid;
	size_t n_uuid_bytes;
	char *const *names;
	size_t n_files;
	const char *index; /* NULL = none */
	bool may_direct;
	uint32_t uid;
};

/* Takes the fds of @fds, on success only. */
int load_launch(const struct load_host *host, const struct load_order *order, struct fdlist *fds,
                struct load **load_out, struct fault *fault);

/* Chunks for blocks @first and on; takes the fds. Fails the load if they make no sense. */
void load_grant(struct load *load, uint64_t first, struct fdlist *fds);

/* Fail the load with @fault, unless it has failed before. */
void load_fail(struct load *load, const struct fault *fault);

#endif
