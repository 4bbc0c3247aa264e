/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/closer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/list.h"
#include "proto/cleanup.h"
#include "proto/wire.h"

/* Of one user. Closing lags behind receiving by a few at most, unless something does not close. */
#define MAX_RECEIVED 64
/* A close() that takes longer is interrupted, again and again. */
#define INTERRUPT_MS 100
/* close() and little else runs on it. */
#define STACK_BYTES (256u * 1024)

struct batch {
	struct list link; /* link: lane.batches */
	size_t n_fds;
	size_t n_taken; /* of them, by a thread */
	int fds[];      /* owned */
};

struct lane {
	struct list link; /* link: lanes */
	uid_t uid;
	enum closer_kind kind;
	struct list batches;
	size_t n_fds;    /* not closed yet */
	bool has_thread; /* which ends when there are no batches, and the lane with it */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Under the mutex. */
static struct list lanes = LIST_INIT(lanes);

/* ---- the threads ----------------------------------------------------------------------------- */

/*
 * A socket's lingering ends with a signal. It is off already for what was received as such, but not for
 * what lies unread in a Unix socket. The flush of a FUSE file is not to be interrupted.
 */
static int interrupt_signal(void)
{
	return SIGRTMIN;
}

static void on_interrupt(int signal)
{
}

void closer_init(void)
{
	const struct sigaction action = {.sa_handler = on_interrupt};
	sigaction(interrupt_signal(), &action, NULL);
}

/* A timer that sends the signal to this very thread. Returns whether there is one. */
static bool start_interrupts(timer_t *timer_out)
{
	sigset_t signals;
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID,
	                         .sigev_signo = interrupt_signal()};
	const struct timespec period = {.tv_nsec = INTERRUPT_MS * 1000000};
	const struct itimerspec times = {.it_interval = period, .it_value = period};
	sigfillset(&signals);
	sigdelset(&signals, interrupt_signal());
	pthread_sigmask(SIG_SETMASK, &signals, NULL);
	/* glibc before 2.36 has no other name for sigev_notify_thread_id. */
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	return timer_create(CLOCK_MONOTONIC, &event, timer_out) == 0 &&
	       timer_settime(*timer_out, 0, &times, NULL) == 0;
}

static void do_not_linger(int fd)
{
	static const struct linger linger_off = {0};
	/* Not a socket, or one that cannot linger: all the same. */
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger_off, sizeof(linger_off));
}

static void prepare(int fd, enum closer_kind kind)
{
	if (kind == CLOSER_RECEIVED) {
		do_not_linger(fd);
	} else if (kind == CLOSER_CONNECTION) {
		/* It may be open elsewhere: what lies in it goes all the same. */
		wire_discard(fd);
	}
}

/* Under the mutex. -1: there is none. */
static int take_fd(struct lane *lane)
{
	if (list_is_empty(&lane->batches)) {
		return -1;
	}
	struct batch *batch = list_first(&lane->batches, struct batch, link);
	int fd = batch->fds[batch->n_taken++];
	if (batch->n_taken == batch->n_fds) {
		list_remove(&batch->link);
		free(batch);
	}
	return fd;
}

/* Under the mutex, but for the closing. Returns whether there was one. */
static bool close_next(struct lane *lane)
{
	int fd = take_fd(lane);
	if (fd < 0) {
		return false;
	}
	pthread_mutex_unlock(&mutex);
	prepare(fd, lane->kind);
	fd_close(&fd);
	pthread_mutex_lock(&mutex);
	lane->n_fds--;
	return true;
}

static void *lane_main(void *user)
{
	struct lane *lane = user;
	timer_t timer;
	bool has_timer = start_interrupts(&timer);
	pthread_mutex_lock(&mutex);
	while (close_next(lane)) {
	}
	list_remove(&lane->link);
	free(lane);
	pthread_mutex_unlock(&mutex);
	if (has_timer) {
		timer_delete(timer);
	}
	return NULL;
}

/* Under the mutex. */
static void start_thread(struct lane *lane)
{
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	lane->has_thread = pthread_create(&thread, &attributes, lane_main, lane) == 0;
	pthread_attr_destroy(&attributes);
}

/* ---- the lanes ------------------------------------------------------------------------------- */

/* Under the mutex. */
static struct lane *find_lane(uid_t uid, enum closer_kind kind)
{
	struct lane *lane;
	list_for_each (lane, &lanes, link) {
		if (lane->uid == uid && lane->kind == kind) {
			return lane;
		}
	}
	return NULL;
}

/* Under the mutex. NULL: no memory. */
static struct lane *get_lane(uid_t uid, enum closer_kind kind)
{
	struct lane *lane = find_lane(uid, kind);
	if (lane) {
		return lane;
	}
	lane = calloc(1, sizeof(*lane));
	if (!lane) {
		return NULL;
	}
	lane->uid = uid;
	lane->kind = kind;
	list_init(&lane->batches);
	list_insert(&lanes, &lane->link);
	return lane;
}

static bool has_any(const int *fds, size_t n_fds)
{
	for (size_t i = 0; i < n_fds; i++) {
		if (fds[i] >= 0) {
			return true;
		}
	}
	return false;
}

static struct batch *batch_new(const int *fds, size_t n_fds)
{
	struct batch *batch = malloc(sizeof(*batch) + n_fds * sizeof(fds[0]));
	if (!batch) {
		return NULL;
	}
	batch->n_fds = 0;
	batch->n_taken = 0;
	for (size_t i = 0; i < n_fds; i++) {
		if (fds[i] >= 0) {
			batch->fds[batch->n_fds++] = fds[i];
		}
	}
	return batch;
}

/* Returns whether @batch is taken over. */
static bool submit(uid_t uid, enum closer_kind kind, struct batch *batch)
{
	pthread_mutex_lock(&mutex);
	struct lane *lane = get_lane(uid, kind);
	if (lane) {
		list_insert(&lane->batches, &batch->link);
		lane->n_fds += batch->n_fds;
		/* Without one they wait for the next call. */
		if (!lane->has_thread) {
			start_thread(lane);
		}
	}
	pthread_mutex_unlock(&mutex);
	return lane != NULL;
}

void closer_close(uid_t uid, enum closer_kind kind, const int *fds, size_t n_fds)
{
	if (!has_any(fds, n_fds)) {
		return;
	}
	struct batch *batch = batch_new(fds, n_fds);
	if (batch && submit(uid, kind, batch)) {
		return;
	}
	free(batch);
	/* Slow beats leaked. */
	for (size_t i = 0; i < n_fds; i++) {
		int fd = fds[i];
		if (fd >= 0) {
			prepare(fd, kind);
			fd_close(&fd);
		}
	}
}

bool closer_is_full(uid_t uid)
{
	if (uid == CLOSER_NOBODY) {
		return false;
	}
	pthread_mutex_lock(&mutex);
	struct lane *lane = find_lane(uid, CLOSER_RECEIVED);
	bool is_full = lane && lane->n_fds > MAX_RECEIVED;
	pthread_mutex_unlock(&mutex);
	return is_full;
}
