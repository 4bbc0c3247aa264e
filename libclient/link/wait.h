/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long an allocation has waited, over all its requests, and for what.
 */
#ifndef GLAKE_LIBCLIENT_WAIT_H
#define GLAKE_LIBCLIENT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "glake_order.h"

/* A wait for what streams have freed, up to a number. Begins with glake__order_watch(), or as zeroes. */
struct glake__order_wait {
	uint64_t n_released; /* when it looked last */
	uint64_t upto;
	uint64_t grace_ns;
	uint64_t ended_ns; /* when one of them was seen to */
	unsigned n_left;
	bool is_over;
};

/*
 * How one allocation waits: since when, over all its requests to glaked. In stream order its stream may also wait for
 * another one's work (glake_order_follow()), unless order is NULL. Begins as zeroes.
 */
struct glake__wait {
	uint64_t since_ns;
	struct glake__order_wait parked;
	bool is_room_made; /* what is free has gone back to glaked for it */
	uint64_t
		unseals; /* the block that the chunk is to replace, if it was sealed by itself; 0: none, or not known */
	bool is_spare; /* it does not wait: of what is free, or not at all (glake__rpc_knows_spare()) */
	bool no_wait; /* it does not wait: of what glaked can take back at once, or not at all */
	struct glake_order *order; /* borrowed */
	void *stream;              /* its CUstream, and */
	unsigned flags;            /* GLAKE_PER_THREAD or 0 */
};

#endif
