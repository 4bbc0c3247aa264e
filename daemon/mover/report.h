/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mover's reports to glaked, one packet each. Only report.c knows the generated types of
 * reports, only jobs.c those of orders.
 *
 * Owner: the mover. The socket is borrowed. Threads: any; packets of several threads do not mix. A
 * send may wait until glaked reads. If glaked is gone, reports are dropped; the receiving thread
 * sees the end.
 */
#ifndef GLAKE_MOVER_REPORT_H
#define GLAKE_MOVER_REPORT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/mover/fault.h"
#include "daemon/mover/layout.h"
#include "daemon/mover/plan.h"
#include "proto/digest.h"

struct report {
	int socket;
	pthread_mutex_t lock; /* one send at a time */
};

void report_init(struct report *report, int socket);
void report_deinit(struct report *report);

void report_ready(struct report *report);
/* The tensors, the blocks, then the end, in as many packets as needed. */
int report_plan(struct report *report, uint64_t job, const struct plan *plan,
                const char *reload_reason, struct fault *fault);
void report_block_loaded(struct report *report, uint64_t job, uint64_t block,
                         const struct digest *digest);
void report_load_done(struct report *report, uint64_t job, uint64_t read_bytes,
                      uint64_t direct_bytes, uint64_t ns);
void report_digested(struct report *report, uint64_t job, const struct digest *digest, bool equal,
                     bool zero);
void report_compared(struct report *report, uint64_t job, bool equal);
void report_prints(struct report *report, uint64_t job, const struct layout *layout, uint64_t ns);
void report_forgotten(struct report *report, uint64_t job);

/* Ends the process after a FAULT_DEVICE_LOST: glaked starts another one. */
void report_failed(struct report *report, uint64_t job, const struct fault *fault);

#endif
