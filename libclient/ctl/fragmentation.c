/* SPDX-License-Identifier: Apache-2.0 */
/* How well each process uses the memory that it has reserved: now, each second, or as a picture over time. */
#include <inttypes.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/memory.h"
#include "ctl/sampling.h"
#include "ctl/text.h"

#define MAX_SECONDS (24 * 3600)

#define ROW struct memory_row
static const struct field memory_fields[] = {
	FIELD(ROW, session, U64, PLAIN, NULL),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, device, MAYBE, PLAIN, "DEV"),
	FIELD(ROW, stitches, BOOL, PLAIN, NULL),
	FIELD(ROW, live_bytes, U64, BYTES, "LIVE"),
	FIELD(ROW, reserved_bytes, U64, BYTES, "RESERVED"),
	FIELD(ROW, utilization, RATIO, PERCENT, "UTIL"),
	FIELD(ROW, reusable_bytes, MAYBE, BYTES, "REUSABLE"),
	FIELD(ROW, fragmentation, RATIO, PERCENT, NULL),
	FIELD(ROW, warm_bytes, MAYBE, BYTES, NULL),
	FIELD_IN(ROW, pool, peak_live_bytes, MAYBE, BYTES, "PEAK LIVE"),
	FIELD_IN(ROW, pool, peak_reserved_bytes, MAYBE, BYTES, "PEAK RES"),
	FIELD_IN(ROW, pool, n_allocs, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, n_stitches, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, stitched_bytes, MAYBE, BYTES, NULL),
	FIELD_IN(ROW, pool, n_reuses, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, n_grows, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, n_mapped, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, n_unmapped, MAYBE, PLAIN, NULL),
	FIELD(ROW, n_vmm_calls, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, n_kept, MAYBE, PLAIN, NULL),
	FIELD_IN(ROW, pool, kept_bytes, MAYBE, BYTES, NULL),
	FIELD(ROW, label, TEXT, NAME, "PROGRAM"),
	FIELD(ROW, program, TEXT, PLAIN, NULL),
};

/* In a table of its own: all of it would not fit a terminal. */
static const struct field stitch_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, device, MAYBE, PLAIN, "DEV"),
	FIELD_IN(ROW, pool, n_allocs, MAYBE, PLAIN, "ALLOCS"),
	FIELD_IN(ROW, pool, n_stitches, MAYBE, PLAIN, "STITCHES"),
	FIELD_IN(ROW, pool, stitched_bytes, MAYBE, BYTES, "STITCHED"),
	FIELD_IN(ROW, pool, n_kept, MAYBE, PLAIN, "KEPT"),
	FIELD_IN(ROW, pool, n_reuses, MAYBE, PLAIN, "REUSES"),
	FIELD_IN(ROW, pool, n_grows, MAYBE, PLAIN, "GROWS"),
	FIELD(ROW, n_vmm_calls, MAYBE, PLAIN, "VMM CALLS"),
};

#undef ROW
#define ROW struct memory_device

static const struct field others_fields[] = {
	FIELD(ROW, device, U32, PLAIN, NULL),
	FIELD(ROW, others_bytes, U64, BYTES, NULL),
};

#undef ROW

static int print_json(struct ctl *ctl, const struct memory *memory)
{
	json_t *sessions = rows_json(&memory->list, FIELDS(memory_fields));
	json_t *others = rows_json(&memory->devices, FIELDS(others_fields));
	return ctl_print_json(
		ctl, json_pack("{s:o, s:o}", "sessions", sessions, "reserved_by_others", others));
}

/* Rows that stitch, borrowed from @memory. */
static int find_stitching(const struct memory *memory, struct rows *stitching)
{
	for (size_t i = 0; i < memory->list.n; i++) {
		const struct memory_row *row = rows_at(&memory->list, i);
		if (row->stitches && rows_append(stitching, row, sizeof(*row)) < 0) {
			return CTL_E_OUTPUT;
		}
	}
	return 0;
}

static int print_text(const struct ctl *ctl, const struct memory *memory)
{
	struct rows stitching = {0};
	int err = find_stitching(memory, &stitching);
	err = err ? err : rows_show(ctl, &memory->list, NULL, FIELDS(memory_fields));
	err = err ? err : rows_show_next(ctl, &stitching, FIELDS(stitch_fields));
	rows_deinit(&stitching);
	if (memory->devices.n > 0) {
		fputc('\n', ctl->out);
	}
	for (size_t i = 0; i < memory->devices.n; i++) {
		const struct memory_device *device = rows_at(&memory->devices, i);
		char size[TEXT_NUMBER_BYTES];
		field_bytes(device->others_bytes, ctl->exact, size, sizeof(size));
		fprintf(ctl->out, "reserved by others on device %" PRIu32 ": %s\n", device->device,
		        size);
	}
	return err;
}

static int show(struct ctl *ctl)
{
	struct memory memory = {.is_found = false};
	int err = memory_find_devices(ctl, &memory);
	err = err ? err : memory_gather(ctl, ctl_number(ctl), &memory);
	if (err == 0 && !memory.is_found) {
		err = ctl_nobody(ctl, ctl_number(ctl));
	}
	if (err == 0) {
		err = ctl->json ? print_json(ctl, &memory) : print_text(ctl, &memory);
	}
	memory_deinit(&memory);
	return err;
}

static int watch(struct ctl *ctl)
{
	const char *before = isatty(fileno(ctl->out)) ? "\033[H\033[2J" : "";
	const char *between = ctl->json ? "" : "\n";
	uint32_t n_seconds = ctl->values.given & CTL_OPTION_SECONDS ? ctl->values.seconds
	                                                            : UINT32_MAX;
	int err = 0;
	for (uint32_t i = 0; err == 0 && i <= n_seconds; i++) {
		if (i > 0) {
			sleep(1);
		}
		fputs(*before || i == 0 ? before : between, ctl->out);
		err = show(ctl);
		if (err == 0 && fflush(ctl->out) != 0) {
			err = CTL_E_OUTPUT;
		}
	}
	return err;
}

static int check_fragmentation(struct ctl *ctl)
{
	unsigned given = ctl->values.given;
	if (ctl_check_number(ctl)) {
		return CTL_E_USAGE;
	}
	if (given & CTL_OPTION_SECONDS && !(given & (CTL_OPTION_WATCH | CTL_OPTION_HTML))) {
		return ctl_usage(ctl, "--seconds: of --watch and --html only");
	}
	if (given & CTL_OPTION_HTML && (given & CTL_OPTION_WATCH || ctl->json)) {
		return ctl_usage(ctl, "--html: neither with --watch nor with --json");
	}
	if (given & CTL_OPTION_SECONDS &&
	    (ctl->values.seconds == 0 || ctl->values.seconds > MAX_SECONDS)) {
		return ctl_usage(ctl, "--seconds: must be 1 to %d", MAX_SECONDS);
	}
	return 0;
}

static int run_fragmentation(struct ctl *ctl)
{
	if (ctl->values.given & CTL_OPTION_HTML) {
		return sampling_run(ctl, ctl_number(ctl));
	}
	return ctl->values.given & CTL_OPTION_WATCH ? watch(ctl) : show(ctl);
}

const struct ctl_command ctl_fragmentation = {
	.name = "fragmentation",
	.operands = "[PID | SESSION]",
	.summary = "How much of its reserved memory each process uses",
	.options = CTL_OPTION_EXACT | CTL_OPTION_WATCH | CTL_OPTION_HTML | CTL_OPTION_SECONDS,
	.max_operands = 1,
	.check = check_fragmentation,
	.run = run_fragmentation,
};
