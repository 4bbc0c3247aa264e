/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/exposition.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/text.h"

void exposition_begin(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void exposition_plain(FILE *out, const char *name, const char *help, uint64_t number)
{
	exposition_begin(out, name, "gauge", help);
	fprintf(out, "%s %" PRIu64 "\n", name, number);
}

static void put_label(FILE *out, const char *label, const char *text)
{
	char *escaped = text_escape(text);
	fprintf(out, "%s=\"", label);
	for (const char *at = escaped ? escaped : ""; *at; at++) {
		if (*at == '"' || *at == '\\') {
			fputc('\\', out);
		}
		fputc(*at, out);
	}
	fputc('"', out);
	free(escaped);
}

void exposition_open(FILE *out, const char *name, const char *label, const char *text)
{
	fprintf(out, "%s{", name);
	put_label(out, label, text);
}

void exposition_label(FILE *out, const char *label, const char *text)
{
	fputc(',', out);
	put_label(out, label, text);
}

void exposition_value(FILE *out, uint64_t number)
{
	fprintf(out, "} %" PRIu64 "\n", number);
}

/* The name that dcgm-exporter gives as well. */
static const char *hostname(char name[HOST_NAME_MAX + 1])
{
	const char *node = getenv("NODE_NAME");
	if (node && *node) {
		return node;
	}
	if (gethostname(name, HOST_NAME_MAX + 1) < 0) {
		name[0] = '\0';
	}
	name[HOST_NAME_MAX] = '\0';
	return name;
}

void exposition_gpu(FILE *out, const char *name, const struct glake_device_status *device)
{
	char host[HOST_NAME_MAX + 1];
	fprintf(out, "%s{gpu=\"%" PRIu32 "\",UUID=\"GPU-", name, device->index);
	for (int i = 0; i < 16; i++) {
		bool has_dash = i == 4 || i == 6 || i == 8 || i == 10;
		fprintf(out, has_dash ? "-%02x" : "%02x", device->uuid[i]);
	}
	fputc('"', out);
	exposition_label(out, "Hostname", hostname(host));
}
