/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bring a model into the store ahead of its first user.
 *
 * Progress goes to stderr: a bar that is redrawn on a terminal, else a line per ten percent. With
 * --json there is none, unless stderr is a terminal.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/text.h"
#include "glake.h"

#define BAR_COLUMNS 40
#define REDRAW_NS 100000000ull

struct progress {
	FILE *out; /* borrowed; NULL: be silent */
	bool is_terminal;
	bool is_drawn; /* a bar is on the screen */
	uint64_t begin_ns;
	uint64_t drawn_ns;
	unsigned next_percent; /* not a terminal: the next one that gets a line */
};

#define ROW struct loaded

struct loaded {
	const char *name; /* borrowed from the model */
	uint32_t device;
	uint64_t n_tensors;
	uint64_t n_blocks;
	uint64_t content_bytes;
	uint64_t mapped_bytes;
	int was_loaded;
	uint64_t deduplicated_bytes;
	uint64_t load_ns;
	uint64_t bytes_per_second;
};

static const struct field loaded_fields[] = {
	FIELD(ROW, name, TEXT, PLAIN, NULL),
	FIELD(ROW, device, U32, PLAIN, NULL),
	FIELD(ROW, n_tensors, U64, PLAIN, NULL),
	FIELD(ROW, n_blocks, U64, PLAIN, NULL),
	FIELD(ROW, content_bytes, U64, BYTES, NULL),
	FIELD(ROW, mapped_bytes, U64, BYTES, NULL),
	FIELD(ROW, was_loaded, BOOL, PLAIN, NULL),
	FIELD(ROW, deduplicated_bytes, U64, BYTES, NULL),
	FIELD(ROW, load_ns, U64, PLAIN, NULL),
	FIELD(ROW, bytes_per_second, U64, BYTES, NULL),
};

#undef ROW

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t per_second(uint64_t bytes, uint64_t ns)
{
	return ns ? (uint64_t)((double)bytes * 1e9 / (double)ns) : 0;
}

static void draw_bar(struct progress *progress, unsigned percent, const char *done,
                     const char *total, const char *speed)
{
	char bar[BAR_COLUMNS + 1];
	for (unsigned i = 0; i < BAR_COLUMNS; i++) {
		bar[i] = i * 100 < percent * BAR_COLUMNS ? '#' : '.';
	}
	bar[BAR_COLUMNS] = '\0';
	/* "\033[K": what a longer line before left over goes. */
	fprintf(progress->out, "\r[%s] %3u %%  %s of %s, %s/s\033[K", bar, percent, done, total,
	        speed);
	progress->is_drawn = true;
}

static void show_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct progress *progress = user;
	if (!progress->out || total_bytes == 0) {
		return;
	}
	uint64_t now = now_ns();
	unsigned percent = (unsigned)((double)done_bytes * 100 / (double)total_bytes);
	bool is_due = progress->is_terminal
	                      ? now - progress->drawn_ns >= REDRAW_NS || done_bytes == total_bytes
	                      : percent >= progress->next_percent;
	if (!is_due) {
		return;
	}
	char done[TEXT_NUMBER_BYTES];
	char total[TEXT_NUMBER_BYTES];
	char speed[TEXT_NUMBER_BYTES];
	text_size(done_bytes, done);
	text_size(total_bytes, total);
	text_size(per_second(done_bytes, now - progress->begin_ns), speed);
	if (progress->is_terminal) {
		draw_bar(progress, percent, done, total, speed);
	} else {
		fprintf(progress->out, "%u %%: %s of %s, %s/s\n", percent, done, total, speed);
	}
	fflush(progress->out);
	progress->drawn_ns = now;
	progress->next_percent = percent / 10 * 10 + 10;
}

static void print_loaded(struct ctl *ctl, const struct loaded *loaded)
{
	char size[TEXT_NUMBER_BYTES];
	char known[TEXT_NUMBER_BYTES];
	char speed[TEXT_NUMBER_BYTES];
	char took[TEXT_NUMBER_BYTES];
	field_bytes(loaded->content_bytes, ctl->exact, size, sizeof(size));
	field_bytes(loaded->deduplicated_bytes, ctl->exact, known, sizeof(known));
	field_bytes(loaded->bytes_per_second, ctl->exact, speed, sizeof(speed));
	text_duration(loaded->load_ns / 1000000, took);
	char *name = text_escape(loaded->name);
	fprintf(ctl->out, "%s: %" PRIu64 " tensors, %s in %" PRIu64 " blocks on device %" PRIu32,
	        name ? name : "", loaded->n_tensors, size, loaded->n_blocks, loaded->device);
	free(name);
	if (loaded->was_loaded) {
		fprintf(ctl->out, "; was in the store already\n");
	} else {
		fprintf(ctl->out, "; loaded in %s, %s/s, %s equal to blocks in the store\n", took,
		        speed, known);
	}
}

static int open_model(struct ctl *ctl, struct progress *progress, struct glake_model **model_out)
{
	struct glake_model_options options = {
		.size = sizeof(options),
		.device = ctl->values.device,
		.name = ctl->values.name,
		.progress = show_progress,
		.progress_user = progress,
		.no_map = 1,
		.pin = (ctl->values.given & CTL_OPTION_PIN) != 0,
	};
	if (ctl->n_operands == 1) {
		return glake_model_open(ctl->session, ctl->operands[0], &options, model_out);
	}
	return glake_model_open_shards(ctl->session, (const char *const *)ctl->operands,
	                               (size_t)ctl->n_operands, &options, model_out);
}

static int describe(struct ctl *ctl, const struct glake_model *model)
{
	struct glake_model_info info = {.size = sizeof(info)};
	int err = glake_model_info(model, &info);
	if (err < 0) {
		return err;
	}
	struct loaded loaded = {
		.name = info.name,
		.device = info.device,
		.n_tensors = info.n_tensors,
		.n_blocks = info.n_blocks,
		.content_bytes = info.content_bytes,
		.mapped_bytes = info.mapped_bytes,
		.was_loaded = info.was_loaded,
		.deduplicated_bytes = info.deduplicated_bytes,
		.load_ns = info.load_ns,
		.bytes_per_second = per_second(info.content_bytes, info.load_ns),
	};
	if (ctl->json) {
		return ctl_print_json(ctl,
		                      field_object(loaded_fields,
		                                   sizeof(loaded_fields) / sizeof(loaded_fields[0]),
		                                   &loaded));
	}
	print_loaded(ctl, &loaded);
	return 0;
}

static int run_load(struct ctl *ctl)
{
	bool is_terminal = isatty(fileno(ctl->err));
	struct progress progress = {
		.out = ctl->json && !is_terminal ? NULL : ctl->err,
		.is_terminal = is_terminal,
		.begin_ns = now_ns(),
		.next_percent = 10,
	};
	struct glake_model *model = NULL;
	int err = open_model(ctl, &progress, &model);
	if (progress.is_drawn) {
		fputc('\n', progress.out);
	}
	if (err < 0) {
		return err;
	}
	err = describe(ctl, model);
	glake_model_close(model);
	return err;
}

const struct ctl_command ctl_load = {
	.name = "load",
	.operands = "PATH...",
	.summary = "Load a model into GPU memory: a .safetensors file, a folder, or all its shards",
	.options = CTL_OPTION_DEVICE | CTL_OPTION_NAME | CTL_OPTION_PIN | CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 252,
	.run = run_load,
};
