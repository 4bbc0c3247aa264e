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
	struct glake_model_info info; /* its texts are the model's */
	uint64_t bytes_per_second;
};

static const struct field loaded_fields[] = {
	FIELD_IN(ROW, info, name, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, info, device, U32, PLAIN, NULL),
	FIELD_IN(ROW, info, n_tensors, U64, PLAIN, NULL),
	FIELD_IN(ROW, info, n_blocks, U64, PLAIN, NULL),
	FIELD_IN(ROW, info, content_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, info, mapped_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, info, was_loaded, BOOL, PLAIN, NULL),
	FIELD_IN(ROW, info, deduplicated_bytes, U64, BYTES, NULL),
	FIELD_IN(ROW, info, load_ns, U64, PLAIN, NULL),
	FIELD(ROW, bytes_per_second, U64, BYTES, NULL),
};

#undef ROW

static void print_loaded(struct ctl *ctl, const struct loaded *loaded)
{
	const struct glake_model_info *info = &loaded->info;
	char size[TEXT_NUMBER_BYTES];
	char known[TEXT_NUMBER_BYTES];
	char speed[TEXT_NUMBER_BYTES];
	char took[TEXT_NUMBER_BYTES];
	field_bytes(info->content_bytes, ctl->exact, size, sizeof(size));
	field_bytes(info->deduplicated_bytes, ctl->exact, known, sizeof(known));
	field_bytes(loaded->bytes_per_second, ctl->exact, speed, sizeof(speed));
	text_duration(info->load_ns / 1000000, took);
	char *name = text_escape(info->name);
	fprintf(ctl->out, "%s: %" PRIu64 " tensors, %s in %" PRIu64 " blocks on device %" PRIu32,
	        name ? name : "", info->n_tensors, size, info->n_blocks, info->device);
	free(name);
	if (info->was_loaded) {
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
	struct loaded loaded = {.info = {.size = sizeof(loaded.info)}};
	int err = glake_model_info(model, &loaded.info);
	if (err < 0) {
		return err;
	}
	loaded.bytes_per_second = progress_per_second(loaded.info.content_bytes,
	                                              loaded.info.load_ns);
	if (ctl->json) {
		return ctl_print_json(ctl, field_object(FIELDS(loaded_fields), &loaded));
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
