/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "ctl/looker.h"
#include "ctl/map.h"
#include "ctl/metrics.h"
#include "ctl/snapshot.h"
#include "ctl/text.h"
#include "glake.h"

#define MAX_CONNECTIONS 128u
/* Beyond so many, the oldest goes for each that comes. The library needs some time to close it. */
#define MAX_GUESTS 112u

/* For the first request of a connection to come, and from then on for its answer to go and the next one to come. */
#define TURN_MS 15000u

/* For glaked to answer: less than a scrape waits (10 s). */
#define LOOK_MS 5000

/* Of the map, and between its samples. */
#define REFRESH_S 5

union address {
	struct sockaddr any;
	struct sockaddr_un un;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* ---- the address ------------------------------------------------------------------------------ */

/* Returns its length, or 0: it is none that is served. */
static socklen_t parse(const char *text, union address *address_out)
{
	*address_out = (union address){.any.sa_family = AF_UNSPEC};
	if (strncmp(text, "unix:/", 6) == 0 &&
	    strlen(text + 5) < sizeof(address_out->un.sun_path)) {
		address_out->un.sun_family = AF_UNIX;
		strcpy(address_out->un.sun_path, text + 5);
		return sizeof(address_out->un);
	}
	const char *colon = strrchr(text, ':');
	uint64_t port;
	if (!colon || text_parse_count(colon + 1, 65535, &port) < 0) {
		return 0;
	}
	size_t n = (size_t)(colon - text);
	/* Everybody who can connect sees everything, so others than this host cannot. */
	if ((n == 9 && strncmp(text, "127.0.0.1", n) == 0) ||
	    (n == 9 && strncmp(text, "localhost", n) == 0)) {
		address_out->in.sin_family = AF_INET;
		address_out->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		address_out->in.sin_port = htons((uint16_t)port);
		return sizeof(address_out->in);
	}
	if (n == 5 && strncmp(text, "[::1]", n) == 0) {
		address_out->in6.sin6_family = AF_INET6;
		address_out->in6.sin6_addr = in6addr_loopback;
		address_out->in6.sin6_port = htons((uint16_t)port);
		return sizeof(address_out->in6);
	}
	return 0;
}

bool serve_is_address(const char *address)
{
	union address parsed;
	return parse(address, &parsed) > 0;
}

/* A socket that nobody listens on any more is left by a server that died. */
static void remove_left_over(const union address *address, socklen_t n_bytes)
{
	struct stat status;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (stat(address->un.sun_path, &status) == 0 && S_ISSOCK(status.st_mode) && fd >= 0 &&
	    connect(fd, &address->any, n_bytes) < 0 && errno == ECONNREFUSED) {
		unlink(address->un.sun_path);
	}
	if (fd >= 0) {
		close(fd);
	}
}

/* Returns a listening socket, or -errno. */
static int open_socket(const char *text, union address *address_out)
{
	socklen_t n_bytes = parse(text, address_out);
	bool is_unix = address_out->any.sa_family == AF_UNIX;
	int one = 1;
	int fd = socket(address_out->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return -errno;
	}
	if (is_unix) {
		remove_left_over(address_out, n_bytes);
	} else {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	}
	/* Of a Unix socket, the owner and the group may connect. */
	mode_t mask = umask(0117);
	int err = bind(fd, &address_out->any, n_bytes) < 0 ? -errno : 0;
	umask(mask);
	if (err == 0 && listen(fd, MAX_CONNECTIONS) < 0) {
		err = -errno;
	}
	if (err < 0) {
		close(fd);
	}
	return err < 0 ? err : fd;
}

/* ---- pages ------------------------------------------------------------------------------------ */

/* A connection. */
struct guest {
	bool is_here;
	bool has_asked;
	bool is_leaving; /* its socket was shut down */
	int fd;          /* borrowed from the library */
	uint64_t since_ms;
};

struct server {
	bool is_tcp;
	pthread_mutex_t lock;  /* of the next two */
	struct looker *looker; /* owned */
	struct map map;
	pthread_mutex_t guests_lock; /* of the next two */
	struct guest guests[MAX_CONNECTIONS];
	unsigned n_guests; /* but those who leave */
};

static int look(struct server *server, struct snapshot *snapshot)
{
	looker_begin(server->looker);
	return looker_end(server->looker, LOOK_MS, snapshot);
}

static void write_metrics(struct server *server, FILE *out)
{
	struct snapshot snapshot;
	int err = look(server, &snapshot);
	metrics_write(err ? NULL : &snapshot, out);
	if (err == 0) {
		snapshot_deinit(&snapshot);
	}
}

static void write_map(struct server *server, FILE *out)
{
	struct snapshot snapshot;
	int err = look(server, &snapshot);
	map_write(&server->map, err ? NULL : &snapshot, REFRESH_S, out);
	if (err == 0) {
		snapshot_deinit(&snapshot);
	}
}

/* For what the map shows over time. While glaked is away, nothing is added. */
static void take_sample(struct server *server)
{
	struct snapshot snapshot;
	pthread_mutex_lock(&server->lock);
	if (look(server, &snapshot) == 0) {
		map_add(&server->map, &snapshot);
		snapshot_deinit(&snapshot);
	}
	pthread_mutex_unlock(&server->lock);
}

static const struct {
	const char *url;
	const char *type;
	void (*write)(struct server *server, FILE *out);
} pages[] = {
	{"/", "text/html; charset=utf-8", write_map},
	{"/metrics", "text/plain; version=0.0.4; charset=utf-8", write_metrics},
};

#define N_PAGES (sizeof(pages) / sizeof(pages[0]))

/* ---- answers ---------------------------------------------------------------------------------- */

static enum MHD_Result say(struct MHD_Connection *connection, unsigned status, const char *type,
                           char *text, size_t n_bytes)
{
	/* The text is the library's from here on. */
	struct MHD_Response *response = MHD_create_response_from_buffer(n_bytes, text,
	                                                                MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	enum MHD_Result result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *why)
{
	char *text = strdup(why);
	return text ? say(connection, status, "text/plain", text, strlen(text)) : MHD_NO;
}

/* A page from elsewhere may point a name of its own to loopback, and read what the browser gets there. */
static bool is_our_host(const struct server *server, struct MHD_Connection *connection)
{
	static const char *const names[] = {"127.0.0.1", "localhost", "[::1]"};
	const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
	bool is = !server->is_tcp || !host;
	for (size_t i = 0; !is && i < sizeof(names) / sizeof(names[0]); i++) {
		size_t n = strlen(names[i]);
		is = strncasecmp(host, names[i], n) == 0 && (host[n] == ':' || host[n] == '\0');
	}
	return is;
}

/* ---- guests ----------------------------------------------------------------------------------- */

static void end_guest(struct server *server, struct guest *guest)
{
	shutdown(guest->fd, SHUT_RDWR);
	guest->is_leaving = true;
	server->n_guests--;
}

/* Who has not asked for anything goes before who has. */
static bool goes_before(const struct guest *guest, const struct guest *other)
{
	return guest->has_asked != other->has_asked ? !guest->has_asked
	                                            : guest->since_ms < other->since_ms;
}

static void make_room(struct server *server)
{
	struct guest *first = NULL;
	for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct guest *guest = &server->guests[i];
		if (guest->is_here && !guest->is_leaving && (!first || goes_before(guest, first))) {
			first = guest;
		}
	}
	if (first) {
		end_guest(server, first);
	}
}

/* Called by the HTTP library's thread, before it closes the socket. */
static void note_guest(void *user, struct MHD_Connection *connection, void **place,
                       enum MHD_ConnectionNotificationCode code)
{
	struct server *server = user;
	pthread_mutex_lock(&server->guests_lock);
	if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
		struct guest *guest = *place;
		server->n_guests -= guest->is_here && !guest->is_leaving;
		*guest = (struct guest){.is_here = false};
	} else {
		if (server->n_guests >= MAX_GUESTS) {
			make_room(server);
		}
		size_t i = 0;
		/* There are as many places as connections, at most. */
		while (i < MAX_CONNECTIONS - 1 && server->guests[i].is_here) {
			i++;
		}
		server->guests[i] = (struct guest){
			.is_here = true,
			.fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
		                      ->connect_fd,
			.since_ms = ctl_now_ms(),
		};
		*place = &server->guests[i];
		server->n_guests++;
	}
	pthread_mutex_unlock(&server->guests_lock);
}

static void note_request(struct server *server, struct MHD_Connection *connection)
{
	struct guest *guest = MHD_get_connection_info(connection,
	                                              MHD_CONNECTION_INFO_SOCKET_CONTEXT)
	                              ->socket_context;
	pthread_mutex_lock(&server->guests_lock);
	guest->since_ms = ctl_now_ms();
	guest->has_asked = true;
	pthread_mutex_unlock(&server->guests_lock);
}

/* The library counts only silence, which one byte now and then breaks. */
static void end_slow_guests(struct server *server)
{
	uint64_t now_ms = ctl_now_ms();
	pthread_mutex_lock(&server->guests_lock);
	for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct guest *guest = &server->guests[i];
		if (guest->is_here && !guest->is_leaving && now_ms - guest->since_ms > TURN_MS) {
			end_guest(server, guest);
		}
	}
	pthread_mutex_unlock(&server->guests_lock);
}

/* ---- requests --------------------------------------------------------------------------------- */

static enum MHD_Result answer(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *n_upload, void **request)
{
	struct server *server = user;
	static int seen;
	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
		return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
	}
	/* First with the headers; then, when all has come, to be answered. */
	if (!*request) {
		*request = &seen;
		return MHD_YES;
	}
	/* The body of a request is not looked at. */
	if (*n_upload > 0) {
		*n_upload = 0;
		return MHD_YES;
	}
	note_request(server, connection);
	if (!is_our_host(server, connection)) {
		return refuse(connection, MHD_HTTP_FORBIDDEN, "ask for localhost\n");
	}
	size_t i = 0;
	while (i < N_PAGES && strcmp(pages[i].url, url) != 0) {
		i++;
	}
	if (i == N_PAGES) {
		return refuse(connection, MHD_HTTP_NOT_FOUND, "/ and /metrics\n");
	}
	char *text = NULL;
	size_t n_bytes = 0;
	FILE *out = open_memstream(&text, &n_bytes);
	if (!out) {
		return MHD_NO;
	}
	pthread_mutex_lock(&server->lock);
	pages[i].write(server, out);
	pthread_mutex_unlock(&server->lock);
	if (fclose(out) != 0) {
		free(text);
		return MHD_NO;
	}
	return say(connection, MHD_HTTP_OK, pages[i].type, text, n_bytes);
}

/* ---- the command ------------------------------------------------------------------------------ */

static int cannot(struct ctl *ctl, const char *what, int err)
{
	char cause[256];
	snprintf(cause, sizeof(cause), "cannot serve %s: %s", what, strerror(-err));
	ctl_report(ctl, err, cause);
	return CTL_E_SAID;
}

static void sample_until_signal(struct server *server, const sigset_t *signals)
{
	const struct timespec period = {.tv_sec = REFRESH_S};
	do {
		take_sample(server);
		end_slow_guests(server);
	} while (sigtimedwait(signals, NULL, &period) < 0);
}

int serve_run(struct ctl *ctl, const char *text)
{
	union address address;
	sigset_t signals;
	struct server server = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.guests_lock = PTHREAD_MUTEX_INITIALIZER,
	};
	int fd = open_socket(text, &address);
	if (fd < 0) {
		return cannot(ctl, text, fd);
	}
	server.is_tcp = address.any.sa_family != AF_UNIX;
	/* The thread of the library inherits it. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	server.looker = looker_new(ctl);
	struct MHD_Daemon *http = server.looker
	                                  ? MHD_start_daemon(
						    MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL,
						    0, NULL, NULL, answer, &server,
						    MHD_OPTION_LISTEN_SOCKET, fd,
						    MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS,
						    MHD_OPTION_NOTIFY_CONNECTION, note_guest,
						    &server, MHD_OPTION_END)
	                                  : NULL;
	if (!http) {
		looker_free(server.looker);
		close(fd);
		return cannot(ctl, text, -EIO);
	}
	fprintf(ctl->err, "glakectl: metrics: serving %s\n", text);
	sample_until_signal(&server, &signals);
	MHD_stop_daemon(http);
	looker_free(server.looker);
	map_deinit(&server.map);
	if (!server.is_tcp) {
		unlink(address.un.sun_path);
	}
	return 0;
}
