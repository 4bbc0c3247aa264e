/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between clients and glaked: it passes packets on with their fds, and a test may look at each, change it, or
 * end the connection there.
 *
 * To glaked, the clients are the process that the proxy is in. It is not stopped: it goes with that process.
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

/* The socket of the proxy is what clients of this process connect to from now on. */
void proxy_start(proxy_fn fn, void *user);

#endif
