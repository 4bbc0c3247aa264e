/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/trace.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/cleanup.h"
#include "shim/run/replay/id_map.h"

#define MAX_BYTES (UINT64_C(1) << 44) /* the most of an allocation, and of all live ones */
#define MAX_LINE_BYTES 256u

struct reader {
	struct trace *trace;
	struct id_map ids;     /* ids to the latest allocation */
	struct id_map streams; /* streams to indices */
	uint64_t *live;        /* owned: bytes by allocation; 0: freed */
	uint64_t live_bytes;
	size_t n_event_room;
	size_t n_live_room;
	uint64_t line;
	char *error; /* borrowed: TRACE_ERROR_BYTES */
};

__attribute__((format(printf, 3, 4))) static int fail(struct reader *reader, int error,
                                                      const char *format, ...)
{
	va_list arguments;
	int n = snprintf(reader->error, TRACE_ERROR_BYTES, "%" PRIu64 ": ", reader->line);
	va_start(arguments, format);
	vsnprintf(reader->error + n, TRACE_ERROR_BYTES - (size_t)n, format, arguments);
	va_end(arguments);
	return error;
}

/* ---- words ------------------------------------------------------------------------------------ */

/* Parse a decimal number, or a hexadecimal one behind 0x. */
static bool parse_number(const char *text, uint64_t *number_out)
{
	char *end;
	bool is_hex = text[0] == '0' && text[1] == 'x';
	if (!isxdigit((unsigned char)text[is_hex ? 2 : 0])) {
		return false;
	}
	errno = 0;
	*number_out = strtoull(text, &end, is_hex ? 16 : 10);
	return errno == 0 && end != text && *end == '\0';
}

/* Read the next word of *at as a number. @name: its name in messages. */
static int next_number(struct reader *reader, char **at, const char *name, uint64_t *number_out)
{
	const char *word = strtok_r(NULL, " \t\r\n", at);
	if (!word) {
		return fail(reader, -EINVAL, "no %s", name);
	}
	return parse_number(word, number_out)
	               ? 0
	               : fail(reader, -EINVAL, "%s is not a number: %.40s", name, word);
}

/* The time is allowed and not looked at: a replay runs as fast as it can. */
static int end_line(struct reader *reader, char **at)
{
	uint64_t time;
	const char *word = strtok_r(NULL, " \t\r\n", at);
	if (word && !parse_number(word, &time)) {
		return fail(reader, -EINVAL, "time is not a number: %.40s", word);
	}
	word = word ? strtok_r(NULL, " \t\r\n", at) : NULL;
	return word ? fail(reader, -EINVAL, "a word too many: %.40s", word) : 0;
}

/* ---- events ----------------------------------------------------------------------------------- */

static int add_event(struct reader *reader, uint32_t allocation, uint64_t stream, uint64_t n_bytes)
{
	struct trace *trace = reader->trace;
	uint32_t *index = id_map_at(&reader->streams, stream);
	if (!index || array_grow(trace->events, trace->n_events, reader->n_event_room, 1024) < 0) {
		return fail(reader, -ENOMEM, "no memory");
	}
	if (*index == UINT32_MAX) {
		*index = trace->n_streams++;
	}
	trace->events[trace->n_events++] = (struct trace_event){
		.allocation = allocation,
		.stream = *index,
		.n_bytes = n_bytes,
		.line = reader->line,
	};
	return 0;
}

static int read_alloc(struct reader *reader, char **at)
{
	struct trace *trace = reader->trace;
	uint64_t id;
	uint64_t n_bytes;
	uint64_t stream;
	int r = next_number(reader, at, "id", &id);
	r = r ? r : next_number(reader, at, "size", &n_bytes);
	r = r ? r : next_number(reader, at, "stream", &stream);
	r = r ? r : end_line(reader, at);
	if (r != 0) {
		return r;
	}
	if (n_bytes == 0 || n_bytes > MAX_BYTES || reader->live_bytes + n_bytes > MAX_BYTES) {
		return fail(reader, -EINVAL, "%s", n_bytes == 0 ? "size is 0" : "over 16 TiB live");
	}
	uint32_t *index = id_map_at(&reader->ids, id);
	if (!index || trace->n_allocations == UINT32_MAX - 1 ||
	    array_grow(reader->live, trace->n_allocations, reader->n_live_room, 1024) < 0) {
		return fail(reader, -ENOMEM, "no memory");
	}
	if (*index != UINT32_MAX && reader->live[*index] > 0) {
		return fail(reader, -EINVAL, "id %" PRIu64 " is live already", id);
	}
	*index = trace->n_allocations++;
	reader->live[*index] = n_bytes;
	reader->live_bytes += n_bytes;
	if (reader->live_bytes > trace->peak_live_bytes) {
		trace->peak_live_bytes = reader->live_bytes;
	}
	return add_event(reader, *index, stream, n_bytes);
}

static int read_free(struct reader *reader, char **at)
{
	uint64_t id;
	uint64_t stream;
	int r = next_number(reader, at, "id", &id);
	r = r ? r : next_number(reader, at, "stream", &stream);
	r = r ? r : end_line(reader, at);
	if (r != 0) {
		return r;
	}
	const uint32_t *index = id_map_at(&reader->ids, id);
	if (!index) {
		return fail(reader, -ENOMEM, "no memory");
	}
	if (*index == UINT32_MAX || reader->live[*index] == 0) {
		return fail(reader, -EINVAL, "id %" PRIu64 " is not live", id);
	}
	reader->live_bytes -= reader->live[*index];
	reader->live[*index] = 0;
	return add_event(reader, *index, stream, 0);
}

static int read_line(struct reader *reader, char *line)
{
	char *at = NULL;
	const char *verb = strtok_r(line, " \t\r\n", &at);
	if (!verb || verb[0] == '#') {
		return 0;
	}
	if (strcmp(verb, "a") == 0) {
		return read_alloc(reader, &at);
	}
	if (strcmp(verb, "f") == 0) {
		return read_free(reader, &at);
	}
	return fail(reader, -EINVAL, "neither a nor f: %.40s", verb);
}

static int read_lines(struct reader *reader, FILE *file)
{
	char line[MAX_LINE_BYTES];
	while (fgets(line, sizeof(line), file)) {
		reader->line++;
		/* A line with a NUL in it, which would hide the rest, is refused, too. */
		if (!strchr(line, '\n') && !feof(file)) {
			return fail(reader, -EINVAL, "the line is too long, or not text");
		}
		int r = read_line(reader, line);
		if (r != 0) {
			return r;
		}
	}
	if (ferror(file)) {
		int error = errno;
		snprintf(reader->error, TRACE_ERROR_BYTES, "%s", strerror(error));
		return -error;
	}
	if (reader->trace->n_events == 0) {
		snprintf(reader->error, TRACE_ERROR_BYTES, "no allocation in it");
		return -EINVAL;
	}
	return 0;
}

int trace_read(struct trace *trace, FILE *file, char error_out[TRACE_ERROR_BYTES])
{
	struct reader reader = {.trace = trace, .error = error_out};
	*trace = (struct trace){0};
	int r = read_lines(&reader, file);
	id_map_deinit(&reader.ids);
	id_map_deinit(&reader.streams);
	free(reader.live);
	if (r != 0) {
		trace_deinit(trace);
	}
	return r;
}

void trace_deinit(struct trace *trace)
{
	free(trace->events);
	*trace = (struct trace){0};
}
