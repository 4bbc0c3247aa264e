/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/progress.h"

#include <inttypes.h>
#include <time.h>
#include <unistd.h>

#include "ctl/text.h"

#define BAR_COLUMNS 40
#define REDRAW_NS 100000000ull

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t progress_per_second(uint64_t bytes, uint64_t ns)
{
	return ns ? (uint64_t)((double)bytes * 1e9 / (double)ns) : 0;
}

static void put_pid(const struct progress *progress)
{
	if (progress->pid > 0) {
		fprintf(progress->out, "%" PRIu32 ": ", progress->pid);
	}
}

static void draw_bar(struct progress *progress, unsigned percent, const char *text)
{
	char bar[BAR_COLUMNS + 1];
	for (unsigned i = 0; i < BAR_COLUMNS; i++) {
		bar[i] = i * 100 < percent * BAR_COLUMNS ? '#' : '.';
	}
	bar[BAR_COLUMNS] = '\0';
	/* "\033[K": what a longer line before left over goes. */
	fputc('\r', progress->out);
	put_pid(progress);
	fprintf(progress->out, "[%s] %3u %%  %s\033[K", bar, percent, text);
	progress->is_drawn = true;
}

static bool is_due(const struct progress *progress, unsigned percent)
{
	if (!progress->out) {
		return false;
	}
	return progress->is_terminal ? now_ns() - progress->drawn_ns >= REDRAW_NS || percent == 100
	                             : percent >= progress->next_percent;
}

void progress_note(struct progress *progress, unsigned percent, const char *text)
{
	if (!is_due(progress, percent)) {
		return;
	}
	if (progress->is_terminal) {
		draw_bar(progress, percent, text);
	} else {
		put_pid(progress);
		fprintf(progress->out, "%u %%: %s\n", percent, text);
	}
	fflush(progress->out);
	progress->drawn_ns = now_ns();
	progress->next_percent = percent / 10 * 10 + 10;
}

void progress_show(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct progress *progress = user;
	unsigned percent = total_bytes > 0
	                           ? (unsigned)((double)done_bytes * 100 / (double)total_bytes)
	                           : 0;
	if (total_bytes == 0 || !is_due(progress, percent)) {
		return;
	}
	char done[TEXT_NUMBER_BYTES];
	char total[TEXT_NUMBER_BYTES];
	char speed[TEXT_NUMBER_BYTES];
	char text[4 * TEXT_NUMBER_BYTES];
	text_size(done_bytes, done);
	text_size(total_bytes, total);
	text_size(progress_per_second(done_bytes, now_ns() - progress->begin_ns), speed);
	snprintf(text, sizeof(text), "%s of %s, %s/s", done, total, speed);
	progress_note(progress, percent, text);
}

void progress_wait(void *user, uint32_t place, uint64_t waiting_ms)
{
	struct progress *progress = user;
	progress->begin_ns = now_ns();
	if (!progress->out || (!progress->is_terminal && place == progress->place)) {
		return;
	}
	char waiting[TEXT_NUMBER_BYTES];
	text_duration(waiting_ms, waiting);
	fputs(progress->is_terminal ? "\r" : "", progress->out);
	put_pid(progress);
	fprintf(progress->out, "waits for room, place %" PRIu32 ", for %s%s", place, waiting,
	        progress->is_terminal ? "\033[K" : "\n");
	fflush(progress->out);
	progress->is_drawn = progress->is_terminal;
	progress->place = place;
}

struct progress progress_begin(const struct ctl *ctl)
{
	bool is_terminal = isatty(fileno(ctl->err));
	return (struct progress){
		.out = ctl->json && !is_terminal ? NULL : ctl->err,
		.is_terminal = is_terminal,
		.begin_ns = now_ns(),
		.next_percent = 10,
	};
}

void progress_end(struct progress *progress)
{
	if (progress->is_drawn) {
		fputc('\n', progress->out);
	}
}
