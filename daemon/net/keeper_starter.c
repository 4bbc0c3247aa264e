/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/keeper_starter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "proto/cleanup.h"
#include "proto/keeper.h"
#include "proto/wire.h"

/* The delays before the next start: after a keeper's death, and after a failed start. */
#define RESTART_MS 100
#define RETRY_MS 5000

struct starter {
	int socket; /* to the loop; its number changes with the thread's own table */
	bool has_own_table;
	sem_t is_begun;
};

/* The keeper lies beside glaked, installed or in a build tree. */
static int find_keeper(char path[PATH_MAX])
{
	ssize_t n_bytes = readlink("/proc/self/exe", path, PATH_MAX - sizeof("glake-keeper"));
	if (n_bytes < 0) {
		return errno;
	}
	path[n_bytes] = '\0';
	strcpy(strrchr(path, '/') + 1, "glake-keeper");
	return 0;
}

/* Start the keeper in a process session of its own: the terminal's signals are for glaked, which drains while movers work. */
static int spawn(int fd, pid_t *pid_out)
{
	char path[PATH_MAX];
	char *arguments[] = {(char *)"glake-keeper", NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int error = find_keeper(path);
	if (error) {
		return error;
	}
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_adddup2(&files, fd, KEEPER_FD);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
	posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
	                                              POSIX_SPAWN_SETSID);
	error = posix_spawn(pid_out, path, &files, &attributes, arguments, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return error;
}

/* Sets *pid_out to 0 if the start failed. Returns false if glaked has closed the socket. */
static bool start(int socket, pid_t *pid_out)
{
	int ends[2];
	*pid_out = 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		int error = errno;
		return wire_send(socket, &error, sizeof(error), NULL, 0, 0) == 0;
	}
	cleanup_fd int our_end = ends[0];
	cleanup_fd int its_end = ends[1];
	int error = spawn(its_end, pid_out);
	return wire_send(socket, &error, sizeof(error), &our_end, error ? 0 : 1, 0) == 0;
}

/*
 * Get an own table of open files. The usual call, unshare(), is forbidden in many containers.
 * close_range() is not, and with this range it closes nothing.
 */
static void leave_table(struct starter *starter)
{
	if (syscall(SYS_close_range, UINT_MAX, UINT_MAX, CLOSE_RANGE_UNSHARE) < 0 &&
	    unshare(CLONE_FILES) < 0) {
		return;
	}
	starter->has_own_table = true;
	starter->socket = dup2(starter->socket, KEEPER_FD);
	fcntl(starter->socket, F_SETFD, FD_CLOEXEC);
	for (long fd = KEEPER_FD + 1, end = sysconf(_SC_OPEN_MAX);
	     syscall(SYS_close_range, fd, UINT_MAX, 0) < 0 && fd < end; fd++) {
		close((int)fd);
	}
}

static void rest_ms(unsigned ms)
{
	const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
	nanosleep(&time, NULL);
}

static void *starter_main(void *user)
{
	struct starter *starter = user;
	pid_t pid;
	leave_table(starter);
	int socket = starter->socket;
	bool is_wanted = start(socket, &pid);
	/* Afterwards @starter does not exist any more. */
	sem_post(&starter->is_begun);
	while (is_wanted) {
		if (pid) {
			waitpid(pid, NULL, 0);
		}
		rest_ms(pid ? RESTART_MS : RETRY_MS);
		is_wanted = start(socket, &pid);
	}
	close(socket);
	return NULL;
}

int keeper_starter_begin(void)
{
	int ends[2];
	struct starter starter = {0};
	pthread_t thread;
	sigset_t all, before;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		return -errno;
	}
	cleanup_fd int our_end = ends[0];
	starter.socket = ends[1];
	sem_init(&starter.is_begun, 0, 0);
	/* Signals are for the loop. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&thread, NULL, starter_main, &starter);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		close(ends[1]);
		return -error;
	}
	pthread_detach(thread);
	while (sem_wait(&starter.is_begun) < 0) {
	}
	sem_destroy(&starter.is_begun);
	if (starter.has_own_table) {
		close(ends[1]);
	}
	return fd_steal(&our_end);
}
