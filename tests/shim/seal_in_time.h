/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing where nothing fills the GPU: on a busy host not always at the first try. */
#ifndef GLAKE_TESTS_SHIM_SEAL_IN_TIME_H
#define GLAKE_TESTS_SHIM_SEAL_IN_TIME_H

#include <errno.h>
#include <unistd.h>

#include "libclient/glake.h"

/* glake_seal(), again and again while that has no time for it. If it never has, the test's limit ends the program. */
static inline int seal_in_time(const struct glake_span *spans, size_t n,
                               struct glake_sealed *sealed)
{
	int r;
	while ((r = glake_seal(spans, n, sealed)) == -EBUSY) {
		usleep(1000);
	}
	return r;
}

#endif
