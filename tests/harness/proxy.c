/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/proxy.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/wire.h"
#include "tests/harness/world.h"

struct route {
	proxy_fn fn;
	void *user;
	int ends[2]; /* owned: the client's and glaked's socket */
};

static int listener;
static struct route model;

/* Pass one packet from one end to the other. Returns whether the connection goes on. */
static bool pass(struct route *route, int from, uint8_t *bytes)
{
	struct proxy_packet packet = {.is_answer = from == 1, .bytes = bytes};
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	return wire_recv(route->ends[from], bytes, GLAKE_MAX_PACKET_BYTES, &packet.n_bytes, &fds,
	                 0) == 0 &&
	       route->fn(route->user, &packet) &&
	       wire_send(route->ends[!from], bytes, packet.n_bytes, fds.fds, fds.n_fds, 0) == 0;
}

static void *serve(void *user)
{
	struct route *route = user;
	uint8_t *bytes = malloc(GLAKE_MAX_PACKET_BYTES);
	bool goes_on = true;
	while (goes_on) {
		struct pollfd ready[] = {{.fd = route->ends[0], .events = POLLIN},
		                         {.fd = route->ends[1], .events = POLLIN}};
		poll(ready, 2, -1);
		for (int from = 0; from < 2 && goes_on; from++) {
			goes_on = !ready[from].revents || pass(route, from, bytes);
		}
	}
	close(route->ends[0]);
	close(route->ends[1]);
	free(bytes);
	free(route);
	return NULL;
}

static int open_socket(const char *path, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	ck_assert_uint_lt(strlen(path), sizeof(address->sun_path));
	strcpy(address->sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(fd, 0);
	return fd;
}

/* Accept clients. If there is no glaked, close their connection. */
static void *accept_all(void *user)
{
	for (;;) {
		pthread_t thread;
		struct sockaddr_un address;
		struct route *route = malloc(sizeof(*route));
		*route = model;
		route->ends[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		route->ends[1] = open_socket(harness.socket_path, &address);
		if (connect(route->ends[1], (struct sockaddr *)&address, sizeof(address)) < 0) {
			close(route->ends[0]);
			close(route->ends[1]);
			free(route);
			continue;
		}
		pthread_create(&thread, NULL, serve, route);
		pthread_detach(thread);
	}
	return NULL;
}

void proxy_start(proxy_fn fn, void *user)
{
	pthread_t thread;
	struct sockaddr_un address;
	const char *path = world_path("proxy.sock");
	model = (struct route){.fn = fn, .user = user};
	unlink(path);
	listener = open_socket(path, &address);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(listener, 16), 0);
	setenv("GLAKE_SOCKET", path, 1);
	pthread_create(&thread, NULL, accept_all, NULL);
	pthread_detach(thread);
}
