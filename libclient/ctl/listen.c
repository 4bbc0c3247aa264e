/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ctl/text.h"

static bool parse_unix(const char *path, struct listen_address *address)
{
	if (*path != '/' || strlen(path) >= sizeof(address->un.sun_path)) {
		return false;
	}
	address->un.sun_family = AF_UNIX;
	strcpy(address->un.sun_path, path);
	address->n_bytes = sizeof(address->un);
	return true;
}

static bool parse_host(const char *host, uint16_t port, struct listen_address *address)
{
	size_t n = strlen(host);
	char inner[INET6_ADDRSTRLEN];
	if (strcasecmp(host, "localhost") == 0) {
		host = "127.0.0.1";
	}
	if (inet_pton(AF_INET, host, &address->in.sin_addr) == 1) {
		address->in.sin_family = AF_INET;
		address->in.sin_port = htons(port);
		address->n_bytes = sizeof(address->in);
		return true;
	}
	if (n < 4 || n - 2 >= sizeof(inner) || host[0] != '[' || host[n - 1] != ']') {
		return false;
	}
	memcpy(inner, host + 1, n - 2);
	inner[n - 2] = '\0';
	address->in6.sin6_family = AF_INET6;
	address->in6.sin6_port = htons(port);
	address->n_bytes = sizeof(address->in6);
	return inet_pton(AF_INET6, inner, &address->in6.sin6_addr) == 1;
}

bool listen_parse(const char *text, struct listen_address *address_out)
{
	char host[INET6_ADDRSTRLEN + 2];
	uint64_t port;
	memset(address_out, 0, sizeof(*address_out));
	if (strncmp(text, "unix:", 5) == 0) {
		return parse_unix(text + 5, address_out);
	}
	const char *colon = strrchr(text, ':');
	size_t n = colon ? (size_t)(colon - text) : sizeof(host);
	if (n >= sizeof(host) || text_parse_count(colon + 1, 65535, &port) < 0) {
		return false;
	}
	memcpy(host, text, n);
	host[n] = '\0';
	return parse_host(host, (uint16_t)port, address_out);
}

bool listen_is_unix(const struct listen_address *address)
{
	return address->any.sa_family == AF_UNIX;
}

bool listen_is_local(const struct listen_address *address)
{
	return listen_is_unix(address) ||
	       (address->any.sa_family == AF_INET &&
	        ntohl(address->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) ||
	       (address->any.sa_family == AF_INET6 &&
	        IN6_IS_ADDR_LOOPBACK(&address->in6.sin6_addr));
}

/* A socket that nobody listens on any more is left by a server that died. */
static void remove_left_over(const struct listen_address *address)
{
	struct stat status;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (stat(address->un.sun_path, &status) == 0 && S_ISSOCK(status.st_mode) && fd >= 0 &&
	    connect(fd, &address->any, address->n_bytes) < 0 && errno == ECONNREFUSED) {
		unlink(address->un.sun_path);
	}
	if (fd >= 0) {
		close(fd);
	}
}

int listen_open(const struct listen_address *address, int backlog)
{
	int one = 1;
	int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return -errno;
	}
	if (listen_is_unix(address)) {
		remove_left_over(address);
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	}
	mode_t mask = umask(0117);
	int err = bind(fd, &address->any, address->n_bytes) < 0 ? -errno : 0;
	umask(mask);
	if (err == 0 && listen(fd, backlog) < 0) {
		err = -errno;
	}
	if (err < 0) {
		close(fd);
	}
	return err < 0 ? err : fd;
}
