/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/golden.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check_glake.h"

void golden_expect(const char *name, const char *text)
{
	const char *mode = getenv("GOLDEN");
	bool is_written = mode && strcmp(mode, "write") == 0;
	char command[700];
	char path[256];
	snprintf(path, sizeof(path), "tests/golden/%s.txt", name);
	snprintf(command, sizeof(command), "diff -u --label %s --label now %s - >&2", path, path);
	fflush(NULL);
	FILE *to = is_written ? fopen(path, "w") : popen(command, "w");
	ck_assert_msg(to != NULL, "%s: not from the root of the repository?", path);
	fputs(text, to);
	int status = is_written ? fclose(to) : pclose(to);
	ck_assert_msg(status == 0, "%s: the difference is above; GOLDEN=write renews it", path);
}
