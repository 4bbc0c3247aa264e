/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/readers.h"

#include <stdlib.h>

#include "tests/harness/run.h"
#include "tests/harness/world.h"

void readers_begin(void)
{
	const char *file = world_path("readers.d/test.readers");
	struct run run;
	setenv("GLAKE_READERS", world_path("readers.d"), 1);
	setenv("GLAKE_DEDUP_QUIET_MS", "300", 1);
	assert_ok(mkdir(getenv("GLAKE_READERS"), 0755));
	run_start(&run, "GLAKE_SHIM=off", run_in_build("tests/shim/auto"), "table", file, NULL);
	run_end_well(&run);
	assert_ok(chmod(file, 0644));
}

void readers_change(const char *name, const char *from, const char *to)
{
	char text[4096];
	char changed[sizeof(text) + 256];
	char file[64];
	FILE *table = fopen(world_path("readers.d/test.readers"), "r");
	ck_assert_ptr_nonnull(table);
	size_t n = fread(text, 1, sizeof(text) - 1, table);
	fclose(table);
	text[n] = '\0';
	const char *at = strstr(text, from);
	ck_assert_ptr_nonnull(at);
	snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to,
	         at + strlen(from));
	snprintf(file, sizeof(file), "readers.d/%s.readers", name);
	world_write_text(file, changed);
	assert_ok(chmod(world_path(file), 0644));
}
