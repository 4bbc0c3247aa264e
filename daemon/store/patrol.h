/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patrol: digests the blocks of the store again, one after the other and slowly, to find those
 * whose content has changed.
 *
 * Nobody may write to a block, but memory fails, and a process that has an fd of a block can write to
 * it in spite of the rules. Who opens a model or publishes a chunk later must not get such bytes.
 *
 *   sample  a block every PATROL_SAMPLE_MS, while a mover runs that has had no other work for
 *           PATROL_QUIET_MS. The patrol does not keep it running. If none runs, the patrol starts one
 *           after PATROL_START_MS, unless a device is known to be nearly full
 *   always  a block every PATROL_ALWAYS_MS, unless the mover has other work. The mover stays
 *
 * A block that a comparison has shown to differ from other memory of its digest comes first: by chance that
 * does not happen.
 *
 * A block is damaged if the mover digested it and the digest is another one, or found its rest not
 * to be zero. Any other failure says nothing about it. While it is looked at, it is not evicted.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PATROL_H
#define GLAKE_DAEMON_PATROL_H

#include <uv.h>

#include "daemon/config/config.h"
#include "daemon/store/mover_link.h"
#include "daemon/store/store.h"

#define PATROL_SAMPLE_MS 2000u
#define PATROL_QUIET_MS 5000u
#define PATROL_START_MS (10u * 60 * 1000)
#define PATROL_ALWAYS_MS 100u
/* The pause after a failure of the mover or of a device. */
#define PATROL_RETRY_MS 60000u
/* A mover that nobody needs is started only if this much of the device is free: its context takes half of it. */
#define PATROL_FREE_BYTES (1024ull * 1024 * 1024)

struct visit;

struct patrol {
	struct store *store;          /* borrowed */
	struct mover_link *mover;     /* borrowed */
	const struct device *devices; /* borrowed */
	uint32_t n_devices;
	enum config_verify mode;
	uv_timer_t timer;
	struct visit *visit; /* under way; NULL: none */
	uint64_t last_id;    /* of the last block that was looked at */
	uint64_t start_ms;   /* the patrol starts no mover before */
	uint64_t next_ms;    /* the patrol looks at nothing before */
	/* @block is damaged: it is to be withdrawn (withdraw.h). Until it is, the patrol waits. */
	void (*on_damaged)(void *user, struct block *block);
	void *user;
};

/* The patrol begins with patrol_set_mode(). */
void patrol_init(struct patrol *patrol, uv_loop_t *loop, struct store *store,
                 struct mover_link *mover, const struct device *devices, uint32_t n_devices);
void patrol_set_mode(struct patrol *patrol, enum config_verify mode);
/* A visit under way ends with the link to the mover, or with the keeper. */
void patrol_close(struct patrol *patrol);

#endif
