/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text format of Prometheus, and the labels that metrics of GPUs have.
 *
 * A sample is a name, labels between braces, and a value. exposition_gpu() or exposition_open() opens it with its first
 * labels, exposition_label() adds one, exposition_value() ends it. Errors of @out are left there.
 *
 * Threads: any.
 */
#ifndef GLAKE_CTL_EXPOSITION_H
#define GLAKE_CTL_EXPOSITION_H

#include <stdint.h>
#include <stdio.h>

#include "glake_admin.h"

/* The head of a metric: all of its samples follow, and no other's. */
void exposition_begin(FILE *out, const char *name, const char *type, const char *help);

/* The whole of a gauge that has no labels. */
void exposition_plain(FILE *out, const char *name, const char *help, uint64_t number);

/* With its first label. */
void exposition_open(FILE *out, const char *name, const char *label, const char *text);
/* A label of foreign text: without what steers a terminal, and as the format wants it. */
void exposition_label(FILE *out, const char *label, const char *text);
void exposition_value(FILE *out, uint64_t number);

/*
 * Opens a sample of a GPU. The labels are named as DCGM's and have the same values, so that on(UUID) joins: gpu, UUID,
 * Hostname ($NODE_NAME, which Kubernetes can set, or the host's name).
 */
void exposition_gpu(FILE *out, const char *name, const struct glake_device_status *device);

#endif
