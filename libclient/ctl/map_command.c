/* SPDX-License-Identifier: Apache-2.0 */
/* The memory map as a file: now, or after a while of looking. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/map.h"
#include "ctl/text.h"

#define DEFAULT_FILE "map.html"

static int look(struct ctl *ctl, struct map *map, struct snapshot *snapshot)
{
	snapshot_deinit(snapshot);
	int err = snapshot_take(ctl, snapshot);
	return err ? err : map_add(map, snapshot);
}

static int write_page(struct ctl *ctl, const struct map *map, const struct snapshot *snapshot)
{
	const char *path = ctl->values.html ? ctl->values.html : DEFAULT_FILE;
	FILE *out = fopen(path, "we");
	if (!out) {
		return ctl_cannot_write(ctl, path);
	}
	int err = map_write(map, snapshot, out);
	bool is_lost = ferror(out) != 0;
	if (fclose(out) != 0 || is_lost) {
		return ctl_cannot_write(ctl, path);
	}
	if (err) {
		return err;
	}
	char *escaped = text_escape(path);
	fprintf(ctl->out, "%s: %zu samples of %zu devices\n", escaped ? escaped : DEFAULT_FILE,
	        map->n_times, snapshot->devices.n);
	free(escaped);
	return 0;
}

static int run_map(struct ctl *ctl)
{
	struct map map = {.n_times = 0};
	struct snapshot snapshot = {.at_ms = 0};
	uint32_t n_seconds = ctl->values.given & CTL_OPTION_SECONDS ? ctl->values.seconds : 0;
	int err = look(ctl, &map, &snapshot);
	for (uint32_t i = 0; err == 0 && i < n_seconds; i++) {
		sleep(1);
		err = look(ctl, &map, &snapshot);
	}
	err = err ? err : write_page(ctl, &map, &snapshot);
	snapshot_deinit(&snapshot);
	map_deinit(&map);
	return err;
}

static int check_map(struct ctl *ctl)
{
	return ctl->values.given & CTL_OPTION_HTML ? 0 : ctl_usage(ctl, "needs --html");
}

const struct ctl_command ctl_map = {
	.name = "map",
	.operands = "",
	.summary = "A page of who holds and shares what on each GPU",
	.options = CTL_OPTION_HTML | CTL_OPTION_SECONDS,
	.has_no_json = true,
	.check = check_map,
	.run = run_map,
};
