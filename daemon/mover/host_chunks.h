/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large chunks of host memory that stay mapped: giving a GPU access to one takes 9 ms for each GiB, a copy 18.
 *
 * A chunk is known by glaked's number of it. It is mapped for each device that uses it, from the first copy until
 * glaked wants it forgotten.
 *
 * Owner: the prober. Threads: the prober's only.
 */
#ifndef GLAKE_MOVER_HOST_CHUNKS_H
#define GLAKE_MOVER_HOST_CHUNKS_H

#include <stdint.h>

#include "daemon/mover/device.h"

struct host_view;

struct host_chunks {
	struct host_view *views; /* owned */
};

/* Where the chunk @number, of @bytes and with @fd, is for @device, which is entered. */
int host_chunks_map(struct host_chunks *chunks, const struct device *device, uint64_t number,
                    int fd, uint64_t bytes, CUdeviceptr *address_out, struct fault *fault);

/* No copy that uses it is under way. */
void host_chunks_forget(struct host_chunks *chunks, uint64_t number);

/* All of them. The devices are still open. */
void host_chunks_deinit(struct host_chunks *chunks);

#endif
