/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a snapshot in the text format of Prometheus. Threads: any. */
#ifndef GLAKE_CTL_METRICS_H
#define GLAKE_CTL_METRICS_H

#include <stdbool.h>
#include <stdio.h>

#include "ctl/snapshot.h"

/*
 * @snapshot is NULL while glaked cannot be reached. @has_models: also what each model has, whose names come from programs.
 * Errors of @out are left there.
 */
void metrics_write(const struct snapshot *snapshot, bool has_models, FILE *out);

#endif
