/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout looks at each block that programs have made and use once, for parts that other blocks have at other offsets
 * (prints.h). It shares nothing: it tells what could be shared if it lay elsewhere (docs/decisions/088-layout-is-told.md).
 *
 * glake-mover copies the block to host memory and hashes it there. So a look costs the GPU a copy over the link and no time of
 * its processors; of that it takes one part in LAYOUT_PART. One block at a time, while a mover runs and has nothing else to do:
 * it starts none, and does not keep one running.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LAYOUT_H
#define GLAKE_DAEMON_LAYOUT_H

#include <uv.h>

#include "daemon/store/mover_link.h"
#include "daemon/store/store.h"

#define LAYOUT_MS 50u
/* Looks take 1 / LAYOUT_PART of the time: 0.5 %. */
#define LAYOUT_PART 200u
/* Whatever the mover says of one block. */
#define LAYOUT_MAX_NS 100000000u
/* The pause when no block is left to look at: to find that out, all blocks are walked. */
#define LAYOUT_REST_MS 1000u
/* The pause after a failure of the mover or of a device. */
#define LAYOUT_RETRY_MS 60000u

struct layout_look;

struct layout {
	struct store *store;      /* borrowed */
	struct mover_link *mover; /* borrowed */
	uv_timer_t timer;
	bool is_on;               /* set by the owner; false at first */
	struct layout_look *look; /* under way; NULL: none */
	uint64_t last_id;         /* of the last block that was looked at */
	uint64_t next_ms;         /* not before is anything looked at */
};

void layout_init(struct layout *layout, uv_loop_t *loop, struct store *store,
                 struct mover_link *mover);
/* A look under way ends with the link to the mover, or with the keeper. */
void layout_close(struct layout *layout);

#endif
