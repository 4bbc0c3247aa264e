/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers' part of a load: one window of a block is read into a slot and sent to the GPU.
 *
 * Threads: load_work() from any number of reader threads.
 */
#ifndef GLAKE_MOVER_LOAD_WINDOW_H
#define GLAKE_MOVER_LOAD_WINDOW_H

#include "daemon/mover/load.h"

/* Windows of a block. */
uint64_t load_window_count(const struct load *load, const struct plan_block *plan);

/* Work on the load's next window; a pump_work_fn. */
void load_work(struct pump_job *job, struct pump_worker *worker);

#endif
