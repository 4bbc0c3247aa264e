/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: which models and blocks are in it, and what is to stay or to go.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/text.h"
#include "glake_admin.h"

#define ROW struct glake_model_row

static const struct field model_fields[] = {
	FIELD(ROW, id, U64, PLAIN, "ID"),
	FIELD(ROW, name, TEXT, PLAIN, "MODEL"),
	FIELD(ROW, realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, state, TEXT, PLAIN, "STATE"),
	FIELD(ROW, device, U32, PLAIN, "DEVICE"),
	FIELD(ROW, span_bytes, U64, BYTES, "SPAN"),
	FIELD(ROW, content_bytes, U64, BYTES, "CONTENT"),
	FIELD(ROW, unique_bytes, U64, BYTES, "UNIQUE"),
	FIELD(ROW, n_tensors, U64, PLAIN, "TENSORS"),
	FIELD(ROW, n_blocks, U64, PLAIN, "BLOCKS"),
	FIELD(ROW, n_open, U32, PLAIN, "OPEN"),
	FIELD(ROW, pinned, BOOL, PLAIN, "PINNED"),
	FIELD(ROW, idle_ms, U64, MS, "IDLE"),
	FIELD(ROW, is_published, BOOL, PLAIN, "PUBLISHED"),
	FIELD(ROW, copied_bytes, U64, BYTES, NULL),
	FIELD(ROW, part_bytes, U64, BYTES, NULL),
	FIELD(ROW, reload_reason, TEXT, PLAIN, "LOADED AGAIN"),
};

#undef ROW
#define ROW struct glake_block_row

static const struct field block_fields[] = {
	FIELD(ROW, id, U64, PLAIN, "BLOCK"),
	FIELD(ROW, digest, DIGEST, PLAIN, "DIGEST"),
	FIELD(ROW, device, U32, PLAIN, "DEVICE"),
	FIELD(ROW, realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, chunk_bytes, U64, BYTES, "CHUNK"),
	FIELD(ROW, content_bytes, U64, BYTES, "CONTENT"),
	FIELD(ROW, n_models, U32, PLAIN, "MODELS"),
	FIELD(ROW, n_users, U32, PLAIN, "USERS"),
};

#undef ROW

json_t *ctl_model_object(const struct glake_model_row *row)
{
	return field_object(FIELDS(model_fields), row);
}

static int add_model(void *list, const struct glake_model_row *row)
{
	return ctl_list_add(list, row);
}

static int run_models(struct ctl *ctl)
{
	struct ctl_list list;
	ctl_list_begin(&list, ctl, FIELDS(model_fields));
	return ctl_list_end(&list, "models", glake_list_models(ctl->session, add_model, &list));
}

static int add_block(void *list, const struct glake_block_row *row)
{
	return ctl_list_add(list, row);
}

static int run_blocks(struct ctl *ctl)
{
	struct ctl_list list;
	ctl_list_begin(&list, ctl, FIELDS(block_fields));
	return ctl_list_end(&list, "blocks", glake_list_blocks(ctl->session, add_block, &list));
}

/* A model's name is the full path that it was loaded by, and people type a shorter one. NULL: there is none. */
static char *longer_name(const char *model)
{
	char *full = model ? realpath(model, NULL) : NULL;
	if (full && strcmp(full, model) == 0) {
		free(full);
		full = NULL;
	}
	return full;
}

static int run_pin(struct ctl *ctl)
{
	int pin = ctl->command == &ctl_pin;
	const char *model = ctl->operands[0];
	int err = glake_pin(ctl->session, model, pin);
	char *full = err == GLAKE_E_NOT_FOUND ? longer_name(model) : NULL;
	if (full) {
		err = glake_pin(ctl->session, full, pin);
		free(full);
	}
	if (err < 0) {
		return err;
	}
	if (ctl->json) {
		return ctl_print_json(
			ctl, json_pack("{s:o, s:b}", "model", field_string(model), "pinned", pin));
	}
	char *escaped = text_escape(model);
	fprintf(ctl->out, "%s: %s\n", escaped ? escaped : "", pin ? "pinned" : "unpinned");
	free(escaped);
	return 0;
}

static int check_evict(struct ctl *ctl)
{
	bool all = ctl->values.given & CTL_OPTION_ALL;
	if (all == (ctl->n_operands == 1)) {
		return ctl_usage(ctl, "needs a NAME or an ID, or --all");
	}
	return 0;
}

static int run_evict(struct ctl *ctl)
{
	const char *model = ctl->n_operands ? ctl->operands[0] : NULL;
	uint64_t n_models;
	uint64_t freed_bytes;
	int err = glake_evict(ctl->session, model, &n_models, &freed_bytes);
	char *full = err == GLAKE_E_NOT_FOUND ? longer_name(model) : NULL;
	if (full) {
		err = glake_evict(ctl->session, full, &n_models, &freed_bytes);
		free(full);
	}
	if (err < 0) {
		return err;
	}
	if (ctl->json) {
		return ctl_print_json(ctl, json_pack("{s:I, s:I}", "n_models", (json_int_t)n_models,
		                                     "freed_bytes", (json_int_t)freed_bytes));
	}
	char size[TEXT_NUMBER_BYTES];
	field_bytes(freed_bytes, ctl->exact, size, sizeof(size));
	fprintf(ctl->out, "%" PRIu64 " model%s evicted, %s freed\n", n_models,
	        n_models == 1 ? "" : "s", size);
	return 0;
}

const struct ctl_command ctl_models = {
	.name = "models",
	.operands = "",
	.summary = "Models in the store",
	.options = CTL_OPTION_EXACT,
	.run = run_models,
};

const struct ctl_command ctl_blocks = {
	.name = "blocks",
	.operands = "",
	.summary = "Blocks in the store: the shared chunks that models consist of",
	.options = CTL_OPTION_EXACT,
	.run = run_blocks,
};

const struct ctl_command ctl_pin = {
	.name = "pin",
	.operands = "NAME | ID",
	.summary = "Keep a model in GPU memory, used or not",
	.min_operands = 1,
	.max_operands = 1,
	.run = run_pin,
};

const struct ctl_command ctl_unpin = {
	.name = "unpin",
	.operands = "NAME | ID",
	.summary = "Let a pinned model be evicted again",
	.min_operands = 1,
	.max_operands = 1,
	.run = run_pin,
};

const struct ctl_command ctl_evict = {
	.name = "evict",
	.operands = "NAME | ID | --all",
	.summary = "Drop models that nobody uses from GPU memory",
	.options = CTL_OPTION_ALL | CTL_OPTION_EXACT,
	.max_operands = 1,
	.check = check_evict,
	.run = run_evict,
};
