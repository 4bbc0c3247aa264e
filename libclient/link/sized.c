/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/sized.h"

#include <errno.h>
#include <string.h>

#include "libclient/link/error.h"

/* Far above any struct of ours: larger means that the field was never set. */
#define MAX_BYTES 4096u

static int check_size(size_t n_bytes)
{
	if (n_bytes < sizeof(size_t) || n_bytes > MAX_BYTES) {
		return glake__fail(
			-EINVAL, "the struct's size field is %zu: set it to sizeof first", n_bytes);
	}
	return 0;
}

int glake__sized_check(const void *out)
{
	return out ? check_size(*(const size_t *)out)
	           : glake__fail(-EINVAL, "an output parameter is NULL");
}

int glake__sized_out(void *out, void *full, size_t full_bytes)
{
	int r = glake__sized_check(out);
	if (r < 0) {
		return r;
	}
	size_t n_bytes = *(const size_t *)out;
	size_t n_common = n_bytes < full_bytes ? n_bytes : full_bytes;
	*(size_t *)full = n_common;
	memcpy(out, full, n_common);
	memset((char *)out + n_common, 0, n_bytes - n_common);
	return 0;
}

int glake__sized_in(const void *in, void *full, size_t full_bytes)
{
	memset(full, 0, full_bytes);
	if (!in) {
		return 0;
	}
	size_t n_bytes = *(const size_t *)in;
	int r = check_size(n_bytes);
	if (r < 0) {
		return r;
	}
	memcpy(full, in, n_bytes < full_bytes ? n_bytes : full_bytes);
	for (size_t i = full_bytes; i < n_bytes; i++) {
		if (((const char *)in)[i] != 0) {
			return glake__fail(-EINVAL, "an option that this library does not know");
		}
	}
	return 0;
}
