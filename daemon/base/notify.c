/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

#define STATUS_BYTES 256u
/* A message that the manager must hear waits this long for room in its queue. */
#define PATIENCE_US 100000

/* "/path" or "@abstract". Returns the length for connect(), 0 when it is neither. */
static socklen_t manager_address(const char *text, struct sockaddr_un *address_out)
{
	size_t n_bytes = strlen(text);
	if ((text[0] != '/' && text[0] != '@') || n_bytes < 2 ||
	    n_bytes >= sizeof(address_out->sun_path)) {
		return 0;
	}
	*address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(address_out->sun_path, text, n_bytes);
	if (text[0] == '@') {
		address_out->sun_path[0] = '\0';
	}
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n_bytes);
}

int notify_connect(void)
{
	struct sockaddr_un address;
	const char *manager = getenv("NOTIFY_SOCKET");
	socklen_t length = manager ? manager_address(manager, &address) : 0;
	if (length == 0) {
		return -ENOENT;
	}
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) < 0) {
		return -errno;
	}
	return fd_steal(&fd);
}

/* sd_notify() would block the loop for as long as the manager does not read. Returns 0 or -errno. */
static int tell(const char *text, bool may_wait)
{
	const struct timeval patience = {.tv_usec = PATIENCE_US};
	int flags = MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT);
	cleanup_fd int fd = notify_connect();
	if (fd < 0) {
		return fd;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
	    send(fd, text, strlen(text), flags) < 0) {
		return -errno;
	}
	return 0;
}

static void one_line(char *text)
{
	for (; *text; text++) {
		if (*text == '\n' || *text == '\r') {
			*text = ' ';
		}
	}
}

void notify_ready(const char *status)
{
	char text[STATUS_BYTES];
	int n_bytes = snprintf(text, sizeof(text), "READY=1");
	if (status) {
		snprintf(text + n_bytes, sizeof(text) - (size_t)n_bytes, "\nSTATUS=%s", status);
		one_line(text + n_bytes + 1);
	}
	tell(text, true);
}

void notify_status(const char *format, ...)
{
	static char last[STATUS_BYTES];
	char text[STATUS_BYTES];
	va_list arguments;
	int n_bytes = snprintf(text, sizeof(text), "STATUS=");
	va_start(arguments, format);
	vsnprintf(text + n_bytes, sizeof(text) - (size_t)n_bytes, format, arguments);
	va_end(arguments);
	one_line(text);
	if (strcmp(text, last) != 0 && tell(text, false) == 0) {
		strcpy(last, text);
	}
}

void notify_reloading(void)
{
	char text[64];
	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_now_ns() / 1000);
	tell(text, true);
}

void notify_stopping(void)
{
	tell("STOPPING=1", true);
}

uint64_t notify_watchdog_interval_ms(void)
{
	uint64_t patience_us;
	if (sd_watchdog_enabled(0, &patience_us) <= 0) {
		return 0;
	}
	/* Below 2 ms the half would be 0, which means that nobody watches. */
	uint64_t interval_ms = patience_us / 2000;
	return interval_ms ? interval_ms : 1;
}

static bool is_beat_due;

bool notify_catch_up(void)
{
	if (is_beat_due) {
		/* A manager that is gone hears none. */
		is_beat_due = tell("WATCHDOG=1", false) == -EAGAIN;
	}
	return !is_beat_due;
}

bool notify_watchdog(void)
{
	is_beat_due = true;
	return notify_catch_up();
}
