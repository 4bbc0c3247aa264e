/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/fdkeeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/fdlist.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

#define NAME_BYTES 64u

struct kept {
	char name[NAME_BYTES];
	int fd;
};

/* ---- the process ----------------------------------------------------------------------------- */

static struct kept kept[FDKEEPER_MAX];
static size_t n_kept;
static int stalled[FDKEEPER_MAX];
static size_t n_stalled;
static bool is_stalling;

static const char *value_of(const char *text, const char *key, char *value, size_t n_bytes)
{
	const char *at = strstr(text, key);
	if (!at) {
		return NULL;
	}
	at += strlen(key);
	snprintf(value, n_bytes, "%.*s", (int)strcspn(at, "\n"), at);
	return value;
}

static void forget(const char *name, bool is_prefix)
{
	for (size_t i = 0; i < n_kept;) {
		if (is_prefix ? strncmp(kept[i].name, name, strlen(name)) == 0
		              : strcmp(kept[i].name, name) == 0) {
			close(kept[i].fd);
			memmove(&kept[i], &kept[i + 1], (n_kept - i - 1) * sizeof(kept[0]));
			n_kept--;
		} else {
			i++;
		}
	}
}

static void answer_barriers(void)
{
	while (n_stalled > 0) {
		close(stalled[--n_stalled]);
	}
}

static void take_notification(int notify_fd, int control)
{
	char text[1024];
	char name[NAME_BYTES];
	size_t n_bytes;
	struct fdlist fds;
	fdlist_init(&fds);
	if (wire_recv(notify_fd, text, sizeof(text) - 1, &n_bytes, &fds, 0) != 0) {
		return;
	}
	text[n_bytes] = '\0';
	if (strstr(text, "FDSTORE=1") && value_of(text, "FDNAME=", name, sizeof(name)) &&
	    n_kept < FDKEEPER_MAX) {
		kept[n_kept].fd = fdlist_take(&fds, 0);
		strcpy(kept[n_kept++].name, name);
	} else if (strstr(text, "FDSTOREREMOVE=1") &&
	           value_of(text, "FDNAME=", name, sizeof(name))) {
		forget(name, false);
	} else if (strstr(text, "BARRIER=1")) {
		stalled[n_stalled++] = fdlist_take(&fds, 0);
	} else if (!strstr(text, "STATUS=") || strstr(text, "READY=1")) {
		send(control, text, n_bytes, MSG_NOSIGNAL);
	}
	if (!is_stalling) {
		answer_barriers();
	}
	fdlist_deinit(&fds);
}

static void obey(int control)
{
	char order[NAME_BYTES + 1];
	ssize_t n = recv(control, order, sizeof(order) - 1, 0);
	if (n <= 0) {
		_exit(0);
	}
	order[n] = '\0';
	if (order[0] == 'f') {
		forget(order + 1, true);
	} else if (order[0] == 's') {
		is_stalling = !is_stalling;
		if (!is_stalling) {
			answer_barriers();
		}
	}
}

/* Answer orders on a second control socket, at once. */
static void answer(int orders)
{
	char order[8];
	if (recv(orders, order, sizeof(order), 0) <= 0) {
		_exit(0);
	}
	for (size_t i = 0; order[0] == 'p' && i < n_kept; i++) {
		wire_send(orders, kept[i].name, strlen(kept[i].name) + 1, &kept[i].fd, 1, 0);
	}
	uint64_t n = n_kept;
	wire_send(orders, &n, sizeof(n), NULL, 0, 0);
}

static void keep(int notify_fd, int control, int orders)
{
	struct pollfd ready[] = {{.fd = notify_fd, .events = POLLIN},
	                         {.fd = control, .events = POLLIN},
	                         {.fd = orders, .events = POLLIN}};
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		poll(ready, n_elements(ready), -1);
		/* Notifications of glaked go first. */
		if (ready[0].revents) {
			take_notification(notify_fd, control);
		} else if (ready[1].revents) {
			obey(control);
		} else if (ready[2].revents) {
			answer(orders);
		}
	}
}

/* ---- the test -------------------------------------------------------------------------------- */

void fdkeeper_begin(struct fdkeeper *keeper, int notify_fd)
{
	int control[2];
	int orders[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, orders), 0);
	keeper->pid = fork();
	ck_assert_int_ge(keeper->pid, 0);
	if (keeper->pid == 0) {
		close(control[0]);
		close(orders[0]);
		keep(notify_fd, control[1], orders[1]);
	}
	close(control[1]);
	close(orders[1]);
	close(notify_fd);
	keeper->control = control[0];
	keeper->orders = orders[0];
}

void fdkeeper_end(struct fdkeeper *keeper)
{
	if (keeper->pid) {
		kill(keeper->pid, SIGKILL);
		waitpid(keeper->pid, NULL, 0);
		close(keeper->control);
		close(keeper->orders);
	}
	*keeper = (struct fdkeeper){0};
}

void fdkeeper_pass(const struct fdkeeper *keeper, int listen_fd)
{
	static char names[128 * 1024];
	static int fds[FDKEEPER_MAX + 1];
	char number[24];
	char name[NAME_BYTES] = "glaked.socket";
	/* The duplicates lie beyond their final numbers, so that none is overwritten. */
	int first = 4 + (int)fdkeeper_n_kept(keeper);
	int orders = fcntl(keeper->orders, F_DUPFD_CLOEXEC, first);
	size_t n = 0;
	struct fdlist received;
	fdlist_init(&received);
	int fd = listen_fd >= 0 ? fcntl(listen_fd, F_DUPFD, first) : -1;
	send(orders, "p", 1, 0);
	do {
		size_t n_bytes;
		if (fd >= 0) {
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
			         n ? ":" : "", name);
			fds[n++] = fd;
		}
		if (wire_recv(orders, name, sizeof(name), &n_bytes, &received, 0) != 0) {
			_exit(124);
		}
		int low = fdlist_take(&received, 0);
		fd = low < 0 ? -1 : fcntl(low, F_DUPFD, first);
		fd_close(&low);
		fdlist_deinit(&received);
	} while (fd >= 0);
	for (size_t i = 0; i < n; i++) {
		dup2(fds[i], 3 + (int)i);
		close(fds[i]);
	}
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof(number), "%zu", n);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%u", FDKEEPER_MAX);
	setenv("FDSTORE", number, 1);
}

size_t fdkeeper_n_kept(const struct fdkeeper *keeper)
{
	uint64_t n = 0;
	ck_assert_int_eq(send(keeper->orders, "n", 1, 0), 1);
	ck_assert_int_eq(recv(keeper->orders, &n, sizeof(n), 0), sizeof(n));
	return n;
}

static void order(const struct fdkeeper *keeper, char verb, const char *text)
{
	char order[NAME_BYTES];
	int n = snprintf(order, sizeof(order), "%c%s", verb, text);
	ck_assert_int_eq(send(keeper->control, order, (size_t)n, 0), n);
	/* The answer comes after the order is obeyed. */
	fdkeeper_n_kept(keeper);
}

void fdkeeper_forget(const struct fdkeeper *keeper, const char *prefix)
{
	order(keeper, 'f', prefix);
}

void fdkeeper_stall(const struct fdkeeper *keeper)
{
	order(keeper, 's', "");
}
