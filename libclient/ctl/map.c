/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/map.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl/html.h"
#include "ctl/identity.h"
#include "ctl/memory.h"
#include "ctl/text.h"

/* What the memory of a device is used for, from the bottom of the chart up. */
enum use {
	USE_PRIVATE,
	USE_BLOCKS,
	USE_CACHED,
	USE_POOL,
	USE_DRIVER,
	USE_FOREIGN,
	USE_UNACCOUNTED,
	N_USES,
};

static const struct {
	const char *class;
	const char *text;
} uses[N_USES] = {
	[USE_PRIVATE] = {"private", "private"},
	[USE_BLOCKS] = {"blocks", "blocks in use"},
	[USE_CACHED] = {"cached", "cached blocks"},
	[USE_POOL] = {"pool", "made ahead"},
	[USE_DRIVER] = {"driver", "driver"},
	[USE_FOREIGN] = {"foreign", "other programs"},
	[USE_UNACCOUNTED] = {"unaccounted", "unaccounted"},
};

struct map_sample {
	uint64_t at_ms;
	uint32_t device;
	uint64_t bytes[N_USES];
};

static uint64_t less(uint64_t bytes, uint64_t part)
{
	return bytes > part ? bytes - part : 0;
}

static uint64_t driver_bytes(const struct glake_device_status *device)
{
	return device->context_bytes + device->managed_bytes + device->array_bytes +
	       device->graph_bytes + device->other_bytes + device->mover_bytes;
}

static struct map_sample sample_of(const struct glake_device_status *device, uint64_t at_ms)
{
	return (struct map_sample){
		.at_ms = at_ms,
		.device = device->index,
		.bytes =
			{
				[USE_PRIVATE] = device->private_bytes,
				[USE_BLOCKS] = device->used_block_bytes,
				[USE_CACHED] = less(device->block_bytes, device->used_block_bytes),
				[USE_POOL] = device->pool_bytes,
				[USE_DRIVER] = driver_bytes(device),
				[USE_FOREIGN] = device->foreign_bytes,
				[USE_UNACCOUNTED] = device->unaccounted_bytes,
			},
	};
}

/* Every second of the older half goes: what is long ago has fewer samples. */
static void thin(struct map *map)
{
	size_t kept = 0;
	size_t n_times = 0;
	uint64_t last_ms = UINT64_MAX;
	size_t i_time = 0;
	for (size_t i = 0; i < map->samples.n; i++) {
		const struct map_sample *sample = rows_at(&map->samples, i);
		bool is_new = sample->at_ms != last_ms;
		i_time += is_new && i > 0;
		last_ms = sample->at_ms;
		if (i_time % 2 == 0 || i_time >= map->n_times / 2) {
			n_times += is_new;
			memmove(rows_at(&map->samples, kept++), sample, sizeof(*sample));
		}
	}
	map->samples.n = kept;
	map->n_times = n_times;
}

int map_add(struct map *map, const struct snapshot *snapshot)
{
	if (map->n_times == MAP_MAX_SAMPLES) {
		thin(map);
	}
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		struct map_sample *sample = rows_add(&map->samples, sizeof(*sample));
		if (!sample) {
			return -ENOMEM;
		}
		*sample = sample_of(rows_at(&snapshot->devices, i), snapshot->at_ms);
	}
	map->n_times++;
	return 0;
}

void map_deinit(struct map *map)
{
	rows_deinit(&map->samples);
	map->n_times = 0;
}

/* ---- who holds it ----------------------------------------------------------------------------- */

/* Sessions of a device that have a row each; and models. */
#define MAX_PARTS 40u

/* A part of a device's memory. */
struct part {
	const char *class;
	uint64_t bytes;
	double live; /* of it; 1: nothing more is known */
	const char *name;
	uint32_t pid; /* 0: it is no process */
	size_t n;     /* more than 0: it is so many small ones */
	const struct glake_model_row *model;
	const struct glake_session_row *session;
};

/* Of a device, or of a NUMA node of the host. */
struct parts {
	const struct snapshot *snapshot;
	const struct glake_device_status *device; /* NULL: it is a node */
	uint64_t total_bytes;
	struct rows list; /* struct part */
};

static void add_part(struct parts *parts, const struct part *of)
{
	struct part *part = of->bytes > 0 ? rows_add(&parts->list, sizeof(*part)) : NULL;
	if (part) {
		*part = *of;
	}
}

static void add_plain(struct parts *parts, const char *class, const char *name, uint64_t bytes)
{
	const struct part part = {.class = class, .name = name, .bytes = bytes, .live = 1};
	add_part(parts, &part);
}

static uint64_t reserved_on(const struct glake_session_row *session, uint32_t device)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = 0; i < session->n_devices; i++) {
		const struct glake_session_device *of = &session->devices[i];
		n_bytes += of->device == device ? of->reserved_bytes : 0;
	}
	return n_bytes;
}

static int larger(const void *a, const void *b)
{
	const struct part *left = a;
	const struct part *right = b;
	return left->bytes < right->bytes ? 1 : left->bytes > right->bytes ? -1 : 0;
}

/* From @begin on the largest first, and one part of a class for those that a page has no room for. */
static void sort_from(struct parts *parts, size_t begin, const char *text)
{
	struct part rest[2] = {{.bytes = 0}};
	size_t n_parts = parts->list.n;
	if (n_parts <= begin) {
		return;
	}
	qsort(rows_at(&parts->list, begin), n_parts - begin, sizeof(struct part), larger);
	if (n_parts - begin <= MAX_PARTS) {
		return;
	}
	for (size_t i = begin + MAX_PARTS; i < n_parts; i++) {
		const struct part *part = rows_at(&parts->list, i);
		struct part *of = &rest[strcmp(part->class, "cached") == 0];
		of->class = part->class;
		of->name = text;
		of->bytes += part->bytes;
		of->live += part->live < 0 ? 0 : part->live * (double)part->bytes;
		of->n++;
	}
	parts->list.n = begin + MAX_PARTS;
	for (size_t i = 0; i < 2; i++) {
		rest[i].live /= (double)(rest[i].bytes + 1);
		add_part(parts, &rest[i]);
	}
}

static void add_sessions(struct parts *parts)
{
	uint64_t rest = parts->device->private_bytes;
	for (size_t i = 0; i < parts->snapshot->sessions.n; i++) {
		const struct glake_session_row *session = rows_at(&parts->snapshot->sessions, i);
		const struct part part = {
			.class = "private",
			.name = identity_label(session->name, session->script, session->program),
			.pid = session->pid,
			.bytes = reserved_on(session, parts->device->index),
			.live = memory_utilization(session->live_bytes, session->reserved_bytes),
			.session = session,
		};
		add_part(parts, &part);
		rest = less(rest, part.bytes);
	}
	sort_from(parts, 0, "smaller sessions");
	add_plain(parts, "private", "private memory of others", rest);
}

/* A block that several models have counts for each by its part. */
static void add_models(struct parts *parts)
{
	const struct glake_device_status *device = parts->device;
	uint64_t rest = device->block_bytes;
	size_t begin = parts->list.n;
	for (size_t i = 0; i < parts->snapshot->models.n; i++) {
		const struct glake_model_row *model = rows_at(&parts->snapshot->models, i);
		const struct part part = {
			.class = model->n_open > 0 ? "blocks" : "cached",
			.name = model->name,
			.bytes = model->device == device->index ? model->part_bytes : 0,
			.live = 1,
			.model = model,
		};
		add_part(parts, &part);
		rest = less(rest, part.bytes);
	}
	sort_from(parts, begin, "smaller models");
	/* Their parts are rounded. */
	add_plain(parts, "blocks", "blocks of no model that is shown", rest > 64 ? rest : 0);
}

static void find_parts(struct parts *parts)
{
	const struct glake_device_status *device = parts->device;
	add_sessions(parts);
	add_models(parts);
	add_plain(parts, "pool", "made ahead", device->pool_bytes);
	add_plain(parts, "driver", "driver: contexts and code, managed memory, arrays, graphs",
	          driver_bytes(device));
	add_plain(parts, "foreign", "programs without a session", device->foreign_bytes);
	add_plain(parts, "unaccounted", "unaccounted", device->unaccounted_bytes);
	add_plain(parts, "free", "free", device->free_bytes);
}

/* Copies that are neither for somebody nor cache are being made, or read. */
static void find_host_parts(struct parts *parts, const struct glake_host_status *host)
{
	uint64_t known = host->sleep_copy_bytes + host->model_copy_bytes + host->cached_copy_bytes;
	add_plain(parts, "private", "host memory of programs", host->private_bytes);
	add_plain(parts, "asleep", "copies for programs that sleep", host->sleep_copy_bytes);
	add_plain(parts, "demoted", "models that only host memory has", host->model_copy_bytes);
	add_plain(parts, "driver", "copies on their way", less(host->used_copy_bytes, known));
	add_plain(parts, "cached", "copies that nobody needs", host->cached_copy_bytes);
	add_plain(parts, "pool", "made ahead", less(host->copy_bytes, host->used_copy_bytes));
	add_plain(parts, "free", "may be taken", less(host->limit_bytes, host->physical_bytes));
}

/* ---- the bar and its rows --------------------------------------------------------------------- */

#define MAX_SHARERS 12u

/* Thousandths of the bar. A part that is narrower has no edges: they would be all of it. */
#define THIN 5

static void put_name(const struct part *part, FILE *out)
{
	if (part->n > 0) {
		fprintf(out, "%zu ", part->n);
	}
	html_text(out, part->name);
	if (part->pid > 0) {
		fprintf(out, " (%" PRIu32 ")", part->pid);
	}
}

/* Each part as wide as it is large; on a dark ground what of it is not live. */
static void put_bar(const struct parts *parts, FILE *out)
{
	double total = (double)(parts->total_bytes + 1);
	double x = 0;
	fputs("<svg class=\"bar\" viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" "
	      "role=\"img\" "
	      "aria-label=\"Parts of the memory\">\n<rect class=\"unknown\" "
	      "width=\"1000\" "
	      "height=\"100\"/>\n",
	      out);
	for (size_t i = 0; i < parts->list.n; i++) {
		const struct part *part = rows_at(&parts->list, i);
		double width = (double)part->bytes / total * 1000;
		double live = part->live < 0 ? 1 : part->live;
		fprintf(out, "<g class=\"%s\"><title>", part->class);
		put_name(part, out);
		fputs(": ", out);
		html_size(out, part->bytes);
		const char *thin = width < THIN ? " thin" : "";
		fprintf(out,
		        "</title><rect class=\"whole%s\" x=\"%.2f\" width=\"%.2f\" height=\"100\"/>"
		        "<rect class=\"live%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" "
		        "height=\"%.1f\"/></g>\n",
		        thin, x, width, thin, x, 100 - 100 * live, width, 100 * live);
		x += width;
	}
	fputs("</svg>\n", out);
}

static void put_sharers(const struct snapshot *snapshot, const struct glake_model_row *model,
                        FILE *out)
{
	unsigned n = 0;
	for (size_t i = snapshot_uses_of(snapshot, model->id); i < snapshot->uses.n; i++) {
		const struct snapshot_use *use = rows_at(&snapshot->uses, i);
		if (use->model != model->id) {
			break;
		}
		const struct glake_session_row *session = snapshot_session(snapshot, use->session);
		if (session && ++n <= MAX_SHARERS) {
			fputs(n == 1 ? "; open in " : ", ", out);
			html_text(out,
			          identity_label(session->name, session->script, session->program));
			fprintf(out, " (%" PRIu32 ")", session->pid);
		}
	}
	if (n > MAX_SHARERS) {
		fprintf(out, " and %u more", n - MAX_SHARERS);
	}
}

static void put_model(const struct snapshot *snapshot, const struct glake_model_row *model,
                      FILE *out)
{
	char idle[TEXT_NUMBER_BYTES];
	html_size(out, model->span_bytes);
	fputs(" of blocks, ", out);
	html_size(out, model->unique_bytes);
	fputs(" of them no other model has", out);
	put_sharers(snapshot, model, out);
	if (model->n_open == 0) {
		text_duration(model->idle_ms, idle);
		fprintf(out, "; unused for %s", idle);
	}
	if (model->copied_bytes > 0) {
		fputs("; host memory has ", out);
		html_size(out, model->copied_bytes);
	}
	fputs(model->pinned ? "; pinned" : "", out);
	if (strcmp(model->state, "ready") != 0) {
		fputs("; ", out);
		html_text(out, model->state);
	}
}

static void put_session(const struct snapshot *snapshot, const struct glake_session_row *session,
                        double live, FILE *out)
{
	fputs("tenant ", out);
	html_text(out, session->tenant);
	fputs("; fragmentation ", out);
	html_percent(out, live < 0 ? -1 : 1 - live);
	if (session->warm_bytes > 0) {
		fputs(", warm ", out);
		html_size(out, session->warm_bytes);
	}
	if (session->shared_bytes > 0) {
		fputs("; shared ", out);
		html_size(out, session->shared_bytes);
	}
	fputs(session->detached ? "; its connection is lost" : "", out);
	fputs(snapshot_sleeper(snapshot, session->session) ? "; asleep, and this stays" : "", out);
}

static void put_part(const struct parts *parts, const struct part *part, FILE *out)
{
	fprintf(out, "<li><i class=\"%s\"></i><span><b>", part->class);
	put_name(part, out);
	fputs("</b>", out);
	if (part->model) {
		fputs("<small>", out);
		put_model(parts->snapshot, part->model, out);
		fputs("</small>", out);
	} else if (part->session) {
		fputs("<small>", out);
		put_session(parts->snapshot, part->session, part->live, out);
		fputs("</small>", out);
	}
	fputs("</span><span class=\"n\">", out);
	html_size(out, part->bytes);
	fputs("<small>", out);
	html_percent(out, (double)part->bytes / (double)(parts->total_bytes + 1));
	fputs("</small></span></li>\n", out);
}

static void put_parts(const struct parts *parts, FILE *out)
{
	fputs("<ul>\n", out);
	for (size_t i = 0; i < parts->list.n; i++) {
		put_part(parts, rows_at(&parts->list, i), out);
	}
	fputs("</ul>\n", out);
}

/* ---- over time -------------------------------------------------------------------------------- */

/* Where use @use ends, upward, at the samples of @device; or, for -1, the bottom. */
static void put_edge(const struct map *map, const struct glake_device_status *device, int top,
                     bool is_back, uint64_t first_ms, double ms, FILE *out)
{
	for (size_t n = 0; n < map->samples.n; n++) {
		size_t i = is_back ? map->samples.n - 1 - n : n;
		const struct map_sample *sample = rows_at(&map->samples, i);
		uint64_t bytes = 0;
		if (sample->device != device->index) {
			continue;
		}
		for (int use = 0; use <= top; use++) {
			bytes += sample->bytes[use];
		}
		fprintf(out, "%.1f,%.1f ", (double)(sample->at_ms - first_ms) / ms * 1000,
		        100 - (double)bytes / (double)(device->total_bytes + 1) * 100);
	}
}

/* Of the uses that there were. */
static void put_legend(const struct map *map, const struct glake_device_status *device, FILE *out)
{
	uint64_t bytes[N_USES] = {0};
	for (size_t i = 0; i < map->samples.n; i++) {
		const struct map_sample *sample = rows_at(&map->samples, i);
		for (int use = 0; sample->device == device->index && use < N_USES; use++) {
			bytes[use] |= sample->bytes[use];
		}
	}
	fputs("<p class=\"legend\">", out);
	for (int use = 0; use < N_USES; use++) {
		if (bytes[use] > 0) {
			fprintf(out, "<span><i class=\"%s\"></i>%s</span> ", uses[use].class,
			        uses[use].text);
		}
	}
	fputs("</p>\n", out);
}

static void put_history(const struct map *map, const struct glake_device_status *device, FILE *out)
{
	if (map->n_times < 2) {
		return;
	}
	const struct map_sample *first = rows_at(&map->samples, 0);
	const struct map_sample *last = rows_at(&map->samples, map->samples.n - 1);
	uint64_t ms = last->at_ms > first->at_ms ? last->at_ms - first->at_ms : 1;
	char span[TEXT_NUMBER_BYTES];
	text_duration(ms, span);
	fputs("<p class=\"axis\"><span>", out);
	html_size(out, device->total_bytes);
	fputs("</span></p>\n<svg class=\"time\" viewBox=\"0 0 1000 100\" "
	      "preserveAspectRatio=\"none\" "
	      "role=\"img\" aria-label=\"Use over time\">\n",
	      out);
	for (int use = 0; use < N_USES; use++) {
		fprintf(out, "<polygon class=\"%s\" points=\"", uses[use].class);
		put_edge(map, device, use, false, first->at_ms, (double)ms, out);
		put_edge(map, device, use - 1, true, first->at_ms, (double)ms, out);
		fprintf(out, "\"><title>%s</title></polygon>\n", uses[use].text);
	}
	fprintf(out, "</svg>\n<p class=\"axis\"><span>%s ago</span><span>now</span></p>\n", span);
	put_legend(map, device, out);
}

/* ---- who is in host memory -------------------------------------------------------------------- */

static uint64_t asleep_bytes(const struct glake_sleeper_row *sleeper)
{
	return sleeper->private_bytes + sleeper->shared_bytes;
}

static int larger_sleeper(const void *a, const void *b)
{
	uint64_t left = asleep_bytes(a);
	uint64_t right = asleep_bytes(b);
	return left < right ? 1 : left > right ? -1 : 0;
}

static void put_ms(FILE *out, const char *before, uint64_t ms)
{
	char text[TEXT_NUMBER_BYTES];
	text_duration(ms, text);
	fprintf(out, "%s%s", before, text);
}

static void put_named_size(FILE *out, const char *before, uint64_t bytes)
{
	if (bytes > 0) {
		fputs(before, out);
		html_size(out, bytes);
	}
}

static void put_row(FILE *out, const char *class, const char *name, uint32_t pid)
{
	fprintf(out, "<li><i class=\"%s\"></i><span><b>", class);
	html_text(out, name);
	if (pid > 0) {
		fprintf(out, " (%" PRIu32 ")", pid);
	}
	fputs("</b><small>", out);
}

static void end_row(FILE *out, uint64_t bytes, const char *state)
{
	fputs("</small></span><span class=\"n\">", out);
	html_size(out, bytes);
	fprintf(out, "<small>%s</small></span></li>\n", state);
}

static void put_sleeper(const struct glake_sleeper_row *sleeper, FILE *out)
{
	bool is_waiting = sleeper->place > 0;
	put_row(out, "asleep", identity_label(sleeper->name, sleeper->script, sleeper->program),
	        sleeper->pid);
	fputs("tenant ", out);
	html_text(out, sleeper->tenant);
	put_ms(out, "; for ", sleeper->asleep_ms);
	fputs(" (", out);
	html_text(out, sleeper->why);
	fputs(")", out);
	put_named_size(out, "; shared ", sleeper->shared_bytes);
	put_named_size(out, ", of it still on the GPU ", sleeper->gpu_bytes);
	put_named_size(out, "; on the GPU stays ", sleeper->stays_bytes);
	if (is_waiting) {
		fprintf(out, "; place %" PRIu32, sleeper->place);
		put_ms(out, ", for ", sleeper->waiting_ms);
	}
	if (sleeper->woke_ns > 0) {
		put_ms(out, "; its last wake took ", sleeper->woke_ns / 1000000);
	}
	end_row(out, asleep_bytes(sleeper),
	        is_waiting                              ? "waits for room"
	        : strcmp(sleeper->state, "waking") == 0 ? "wakes"
	                                                : "asleep");
}

/* Returns how many. */
static size_t put_demoted(const struct snapshot *snapshot, size_t n_most, FILE *out)
{
	size_t n = 0;
	for (size_t i = 0; i < snapshot->models.n; i++) {
		const struct glake_model_row *model = rows_at(&snapshot->models, i);
		if (strcmp(model->state, "host") != 0 || ++n > n_most) {
			continue;
		}
		put_row(out, "demoted", model->name, 0);
		put_ms(out, "unused for ", model->idle_ms);
		fprintf(out, "; of GPU %" PRIu32, model->device);
		end_row(out, model->copied_bytes, "only in host memory");
	}
	return n;
}

/* What several have counts for each. */
static void put_asleep(const struct snapshot *snapshot, FILE *out)
{
	struct rows sleepers = {0};
	for (size_t i = 0; i < snapshot->sleepers.n; i++) {
		struct glake_sleeper_row *row = rows_add(&sleepers, sizeof(*row));
		if (row) {
			*row = *(const struct glake_sleeper_row *)rows_at(&snapshot->sleepers, i);
		}
	}
	rows_sort(&sleepers, larger_sleeper);
	fputs("<section class=\"elsewhere\">\n<h2>Not on a GPU</h2>\n<p>What several have counts "
	      "for "
	      "each.</p>\n<ul>\n",
	      out);
	for (size_t i = 0; i < sleepers.n && i < MAX_PARTS; i++) {
		put_sleeper(rows_at(&sleepers, i), out);
	}
	size_t n = put_demoted(snapshot, MAX_PARTS, out);
	fputs("</ul>\n", out);
	if (sleepers.n > MAX_PARTS) {
		fprintf(out, "<p>And %zu smaller programs.</p>\n", sleepers.n - MAX_PARTS);
	}
	if (n > MAX_PARTS) {
		fprintf(out, "<p>And %zu more models.</p>\n", n - MAX_PARTS);
	}
	if (sleepers.n + n == 0) {
		fputs("<p>No program sleeps, and no model is in host memory alone.</p>\n", out);
	}
	fputs("</section>\n", out);
	rows_deinit(&sleepers);
}

/* ---- the page --------------------------------------------------------------------------------- */

static const char style[] =
	":root { --private: #2f6fbf; --blocks: #3a8f4d; --cached: #a5d3ad; --pool: #9aa7b5; "
	"--driver: #c98a1b; --foreign: #a8442f; --unaccounted: #8a4fa3; --free: #e9edf1; "
	"--asleep: #3f4f9c; --demoted: #2a8a8a; }\n"
	"@media (prefers-color-scheme: dark) { :root { --private: #4f92de; --blocks: #4fae64; "
	"--cached: #2d5a37; --pool: #566270; --driver: #d9a441; --foreign: #c8614b; "
	"--unaccounted: #a56bc0; --free: #23292f; --asleep: #7d8ce0; --demoted: #4cb5b5; } }\n"
	".asleep { fill: var(--asleep); background: var(--asleep); }\n"
	".demoted { fill: var(--demoted); background: var(--demoted); }\n"
	".private { fill: var(--private); background: var(--private); }\n"
	".blocks { fill: var(--blocks); background: var(--blocks); }\n"
	".cached { fill: var(--cached); background: var(--cached); }\n"
	".pool { fill: var(--pool); background: var(--pool); }\n"
	".driver { fill: var(--driver); background: var(--driver); }\n"
	".foreign { fill: var(--foreign); background: var(--foreign); }\n"
	".unaccounted { fill: var(--unaccounted); background: var(--unaccounted); }\n"
	".free, .unknown { fill: var(--free); background: var(--free); }\n"
	"body { max-width: 1400px; } section { max-width: 960px; min-width: 0; }\n"
	"main { display: grid; gap: 0 2.5em; "
	"grid-template-columns: repeat(auto-fit, minmax(min(100%, 34em), 1fr)); }\n"
	"svg { width: 100%; display: block; } .bar { height: 56px; } .time { height: 120px; "
	"background: var(--free); }\n"
	".whole { opacity: .45; } .bar rect { stroke: var(--back); stroke-width: 1; "
	"vector-effect: non-scaling-stroke; } .bar .thin { stroke: none; shape-rendering: "
	"crispEdges; }\n"
	"ul { list-style: none; margin: .6em 0 1em; padding: 0; }\n"
	"li { display: flex; gap: .7em; padding: .35em 0; border-bottom: 1px solid var(--grid); }\n"
	"li i { flex: none; width: .8em; height: .8em; margin-top: .35em; }\n"
	"li span { flex: 1; min-width: 0; overflow-wrap: anywhere; } b { font-weight: 600; }\n"
	"li small { display: block; } li .n { flex: none; text-align: right; "
	"font-variant-numeric: tabular-nums; }\n"
	".axis { display: flex; justify-content: space-between; margin: .5em 0 0; "
	"font-size: .8em; }\n"
	".legend { font-size: .8em; } .legend span { display: inline-block; margin-right: 1.2em; "
	"}\n"
	".legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }\n"
	".warning { color: var(--foreign); }\n";

static void put_device(const struct map *map, const struct snapshot *snapshot,
                       const struct glake_device_status *device, FILE *out)
{
	struct parts parts = {
		.snapshot = snapshot, .device = device, .total_bytes = device->total_bytes};
	bool is_known = device->free_bytes > 0;
	find_parts(&parts);
	fprintf(out, "<section class=\"gpu\">\n<h2>GPU %" PRIu32 " ", device->index);
	html_text(out, device->name);
	fputs("</h2>\n<p>", out);
	html_size(out, is_known ? less(device->total_bytes, device->free_bytes)
	                        : device->physical_bytes);
	fputs(is_known ? " of " : " by glaked, of ", out);
	html_size(out, device->total_bytes);
	fputs(is_known ? " used. " : "; nobody tells what is free. ", out);
	if (device->logical_block_bytes > 0 && device->used_block_bytes > 0) {
		fputs("Sharing saves ", out);
		html_size(out, less(device->logical_block_bytes, device->used_block_bytes));
		fprintf(out, ", dedup ratio %.2f.",
		        (double)device->logical_block_bytes / (double)device->used_block_bytes);
	}
	fputs("</p>\n", out);
	put_bar(&parts, out);
	put_history(map, device, out);
	put_parts(&parts, out);
	fputs("</section>\n", out);
	rows_deinit(&parts.list);
}

static void put_host(const struct snapshot *snapshot, const struct glake_host_status *host,
                     FILE *out)
{
	struct parts parts = {.snapshot = snapshot, .total_bytes = host->limit_bytes};
	find_host_parts(&parts, host);
	fprintf(out, "<section class=\"host\">\n<h2>Host memory, node %" PRIu32 "</h2>\n<p>",
	        host->node);
	html_size(out, host->physical_bytes);
	fputs(" taken, of ", out);
	html_size(out, host->limit_bytes);
	fputs(" that glaked may take; the node has ", out);
	html_size(out, host->total_bytes);
	fputs(". ", out);
	if (host->slept_bytes > host->sleep_copy_bytes) {
		fputs("Sharing saves ", out);
		html_size(out, host->slept_bytes - host->sleep_copy_bytes);
		fputs(".", out);
	}
	fputs("</p>\n", out);
	put_bar(&parts, out);
	put_parts(&parts, out);
	fputs("</section>\n", out);
	rows_deinit(&parts.list);
}

void map_write(const struct map *map, const struct snapshot *snapshot, unsigned refresh_s,
               FILE *out)
{
	html_begin(out, "GPU memory map", style, refresh_s);
	fputs("<p>", out);
	html_place(out, time(NULL));
	if (refresh_s > 0) {
		fprintf(out, "; again each %u s", refresh_s);
	}
	if (!snapshot) {
		fputs(".</p>\n<p class=\"warning\">glaked does not answer.</p>\n", out);
		html_end(out);
		return;
	}
	fputs("; glaked ", out);
	html_text(out, snapshot->status.version);
	fprintf(out, ", %" PRIu64 " sessions. Of private memory, the faint part is not live.</p>\n",
	        snapshot->status.n_sessions);
	fputs("<main>\n", out);
	for (size_t i = 0; i < snapshot->devices.n; i++) {
		put_device(map, snapshot, rows_at(&snapshot->devices, i), out);
	}
	for (uint32_t i = 0; i < snapshot->status.n_hosts; i++) {
		put_host(snapshot, &snapshot->status.hosts[i], out);
	}
	if (snapshot->status.n_hosts > 0) {
		put_asleep(snapshot, out);
	}
	fputs("</main>\n", out);
	html_end(out);
}
