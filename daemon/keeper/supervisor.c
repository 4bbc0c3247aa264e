/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keeper/closer.h"
#include "daemon/keeper/kept.h"
#include "daemon/keeper/notify_socket.h"
#include "daemon/keeper/report.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* The limits are those of systemd. */
#define MAX_MESSAGE_BYTES 4096u
#define MAX_MESSAGE_FDS 253u
/* The part of the limit on open files that the process needs itself. */
#define OWN_FDS 64u
/* An end within this time after READY, or before it, is a quick one. After N_QUICK there are delays. */
#define QUICK_MS 1000
#define N_QUICK 5u
#define FIRST_DELAY_MS 100u
#define MAX_DELAY_MS 5000u
/* How many times longer than the watchdog's a start may take: devices wake up. */
#define START_WATCHDOGS 10u
/* Time for a core dump between SIGABRT and SIGKILL. */
#define ABORT_MS 10000u
/* How often it looks whether fds were closed when it has no room for more, and how long at the end of glaked. */
#define ROOM_MS 5
#define LAST_MS 5000u
#define NS_PER_MS 1000000ull
/* glaked's exit status when it leaves everything to the next one (SERVER_LEAVES in server.h). */
#define GLAKED_LEAVES 75
#define NEVER UINT64_MAX

enum goal {
	GOAL_RUN,
	GOAL_RESTART, /* glaked was told to end, and another one follows */
	GOAL_END,
};

static struct {
	const struct supervisor_options *options;
	struct sockaddr_un address; /* of the notify socket */
	uint64_t max_open;          /* the limit on open files */
	int notify;                 /* glaked's messages */
	int signals;                /* a signalfd */
	int outer;                  /* the own manager's socket, connected; -1: there is none */
	uint64_t outer_beat_ns;     /* how often that one wants to hear from us; 0: never */

	pid_t child; /* 0: none */
	enum goal goal;
	bool is_ready;  /* the child is */
	bool was_ready; /* any child was */
	unsigned n_quick;
	int status;        /* of the last end, as an exit status */
	uint64_t ready_ns; /* when the child became ready */
	uint64_t start_ns; /* when the next one starts */
	uint64_t beat_ns;  /* when the child must have said READY=1, and then WATCHDOG=1 */
	uint64_t kill_ns;  /* when SIGABRT has not helped */
	uint64_t outer_ns; /* when the own manager wants to hear from us */
} self = {.outer = -1, .start_ns = NEVER, .beat_ns = NEVER, .kill_ns = NEVER, .outer_ns = NEVER};

static void tell_outer(const char *text)
{
	if (self.outer >= 0) {
		send(self.outer, text, strlen(text), MSG_NOSIGNAL);
	}
}

/* Report on stderr, and as the status line of the own manager. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char text[512] = "STATUS=";
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text + 7, sizeof(text) - 7, format, arguments);
	va_end(arguments);
	report("%s", text + 7);
	tell_outer(text);
}

static uint64_t in_ms(uint64_t ms)
{
	return clock_now_ns() + ms * NS_PER_MS;
}

/* ---- the child ------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void become_glaked(pid_t keeper)
{
	sigset_t none;
	/* The signals of a terminal are for the keeper. */
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != keeper) {
		_exit(EXIT_FAILURE);
	}
	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	errno = -kept_pass();
	if (errno == 0) {
		execvp(self.options->command[0], self.options->command);
	}
	report("cannot start %s: %s", self.options->command[0], strerror(errno));
	_exit(127);
}

static void start(void)
{
	pid_t keeper = getpid();
	self.start_ns = NEVER;
	self.is_ready = false;
	self.goal = GOAL_RUN;
	pid_t pid = fork();
	if (pid == 0) {
		become_glaked(keeper);
	}
	if (pid < 0) {
		say("cannot start %s: %s", self.options->command[0], strerror(errno));
		self.start_ns = in_ms(MAX_DELAY_MS);
		return;
	}
	self.child = pid;
	if (self.options->watchdog_ms) {
		self.beat_ns = in_ms(START_WATCHDOGS * self.options->watchdog_ms);
	}
}

static unsigned delay_ms(void)
{
	bool is_quick = !self.is_ready || clock_now_ns() - self.ready_ns < QUICK_MS * NS_PER_MS;
	self.n_quick = is_quick ? self.n_quick + 1 : 0;
	if (self.n_quick <= N_QUICK) {
		return 0;
	}
	unsigned n = self.n_quick - N_QUICK - 1;
	return n < 6 ? FIRST_DELAY_MS << n : MAX_DELAY_MS;
}

/* Returns false if that is the end of all. */
static bool on_end(int status)
{
	bool is_restart = self.goal == GOAL_RESTART;
	bool is_exit = WIFEXITED(status);
	self.status = is_exit ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	/* There will be no next one. Its own manager would start us again. */
	if (self.goal == GOAL_END && self.status == GLAKED_LEAVES) {
		self.status = 0;
	}
	self.child = 0;
	self.beat_ns = self.kill_ns = NEVER;
	/* An exit before the first READY is wrong usage or configuration, and nothing is kept. */
	if (self.goal == GOAL_END || (is_exit && !is_restart && !self.was_ready) ||
	    (self.status == 0 && !is_restart)) {
		return false;
	}
	unsigned ms = is_restart ? 0 : delay_ms();
	say("glaked %s %d; the next one starts in %u ms, with %zu kept fds",
	    is_exit ? "ended with status" : "was killed by signal",
	    is_exit ? WEXITSTATUS(status) : WTERMSIG(status), ms, kept_n());
	self.start_ns = in_ms(ms);
	return true;
}

/* ---- what glaked says ------------------------------------------------------------------------ */

/* The value of "@key=..." if a line begins so. It ends with the line. */
static const char *find(const char *text, const char *key)
{
	size_t n_bytes = strlen(key);
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, n_bytes) == 0 && line[n_bytes] == '=') {
			return line + n_bytes + 1;
		}
	}
	return NULL;
}

static bool is_set(const char *text, const char *key)
{
	const char *value = find(text, key);
	return value && strncmp(value, "1", 1) == 0;
}

static void keep(const char *text, int *fds, size_t n_fds, bool removes)
{
	char name[MAX_MESSAGE_BYTES + 1] = "";
	const char *value = find(text, "FDNAME");
	if (value) {
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(value, "\n"), value);
	}
	if (removes) {
		kept_remove(name);
		return;
	}
	for (size_t i = 0; i < n_fds; i++) {
		kept_put(name, fd_steal(&fds[i]));
	}
}

static void on_message(const char *text, int *fds, size_t n_fds)
{
	bool removes = is_set(text, "FDSTOREREMOVE");
	if (removes || is_set(text, "FDSTORE")) {
		keep(text, fds, n_fds, removes);
		return;
	}
	if (is_set(text, "BARRIER")) {
		return; /* its fd is closed behind all that were removed before */
	}
	if (is_set(text, "READY")) {
		self.ready_ns = self.is_ready ? self.ready_ns : clock_now_ns();
		self.is_ready = self.was_ready = true;
	}
	if (self.options->watchdog_ms && self.kill_ns == NEVER && self.is_ready) {
		self.beat_ns = in_ms(self.options->watchdog_ms);
	}
	/* The own manager does not hear of a glaked that ends when another one follows. */
	if (self.goal == GOAL_END || !is_set(text, "STOPPING")) {
		tell_outer(text);
	}
}

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MAX_MESSAGE_FDS * sizeof(int))];
};

/* Returns the number of fds, and the sender, 0: unknown. */
static size_t read_control(struct msghdr *header, int *fds, pid_t *sender_out)
{
	size_t n_fds = 0;
	*sender_out = 0;
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
		size_t n_bytes = cmsg->cmsg_len - CMSG_LEN(0);
		if (cmsg->cmsg_level != SOL_SOCKET) {
			continue;
		}
		if (cmsg->cmsg_type == SCM_CREDENTIALS) {
			struct ucred sender;
			memcpy(&sender, CMSG_DATA(cmsg), sizeof(sender));
			*sender_out = sender.pid;
		} else if (cmsg->cmsg_type == SCM_RIGHTS) {
			memcpy(fds, CMSG_DATA(cmsg), n_bytes);
			n_fds = n_bytes / sizeof(int);
		}
	}
	return n_fds;
}

/*
 * Closing an fd may take its time, and the kernel loses fds that would be too many. So messages wait meanwhile, and with them
 * glaked's orders.
 */
static bool has_room(void)
{
	size_t n_waiting = closer_n_waiting();
	return n_waiting == 0 || kept_n() + n_waiting + OWN_FDS / 2 < self.max_open;
}

/* Returns false when there are no more messages. */
static bool receive(void)
{
	static char text[MAX_MESSAGE_BYTES + 1];
	union control control;
	struct iovec iov = {.iov_base = text, .iov_len = MAX_MESSAGE_BYTES};
	struct msghdr header = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	int fds[MAX_MESSAGE_FDS];
	pid_t sender;
	ssize_t n_bytes = recvmsg(self.notify, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n_bytes < 0) {
		return errno == EINTR;
	}
	size_t n_fds = read_control(&header, fds, &sender);
	text[n_bytes] = '\0';
	if (header.msg_flags & MSG_CTRUNC) {
		say("an fd is lost: the limit on open files (LimitNOFILE=, ulimit -Hn) is too low");
	}
	if (sender == self.child && sender != 0 && !(header.msg_flags & MSG_TRUNC)) {
		on_message(text, fds, n_fds);
	}
	for (size_t i = 0; i < n_fds; i++) {
		if (fds[i] >= 0) {
			closer_close(fds[i]);
		}
	}
	return true;
}

/* ---- signals and time ------------------------------------------------------------------------ */

/* A child's messages come before its end. Returns false at the end of all. */
static bool reap(void)
{
	int status;
	pid_t pid;
	bool goes_on = true;
	uint64_t end_ns = in_ms(LAST_MS);
	do {
		while (!has_room() && clock_now_ns() < end_ns) {
			poll(NULL, 0, ROOM_MS);
		}
	} while (receive());
	/* Where it is the first process, orphans are its children, too. */
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == self.child) {
			goes_on = on_end(status);
		}
	}
	return goes_on;
}

static void signal_child(int signal)
{
	if (self.child) {
		kill(self.child, signal);
	}
}

/* Returns false at the end of all. */
static bool on_signal(void)
{
	struct signalfd_siginfo info;
	if (read(self.signals, &info, sizeof(info)) != (ssize_t)sizeof(info)) {
		return true;
	}
	int signal = (int)info.ssi_signo;
	switch (signal) {
	case SIGCHLD:
		return reap();
	case SIGTERM:
	case SIGINT:
		/* There is no next glaked, so this one drains. */
		self.goal = GOAL_END;
		signal_child(SIGINT);
		return self.child != 0;
	case SIGUSR2:
		if (!self.child) {
			self.start_ns = 0;
		} else if (self.goal != GOAL_END) {
			self.goal = GOAL_RESTART;
			signal_child(SIGTERM);
		}
		return true;
	default:
		signal_child(signal);
		return true;
	}
}

static void on_time(uint64_t now_ns)
{
	if (now_ns >= self.start_ns) {
		start();
	}
	if (now_ns >= self.beat_ns && !has_room()) {
		/* The keeper read no messages meanwhile, so glaked's beat may be among them. */
		self.beat_ns = in_ms(self.options->watchdog_ms);
	}
	if (now_ns >= self.beat_ns) {
		say(self.is_ready ? "glaked does not answer its watchdog: SIGABRT"
		                  : "glaked does not become ready: SIGABRT");
		self.beat_ns = NEVER;
		self.kill_ns = in_ms(ABORT_MS);
		signal_child(SIGABRT);
	}
	if (now_ns >= self.kill_ns) {
		self.kill_ns = NEVER;
		signal_child(SIGKILL);
	}
	if (now_ns >= self.outer_ns) {
		self.outer_ns = now_ns + self.outer_beat_ns;
		tell_outer("WATCHDOG=1");
	}
}

static int wait_ms(void)
{
	const uint64_t times[] = {self.start_ns, self.beat_ns, self.kill_ns, self.outer_ns};
	uint64_t now_ns = clock_now_ns();
	uint64_t first = NEVER;
	for (size_t i = 0; i < n_elements(times); i++) {
		first = times[i] < first ? times[i] : first;
	}
	if (!has_room()) {
		uint64_t room_ns = now_ns + ROOM_MS * NS_PER_MS;
		first = first < room_ns ? first : room_ns;
	}
	if (first == NEVER) {
		return -1;
	}
	uint64_t ms = first < now_ns ? 0 : (first - now_ns) / NS_PER_MS + 1;
	return ms < INT_MAX ? (int)ms : INT_MAX;
}

static void serve(void)
{
	struct pollfd ready[] = {{.fd = self.notify, .events = POLLIN},
	                         {.fd = self.signals, .events = POLLIN}};
	bool goes_on = true;
	start();
	while (goes_on) {
		ready[0].fd = has_room() ? self.notify : -1;
		int n_ready = poll(ready, n_elements(ready), wait_ms());
		if (n_ready > 0 && ready[0].revents) {
			receive();
		}
		if (n_ready > 0 && ready[1].revents) {
			goes_on = on_signal();
		}
		if (goes_on) {
			on_time(clock_now_ns());
		}
	}
}

/* ---- the beginning --------------------------------------------------------------------------- */

static uint64_t raise_fd_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0) {
		return 1024;
	}
	if (limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
		getrlimit(RLIMIT_NOFILE, &limit);
	}
	return limit.rlim_cur;
}

static uint64_t number_of(const char *variable)
{
	const char *text = getenv(variable);
	return text ? strtoull(text, NULL, 10) : 0;
}

/* The own manager, if there is one. */
static void connect_outer(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const struct timeval patience = {.tv_usec = 100000};
	const char *path = getenv("NOTIFY_SOCKET");
	size_t n_bytes = path ? strlen(path) : 0;
	if (n_bytes < 2 || n_bytes >= sizeof(address.sun_path)) {
		return;
	}
	memcpy(address.sun_path, path, n_bytes);
	address.sun_path[0] = path[0] == '@' ? '\0' : path[0];
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n_bytes);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0 ||
	    connect(fd, (struct sockaddr *)&address, length) < 0) {
		say("cannot connect to $NOTIFY_SOCKET: %s", strerror(errno));
		return;
	}
	self.outer = fd_steal(&fd);
	self.outer_beat_ns = number_of("WATCHDOG_USEC") * 1000 / 2;
	self.outer_ns = self.outer_beat_ns ? 0 : NEVER;
}

/* Tell glaked in its environment everything but the kept fds. */
static int set_environment(uint64_t max_fds)
{
	char number[24];
	snprintf(number, sizeof(number), "%llu", (unsigned long long)max_fds);
	int r = setenv("FDSTORE", number, 1);
	snprintf(number, sizeof(number), "%llu",
	         (unsigned long long)self.options->watchdog_ms * 1000);
	r |= self.options->watchdog_ms ? setenv("WATCHDOG_USEC", number, 1)
	                               : unsetenv("WATCHDOG_USEC");
	r |= setenv("NOTIFY_SOCKET", self.address.sun_path, 1);
	unsetenv("WATCHDOG_PID");
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	return r;
}

static int open_signals(void)
{
	static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
	sigset_t set;
	sigemptyset(&set);
	for (size_t i = 0; i < n_elements(numbers); i++) {
		sigaddset(&set, numbers[i]);
	}
	sigprocmask(SIG_BLOCK, &set, NULL);
	self.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return self.signals < 0 ? -errno : 0;
}

int supervisor_run(const struct supervisor_options *options)
{
	uint64_t limit = raise_fd_limit();
	uint64_t max_fds = limit > 2 * OWN_FDS ? limit - OWN_FDS : OWN_FDS;
	if (options->max_fds && options->max_fds < max_fds) {
		max_fds = options->max_fds;
	}
	/* The reader of the log may go. */
	signal(SIGPIPE, SIG_IGN);
	self.options = options;
	kept_set_max(max_fds);
	self.max_open = limit;
	connect_outer();
	int r = open_signals();
	if (r == 0) {
		r = closer_start();
	}
	if (r == 0) {
		kept_take_passed();
		r = notify_socket_open(&self.address);
		self.notify = r;
	}
	if (r < 0 || set_environment(max_fds) != 0) {
		say("cannot begin: %s", strerror(r < 0 ? -r : ENOMEM));
		notify_socket_remove(&self.address);
		return EXIT_FAILURE;
	}
	serve();
	notify_socket_remove(&self.address);
	return self.status;
}
