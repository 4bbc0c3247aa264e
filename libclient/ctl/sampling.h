/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sampling the memory of processes for a picture: `fragmentation --html`.
 *
 * Threads: one, which SIGINT interrupts: it ends the sampling, and the picture is made of what is there.
 */
#ifndef GLAKE_CTL_SAMPLING_H
#define GLAKE_CTL_SAMPLING_H

#include "ctl/ctl.h"

/* @number: as for memory_gather(). Returns what a command returns. */
int sampling_run(struct ctl *ctl, uint64_t number);

#endif
