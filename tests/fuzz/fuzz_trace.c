/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of allocation traces, and the models with what it accepts. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shim/run/replay/play.h"
#include "shim/run/replay/trace.h"
#include "tests/fuzz/must.h"

#define MAX_EVENTS 200u /* of a trace that is replayed: some models are asked dozens of times */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
	static const struct model *const models[] = {&model_caching, &model_expandable,
	                                             &model_driver};
	struct trace trace;
	struct result result;
	char error[TRACE_ERROR_BYTES] = "";
	FILE *file = n_bytes ? fmemopen((void *)(uintptr_t)data, n_bytes, "r") : NULL;
	if (!file) {
		return 0;
	}
	int r = trace_read(&trace, file, error);
	fclose(file);
	if (r < 0) {
		must(error[0] != '\0' && strlen(error) < TRACE_ERROR_BYTES);
		return 0;
	}
	must(trace.n_events > 0 && trace.peak_live_bytes > 0);
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		if (trace.n_events <= MAX_EVENTS) {
			play_model(models[i], &trace, &result);
			must(result.smallest_bytes >= trace.peak_live_bytes);
			must(result.peak_reserved_bytes >= trace.peak_live_bytes);
			must(result.n_freed <= result.n_made);
		}
	}
	trace_deinit(&trace);
	return 0;
}
