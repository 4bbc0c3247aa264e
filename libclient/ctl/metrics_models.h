/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of models, in the text format of Prometheus. Models of one name on one GPU are one, as a model
 * that is loaded again has the series that it had before. The largest are shown, and the others together as one.
 *
 * Threads: any.
 */
#ifndef GLAKE_CTL_METRICS_MODELS_H
#define GLAKE_CTL_METRICS_MODELS_H

#include <stdio.h>

#include "ctl/snapshot.h"

/* Errors of @out are left there. */
void metrics_write_models(const struct snapshot *snapshot, FILE *out);

#endif
