/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/result.h"

#include <inttypes.h>

#define MIB (1024.0 * 1024)

static double utilization(const struct trace *trace, const struct result *result)
{
	return (double)trace->peak_live_bytes / (double)result->peak_reserved_bytes;
}

void result_print(FILE *out, const struct trace *trace, const struct result *results, size_t n)
{
	fprintf(out, "%" PRIu32 " allocations on %" PRIu32 " stream%s, sizes in MiB\n",
	        trace->n_allocations, trace->n_streams, trace->n_streams == 1 ? "" : "s");
	fprintf(out, "%-10s %10s %14s %12s %9s %9s %9s %9s\n", "allocator", "peak live",
	        "peak reserved", "utilization", "made", "freed", "time", "fits in");
	for (size_t i = 0; i < n; i++) {
		const struct result *result = &results[i];
		char time[32] = "-";
		if (result->time_ns) {
			snprintf(time, sizeof(time), "%.1f ms", (double)result->time_ns / 1e6);
		}
		fprintf(out, "%-10s %10.1f %14.1f %10.1f %% %9" PRIu64 " %9" PRIu64 " %9s %9.0f\n",
		        result->name, (double)trace->peak_live_bytes / MIB,
		        (double)result->peak_reserved_bytes / MIB, 100 * utilization(trace, result),
		        result->n_made, result->n_freed, time,
		        (double)result->smallest_bytes / MIB);
	}
}

void result_print_json(FILE *out, const struct trace *trace, const struct result *results, size_t n)
{
	fprintf(out,
	        "{\"n_events\": %zu, \"n_allocations\": %" PRIu32 ", \"n_streams\": %" PRIu32
	        ", \"peak_live_bytes\": %" PRIu64 ", \"allocators\": [",
	        trace->n_events, trace->n_allocations, trace->n_streams, trace->peak_live_bytes);
	for (size_t i = 0; i < n; i++) {
		const struct result *result = &results[i];
		fprintf(out,
		        "%s\n  {\"name\": \"%s\", \"peak_reserved_bytes\": %" PRIu64
		        ", \"utilization\": %.4f, \"n_made\": %" PRIu64 ", \"n_freed\": %" PRIu64
		        ", \"time_ns\": ",
		        i ? "," : "", result->name, result->peak_reserved_bytes,
		        utilization(trace, result), result->n_made, result->n_freed);
		if (result->time_ns) {
			fprintf(out, "%" PRIu64, result->time_ns);
		} else {
			fputs("null", out);
		}
		fprintf(out, ", \"smallest_bytes\": %" PRIu64 "}", result->smallest_bytes);
	}
	fputs("]}\n", out);
}
