/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/promise.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/size.h"

/* "NUMBER=SIZE", or SIZE, which is for all devices. */
static int parse_item(const char *item, bool *is_for_all_out, uint32_t *index_out,
                      uint64_t *bytes_out)
{
	const char *equals = strchr(item, '=');
	char *end;
	uint64_t bytes;
	*is_for_all_out = equals == NULL;
	*index_out = 0;
	if (equals) {
		unsigned long index = strtoul(item, &end, 10);
		if (item[0] < '0' || item[0] > '9' || end != equals || index > UINT32_MAX) {
			return -EINVAL;
		}
		*index_out = (uint32_t)index;
	}
	if (size_parse(equals ? equals + 1 : item, &bytes) < 0 || bytes == 0 ||
	    bytes > GLAKE_MAX_REPORTED_BYTES) {
		return -EINVAL;
	}
	*bytes_out = glake_chunk_bytes(bytes);
	return 0;
}

/* @index: of a device. 0: nothing is wanted there. -EINVAL: @text is no such list. */
static int parse(const char *text, uint32_t index, uint64_t *bytes_out)
{
	uint64_t found = 0;
	bool is_found_by_number = false;
	cleanup_free char *list = strdup(text);
	char *rest = list;
	if (!list) {
		return -ENOMEM;
	}
	for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
		bool is_for_all;
		uint32_t number;
		uint64_t bytes;
		if (parse_item(item, &is_for_all, &number, &bytes) < 0) {
			return -EINVAL;
		}
		if (is_for_all ? !is_found_by_number : number == index) {
			found = bytes;
			is_found_by_number = !is_for_all;
		}
	}
	*bytes_out = found;
	return 0;
}

int glake__promise_init(struct glake_session *session, const char *text)
{
	text = text ? text : secure_getenv("GLAKE_PROMISE");
	for (uint32_t i = 0; text && *text && i < session->n_devices; i++) {
		struct glake__device *device = &session->devices[i];
		int r = parse(text, device->public.index, &device->promise_bytes);
		if (r < 0) {
			return glake__fail(r, "a promise of \"%s\": SIZE, or NUMBER=SIZE,...",
			                   text);
		}
	}
	return 0;
}
