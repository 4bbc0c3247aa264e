/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A probe run does the small jobs on the GPU (probe.h has their queue).
 *
 * They need little memory of the GPU, and none if it is full: that is when programs are to sleep. The memory through which a
 * copy is compared is left out then, and a digest uses pinned memory. Both are slower. Memory that was refused once is not
 * asked for again: the room that comes is that of programs which sleep, and want it back.
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
#include "daemon/mover/host_chunks.h"
#include "daemon/mover/layout.h"
#include "proto/digest.h"

/* COPY_* and COMPARE_HOST are about a chunk and a part of a large chunk of host memory, FORGET about a large one. */
enum probe_kind {
	PROBE_DIGEST,
	PROBE_COMPARE,
	PROBE_COMPARE_HOST,
	PROBE_COPY_OUT,
	PROBE_COPY_IN,
	PROBE_ZERO,
	PROBE_LAYOUT,
	PROBE_FORGET,
};

struct probe {
	struct probe *next; /* link: prober.first */
	enum probe_kind kind;
	uint64_t job;
	int fds[2]; /* owned; -1 = none. A digest may have a second one to compare with; the host's of a copy */
	uint8_t uuid[16];
	size_t n_uuid_bytes;
	uint64_t chunk_bytes;
	uint64_t content_bytes; /* digest, copy, zero, layout */
	uint64_t host_chunk;    /* copy, compare host, forget; and of the first two: */
	uint64_t host_bytes;
	uint64_t host_offset;
};

/* PROBES_AT_ONCE probes are under way: the next are mapped while the GPU works on the first. */
#define PROBES_AT_ONCE 8u

/* The leaves of the digest of one chunk. */
struct probe_leaves {
	CUdeviceptr address; /* 0 = none */
	uint64_t bytes;
	bool is_pinned; /* memory of the host; false: of the device */
};

/* A probe needs these on its device beside the streams; they are made on first use. */
struct probe_slot {
	CUevent done;
	CUevent written; /* after the copy out */
	struct probe_leaves leaves;
	struct probe_words *host_words; /* pinned; NULL = not made yet */
};

/* Bytes that are read back come here in pieces: one comes while the other is compared. */
#define N_SCRATCHES 2u

struct probe_scratch {
	CUdeviceptr address; /* 0: the device was full */
	CUevent filled;
	CUevent compared;
};

/* Copies out and copies in do not wait for each other: the link goes both ways. */
enum probe_stream {
	STREAM_OUT,      /* copies out */
	STREAM_BACK,     /* reads back what was copied out, behind slot.written */
	STREAM_CHECK,    /* looks at what was copied out, and at what was read back */
	STREAM_IN,       /* copies from host memory */
	STREAM_IN_CHECK, /* looks at what came, behind slot.written */
	N_PROBE_STREAMS,
};

struct probe_lane {
	bool is_made; /* the following, all of it */
	bool is_full; /* the device has refused memory */
	CUstream streams[N_PROBE_STREAMS];
	struct probe_scratch scratches[N_SCRATCHES];
	unsigned next_scratch;
	uint8_t *piece; /* pinned: what is looked at for its layout; NULL = none yet */
	struct probe_slot slots[PROBES_AT_ONCE];
};

struct probe_lanes {
	struct devices *devices; /* borrowed */
	struct host_chunks hosts;
	uint64_t zeros_bytes; /* of the next; 0: none yet */
	struct digest zeros;
	struct probe_lane lanes[DEVICE_MAX];
};

/* A chunk that is mapped for a while. */
struct probe_view {
	CUdeviceptr address; /* 0 = none */
	uint64_t bytes;
};

/* A probe under way, from probe_start() to probe_finish(). */
struct probe_run {
	struct probe probe; /* its fds are the caller's, who may close them once it is started */
	struct probe_lanes *lanes; /* borrowed */
	struct device *device;
	struct probe_lane *lane;
	unsigned i_slot;
	struct probe_slot *slot;
	struct probe_view views[2];
	struct layout *layout; /* owned, of a PROBE_LAYOUT; and the time of its copies: */
	uint64_t copied_ns;
};

struct probe_result {
	struct digest digest; /* of a PROBE_DIGEST, and of what was written */
	bool equal;           /* of two chunks, or of a chunk and its part of host memory */
	bool zero;            /* all of the one chunk of a PROBE_DIGEST or PROBE_COPY_OUT */
};

/*
 * Map the chunks of run->probe, no PROBE_FORGET, and queue the work, in the slot @i_slot, which no other run has. run->layout
 * is the caller's, also after a failure.
 */
int probe_start(struct probe_lanes *lanes, struct probe_run *run, unsigned i_slot,
                struct fault *fault);
/* Whether the run is done or has failed: probe_finish() will not wait. */
bool probe_is_done(const struct probe_run *run);
/* Wait for it, and unmap the chunks in any case. Of a PROBE_LAYOUT run->layout is the result, the caller's from then on. */
int probe_finish(struct probe_run *run, struct probe_result *result_out, struct fault *fault);

/* The devices are still open. */
void probe_lanes_deinit(struct probe_lanes *lanes);

#endif
