/* SPDX-License-Identifier: Apache-2.0 */
/* The messages to the service manager. */
#include "daemon/base/notify.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/check_glake.h"

/* Becomes the manager: an abstract datagram socket in $NOTIFY_SOCKET. */
static int manager(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n_bytes = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
	                       "glake-notify-%d", (int)getpid());
	char name[128];
	snprintf(name, sizeof(name), "@%s", address.sun_path + 1);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                               (size_t)n_bytes);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, length), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	return fd;
}

static const char *told(int fd)
{
	static char text[1024];
	ssize_t n_bytes = recv(fd, text, sizeof(text) - 1, 0);
	text[n_bytes > 0 ? n_bytes : 0] = '\0';
	return text;
}

START_TEST(states_are_told)
{
	int fd = manager();
	notify_ready("2 devices");
	ck_assert_str_eq(told(fd), "READY=1\nSTATUS=2 devices");
	notify_ready(NULL);
	ck_assert_str_eq(told(fd), "READY=1");
	notify_status("%d sessions", 3);
	ck_assert_str_eq(told(fd), "STATUS=3 sessions");
	notify_stopping();
	ck_assert_str_eq(told(fd), "STOPPING=1");
	notify_watchdog();
	ck_assert_str_eq(told(fd), "WATCHDOG=1");
	unsigned long long us = 0;
	notify_reloading();
	ck_assert_int_eq(sscanf(told(fd), "RELOADING=1\nMONOTONIC_USEC=%llu", &us), 1);
	ck_assert_uint_gt(us, 0);
}
END_TEST

START_TEST(status_is_one_line)
{
	int fd = manager();
	notify_status("loading %s", "x\nMAINPID=1\rREADY=1");
	ck_assert_str_eq(told(fd), "STATUS=loading x MAINPID=1 READY=1");
	notify_ready("a\nb");
	ck_assert_str_eq(told(fd), "READY=1\nSTATUS=a b");
}
END_TEST

START_TEST(same_status_is_told_once)
{
	int fd = manager();
	notify_status("%d sessions", 3);
	notify_status("%d sessions", 3);
	notify_status("%d sessions", 4);
	ck_assert_str_eq(told(fd), "STATUS=3 sessions");
	ck_assert_str_eq(told(fd), "STATUS=4 sessions");
	ck_assert_str_eq(told(fd), "");
}
END_TEST

/* The queue of a datagram socket is short: one that is not read is soon full. Whoever waits for its reader then waits for ever. */
START_TEST(manager_that_does_not_read_does_not_block)
{
	int fd = manager();
	for (int i = 0; i < 10000; i++) {
		notify_status("%d sessions", i);
		notify_watchdog();
	}
	notify_stopping();
	while (*told(fd)) {
	}
	/* A status that was not told is told when it is said again. */
	notify_status("%d sessions", 9999);
	ck_assert_str_eq(told(fd), "STATUS=9999 sessions");
}
END_TEST

/* A beat is due until it was sent, and is sent once. */
START_TEST(a_beat_is_not_lost_in_a_full_queue)
{
	int fd = manager();
	for (int i = 0; i < 10000; i++) {
		notify_status("%d sessions", i);
	}
	ck_assert(!notify_watchdog());
	ck_assert(!notify_catch_up());
	while (*told(fd)) {
	}
	ck_assert(notify_catch_up());
	ck_assert_str_eq(told(fd), "WATCHDOG=1");
	ck_assert(notify_catch_up());
	ck_assert_str_eq(told(fd), "");
	/* One that is gone does not hold up others. */
	close(fd);
	ck_assert(notify_watchdog());
}
END_TEST

START_TEST(without_manager_nothing_happens)
{
	unsetenv("NOTIFY_SOCKET");
	notify_ready("x");
	notify_status("x");
	notify_reloading();
	notify_stopping();
	notify_watchdog();
	setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
	notify_ready("x");
	setenv("NOTIFY_SOCKET", "@", 1);
	notify_ready("x");
	setenv("NOTIFY_SOCKET", "relative", 1);
	notify_ready("x");
}
END_TEST

START_TEST(watchdog_interval_is_half_the_patience)
{
	unsetenv("WATCHDOG_USEC");
	ck_assert_uint_eq(notify_watchdog_interval_ms(), 0);
	setenv("WATCHDOG_USEC", "10000000", 1);
	unsetenv("WATCHDOG_PID");
	ck_assert_uint_eq(notify_watchdog_interval_ms(), 5000);
	setenv("WATCHDOG_USEC", "1000", 1);
	ck_assert_uint_eq(notify_watchdog_interval_ms(), 1);
	setenv("WATCHDOG_PID", "1", 1);
	ck_assert_uint_eq(notify_watchdog_interval_ms(), 0);
}
END_TEST
