/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/picture.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/html.h"

/* The numbers of a session in one sample, on all devices. */
struct point {
	bool is_there;
	bool stitches;
	uint64_t live_bytes;
	uint64_t reserved_bytes;
	/* The memory that a program stitches. Peaks may lie between samples. */
	uint64_t peak_live_bytes;
	uint64_t peak_reserved_bytes;
	uint64_t stitched_bytes;
	uint64_t n_kept;
	uint64_t n_vmm_calls;
};

/* One session, or all together. */
struct series {
	uint64_t session;
	uint32_t pid;
	char *program;        /* owned: its label */
	struct point *points; /* owned, by sample */
};

/* ---- gathering -------------------------------------------------------------------------------- */

int picture_init(struct picture *picture, size_t max_samples)
{
	*picture = (struct picture){
		.begin = time(NULL),
		.max_samples = max_samples,
		.at_ms = calloc(max_samples, sizeof(*picture->at_ms)),
	};
	return picture->at_ms ? 0 : -ENOMEM;
}

static void series_deinit(struct series *series)
{
	free(series->program);
	free(series->points);
}

void picture_deinit(struct picture *picture)
{
	for (size_t i = 0; i < picture->series.n; i++) {
		series_deinit(rows_at(&picture->series, i));
	}
	rows_deinit(&picture->series);
	free(picture->at_ms);
}

/* NULL: no memory. */
static struct series *series_of(struct picture *picture, const struct memory_row *row)
{
	for (size_t i = 0; i < picture->series.n; i++) {
		struct series *series = rows_at(&picture->series, i);
		if (series->session == row->session) {
			return series;
		}
	}
	struct series made = {
		.session = row->session,
		.pid = row->pid,
		.program = strdup(row->label),
		.points = calloc(picture->max_samples, sizeof(*made.points)),
	};
	struct series *series = made.program && made.points
	                                ? rows_add(&picture->series, sizeof(*series))
	                                : NULL;
	if (series) {
		*series = made;
	} else {
		series_deinit(&made);
	}
	return series;
}

static void add_row(struct point *point, const struct memory_row *row)
{
	point->is_there = true;
	point->live_bytes += row->live_bytes;
	point->reserved_bytes += row->reserved_bytes;
	if (row->stitches) {
		point->stitches = true;
		point->peak_live_bytes += row->pool.peak_live_bytes;
		point->peak_reserved_bytes += row->pool.peak_reserved_bytes;
		point->stitched_bytes += row->pool.stitched_bytes;
		point->n_kept += row->pool.n_kept;
		point->n_vmm_calls += row->n_vmm_calls;
	}
}

int picture_add(struct picture *picture, uint64_t at_ms, const struct memory *memory)
{
	for (size_t i = 0; i < memory->list.n; i++) {
		const struct memory_row *row = rows_at(&memory->list, i);
		struct series *series = series_of(picture, row);
		if (!series) {
			return -ENOMEM;
		}
		add_row(&series->points[picture->n_samples], row);
	}
	picture->at_ms[picture->n_samples++] = at_ms;
	return 0;
}

/* All of them, in *sum_out; its points are the caller's. */
static int add_up(const struct picture *picture, struct series *sum_out)
{
	struct point *points = calloc(picture->n_samples + 1, sizeof(*points));
	if (!points) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < picture->series.n; i++) {
		const struct series *series = rows_at(&picture->series, i);
		for (size_t at = 0; at < picture->n_samples; at++) {
			const struct point *from = &series->points[at];
			points[at].is_there |= from->is_there;
			points[at].live_bytes += from->live_bytes;
			points[at].reserved_bytes += from->reserved_bytes;
		}
	}
	*sum_out = (struct series){.points = points};
	return 0;
}

/* ---- numbers ---------------------------------------------------------------------------------- */

struct summary {
	const struct point *last;  /* that is there; NULL: none is */
	const struct point *first; /* the same */
	uint64_t most_live_bytes;
	uint64_t most_reserved_bytes;
	double mean_utilization; /* all that was live over all that was reserved; -1 */
};

static struct summary sum_up(const struct picture *picture, const struct series *series)
{
	struct summary summary = {.mean_utilization = -1};
	double live = 0;
	double reserved = 0;
	for (size_t i = 0; i < picture->n_samples; i++) {
		const struct point *point = &series->points[i];
		if (!point->is_there) {
			continue;
		}
		summary.first = summary.first ? summary.first : point;
		summary.last = point;
		live += (double)point->live_bytes;
		reserved += (double)point->reserved_bytes;
		if (point->live_bytes > summary.most_live_bytes) {
			summary.most_live_bytes = point->live_bytes;
		}
		if (point->reserved_bytes > summary.most_reserved_bytes) {
			summary.most_reserved_bytes = point->reserved_bytes;
		}
	}
	if (reserved > 0) {
		summary.mean_utilization = live < reserved ? live / reserved : 1;
	}
	return summary;
}

/* ---- one chart -------------------------------------------------------------------------------- */

/* In units of the drawing, which the browser scales. The bytes are above, the utilization below. */
#define WIDTH 920
#define HEIGHT 312
#define LEFT 78
#define RIGHT 896
#define TOP 12
#define BOTTOM 206
#define STRIP_TOP 228
#define STRIP_BOTTOM 282
#define LABELS 302

struct chart {
	const struct picture *picture;
	const struct series *series;
	double most_bytes; /* at TOP */
	double most_ms;    /* at RIGHT */
	FILE *out;
};

static double x_of(const struct chart *chart, double ms)
{
	return LEFT + ms / chart->most_ms * (RIGHT - LEFT);
}

static double x_at(const struct chart *chart, size_t at)
{
	return x_of(chart, (double)chart->picture->at_ms[at]);
}

static double y_of(const struct chart *chart, double bytes)
{
	return BOTTOM - bytes / chart->most_bytes * (BOTTOM - TOP);
}

static double y_live(const struct chart *chart, const struct point *point)
{
	return y_of(chart, (double)point->live_bytes);
}

static double y_reserved(const struct chart *chart, const struct point *point)
{
	return y_of(chart, (double)point->reserved_bytes);
}

static double y_utilization(const struct chart *chart, const struct point *point)
{
	double utilization = memory_utilization(point->live_bytes, point->reserved_bytes);
	return STRIP_BOTTOM - (utilization < 0 ? 0 : utilization) * (STRIP_BOTTOM - STRIP_TOP);
}

typedef double (*y_fn)(const struct chart *chart, const struct point *point);

/* A curve for each stretch of samples where the session is there; closed along the bottom if it is an area. */
static void put_curve(const struct chart *chart, const char *class, y_fn y, bool is_area)
{
	const struct point *points = chart->series->points;
	size_t n = chart->picture->n_samples;
	for (size_t at = 0; at < n;) {
		size_t end = at;
		while (end < n && points[end].is_there) {
			end++;
		}
		if (end == at) {
			at++;
			continue;
		}
		fprintf(chart->out, "<path class=\"%s\" d=\"", class);
		for (size_t i = at; i < end; i++) {
			fprintf(chart->out, "%c%.1f %.1f", i == at ? 'M' : 'L', x_at(chart, i),
			        y(chart, &points[i]));
		}
		if (is_area) {
			fprintf(chart->out, "L%.1f %dL%.1f %dZ", x_at(chart, end - 1), BOTTOM,
			        x_at(chart, at), BOTTOM);
		}
		fputs("\"/>\n", chart->out);
		at = end;
	}
}

static void put_line(const struct chart *chart, double y, const char *label_class)
{
	fprintf(chart->out,
	        "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
	        "<text class=\"%s\" x=\"%d\" y=\"%.1f\">",
	        LEFT, y, RIGHT, y, label_class, LEFT - 8, y + 4);
}

static void put_axes(const struct chart *chart)
{
	/* Powers of 2, so that the labels are round. */
	double step = 1;
	while (chart->most_bytes / step > 5) {
		step *= 2;
	}
	for (double bytes = 0; bytes <= chart->most_bytes; bytes += step) {
		put_line(chart, y_of(chart, bytes), "y");
		html_size(chart->out, (uint64_t)bytes);
		fputs("</text>\n", chart->out);
	}
	for (int percent = 0; percent <= 100; percent += 50) {
		put_line(chart, STRIP_BOTTOM - percent / 100.0 * (STRIP_BOTTOM - STRIP_TOP), "y");
		fprintf(chart->out, "%d %%</text>\n", percent);
	}
	static const unsigned seconds[] = {1,   2,   5,   10,   20,   30,  60,
	                                   120, 300, 600, 1800, 3600, 7200};
	size_t i = 0;
	while (i + 1 < sizeof(seconds) / sizeof(seconds[0]) &&
	       chart->most_ms / 1000 / seconds[i] > 10) {
		i++;
	}
	for (double at = 0; at * 1000 <= chart->most_ms; at += seconds[i]) {
		fprintf(chart->out, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.0f s</text>\n",
		        x_of(chart, at * 1000), LABELS, at);
	}
}

/* The numbers under the pointer: a title for each sample, from half way to its neighbours. */
static void put_titles(const struct chart *chart)
{
	const struct picture *picture = chart->picture;
	for (size_t i = 0; i < picture->n_samples; i++) {
		const struct point *point = &chart->series->points[i];
		size_t before = i > 0 ? i - 1 : i;
		size_t after = i + 1 < picture->n_samples ? i + 1 : i;
		double begin = (x_at(chart, before) + x_at(chart, i)) / 2;
		double end = (x_at(chart, i) + x_at(chart, after)) / 2;
		if (!point->is_there) {
			continue;
		}
		fprintf(chart->out,
		        "<rect class=\"at\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\">"
		        "<title>%.1f s: live ",
		        begin, TOP, end - begin + 0.1, STRIP_BOTTOM - TOP,
		        (double)picture->at_ms[i] / 1000);
		html_size(chart->out, point->live_bytes);
		fputs(", reserved ", chart->out);
		html_size(chart->out, point->reserved_bytes);
		fputs(", utilization ", chart->out);
		html_percent(chart->out,
		             memory_utilization(point->live_bytes, point->reserved_bytes));
		fputs("</title></rect>\n", chart->out);
	}
}

static void put_name(FILE *out, const struct series *series)
{
	if (series->program) {
		html_text(out, series->program);
		fprintf(out, " <small>pid %" PRIu32 "</small>", series->pid);
	} else {
		fputs("All processes", out);
	}
}

/* The peaks as the program has counted them, since it began or last began them anew. */
static void put_peaks(FILE *out, const struct point *last)
{
	if (last && last->stitches) {
		fputs(" Peaks of what is stitched: live ", out);
		html_size(out, last->peak_live_bytes);
		fputs(" of ", out);
		html_size(out, last->peak_reserved_bytes);
		fputs(" reserved, ", out);
		html_percent(out,
		             memory_utilization(last->peak_live_bytes, last->peak_reserved_bytes));
		fputs(".", out);
	}
}

static void put_chart(const struct picture *picture, const struct series *series, FILE *out)
{
	struct summary summary = sum_up(picture, series);
	uint64_t most = summary.most_live_bytes > summary.most_reserved_bytes
	                        ? summary.most_live_bytes
	                        : summary.most_reserved_bytes;
	uint64_t most_ms = picture->at_ms[picture->n_samples - 1];
	struct chart chart = {
		.picture = picture,
		.series = series,
		.most_bytes = most > 0 ? (double)most * 1.04 : 1,
		.most_ms = most_ms > 0 ? (double)most_ms : 1,
		.out = out,
	};
	fputs("<section>\n<h2>", out);
	put_name(out, series);
	fputs("</h2>\n<p>Live at most ", out);
	html_size(out, summary.most_live_bytes);
	fputs(", reserved at most ", out);
	html_size(out, summary.most_reserved_bytes);
	fputs("; utilization ", out);
	html_percent(out, summary.mean_utilization);
	fputs(" on average.", out);
	put_peaks(out, summary.last);
	fprintf(out,
	        "</p>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Live and reserved "
	        "memory "
	        "over time\">\n",
	        WIDTH, HEIGHT);
	put_axes(&chart);
	put_curve(&chart, "reserved", y_reserved, true);
	put_curve(&chart, "live", y_live, true);
	put_curve(&chart, "top", y_reserved, false);
	put_curve(&chart, "utilization", y_utilization, false);
	put_titles(&chart);
	fputs("</svg>\n</section>\n", out);
}

/* ---- the page --------------------------------------------------------------------------------- */

static const char style[] =
	":root { --reserved: #cfdff2; --top: #84a9d6; --live: #2f6fbf; --utilization: #b4531a; }\n"
	"@media (prefers-color-scheme: dark) { :root { --reserved: #263c58; --top: #5c86bb; "
	"--live: #4f92de; --utilization: #eb9a62; } }\n"
	".legend { color: var(--faint); }\n"
	"svg { width: 100%; min-width: 600px; height: auto; display: block; }\n"
	"path { stroke-linejoin: round; }\n"
	".reserved { fill: var(--reserved); } .live { fill: var(--live); }\n"
	".top { fill: none; stroke: var(--top); stroke-width: 1.5; }\n"
	".utilization { fill: none; stroke: var(--utilization); stroke-width: 2; }\n"
	".grid { stroke: var(--grid); } text { fill: var(--faint); font-size: 12px; }\n"
	".y { text-anchor: end; } .x { text-anchor: middle; }\n"
	".at { fill: var(--ink); opacity: 0; } .at:hover { opacity: .12; }\n"
	".legend span { display: inline-block; margin-right: 1.2em; }\n"
	".legend i { display: inline-block; width: 1em; height: .8em; margin-right: .4em; }\n"
	".of-live { background: var(--live); } .of-reserved { background: var(--reserved); }\n"
	".legend .of-utilization { background: var(--utilization); height: .2em; "
	"vertical-align: middle; }\n"
	"section, div { overflow-x: auto; } table { border-collapse: collapse; margin-top: 2.5em; "
	"font-variant-numeric: tabular-nums; white-space: nowrap; }\n"
	"th, td { padding: .3em .5em; text-align: right; border-bottom: 1px solid var(--grid); }\n"
	"th { color: var(--faint); font-weight: normal; }\n"
	"th:first-child, td:first-child { text-align: left; padding-left: 0; }\n";

static const char legend[] =
	"<p class=\"legend\">"
	"<span><i class=\"of-live\"></i>live: what the program has allocated</span> "
	"<span><i class=\"of-reserved\"></i>reserved: what it has of glaked</span> "
	"<span><i class=\"of-utilization\"></i>utilization: live / reserved</span></p>\n";

static void put_head(const struct picture *picture, FILE *out)
{
	html_begin(out, "GPU memory over time", style);
	fputs("<p>", out);
	html_place(out, picture->begin);
	fprintf(out, ": %zu samples in %.1f s. The programs report what is live.</p>\n%s",
	        picture->n_samples, (double)picture->at_ms[picture->n_samples - 1] / 1000, legend);
}

static void put_cell(FILE *out, uint64_t bytes)
{
	fputs("<td>", out);
	html_size(out, bytes);
}

static void put_row(const struct picture *picture, const struct series *series, FILE *out)
{
	struct summary summary = sum_up(picture, series);
	const struct point *last = summary.last;
	fputs("<tr><td>", out);
	html_text(out, series->program);
	fprintf(out, "<td>%" PRIu32, series->pid);
	put_cell(out, last->live_bytes);
	put_cell(out, last->reserved_bytes);
	fputs("<td>", out);
	html_percent(out, memory_utilization(last->live_bytes, last->reserved_bytes));
	put_cell(out, summary.most_live_bytes);
	put_cell(out, summary.most_reserved_bytes);
	if (last->stitches) {
		uint64_t before = summary.first->n_vmm_calls;
		put_cell(out, last->stitched_bytes);
		fprintf(out,
		        "<td>%" PRIu64 "<td title=\"%" PRIu64 " since the session began\">%" PRIu64,
		        last->n_kept, last->n_vmm_calls,
		        last->n_vmm_calls > before ? last->n_vmm_calls - before : 0);
	} else {
		fputs("<td>-<td>-<td>-", out);
	}
	fputs("\n", out);
}

static void put_table(const struct picture *picture, const struct series *const *order, FILE *out)
{
	fputs("<div><table>\n<tr><th>Process<th>Pid<th>Live<th>Reserved<th>Utilization"
	      "<th>Most live<th>Most reserved<th title=\"Bytes of ranges that were stitched, in "
	      "sum\">"
	      "Stitched<th title=\"Stitched ranges that are kept for reuse\">Kept"
	      "<th title=\"Handles mapped and unmapped during these samples\">VMM calls\n",
	      out);
	for (size_t i = 0; i < picture->series.n; i++) {
		put_row(picture, order[i], out);
	}
	fputs("</table></div>\n", out);
}

/* ---- which of them first ---------------------------------------------------------------------- */

/* Charts of single sessions; the table has all. */
#define MAX_CHARTS 12u

/* The memory that was reserved and not live, in sum over the samples. */
static double waste(const struct picture *picture, const struct series *series)
{
	double bytes = 0;
	for (size_t i = 0; i < picture->n_samples; i++) {
		const struct point *point = &series->points[i];
		if (point->reserved_bytes > point->live_bytes) {
			bytes += (double)(point->reserved_bytes - point->live_bytes);
		}
	}
	return bytes;
}

static int compare_waste(const void *a, const void *b, void *user)
{
	double left = waste(user, *(const struct series *const *)a);
	double right = waste(user, *(const struct series *const *)b);
	return left < right ? 1 : left > right ? -1 : 0;
}

/* The worst first. The caller frees it. NULL: no memory. */
static const struct series **sort(const struct picture *picture)
{
	const struct series **order = calloc(picture->series.n + 1, sizeof(*order));
	for (size_t i = 0; order && i < picture->series.n; i++) {
		order[i] = rows_at(&picture->series, i);
	}
	if (order) {
		qsort_r(order, picture->series.n, sizeof(*order), compare_waste, (void *)picture);
	}
	return order;
}

static void put_all(const struct picture *picture, const struct series *const *order, FILE *out)
{
	size_t n = picture->series.n;
	for (size_t i = 0; i < n && i < MAX_CHARTS; i++) {
		put_chart(picture, order[i], out);
	}
	if (n > MAX_CHARTS) {
		fprintf(out,
		        "<p>These %u had most memory reserved that was not live. All %zu are in "
		        "the "
		        "table.</p>\n",
		        MAX_CHARTS, n);
	}
	put_table(picture, order, out);
}

int picture_write(const struct picture *picture, FILE *out)
{
	struct series sum;
	const struct series **order = sort(picture);
	int err = order ? add_up(picture, &sum) : -ENOMEM;
	if (err < 0) {
		free(order);
		return err;
	}
	put_head(picture, out);
	if (picture->series.n == 0) {
		fputs("<p>No process had memory of glaked.</p>\n", out);
	}
	if (picture->series.n > 1) {
		put_chart(picture, &sum, out);
	}
	if (picture->series.n > 0) {
		put_all(picture, order, out);
	}
	html_end(out);
	series_deinit(&sum);
	free(order);
	return 0;
}
