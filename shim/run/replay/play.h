/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace with a model: once without a limit, then under limits, to find the smallest one
 * that it fits.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_PLAY_H
#define GLAKE_SHIM_RUN_REPLAY_PLAY_H

#include "shim/run/replay/model.h"
#include "shim/run/replay/result.h"

void play_model(const struct model *model, const struct trace *trace, struct result *result_out);

#endif
