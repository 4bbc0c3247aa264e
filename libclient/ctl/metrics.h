/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a snapshot in the text format of Prometheus. Threads: any. */
#ifndef GLAKE_CTL_METRICS_H
#define GLAKE_CTL_METRICS_H

#include <stdio.h>

#include "ctl/snapshot.h"

/* @snapshot is NULL while glaked cannot be reached. Errors of @out are left there. */
void metrics_write(const struct snapshot *snapshot, FILE *out);

#endif
