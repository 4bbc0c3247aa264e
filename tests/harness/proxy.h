/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A proxy between clients and glaked. It passes packets on with their fds, and a test may look at each, change it, or
 * end the connection there.
 *
 * To glaked, the clients are the process that the proxy is in. The proxy is not stopped: it ends with that process.
 */
#ifndef GLAKE_TESTS_HARNESS_PROXY_H
#define GLAKE_TESTS_HARNESS_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct proxy_packet {
	bool is_answer;
	uint8_t *
		bytes; /* room for GLAKE_MAX_PACKET_BYTES; the function may change them and n_bytes */
	size_t n_bytes;
};

/* False: the packet goes nowhere, and the connection ends on both sides. Any thread. */
typedef bool (*proxy_fn)(void *user, struct proxy_packet *packet);

/* From now on clients of this process connect to the proxy. */
void proxy_start(proxy_fn fn, void *user);

#endif
