/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/base/text.h"
#include "daemon/net/conn.h"
#include "daemon/net/listener.h"
#include "daemon/rpc/rpc_turned_away.h"
#include "proto/cleanup.h"

#define MIN_WAIT_MS 2000u
#define MAX_WAIT_MS 60000u
/* Callers at a time, and how long one may take to say Hello. More wait in the backlog. */
#define MAX_CALLERS 256u
#define GREETING_MS 1000u
#define TICK_MS 250u
#define WHY_BYTES 480u

struct waiting {
	uv_loop_t *loop;
	struct listener *listener; /* owned */
	struct list callers;
	unsigned n_callers; /* those that are closing, too */
	char why[WHY_BYTES];
	uint64_t end_ms; /* by the loop's clock */
	bool is_over;
	bool is_ended; /* by SIGINT */
	uv_timer_t tick;
	uv_timer_t watchdog;
	uv_signal_t signals[3];
};

struct caller {
	struct list link; /* link: waiting.callers, until it is closing */
	struct waiting *waiting;
	struct conn conn;
	uint64_t since_ms;
};

/* ---- how long -------------------------------------------------------------------------------- */

/* The time since the boot, so that a clock that is set changes nothing. */
static uint64_t boot_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool path_of(const char *beside, char path_out[PATH_MAX])
{
	return snprintf(path_out, PATH_MAX, "%s.no-gpu", beside) < PATH_MAX;
}

/* When the first of this row began to wait; now, if it is this one. */
static uint64_t first_ms(const char *beside)
{
	char path[PATH_MAX];
	char text[32] = "";
	uint64_t now_ms = boot_ms();
	if (!path_of(beside, path)) {
		return now_ms;
	}
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
	                         0600);
	ssize_t n = fd >= 0 ? pread(fd, text, sizeof(text) - 1, 0) : -1;
	uint64_t first = n > 0 ? strtoull(text, NULL, 10) : 0;
	if (first > 0 && first <= now_ms) {
		return first;
	}
	/* None yet, or of another boot. Without the file each wait is the shortest. */
	int n_bytes = snprintf(text, sizeof(text), "%" PRIu64 "\n", now_ms);
	if (fd >= 0 && (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n_bytes, 0) < 0)) {
		log_warning("cannot write %s: %s", path, strerror(errno));
	}
	return now_ms;
}

static uint64_t wait_ms(const char *beside)
{
	/* glaked has waited this long already, and waits as long again. */
	uint64_t ms = boot_ms() - first_ms(beside);
	return ms < MIN_WAIT_MS ? MIN_WAIT_MS : ms > MAX_WAIT_MS ? MAX_WAIT_MS : ms;
}

void waiting_forget(const char *beside)
{
	char path[PATH_MAX];
	if (path_of(beside, path)) {
		unlink(path);
	}
}

/* ---- callers --------------------------------------------------------------------------------- */

static void on_caller_closed(struct conn *conn)
{
	struct caller *caller = container_of(conn, struct caller, conn);
	caller->waiting->n_callers--;
	free(caller);
}

static void close_caller(struct caller *caller)
{
	if (!caller->conn.is_closing) {
		list_remove(&caller->link);
		conn_close(&caller->conn, on_caller_closed);
	}
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	uint8_t answer[TURNED_AWAY_BYTES];
	char text[WHY_BYTES + 64];
	struct caller *caller = container_of(conn, struct caller, conn);
	const struct waiting *waiting = caller->waiting;
	uint64_t now_ms = uv_now(waiting->loop);
	uint64_t left_ms = waiting->end_ms > now_ms ? waiting->end_ms - now_ms : 0;
	snprintf(text, sizeof(text), "glaked owns no GPU: %s; it looks again in %" PRIu64 " s",
	         waiting->why, (left_ms + 999) / 1000);
	size_t n_answer = turned_away_answer(bytes, n_bytes, STATUS_NO_DRIVER, text, answer);
	if (n_answer > 0) {
		conn_send(conn, answer, n_answer, NULL, 0);
	}
	close_caller(caller);
}

static void on_end(struct conn *conn, enum conn_end end, int error)
{
	close_caller(container_of(conn, struct caller, conn));
}

static void on_connection(void *user, int fd)
{
	struct waiting *waiting = user;
	struct caller *caller = calloc(1, sizeof(*caller));
	if (!caller || conn_open(&caller->conn, waiting->loop, fd, on_packet, on_end) < 0) {
		free(caller);
		close(fd);
		return;
	}
	caller->waiting = waiting;
	caller->since_ms = uv_now(waiting->loop);
	list_insert(&waiting->callers, &caller->link);
	if (++waiting->n_callers >= MAX_CALLERS) {
		listener_pause(waiting->listener);
	}
}

/* ---- the wait -------------------------------------------------------------------------------- */

static void close_handles(struct waiting *waiting)
{
	uv_close((uv_handle_t *)&waiting->tick, NULL);
	uv_close((uv_handle_t *)&waiting->watchdog, NULL);
	for (size_t i = 0; i < n_elements(waiting->signals); i++) {
		uv_close((uv_handle_t *)&waiting->signals[i], NULL);
	}
}

static void stop(struct waiting *waiting)
{
	struct caller *caller;
	struct caller *spare;
	if (waiting->is_over) {
		return;
	}
	waiting->is_over = true;
	notify_stopping();
	listener_close(waiting->listener);
	list_for_each_safe (caller, spare, &waiting->callers, link) {
		close_caller(caller);
	}
	close_handles(waiting);
}

static void on_tick(uv_timer_t *timer)
{
	struct waiting *waiting = container_of(timer, struct waiting, tick);
	struct caller *caller;
	struct caller *spare;
	uint64_t now_ms = uv_now(waiting->loop);
	list_for_each_safe (caller, spare, &waiting->callers, link) {
		if (now_ms - caller->since_ms >= GREETING_MS) {
			close_caller(caller);
		}
	}
	if (now_ms >= waiting->end_ms) {
		stop(waiting);
	} else if (waiting->n_callers < MAX_CALLERS) {
		listener_resume(waiting->listener);
	}
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct waiting *waiting = handle->data;
	log_info("%s: glaked has no GPU, and ends", strsignal(number));
	waiting->is_ended = number == SIGINT;
	stop(waiting);
}

static void on_watchdog(uv_timer_t *timer)
{
	notify_watchdog();
}

static void open_handles(struct waiting *waiting)
{
	static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
	uv_timer_init(waiting->loop, &waiting->tick);
	uv_timer_init(waiting->loop, &waiting->watchdog);
	for (size_t i = 0; i < n_elements(numbers); i++) {
		uv_signal_init(waiting->loop, &waiting->signals[i]);
		waiting->signals[i].data = waiting;
		uv_signal_start(&waiting->signals[i], on_signal, numbers[i]);
	}
}

static void begin(struct waiting *waiting, const char *beside)
{
	char status[WHY_BYTES + 64];
	uint64_t ms = wait_ms(beside);
	uv_update_time(waiting->loop);
	waiting->end_ms = uv_now(waiting->loop) + ms;
	uv_timer_start(&waiting->tick, on_tick, TICK_MS, TICK_MS);
	uint64_t watchdog_ms = notify_watchdog_interval_ms();
	if (watchdog_ms) {
		uv_timer_start(&waiting->watchdog, on_watchdog, 0, watchdog_ms);
	}
	log_warning("glaked owns no GPU, and tells clients so; the next one looks again in %" PRIu64
	            " s",
	            ms / 1000);
	snprintf(status, sizeof(status), "no GPU: %s", waiting->why);
	notify_ready(status);
}

bool waiting_run(uv_loop_t *loop, struct fdstore *store, const struct config *config,
                 const char *socket_path, const char *why)
{
	char path[LISTENER_PATH_BYTES];
	char beside[PATH_MAX];
	struct waiting waiting = {.loop = loop};
	list_init(&waiting.callers);
	snprintf(waiting.why, sizeof(waiting.why), "%s", why);
	text_clean(waiting.why);
	turns_begin(loop);
	/* Before others see the socket: a signal waits for the loop from now on. */
	open_handles(&waiting);
	int r = listener_open(loop, store, socket_path, config->socket_mode, on_connection,
	                      &waiting, &waiting.listener);
	if (r == 0) {
		/* The path is that of open_books(): a socket unit has its own. */
		listener_get_path(waiting.listener, path);
		snprintf(beside, sizeof(beside), "%s.state", path[0] ? path : socket_path);
		begin(&waiting, config->state_path ? config->state_path : beside);
		while (!waiting.is_over || waiting.n_callers > 0) {
			uv_run(loop, UV_RUN_ONCE);
		}
	} else {
		close_handles(&waiting);
	}
	/* Run the close callbacks of the handles. */
	uv_run(loop, UV_RUN_NOWAIT);
	turns_end();
	return r == 0 && !waiting.is_ended;
}
