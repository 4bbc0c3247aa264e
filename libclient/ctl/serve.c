/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/serve.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "ctl/identity.h"
#include "ctl/listen.h"
#include "ctl/looker.h"
#include "ctl/map.h"
#include "ctl/metrics.h"
#include "ctl/page.h"
#include "ctl/snapshot.h"
#include "ctl/token.h"
#include "glake.h"

#define MAX_CONNECTIONS 128u
/* Beyond this many connections, the oldest goes for each that comes. The library needs some time to close it. */
#define MAX_GUESTS 112u

/* For the first request of a connection to come, and from then on for its answer to go and the next one to come. */
#define TURN_MS 15000u

/* For glaked to answer: less than a scrape waits (10 s). */
#define LOOK_MS 5000

/* An answer of glaked that is not older is told again. */
#define FRESH_MS 1000u

/* The time between samples of the map. The page asks as often. */
#define SAMPLE_S 5

/* ---- pages ------------------------------------------------------------------------------------ */

/* States of guests that can be sent away come last, the first to go before the others. */
enum guest_state {
	GUEST_NONE,
	GUEST_LEAVING, /* its socket was shut down */
	GUEST_NEW,     /* it has not asked for anything that it may have */
	GUEST_HAS_ASKED,
};

/* A connection. */
struct guest {
	enum guest_state state;
	int fd; /* borrowed from the library */
	uint64_t since_ms;
};

struct server {
	struct listen_address address;
	bool has_models;
	struct token *token;   /* borrowed; NULL: who can connect may ask */
	pthread_mutex_t lock;  /* of the next four */
	struct looker *looker; /* owned */
	struct snapshot found; /* of the last look; empty if that failed */
	struct map map;
	struct identities identities;
	pthread_mutex_t guests_lock; /* of the next two */
	struct guest guests[MAX_CONNECTIONS];
	unsigned n_guests; /* but those who leave */
};

/*
 * Called with the lock held. Who asks within a second after another gets the same: so many scrapes at once cost glaked no
 * more than one. Borrowed until the next look. NULL: glaked does not answer.
 */
static const struct snapshot *look(struct server *server)
{
	bool has_found = server->found.at_ms != 0;
	if (has_found && ctl_now_ms() - server->found.at_ms < FRESH_MS) {
		return &server->found;
	}
	snapshot_deinit(&server->found);
	looker_begin(server->looker);
	int err = looker_end(server->looker, LOOK_MS, &server->found);
	return err ? NULL : &server->found;
}

static void write_metrics(struct server *server, FILE *out)
{
	metrics_write(look(server), server->has_models, out);
}

static void write_map(struct server *server, FILE *out)
{
	(void)server;
	page_write(NULL, out);
}

static void write_memory(struct server *server, FILE *out)
{
	const struct snapshot *snapshot = look(server);
	identities_refresh(&server->identities);
	json_t *document = snapshot ? map_document(&server->map, snapshot, &server->identities)
	                            : map_no_document("glaked does not answer");
	json_dumpf(document, out, CTL_JSON_COMPACT);
	fputc('\n', out);
	json_decref(document);
}

/* For what the map shows over time. While glaked is away, nothing is added. */
static void take_sample(struct server *server)
{
	pthread_mutex_lock(&server->lock);
	const struct snapshot *snapshot = look(server);
	if (snapshot) {
		map_add(&server->map, snapshot);
	}
	pthread_mutex_unlock(&server->lock);
}

static const struct {
	const char *url;
	const char *type;
	void (*write)(struct server *server, FILE *out);
} pages[] = {
	{"/", "text/html; charset=utf-8", write_map},
	{"/api/v1/memory", "application/json", write_memory},
	{"/metrics", "text/plain; version=0.0.4; charset=utf-8", write_metrics},
};

#define N_PAGES (sizeof(pages) / sizeof(pages[0]))

/* ---- answers ---------------------------------------------------------------------------------- */

/* Takes over @text. */
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
	MHD_add_response_header(response, "X-Frame-Options", "DENY");
	MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
	if (status == MHD_HTTP_UNAUTHORIZED) {
		MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE,
		                        "Bearer realm=\"glake\"");
	}
	enum MHD_Result result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *why)
{
	char *text = strdup(why);
	return text ? say(connection, status, "text/plain", text, strlen(text)) : MHD_NO;
}

/* "localhost:9464", "127.0.0.1", "[::1]": not a name that anybody could have pointed to loopback. */
static bool is_loopback(const char *host)
{
	char text[128];
	struct listen_address address;
	int n = snprintf(text, sizeof(text), "%s:80", host);
	bool is_parsed = listen_parse(host, &address) ||
	                 (n < (int)sizeof(text) && listen_parse(text, &address));
	return is_parsed && !listen_is_unix(&address) && listen_is_local(&address);
}

/*
 * A page from elsewhere may point a name of its own to loopback, and read what the browser gets there. It does not know a
 * token.
 */
static bool is_our_host(const struct server *server, struct MHD_Connection *connection)
{
	const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
	                                               MHD_HTTP_HEADER_HOST);
	return listen_is_unix(&server->address) || server->token || !host || is_loopback(host);
}

static bool may_ask(const struct server *server, struct MHD_Connection *connection)
{
	return !server->token || token_is_in(server->token, MHD_lookup_connection_value(
								    connection, MHD_HEADER_KIND,
								    MHD_HTTP_HEADER_AUTHORIZATION));
}

/* ---- guests ----------------------------------------------------------------------------------- */

static void end_guest(struct server *server, struct guest *guest)
{
	shutdown(guest->fd, SHUT_RDWR);
	guest->state = GUEST_LEAVING;
	server->n_guests--;
}

static bool goes_before(const struct guest *guest, const struct guest *other)
{
	return guest->state != other->state ? guest->state < other->state
	                                    : guest->since_ms < other->since_ms;
}

static void make_room(struct server *server)
{
	struct guest *first = NULL;
	for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct guest *guest = &server->guests[i];
		if (guest->state >= GUEST_NEW && (!first || goes_before(guest, first))) {
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
		server->n_guests -= guest->state >= GUEST_NEW;
		*guest = (struct guest){.state = GUEST_NONE};
	} else {
		if (server->n_guests >= MAX_GUESTS) {
			make_room(server);
		}
		size_t i = 0;
		/* There are as many places as connections, at most. */
		while (i < MAX_CONNECTIONS - 1 && server->guests[i].state != GUEST_NONE) {
			i++;
		}
		server->guests[i] = (struct guest){
			.state = GUEST_NEW,
			.fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
		                      ->connect_fd,
			.since_ms = ctl_now_ms(),
		};
		*place = &server->guests[i];
		server->n_guests++;
	}
	pthread_mutex_unlock(&server->guests_lock);
}

/* @may: who may not ask goes before who may, as if it had not asked. */
static void note_request(struct server *server, struct MHD_Connection *connection, bool may)
{
	struct guest *guest = MHD_get_connection_info(connection,
	                                              MHD_CONNECTION_INFO_SOCKET_CONTEXT)
	                              ->socket_context;
	pthread_mutex_lock(&server->guests_lock);
	guest->since_ms = ctl_now_ms();
	guest->state = may && guest->state == GUEST_NEW ? GUEST_HAS_ASKED : guest->state;
	pthread_mutex_unlock(&server->guests_lock);
}

/* The library counts only silence, which one byte now and then breaks. */
static void end_slow_guests(struct server *server)
{
	uint64_t now_ms = ctl_now_ms();
	pthread_mutex_lock(&server->guests_lock);
	for (size_t i = 0; i < MAX_CONNECTIONS; i++) {
		struct guest *guest = &server->guests[i];
		if (guest->state >= GUEST_NEW && now_ms - guest->since_ms > TURN_MS) {
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
	bool may = may_ask(server, connection);
	note_request(server, connection, may);
	if (!may) {
		return refuse(
			connection, MHD_HTTP_UNAUTHORIZED,
			"the header 'Authorization: Bearer TOKEN' is needed, with the token of "
			"--token-file\n");
	}
	if (!is_our_host(server, connection)) {
		return refuse(connection, MHD_HTTP_FORBIDDEN, "ask for localhost\n");
	}
	size_t i = 0;
	while (i < N_PAGES && strcmp(pages[i].url, url) != 0) {
		i++;
	}
	if (i == N_PAGES) {
		return refuse(connection, MHD_HTTP_NOT_FOUND, "/, /api/v1/memory and /metrics\n");
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

static void refresh_token(struct ctl *ctl, struct server *server)
{
	char why[TOKEN_ERROR_BYTES];
	if (server->token && token_refresh(server->token, why) < 0) {
		fprintf(ctl->err, "glakectl: metrics: the token stays as it was: %s\n", why);
	}
}

static void sample_until_signal(struct ctl *ctl, struct server *server, const sigset_t *signals)
{
	const struct timespec period = {.tv_sec = SAMPLE_S};
	do {
		take_sample(server);
		end_slow_guests(server);
		refresh_token(ctl, server);
	} while (sigtimedwait(signals, NULL, &period) < 0);
}

/* NULL: it cannot. */
static struct MHD_Daemon *start(struct server *server, int fd)
{
	if (!server->looker) {
		return NULL;
	}
	return MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL,
	                        answer, server, MHD_OPTION_LISTEN_SOCKET, fd,
	                        MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS,
	                        MHD_OPTION_NOTIFY_CONNECTION, note_guest, server, MHD_OPTION_END);
}

static int serve(struct ctl *ctl, const struct serve_options *options, struct server *server)
{
	sigset_t signals;
	listen_parse(options->address, &server->address);
	int fd = listen_open(&server->address, MAX_CONNECTIONS);
	if (fd < 0) {
		return cannot(ctl, options->address, fd);
	}
	/* The thread of the library inherits it. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	server->looker = looker_new_following(ctl);
	struct MHD_Daemon *http = start(server, fd);
	if (!http) {
		looker_free(server->looker);
		close(fd);
		return cannot(ctl, options->address, -EIO);
	}
	fprintf(ctl->err, "glakectl: metrics: serving %s\n", options->address);
	sd_notify(0, "READY=1");
	sample_until_signal(ctl, server, &signals);
	MHD_stop_daemon(http);
	looker_free(server->looker);
	snapshot_deinit(&server->found);
	map_deinit(&server->map);
	identities_deinit(&server->identities);
	if (listen_is_unix(&server->address)) {
		unlink(server->address.un.sun_path);
	}
	return 0;
}

int serve_run(struct ctl *ctl, const struct serve_options *options)
{
	char why[TOKEN_ERROR_BYTES];
	struct token token;
	struct server server = {
		.has_models = options->has_models,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.guests_lock = PTHREAD_MUTEX_INITIALIZER,
	};
	if (options->token_file) {
		if (token_init(&token, options->token_file, why) < 0) {
			fprintf(ctl->err, "glakectl: metrics: no token: %s\n", why);
			return CTL_E_SAID;
		}
		server.token = &token;
	}
	int err = serve(ctl, options, &server);
	if (server.token) {
		token_deinit(&token);
	}
	return err;
}
