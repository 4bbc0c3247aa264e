/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>

#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "proto/cleanup.h"
#include "proto/wire.h"

/* The next try when the kernel has too many of our fds in flight. */
#define RETRY_MS 20
/* The name of an fd follows this key. */
#define NAME_KEY "\nFDNAME="

/* A message that waits. */
struct message {
	struct list link;  /* link: fdstore.messages */
	UT_hash_handle hh; /* fdstore.stores, by name, if it is to store */
	const char *name;  /* in the text; NULL: it is not */
	int fd;            /* owned; -1: none goes with it */
	char text[];
};

struct barrier {
	struct list link; /* link: fdstore.barriers */
	uv_poll_t poll;
	int fd; /* owned: the end of a pipe, of which the manager closes the other */
	fdstore_fn fn;
	void *user;
};

struct passed {
	char *name; /* owned */
	int fd;     /* owned; -1: taken */
};

struct fdstore {
	uv_loop_t *loop;
	uv_poll_t poll; /* the manager reads again */
	uv_timer_t retry;
	int n_handles;
	int socket; /* owned; connected to the manager; -1: nobody keeps fds */
	bool is_lost;
	uint32_t max;
	uint32_t n_kept;
	uint32_t name_bytes; /* of the kept */
	bool is_near_full;   /* the log has told it */
	struct list messages;
	struct message *stores; /* of the messages */
	struct list barriers;
	int listener; /* owned; of a socket unit; -1: none, or taken */
	struct passed *passed;
	size_t n_passed;
};

/* ---- sending --------------------------------------------------------------------------------- */

static void drop(struct fdstore *store, struct message *message)
{
	list_remove(&message->link);
	if (message->name) {
		HASH_DEL(store->stores, message);
	}
	fd_close(&message->fd);
	free(message);
}

static int send_now(const struct fdstore *store, const char *text, int fd)
{
	/* A place in the manager's queue is the beat's first. */
	if (!notify_catch_up()) {
		return -EAGAIN;
	}
	return wire_send(store->socket, text, strlen(text), &fd, fd >= 0 ? 1 : 0, MSG_DONTWAIT);
}

static void send_orders(struct fdstore *store);

static void on_writable(uv_poll_t *poll, int status, int events)
{
	uv_poll_stop(poll);
	send_orders(container_of(poll, struct fdstore, poll));
}

static void on_retry(uv_timer_t *timer)
{
	send_orders(container_of(timer, struct fdstore, retry));
}

static void send_orders(struct fdstore *store)
{
	while (!list_is_empty(&store->messages)) {
		struct message *message = list_first(&store->messages, struct message, link);
		int r = send_now(store, message->text, message->fd);
		if (r == -EAGAIN) {
			uv_poll_start(&store->poll, UV_WRITABLE, on_writable);
			return;
		}
		if (r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM) {
			uv_timer_start(&store->retry, on_retry, RETRY_MS, 0);
			return;
		}
		if (r != 0 && !store->is_lost) {
			store->is_lost = true;
			log_error("the service manager does not take fds any more: %s",
			          r > 0 ? "it is gone" : strerror(-r));
		}
		drop(store, message);
	}
}

/* False: no memory. */
static bool enter_store(struct fdstore *store, struct message *message)
{
	message->name = strstr(message->text, NAME_KEY) + strlen(NAME_KEY);
	HASH_ADD_KEYPTR(hh, store->stores, message->name, strlen(message->name), message);
	if (!hash_has(message)) {
		message->name = NULL;
	}
	return message->name;
}

/* @fd -1: none. The message has a duplicate of it. */
static int queue_order(struct fdstore *store, const char *text, int fd, bool is_store)
{
	struct message *message = calloc(1, sizeof(*message) + strlen(text) + 1);
	if (!message) {
		return -ENOMEM;
	}
	message->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd >= 0 && message->fd < 0) {
		int error = errno;
		free(message);
		return -error;
	}
	strcpy(message->text, text);
	list_insert(&store->messages, &message->link);
	if (is_store && !enter_store(store, message)) {
		drop(store, message);
		return -ENOMEM;
	}
	if (store->messages.next == &message->link) {
		send_orders(store);
	}
	return 0;
}

static int give_order(struct fdstore *store, const char *text, int fd, bool is_store)
{
	if (list_is_empty(&store->messages) && send_now(store, text, fd) == 0) {
		return 0;
	}
	return queue_order(store, text, fd, is_store);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

bool fdstore_is_kept(const struct fdstore *store)
{
	return store->socket >= 0;
}

bool fdstore_is_lost(const struct fdstore *store)
{
	return store->is_lost;
}

uint32_t fdstore_n_kept(const struct fdstore *store)
{
	return store->n_kept;
}

uint32_t fdstore_max(const struct fdstore *store)
{
	uint32_t name_bytes = store->n_kept ? store->name_bytes / store->n_kept + 1
	                                    : FDSTORE_SHORT_BYTES;
	uint32_t n = store->n_kept;
	if (store->name_bytes < FDSTORE_NAMES_BYTES) {
		n += (FDSTORE_NAMES_BYTES - store->name_bytes) / name_bytes;
	}
	return n < store->max ? n : store->max;
}

bool fdstore_is_full(const struct fdstore *store)
{
	/* A lost store gets no room by a removal. */
	return !store->is_lost && (store->n_kept >= store->max ||
	                           store->name_bytes + FDSTORE_SHORT_BYTES > FDSTORE_NAMES_BYTES);
}

/* sd_notify(3) allows only these characters. */
static bool is_name(const char *name)
{
	size_t n_bytes = strlen(name);
	for (size_t i = 0; i < n_bytes; i++) {
		if (name[i] <= ' ' || name[i] >= 0x7f || name[i] == ':') {
			return false;
		}
	}
	return n_bytes > 0 && n_bytes < FDSTORE_NAME_BYTES;
}

/* @n is more than @eighths eighths of @limit. */
static bool is_above(uint64_t n, uint64_t limit, unsigned eighths)
{
	return n * 8 > limit * eighths;
}

static void count(struct fdstore *store, const char *name, int sign)
{
	store->n_kept += (uint32_t)sign;
	store->name_bytes += (uint32_t)sign * (uint32_t)(strlen(name) + 1);
	bool is_near_full = is_above(store->n_kept, store->max, 7) ||
	                    is_above(store->name_bytes, FDSTORE_NAMES_BYTES, 7);
	if (is_near_full && !store->is_near_full) {
		log_warning("the fd store is nearly full: %u of %u fds (FileDescriptorStoreMax=), "
		            "%u of %u bytes of names",
		            store->n_kept, store->max, store->name_bytes, FDSTORE_NAMES_BYTES);
		store->is_near_full = true;
	} else if (!is_above(store->n_kept, store->max, 6) &&
	           !is_above(store->name_bytes, FDSTORE_NAMES_BYTES, 6)) {
		store->is_near_full = false;
	}
}

int fdstore_put(struct fdstore *store, const char *name, int fd)
{
	static struct log_limit limit;
	char text[FDSTORE_NAME_BYTES + 64];
	if (!fdstore_is_kept(store) || store->is_lost) {
		return -ENOTSUP;
	}
	if (!is_name(name)) {
		return -EINVAL;
	}
	if (store->n_kept >= store->max ||
	    store->name_bytes + strlen(name) + 1 > FDSTORE_NAMES_BYTES) {
		log_limited(&limit, LOG_LEVEL_ERROR, "the fd store is full with %u fds",
		            store->n_kept);
		return -ENOSPC;
	}
	/* FDPOLL=0: pollable fds, such as pidfds, are kept after their end, too. */
	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0" NAME_KEY "%s", name);
	int r = give_order(store, text, fd, true);
	if (r == 0 && store->is_lost) {
		r = -ENOTSUP;
	}
	if (r == 0) {
		count(store, name, 1);
	}
	return r;
}

/* Drop the message that stores @name if it was not sent: then the manager need not hear of the fd. False: it was sent. */
static bool take_back(struct fdstore *store, const char *name)
{
	struct message *message = NULL;
	HASH_FIND(hh, store->stores, name, strlen(name), message);
	if (message) {
		drop(store, message);
	}
	return message;
}

bool fdstore_remove(struct fdstore *store, const char *name)
{
	char text[FDSTORE_NAME_BYTES + 64];
	if (!fdstore_is_kept(store) || !is_name(name) || store->n_kept == 0) {
		return false;
	}
	bool is_told = !take_back(store, name);
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1" NAME_KEY "%s", name);
	if (is_told && give_order(store, text, -1, false) < 0) {
		log_error("cannot remove %s from the fd store: no host memory", name);
		return false;
	}
	count(store, name, -1);
	return is_told;
}

/* ---- barriers -------------------------------------------------------------------------------- */

static void on_barrier_closed(uv_handle_t *handle)
{
	struct barrier *barrier = container_of(handle, struct barrier, poll);
	fd_close(&barrier->fd);
	free(barrier);
}

static void end_barrier(struct barrier *barrier)
{
	list_remove(&barrier->link);
	uv_close((uv_handle_t *)&barrier->poll, on_barrier_closed);
}

/* Nobody writes into the pipe: this is its end. */
static void on_pipe_end(uv_poll_t *poll, int status, int events)
{
	struct barrier *barrier = container_of(poll, struct barrier, poll);
	fdstore_fn fn = barrier->fn;
	void *user = barrier->user;
	end_barrier(barrier);
	fn(user);
}

int fdstore_barrier(struct fdstore *store, fdstore_fn fn, void *user)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
		return -errno;
	}
	cleanup_fd int our_end = ends[0];
	cleanup_fd int its_end = ends[1];
	cleanup_free struct barrier *barrier = calloc(1, sizeof(*barrier));
	if (!barrier) {
		return -ENOMEM;
	}
	int r = fdstore_is_kept(store) ? give_order(store, "BARRIER=1", its_end, false) : 0;
	if (r == 0) {
		r = uv_poll_init(store->loop, &barrier->poll, our_end);
	}
	if (r < 0) {
		return r;
	}
	barrier->fd = fd_steal(&our_end);
	barrier->fn = fn;
	barrier->user = user;
	list_insert(&store->barriers, &barrier->link);
	/* uv_poll_start() fails only for a handle that is closing. */
	uv_poll_start(&barrier->poll, UV_READABLE, on_pipe_end);
	ptr_steal(barrier);
	return 0;
}

/* ---- what was passed ------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct passed *)a)->name, ((const struct passed *)b)->name);
}

static bool is_socket(int fd)
{
	struct stat status;
	return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

/* Moves @fd, and @name, to where they belong. */
static int sort_passed(struct fdstore *store, int fd, char **name)
{
	if (is_socket(fd)) {
		if (sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) <= 0) {
			return -EINVAL;
		}
		if (strcmp(*name, FDSTORE_LISTEN) != 0) {
			if (store->listener >= 0) {
				return -EINVAL;
			}
			store->listener = fd;
			return 0;
		}
	}
	store->passed[store->n_passed++] = (struct passed){ptr_steal(*name), fd};
	return 0;
}

static int take_passed(struct fdstore *store)
{
	char **names = NULL;
	int n_fds = sd_listen_fds_with_names(1, &names);
	if (n_fds <= 0) {
		return n_fds;
	}
	int r = 0;
	store->passed = calloc((size_t)n_fds, sizeof(*store->passed));
	for (int i = 0; i < n_fds; i++) {
		int fd = SD_LISTEN_FDS_START + i;
		r = r < 0 ? r : store->passed ? sort_passed(store, fd, &names[i]) : -ENOMEM;
		if (r < 0) {
			close(fd);
		}
		free(names[i]);
	}
	free(names);
	if (store->n_passed > 0) {
		qsort(store->passed, store->n_passed, sizeof(*store->passed), by_name);
	}
	return r;
}

static struct passed *find_passed(const struct fdstore *store, const char *name)
{
	struct passed wanted = {.name = (char *)name};
	return store->n_passed == 0
	               ? NULL
	               : bsearch(&wanted, store->passed, store->n_passed, sizeof(wanted), by_name);
}

int fdstore_take_listener(struct fdstore *store)
{
	return store->listener < 0 ? -ENOENT : fd_steal(&store->listener);
}

int fdstore_take(struct fdstore *store, const char *name)
{
	struct passed *passed = find_passed(store, name);
	return !passed || passed->fd < 0 ? -ENOENT : fd_steal(&passed->fd);
}

const char *fdstore_passed(const struct fdstore *store, size_t index)
{
	return index < store->n_passed ? store->passed[index].name : NULL;
}

static void free_passed(struct passed *passed, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		fd_close(&passed[i].fd);
		free(passed[i].name);
	}
	free(passed);
}

size_t fdstore_settle(struct fdstore *store)
{
	size_t n_closed = 0;
	for (size_t i = 0; i < store->n_passed; i++) {
		if (store->passed[i].fd >= 0) {
			fdstore_remove(store, store->passed[i].name);
			n_closed++;
		}
	}
	if (n_closed > 0) {
		log_warning("closing %zu fds of an earlier glaked that nothing describes",
		            n_closed);
	}
	free_passed(store->passed, store->n_passed);
	store->passed = NULL;
	store->n_passed = 0;
	return n_closed;
}

/* Meanwhile the loop does not send what waits. */
static bool wait_for_end(struct fdstore *store, int pipe, uint64_t patience_ms)
{
	uint64_t end_ns = uv_hrtime() + patience_ms * 1000000u;
	struct pollfd ready[] = {{.fd = pipe, .events = POLLIN},
	                         {.fd = store->socket, .events = POLLOUT}};
	while (uv_hrtime() < end_ns) {
		bool is_sent = list_is_empty(&store->messages);
		poll(ready, is_sent ? 1 : 2, RETRY_MS);
		if (ready[0].revents) {
			return true;
		}
		send_orders(store);
	}
	return false;
}

int fdstore_await(struct fdstore *store, uint64_t patience_ms)
{
	int ends[2];
	if (!fdstore_is_kept(store)) {
		return 0;
	}
	if (pipe2(ends, O_CLOEXEC) < 0) {
		return -errno;
	}
	cleanup_fd int our_end = ends[0];
	int r = give_order(store, "BARRIER=1", ends[1], false);
	fd_close(&ends[1]);
	if (r == 0 && !wait_for_end(store, our_end, patience_ms)) {
		r = -ETIMEDOUT;
	}
	return r;
}

/* ---- the beginning and the end --------------------------------------------------------------- */

static void store_free(struct fdstore *store)
{
	fd_close(&store->socket);
	fd_close(&store->listener);
	free_passed(store->passed, store->n_passed);
	free(store);
}

/* Nobody keeps fds if it does not say how many. */
static int connect_manager(struct fdstore *store)
{
	const char *text = getenv("FDSTORE");
	unsigned long max = text ? strtoul(text, NULL, 10) : 0;
	if (max == 0) {
		return 0;
	}
	int fd = notify_connect();
	if (fd < 0) {
		log_warning("nobody keeps fds: cannot connect to the service manager: %s",
		            strerror(-fd));
		return 0;
	}
	store->socket = fd;
	store->max = max < UINT32_MAX ? (uint32_t)max : UINT32_MAX;
	for (size_t i = 0; i < store->n_passed; i++) {
		count(store, store->passed[i].name, 1);
	}
	return uv_poll_init(store->loop, &store->poll, store->socket);
}

int fdstore_open(uv_loop_t *loop, struct fdstore **store_out)
{
	struct fdstore *store = calloc(1, sizeof(*store));
	if (!store) {
		return -ENOMEM;
	}
	store->loop = loop;
	store->socket = -1;
	store->listener = -1;
	list_init(&store->messages);
	list_init(&store->barriers);
	int r = take_passed(store);
	if (r == 0) {
		r = connect_manager(store);
	}
	if (r < 0) {
		store_free(store);
		return r;
	}
	uv_timer_init(loop, &store->retry);
	*store_out = store;
	return 0;
}

static void on_closed(struct fdstore *store)
{
	if (--store->n_handles == 0) {
		store_free(store);
	}
}

static void on_poll_closed(uv_handle_t *handle)
{
	on_closed(container_of(handle, struct fdstore, poll));
}

static void on_retry_closed(uv_handle_t *handle)
{
	on_closed(container_of(handle, struct fdstore, retry));
}

void fdstore_close(struct fdstore *store)
{
	if (!store) {
		return;
	}
	while (!list_is_empty(&store->barriers)) {
		end_barrier(list_first(&store->barriers, struct barrier, link));
	}
	while (!list_is_empty(&store->messages)) {
		drop(store, list_first(&store->messages, struct message, link));
	}
	if (fdstore_is_kept(store)) {
		store->n_handles++;
		uv_close((uv_handle_t *)&store->poll, on_poll_closed);
	}
	store->n_handles++;
	uv_close((uv_handle_t *)&store->retry, on_retry_closed);
}
