/* SPDX-License-Identifier: Apache-2.0 */
/* Drain: no new program is let in, so that glaked or its driver can be changed without cutting anybody off. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "glake.h"
#include "glake_admin.h"

/* The pause between two looks at who is left. */
#define LOOK_MS 500

/* The last that glaked said. */
struct left {
	bool is_drained;
	uint32_t n_programs;
	uint32_t n_asleep;
	uint64_t at_ms;
};

static int check_drain(struct ctl *ctl)
{
	unsigned given = ctl->values.given;
	if (given & CTL_OPTION_UNDO && given & (CTL_OPTION_WAIT | CTL_OPTION_REASON)) {
		return ctl_usage(ctl, "--undo goes without --wait and --reason");
	}
	if (given & CTL_OPTION_SECONDS && !(given & CTL_OPTION_WAIT)) {
		return ctl_usage(ctl, "--seconds goes with --wait");
	}
	if (given & CTL_OPTION_REASON && strlen(ctl->values.reason) > GLAKE_DRAIN_REASON_BYTES) {
		return ctl_usage(ctl, "--reason: longer than %u bytes", GLAKE_DRAIN_REASON_BYTES);
	}
	return 0;
}

static int take_status(void *user, const struct glake_status *status)
{
	struct left *left = user;
	left->is_drained = status->drained;
	left->n_programs = status->n_programs;
	left->at_ms = status->drained_at_ms;
	return 0;
}

static int count_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct left *left = user;
	left->n_asleep++;
	return 0;
}

static int look(struct ctl *ctl, struct left *left_out)
{
	*left_out = (struct left){.n_programs = 0};
	int err = glake_get_status(ctl->session, take_status, left_out);
	return err ? err : glake_list_sleepers(ctl->session, count_sleeper, left_out);
}

static void print_left(const struct left *left, FILE *out)
{
	fprintf(out, "%" PRIu32 " program%s left", left->n_programs,
	        left->n_programs == 1 ? " is" : "s are");
	if (left->n_asleep > 0) {
		fprintf(out, ", %" PRIu32 " of them asleep", left->n_asleep);
	}
	fputc('\n', out);
	fflush(out);
}

/* A line for each change, on stderr, until nobody is left. */
static int wait_for_all(struct ctl *ctl, struct left *left)
{
	const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
	uint64_t end_ms = ctl->values.given & CTL_OPTION_SECONDS
	                          ? ctl_now_ms() + ctl->values.seconds * 1000ull
	                          : UINT64_MAX;
	struct left said = {.n_programs = UINT32_MAX};
	for (;;) {
		int err = look(ctl, left);
		if (err) {
			return err;
		}
		if (!left->is_drained) {
			snprintf(ctl->cause, sizeof(ctl->cause),
			         "somebody has ended it: glaked is not drained any more");
			return GLAKE_E_BUSY;
		}
		if (left->n_programs == 0) {
			return 0;
		}
		if (said.n_programs != left->n_programs || said.n_asleep != left->n_asleep) {
			said = *left;
			print_left(left, ctl->err);
		}
		if (ctl_now_ms() >= end_ms) {
			snprintf(ctl->cause, sizeof(ctl->cause),
			         "somebody is left: %" PRIu32 "; glaked stays drained",
			         left->n_programs);
			return GLAKE_E_BUSY;
		}
		nanosleep(&pause, NULL);
	}
}

static int print_drained(struct ctl *ctl, const struct left *left)
{
	if (ctl->json) {
		return ctl_print_json(ctl, json_pack("{s:b, s:I, s:I}", "drained", left->is_drained,
		                                     "n_programs", (json_int_t)left->n_programs,
		                                     "n_asleep", (json_int_t)left->n_asleep));
	}
	if (!left->is_drained) {
		fputs("glaked takes new programs\n", ctl->out);
		return 0;
	}
	fputs("glaked is drained: it takes no new programs until `glakectl drain --undo`\n",
	      ctl->out);
	print_left(left, ctl->out);
	return 0;
}

static int run_drain(struct ctl *ctl)
{
	struct left left;
	bool is_undone = ctl->values.given & CTL_OPTION_UNDO;
	int err = is_undone ? glake_undrain(ctl->session)
	                    : glake_drain(ctl->session, ctl->values.reason);
	if (err == 0 && ctl->values.given & CTL_OPTION_WAIT) {
		err = wait_for_all(ctl, &left);
	} else if (err == 0) {
		err = look(ctl, &left);
	}
	return err ? err : print_drained(ctl, &left);
}

const struct ctl_command ctl_drain = {
	.name = "drain",
	.operands = "",
	.summary = "Let no new program in, also after a restart of glaked; those that run go on",
	.options = CTL_OPTION_UNDO | CTL_OPTION_WAIT | CTL_OPTION_SECONDS | CTL_OPTION_REASON,
	.check = check_drain,
	.run = run_drain,
};
