/* SPDX-License-Identifier: Apache-2.0 */
/* Bring a model into the store ahead of its first user. */
#include <inttypes.h>
#include <stdlib.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/progress.h"
#include "ctl/text.h"
#include "glake.h"

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
		.progress = progress_show,
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
		.bytes_per_second = progress_per_second(info.content_bytes, info.load_ns),
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
	struct progress progress = progress_begin(ctl);
	struct glake_model *model = NULL;
	int err = open_model(ctl, &progress, &model);
	progress_end(&progress);
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
	.summary = "Load a model: a .safetensors file, a folder, or all its shards",
	.options = CTL_OPTION_DEVICE | CTL_OPTION_NAME | CTL_OPTION_PIN | CTL_OPTION_EXACT,
	.min_operands = 1,
	.max_operands = 252,
	.takes = true,
	.run = run_load,
};
