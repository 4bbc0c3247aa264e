/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_show.h"

#include <inttypes.h>
#include <stdbool.h>

#include "daemon/config/config.h"
#include "proto/cleanup.h"

#define NOT_SET "not set"

CONFIG_SHOW(text)
{
	const char *text = *(char *const *)field;
	fputs(text ? text : NOT_SET, out);
}

CONFIG_SHOW(absolute_path)
{
	config_show_text(field, out);
}

CONFIG_SHOW(socket_path)
{
	config_show_text(field, out);
}

CONFIG_SHOW(cgroup)
{
	config_show_text(field, out);
}

CONFIG_SHOW(admin_group)
{
	config_show_text(field, out);
}

CONFIG_SHOW(name)
{
	fputs(field, out);
}

CONFIG_SHOW(mode)
{
	fprintf(out, "%04o", (unsigned)*(const mode_t *)field);
}

CONFIG_SHOW(log_level)
{
	static const char *const names[] = {
		[LOG_LEVEL_ERROR] = "error",
		[LOG_LEVEL_WARNING] = "warning",
		[LOG_LEVEL_INFO] = "info",
		[LOG_LEVEL_DEBUG] = "debug",
	};
	fputs(names[*(const enum log_level *)field], out);
}

#define SHOW_WORD(key) \
	CONFIG_SHOW(key) \
	{ \
		fputs(config_##key##_words[*(const unsigned *)field], out); \
	}

SHOW_WORD(pressure)
SHOW_WORD(on_pressure)
SHOW_WORD(dedup)
SHOW_WORD(verify)

CONFIG_SHOW(part)
{
	fprintf(out, "%g", *(const double *)field);
}

CONFIG_SHOW(flag)
{
	fputs(*(const bool *)field ? "true" : "false", out);
}

CONFIG_SHOW(u32)
{
	fprintf(out, "%" PRIu32, *(const uint32_t *)field);
}

CONFIG_SHOW(u64)
{
	fprintf(out, "%" PRIu64, *(const uint64_t *)field);
}

CONFIG_SHOW(priority)
{
	fprintf(out, "%" PRId32, *(const int32_t *)field);
}

/* Print @bytes in the largest unit that they are a whole number of. */
static void show_bytes(uint64_t bytes, FILE *out)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	unsigned unit = 0;
	while (bytes > 0 && bytes % 1024 == 0 && unit + 1 < n_elements(units)) {
		bytes /= 1024;
		unit++;
	}
	fprintf(out, "%" PRIu64 "%s", bytes, units[unit]);
}

CONFIG_SHOW(size)
{
	show_bytes(*(const uint64_t *)field, out);
}

CONFIG_SHOW(chunk_size)
{
	config_show_size(field, out);
}

CONFIG_SHOW(sizes)
{
	const struct config_sizes *sizes = field;
	if (sizes->n == 0) {
		fputs(NOT_SET, out);
	}
	for (size_t i = 0; i < sizes->n; i++) {
		fputs(i > 0 ? ", " : sizes->n > 1 ? "(" : "", out);
		show_bytes(sizes->bytes[i], out);
	}
	fputs(sizes->n > 1 ? ")" : "", out);
}

CONFIG_SHOW(devices)
{
	const struct config *config = container_of(field, const struct config, devices);
	if (config->n_devices == 0) {
		fputs("all", out);
	}
	for (size_t i = 0; i < config->n_devices; i++) {
		fprintf(out, "%s%" PRIu32, i > 0 ? ", " : "", config->devices[i]);
	}
}

CONFIG_SHOW(pool)
{
	const struct config *config = container_of(field, const struct config, stock);
	if (config->n_stock == 0) {
		fputs("()", out);
	}
	for (size_t i = 0; i < config->n_stock; i++) {
		fprintf(out, "%s%" PRIu32 " x ", i > 0 ? ", " : "", config->stock[i].n_chunks);
		show_bytes(config->stock[i].chunk_bytes, out);
	}
}

CONFIG_SHOW(uids)
{
	const struct config_members *members = field;
	if (members->n_uids == 0) {
		fputs(NOT_SET, out);
	}
	for (size_t i = 0; i < members->n_uids; i++) {
		fprintf(out, "%s%" PRIu32, i > 0 ? ", " : "", (uint32_t)members->uids[i]);
	}
}

CONFIG_SHOW(gids)
{
	const struct config_members *members = field;
	if (members->n_gids == 0) {
		fputs(NOT_SET, out);
	}
	for (size_t i = 0; i < members->n_gids; i++) {
		fprintf(out, "%s%" PRIu32, i > 0 ? ", " : "", (uint32_t)members->gids[i]);
	}
}
