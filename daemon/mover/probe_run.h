/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the small jobs do on the GPU (probe.h has their queue).
 *
 * Threads: the prober's only.
 */
#ifndef GLAKE_MOVER_PROBE_RUN_H
#define GLAKE_MOVER_PROBE_RUN_H

#include "daemon/mover/probe.h"
#include "proto/digest.h"

int probe_digest(struct prober *prober, const struct probe *probe, struct digest *digest_out,
                 struct fault *fault);
int probe_compare(struct prober *prober, const struct probe *probe, bool *equal_out,
                  struct fault *fault);

/* Accepts a zeroed lane. The lane's device is entered. */
void probe_lane_deinit(struct probe_lane *lane, const struct cudrv *drv);

#endif
