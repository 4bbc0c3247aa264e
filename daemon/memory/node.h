/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory as a location: the machine's NUMA nodes.
 *
 * A node counts if it has memory and processors: memory without processors is a device's, or slower than what a copy
 * to the host is wanted for. A kernel without NUMA has node 0.
 *
 * Owner: the server.
 * Lifetime: nodes_open() to nodes_close().
 * Threads: start-up; see location.h.
 */
#ifndef GLAKE_DAEMON_NODE_H
#define GLAKE_DAEMON_NODE_H

#include <stddef.h>

#include "daemon/config/config.h"
#include "daemon/memory/location.h"

/* More are passed over. */
#define NODE_MAX 16u

/* Where the kernel lists them. */
#define NODE_SYSFS "/sys/devices/system/node"

struct node {
	uint32_t number;
	uint64_t total_bytes;
};

struct nodes {
	uint32_t n;
	struct location at[NODE_MAX];
	char lacking
		[96]; /* why not all host memory is a location, as far as is known; "" = all is */
};

/*
 * Make locations of the machine's nodes, of which chunks may have @host_bytes each, or a quarter of the node if that is
 * not given. Blocks in driver calls: it makes a chunk at each, and gives it back. Where that fails there is none,
 * and glaked does without. @device is one of the driver's.
 */
void nodes_open(struct nodes *nodes, const struct cudrv *drv, CUdevice device,
                const struct config_sizes *host_bytes, const char *sysfs);

/* The workers must have nothing pending. Harmless if they are zero. */
void nodes_close(struct nodes *nodes);

#endif
