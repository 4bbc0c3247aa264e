/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/page.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ctl/ctl.h"

/* The file itself (Makefile); a zero stands behind it. */
extern const char map_page[];

#define NONCE "@NONCE@"
#define DATA "@DATA@"

/* In a script element only "</" and "<!" mean something: no "<" is left as it is. */
static void put_data(const char *text, FILE *out)
{
	for (; *text; text++) {
		if (*text == '<') {
			fputs("\\u003c", out);
		} else {
			fputc(*text, out);
		}
	}
}

int page_write(const json_t *document, FILE *out)
{
	uint64_t random[2];
	char nonce[33];
	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
		return CTL_E_OUTPUT;
	}
	snprintf(nonce, sizeof(nonce), "%016llx%016llx", (unsigned long long)random[0],
	         (unsigned long long)random[1]);
	char *data = document ? json_dumps(document, CTL_JSON_COMPACT) : strdup("null");
	if (!data) {
		return CTL_E_OUTPUT;
	}
	const char *at = map_page;
	const char *mark;
	while ((mark = strchr(at, '@'))) {
		fwrite(at, 1, (size_t)(mark - at), out);
		if (strncmp(mark, NONCE, strlen(NONCE)) == 0) {
			fputs(nonce, out);
			at = mark + strlen(NONCE);
		} else if (strncmp(mark, DATA, strlen(DATA)) == 0) {
			put_data(data, out);
			at = mark + strlen(DATA);
		} else {
			fputc('@', out);
			at = mark + 1;
		}
	}
	fputs(at, out);
	free(data);
	return 0;
}
