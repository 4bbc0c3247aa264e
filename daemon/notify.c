/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#define STATUS_BYTES 256u

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
	if (!status) {
		sd_notify(0, "READY=1");
		return;
	}
	char text[STATUS_BYTES];
	snprintf(text, sizeof(text), "%s", status);
	one_line(text);
	sd_notifyf(0, "READY=1\nSTATUS=%s", text);
}

void notify_status(const char *format, ...)
{
	char text[STATUS_BYTES];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	one_line(text);
	sd_notifyf(0, "STATUS=%s", text);
}

void notify_reloading(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
	           (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

void notify_stopping(void)
{
	sd_notify(0, "STOPPING=1");
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

void notify_watchdog(void)
{
	sd_notify(0, "WATCHDOG=1");
}

int notify_listen_fd(void)
{
	int n_fds = sd_listen_fds(1);
	if (n_fds < 0) {
		return n_fds;
	}
	if (n_fds == 0) {
		return -ENOENT;
	}
	int fd = SD_LISTEN_FDS_START;
	if (n_fds == 1 && sd_is_socket(fd, AF_UNIX, SOCK_SEQPACKET, 1) > 0) {
		return fd;
	}
	for (int i = 0; i < n_fds; i++) {
		close(SD_LISTEN_FDS_START + i);
	}
	return -EINVAL;
}
