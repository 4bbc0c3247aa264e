/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the small jobs do on the GPU (probe.h has their queue).
 *
 * Threads: the prober's only.
 */
#ifndef GLAKE_MOVER_PROBE_RUN_H
#define GLAKE_MOVER_PROBE_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/mover/device.h"
#include "daemon/mover/fault.h"
#include "proto/digest.h"

enum probe_kind { PROBE_DIGEST, PROBE_COMPARE };

struct probe {
	struct probe *next; /* link: prober.first */
	enum probe_kind kind;
	uint64_t job;
	int fds[2]; /* owned; -1 = none */
	uint8_t uuid[16];
	size_t n_uuid_bytes;
	uint64_t chunk_bytes;
	uint64_t content_bytes; /* digest */
};

/* What the probes need on one device, made on first use. */
struct probe_lane {
	CUstream stream; /* NULL = not made yet */
	CUevent done;
	CUdeviceptr words; /* struct probe_words */
	CUdeviceptr leaves;
	uint64_t leaves_bytes;
	struct probe_words *host_words; /* pinned */
};

struct probe_lanes {
	struct devices *devices; /* borrowed */
	struct probe_lane lanes[DEVICE_MAX];
};

int probe_digest(struct probe_lanes *lanes, const struct probe *probe, struct digest *digest_out,
                 struct fault *fault);
int probe_compare(struct probe_lanes *lanes, const struct probe *probe, bool *equal_out,
                  struct fault *fault);

/* The devices are still open. */
void probe_lanes_deinit(struct probe_lanes *lanes);

#endif
