/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/closer.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/list.h"
#include "proto/cleanup.h"

/* Of one user. Closing lags behind receiving by a few at most, unless something does not close. */
#define MAX_RECEIVED 64
/* A close() that takes longer is interrupted, again and again. */
#define INTERRUPT_MS 100
/* close() and little else runs on it. */
#define STACK_BYTES (256u * 1024)

struct batch {
	struct list link; /* link: lane.batches */
	size_t n_fds;
	int fds[]; /* owned */
};

struct lane {
	struct list link; /* link: lanes */
	uid_t uid;
	enum closer_kind kind;
	struct list batches;
	size_t n_fds;    /* of the batches, and of the one that its thread has */
	bool has_thread; /* which ends when there are no batches, and the lane with it */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
/* Under the mutex. */
static struct list lanes = LIST_INIT(lanes);
static size_t n_pending;

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

static void install_interrupt(void)
{
	struct sigaction action = {.sa_handler = on_interrupt};
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

static void close_one(int fd, enum closer_kind kind)
{
	static const struct linger linger_off = {0};
	if (kind == CLOSER_RECEIVED && fd >= 0) {
		/* Not a socket, or one that cannot linger: all the same. */
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger_off, sizeof(linger_off));
	}
	fd_close(&fd);
}

/* Under the mutex. NULL: there is none, and the lane is gone. */
static struct batch *next_batch(struct lane *lane)
{
	if (list_is_empty(&lane->batches)) {
		list_remove(&lane->link);
		free(lane);
		return NULL;
	}
	struct batch *batch = list_first(&lane->batches, struct batch, link);
	list_remove(&batch->link);
	return batch;
}

static void close_batch(struct lane *lane, struct batch *batch)
{
	for (size_t i = 0; i < batch->n_fds; i++) {
		close_one(batch->fds[i], lane->kind);
		pthread_mutex_lock(&mutex);
		lane->n_fds--;
		n_pending--;
		pthread_mutex_unlock(&mutex);
	}
	free(batch);
}

static void *lane_main(void *user)
{
	struct lane *lane = user;
	struct batch *batch;
	timer_t timer;
	bool has_timer = start_interrupts(&timer);
	for (;;) {
		pthread_mutex_lock(&mutex);
		batch = next_batch(lane);
		pthread_mutex_unlock(&mutex);
		if (!batch) {
			break;
		}
		close_batch(lane, batch);
	}
	if (has_timer) {
		timer_delete(timer);
	}
	return NULL;
}

/* Returns whether @lane has a thread now. */
static bool start_thread(struct lane *lane)
{
	static bool is_installed;
	pthread_attr_t attributes;
	pthread_t thread;
	if (!is_installed) {
		install_interrupt();
		is_installed = true;
	}
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	bool has_thread = pthread_create(&thread, &attributes, lane_main, lane) == 0;
	pthread_attr_destroy(&attributes);
	return has_thread;
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
		n_pending += batch->n_fds;
		/* Without one they wait for the next call. */
		lane->has_thread = lane->has_thread || start_thread(lane);
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
		close_one(fds[i], kind);
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

size_t closer_n_pending(void)
{
	pthread_mutex_lock(&mutex);
	size_t n = n_pending;
	pthread_mutex_unlock(&mutex);
	return n;
}
