/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/movers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/keeper.h"
#include "proto/wire.h"

/* One mover works; the others are ending, or cannot. */
#define MAX_CHILDREN 64
/* How often to look whether a child is dying, and how many times before glaked is told. */
#define LOOK_MS 400
#define DYING_LOOKS 2

struct child {
	uint64_t id;
	pid_t pid; /* 0: none */
	unsigned n_looks;
};

static struct child children[MAX_CHILDREN];

static struct child *find_child(pid_t pid)
{
	for (size_t i = 0; i < MAX_CHILDREN; i++) {
		if (children[i].pid == pid) {
			return &children[i];
		}
	}
	return NULL;
}

static bool has_children(void)
{
	for (size_t i = 0; i < MAX_CHILDREN; i++) {
		if (children[i].pid) {
			return true;
		}
	}
	return false;
}

/* @fd -1: none goes with it. */
static void tell_with(uint64_t child, enum keeper_event event, int value, int fd)
{
	const struct keeper_news news = {.child = child, .event = event, .value = value};
	if (wire_send(KEEPER_FD, &news, sizeof(news), &fd, fd >= 0 ? 1 : 0, 0) != 0) {
		_exit(EXIT_SUCCESS);
	}
}

static void tell(uint64_t child, enum keeper_event event, int value)
{
	tell_with(child, event, value, -1);
}

/* ---- orders ---------------------------------------------------------------------------------- */

/* Cuts the next string from the text that ends at @end. NULL: there is none. */
static char *next_string(char **text, const char *end)
{
	char *string = *text;
	if (string >= end) {
		return NULL;
	}
	*text = string + strlen(string) + 1;
	return string;
}

static int spawn(char *program, int fd, pid_t *pid_out)
{
	const char *slash = strrchr(program, '/');
	char *arguments[] = {(char *)(slash ? slash + 1 : program), NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_adddup2(&files, fd, KEEPER_FD);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	int error = posix_spawn(pid_out, program, &files, &attributes, arguments, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return error;
}

static void start(uint64_t id, char *text, const char *end, struct fdlist *fds)
{
	cleanup_fd int fd = fdlist_take(fds, 0);
	struct child *child = find_child(0);
	char *program = next_string(&text, end);
	char *setting;
	while ((setting = next_string(&text, end))) {
		char *value = strchr(setting, '=');
		if (value) {
			*value = '\0';
			setenv(setting, value + 1, 1);
		}
	}
	pid_t pid = 0;
	int error = !program || fd < 0 ? EINVAL : !child ? EAGAIN : spawn(program, fd, &pid);
	if (error) {
		tell(id, KEEPER_FAILED, error);
		return;
	}
	*child = (struct child){.id = id, .pid = pid};
	/* The pid is the child's for as long as this process does not reap it. */
	cleanup_fd int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	tell_with(id, KEEPER_STARTED, pid, pidfd);
}

static void kill_child(uint64_t id)
{
	for (size_t i = 0; i < MAX_CHILDREN; i++) {
		if (children[i].pid && children[i].id == id) {
			kill(children[i].pid, SIGKILL);
		}
	}
}

/* Returns whether glaked is still there. */
static bool obey(void)
{
	static union {
		struct keeper_order order;
		char bytes[GLAKE_MAX_PACKET_BYTES + 1];
	} packet;
	size_t n_bytes;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	if (wire_recv(KEEPER_FD, packet.bytes, sizeof(packet.bytes) - 1, &n_bytes, &fds, 0) != 0 ||
	    n_bytes < sizeof(packet.order)) {
		return false;
	}
	packet.bytes[n_bytes] = '\0';
	if (packet.order.verb == KEEPER_START) {
		start(packet.order.child, packet.order.text, packet.bytes + n_bytes, &fds);
	} else if (packet.order.verb == KEEPER_KILL) {
		kill_child(packet.order.child);
	}
	return true;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void reap(void)
{
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		struct child *child = find_child(pid);
		if (child) {
			tell(child->id, KEEPER_ENDED, status);
			child->pid = 0;
		}
	}
}

/* Whether the first thread of @pid has ended. */
static bool is_zombie(pid_t pid)
{
	char path[64];
	char text[128] = "";
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0) {
		return false;
	}
	/* The name in parentheses may be anything. */
	const char *state = strrchr(text, ')');
	return state && strncmp(state, ") Z", 3) == 0;
}

/* Tell of movers whose first thread has ended and that others keep: those that have ended as a whole are reaped already. */
static void look(void)
{
	static uint64_t last_ns;
	uint64_t now_ns = clock_now_ns();
	if (now_ns - last_ns < LOOK_MS * 1000000ull) {
		return;
	}
	last_ns = now_ns;
	for (size_t i = 0; i < MAX_CHILDREN; i++) {
		struct child *child = &children[i];
		if (child->pid && is_zombie(child->pid) && ++child->n_looks == DYING_LOOKS) {
			tell(child->id, KEEPER_DYING, 0);
		}
	}
}

/* ---- the process ----------------------------------------------------------------------------- */

static void on_child(int signal)
{
}

static bool has_socket(void)
{
	int type;
	socklen_t length = sizeof(type);
	return getsockopt(KEEPER_FD, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
	       type == SOCK_SEQPACKET && fcntl(KEEPER_FD, F_SETFD, FD_CLOEXEC) == 0;
}

int movers_keep(void)
{
	struct pollfd ready = {.fd = KEEPER_FD, .events = POLLIN};
	const struct timespec period = {.tv_nsec = LOOK_MS * 1000000};
	sigset_t child_signal, none;
	if (!has_socket()) {
		fprintf(stderr,
		        "glake-keeper: fd %d is not glaked's socket: without a command this "
		        "program is started by glaked only\n",
		        KEEPER_FD);
		return EXIT_FAILURE;
	}
	/* A glaked that is killed may keep its socket open: it is a process like any other. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A service manager signals everybody; glaked drains, and movers work meanwhile. */
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGCHLD, on_child);
	sigemptyset(&none);
	sigemptyset(&child_signal);
	sigaddset(&child_signal, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child_signal, NULL);
	do {
		int n_ready = ppoll(&ready, 1, has_children() ? &period : NULL, &none);
		reap();
		look();
		if (n_ready < 1) {
			ready.revents = 0;
		}
	} while (!ready.revents || obey());
	return EXIT_SUCCESS;
}
