/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an HTTP server listens: a Unix socket, a loopback port, or a port that others than this host can reach.
 *
 * Owner: whoever has the struct. Lifetime: any. Threads: any.
 */
#ifndef GLAKE_CTL_LISTEN_H
#define GLAKE_CTL_LISTEN_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

struct listen_address {
	union {
		struct sockaddr any;
		struct sockaddr_un un;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	};
	socklen_t n_bytes;
};

/* "unix:/PATH", "localhost:PORT", "IPV4:PORT", "[IPV6]:PORT"; no other name, since it may have several addresses. */
bool listen_parse(const char *text, struct listen_address *address_out);

/* Can only this host connect? */
bool listen_is_local(const struct listen_address *address);
bool listen_is_unix(const struct listen_address *address);

/*
 * A listening socket that does not block, the caller's, or -errno. Of a Unix socket, the owner and the group may
 * connect; one that nobody listens on is replaced.
 */
int listen_open(const struct listen_address *address, int backlog);

#endif
