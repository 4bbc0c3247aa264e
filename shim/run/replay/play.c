/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/play.h"

#include "shim/run/replay/must.h"
#include "shim/run/replay/progress.h"

/* False: the trace does not fit the limit of @ledger. */
static bool play_events(const struct model *model, const struct trace *trace, struct ledger *ledger,
                        struct block **blocks)
{
	for (size_t i = 0; i < trace->n_events; i++) {
		const struct trace_event *event = &trace->events[i];
		struct block **block = &blocks[event->allocation];
		progress_show(model->name, i, trace->n_events);
		if (event->n_bytes == 0) {
			model->free(ledger, *block);
			*block = NULL;
			continue;
		}
		*block = model->alloc(ledger, event->stream, event->n_bytes);
		if (!*block) {
			return false;
		}
	}
	return true;
}

static bool play(const struct model *model, const struct trace *trace, uint64_t limit_bytes,
                 struct result *result_out)
{
	struct ledger ledger = {.limit_bytes = limit_bytes};
	struct block **blocks = must_calloc(trace->n_allocations, sizeof(struct block *));
	bool fits = play_events(model, trace, &ledger, blocks);
	*result_out = (struct result){
		.name = model->name,
		.peak_reserved_bytes = ledger.peak_reserved_bytes,
		.n_made = ledger.n_made,
		.n_freed = ledger.n_freed,
	};
	for (uint32_t i = 0; i < trace->n_allocations; i++) {
		if (blocks[i]) {
			ledger_drop(blocks[i]);
		}
	}
	free(blocks);
	ledger_deinit(&ledger);
	return fits;
}

/* A trace that fits a limit is taken to fit every higher one. For best fit that is nearly always so. */
void play_model(const struct model *model, const struct trace *trace, struct result *result_out)
{
	struct result under_limit;
	play(model, trace, UINT64_MAX, result_out);
	uint64_t low = round_up(trace->peak_live_bytes, MIB) / MIB;
	uint64_t high = round_up(result_out->peak_reserved_bytes, MIB) / MIB;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (play(model, trace, middle * MIB, &under_limit)) {
			high = middle;
		} else {
			low = middle + 1;
		}
	}
	result_out->smallest_bytes = high * MIB;
}
