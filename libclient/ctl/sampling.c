/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/sampling.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ctl/memory.h"
#include "ctl/picture.h"
#include "ctl/progress.h"
#include "ctl/text.h"
#include "glake.h"

#define DEFAULT_FILE "fragmentation.html"
#define DEFAULT_SECONDS 20u
/* A picture has as many samples as a screen shows, or one each half second. */
#define MAX_SAMPLES 401u
#define PERIOD_MS 500u

static volatile sig_atomic_t is_interrupted;

static void interrupt(int number)
{
	(void)number;
	is_interrupted = 1;
}

static void sleep_until(uint64_t ms)
{
	const struct timespec until = {
		.tv_sec = (time_t)(ms / 1000),
		.tv_nsec = (long)(ms % 1000) * 1000000,
	};
	while (!is_interrupted &&
	       clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
	}
}

static int take_sample(struct ctl *ctl, uint64_t number, uint64_t at_ms, struct picture *picture)
{
	struct memory memory = {.is_found = false};
	int err = memory_gather(ctl, number, &memory);
	if (err == 0 && !memory.is_found && picture->n_samples == 0) {
		err = ctl_nobody(ctl, number);
	}
	err = err ? err : picture_add(picture, at_ms, &memory);
	memory_deinit(&memory);
	return err;
}

static void note(struct progress *progress, uint64_t done_ms, uint64_t total_ms)
{
	char text[64];
	snprintf(text, sizeof(text), "%.1f of %" PRIu64 " s", (double)done_ms / 1000,
	         total_ms / 1000);
	progress_note(progress, (unsigned)(done_ms < total_ms ? done_ms * 100 / total_ms : 100),
	              text);
}

/* The first sample is there. */
static int sample(struct ctl *ctl, uint64_t number, uint64_t total_ms, struct picture *picture)
{
	uint64_t period_ms = total_ms / (MAX_SAMPLES - 1);
	period_ms = period_ms > PERIOD_MS ? period_ms : PERIOD_MS;
	struct progress progress = progress_begin(ctl);
	uint64_t begin_ms = ctl_now_ms();
	uint64_t next_ms = 0;
	int err = 0;
	while (err == 0 && next_ms + period_ms <= total_ms &&
	       picture->n_samples < picture->max_samples) {
		next_ms += period_ms;
		sleep_until(begin_ms + next_ms);
		if (is_interrupted) {
			break;
		}
		err = take_sample(ctl, number, ctl_now_ms() - begin_ms, picture);
		note(&progress, next_ms, total_ms);
	}
	progress_end(&progress);
	return err;
}

static int sample_into(struct ctl *ctl, uint64_t number, struct picture *picture)
{
	const char *path = ctl->values.html ? ctl->values.html : DEFAULT_FILE;
	uint64_t n_seconds = ctl->values.given & CTL_OPTION_SECONDS ? ctl->values.seconds
	                                                            : DEFAULT_SECONDS;
	int err = take_sample(ctl, number, 0, picture);
	if (err != 0) {
		return err;
	}
	FILE *out = fopen(path, "we");
	if (!out) {
		return ctl_cannot_write(ctl, path);
	}
	err = sample(ctl, number, n_seconds * 1000, picture);
	int written = picture_write(picture, out);
	err = err ? err : written;
	bool is_lost = ferror(out) != 0;
	if (fclose(out) != 0 || is_lost) {
		return ctl_cannot_write(ctl, path);
	}
	if (err == 0) {
		char *escaped = text_escape(path);
		fprintf(ctl->out, "%s: %zu samples of %zu sessions\n",
		        escaped ? escaped : DEFAULT_FILE, picture->n_samples, picture->series.n);
		free(escaped);
	}
	return err;
}

int sampling_run(struct ctl *ctl, uint64_t number)
{
	const struct sigaction action = {.sa_handler = interrupt};
	struct sigaction before;
	struct picture picture;
	int err = picture_init(&picture, MAX_SAMPLES);
	is_interrupted = 0;
	sigaction(SIGINT, &action, &before);
	err = err ? err : sample_into(ctl, number, &picture);
	sigaction(SIGINT, &before, NULL);
	picture_deinit(&picture);
	return err;
}
