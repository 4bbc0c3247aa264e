/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/inflight.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "daemon/net/user.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/wire.h"

/* 1 / TABLE_PART of glaked's fd table is for fds in flight. */
#define TABLE_PART 3
#define MAX_QUEUED ((size_t)16 * GLAKE_MAX_PACKET_FDS)
/* Looking at all sockets of a user is repeated only after as many milliseconds as it may have taken. */
#define LOOKS_PER_MS 25
/* A close() is interrupted whenever it has taken this long. */
#define INTERRUPT_MS 100
/* The threads call close() and little else. */
#define STACK_BYTES (256u * 1024)

/* An fd to be closed. */
struct closing {
	struct list link; /* link: lane.closings or lane.left */
	int fd;           /* owned */
	size_t n_unread;  /* of a connection; above 0: it was left */
};

/* Protects what follows, and this file's part of users. Only looking at sockets takes time under it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t n_left_of_all;
static size_t n_unread_of_all;
static size_t n_in_table_of_all;
static size_t max_fds;

static void unlock(int *locked)
{
	pthread_mutex_unlock(&mutex);
}

/* Locks the mutex for the rest of the scope. */
#define LOCKED __attribute__((cleanup(unlock), unused)) int locked = pthread_mutex_lock(&mutex)

static size_t in_table(const struct user *user)
{
	return user->n_queued + user->lanes[FILES].n_fds + user->lanes[CONNECTIONS].n_fds;
}

static void forget_if_idle(struct user *user)
{
	if (user->n_turns == 0 && user->n_shares == 0 && user->n_refs == 0 &&
	    user->n_connections == 0 && in_table(user) == 0 && !user->lanes[FILES].has_thread &&
	    !user->lanes[CONNECTIONS].has_thread) {
		assert(user->n_unread == 0);
		user_forget(user);
	}
}

/* ---- deferred close -------------------------------------------------------------------------- */

/* A signal ends the lingering of a socket, but not the flush of a FUSE file. */
static int interrupt_signal(void)
{
	return SIGRTMIN;
}

static void on_interrupt(int signal)
{
}

/* Start a timer that sends the signal to this thread. Returns whether that worked. */
static bool start_interrupts(timer_t *timer_out)
{
	sigset_t signals;
	const struct sigaction action = {.sa_handler = on_interrupt};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID,
	                         .sigev_signo = interrupt_signal()};
	const struct timespec period = {.tv_nsec = INTERRUPT_MS * 1000000};
	const struct itimerspec times = {.it_interval = period, .it_value = period};
	sigaction(interrupt_signal(), &action, NULL);
	sigfillset(&signals);
	sigdelset(&signals, interrupt_signal());
	pthread_sigmask(SIG_SETMASK, &signals, NULL);
	/* glibc before 2.36 has no other name for sigev_notify_thread_id. */
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	return timer_create(CLOCK_MONOTONIC, &event, timer_out) == 0 &&
	       timer_settime(*timer_out, 0, &times, NULL) == 0;
}

static bool is_read_empty(int fd)
{
	int n_bytes = 0;
	return ioctl(fd, SIOCOUTQ, &n_bytes) == 0 && n_bytes == 0;
}

/* Called without the mutex. Returns false for a connection that has to stay open. */
static bool try_close(const struct lane *lane, struct closing *closing)
{
	if (lane->has_connections) {
		/*
		 * The peer's unread packets are discarded in any case. One might have the peer's own end, which nobody could
		 * read from then: the connection would stay for ever.
		 */
		wire_discard(closing->fd);
		if (closing->n_unread > 0 && !is_read_empty(closing->fd)) {
			return false;
		}
	}
	fd_close(&closing->fd);
	return true;
}

static void finish(struct lane *lane, struct closing *closing)
{
	bool was_left = closing->n_unread > 0;
	lane->n_fds--;
	n_in_table_of_all--;
	lane->user->n_unread -= closing->n_unread;
	n_unread_of_all -= closing->n_unread;
	lane->user->n_connections -= was_left;
	n_left_of_all -= was_left;
	free(closing);
}

static void *lane_main(void *user)
{
	struct lane *lane = user;
	timer_t timer;
	bool has_timer = start_interrupts(&timer);
	pthread_mutex_lock(&mutex);
	while (!list_is_empty(&lane->closings)) {
		struct closing *closing = list_first(&lane->closings, struct closing, link);
		list_remove(&closing->link);
		pthread_mutex_unlock(&mutex);
		bool is_closed = try_close(lane, closing);
		pthread_mutex_lock(&mutex);
		if (is_closed) {
			finish(lane, closing);
		} else {
			list_insert(&lane->left, &closing->link);
		}
	}
	/* From here on the user may be forgotten. */
	lane->has_thread = false;
	pthread_mutex_unlock(&mutex);
	if (has_timer) {
		timer_delete(timer);
	}
	return NULL;
}

/* If no thread can be created, the next one closes these as well. */
static void start_thread(struct lane *lane)
{
	pthread_attr_t attributes;
	pthread_t thread;
	if (lane->has_thread || list_is_empty(&lane->closings)) {
		return;
	}
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	lane->has_thread = pthread_create(&thread, &attributes, lane_main, lane) == 0;
	pthread_attr_destroy(&attributes);
}

/* Takes over @fd. Without memory it is closed here. */
static bool add_closing(struct user *user, enum lane_kind kind, int fd, size_t n_unread)
{
	struct closing *closing = user ? malloc(sizeof(*closing)) : NULL;
	if (!closing) {
		if (kind == CONNECTIONS) {
			wire_discard(fd);
		}
		close(fd);
		return false;
	}
	*closing = (struct closing){.fd = fd, .n_unread = n_unread};
	list_insert(&user->lanes[kind].closings, &closing->link);
	user->lanes[kind].n_fds++;
	n_in_table_of_all++;
	return true;
}

static void close_all(uid_t uid, enum lane_kind kind, const int *fds, size_t n_fds)
{
	struct user *user = NULL;
	LOCKED;
	for (size_t i = 0; i < n_fds; i++) {
		if (fds[i] >= 0) {
			user = user ? user : user_get(uid);
			add_closing(user, kind, fds[i], 0);
		}
	}
	if (user) {
		start_thread(&user->lanes[kind]);
	}
}

void inflight_close_files(uid_t uid, const int *fds, size_t n_fds)
{
	close_all(uid, FILES, fds, n_fds);
}

void inflight_close_socket(uid_t uid, int fd)
{
	close_all(uid, CONNECTIONS, &fd, 1);
}

/* ---- what is unread -------------------------------------------------------------------------- */

static void forget_unread(struct inflight *inflight)
{
	if (inflight->user) {
		inflight->user->n_unread -= inflight->n_unread;
		n_unread_of_all -= inflight->n_unread;
	}
	inflight->n_unread = 0;
	list_remove(&inflight->link);
}

static void look(struct inflight *inflight)
{
	if (inflight->n_unread > 0 && is_read_empty(inflight->fd)) {
		forget_unread(inflight);
	}
}

/* Returns the number of sockets. */
static size_t look_at_all(struct user *user)
{
	struct inflight *inflight;
	struct inflight *spare;
	struct lane *lane = &user->lanes[CONNECTIONS];
	size_t n_looks = 0;
	list_for_each_safe (inflight, spare, &user->unread, link) {
		n_looks++;
		look(inflight);
	}
	while (!list_is_empty(&lane->left)) {
		struct list *link = lane->left.next;
		n_looks++;
		list_remove(link);
		list_insert(&lane->closings, link);
	}
	start_thread(lane);
	return n_looks;
}

static bool has_share(const struct user *user, size_t n_fds)
{
	return user->n_unread + n_fds <=
	       user_share(USER_UNREAD_FDS, max_fds, n_unread_of_all - user->n_unread);
}

static bool may_send(struct inflight *inflight, size_t n_fds, uint64_t now_ms)
{
	struct user *user = inflight->user;
	if (inflight->n_unread + n_fds > GLAKE_MAX_PACKET_FDS) {
		look(inflight);
		if (inflight->n_unread + n_fds > GLAKE_MAX_PACKET_FDS) {
			return false;
		}
	}
	if (!user || has_share(user, n_fds)) {
		return true;
	}
	/* Many connections may ask for this, and each again and again. */
	if (now_ms >= user->look_ms) {
		user->look_ms = now_ms + 1 + look_at_all(user) / LOOKS_PER_MS;
	}
	return has_share(user, n_fds);
}

bool inflight_may_send(struct inflight *inflight, size_t n_fds, uint64_t now_ms)
{
	LOCKED;
	return may_send(inflight, n_fds, now_ms);
}

void inflight_sent(struct inflight *inflight, size_t n_fds)
{
	LOCKED;
	if (inflight->user && n_fds > 0) {
		inflight->user->n_unread += n_fds;
		n_unread_of_all += n_fds;
		list_remove(&inflight->link);
		list_insert(&inflight->user->unread, &inflight->link);
	}
	inflight->n_unread += n_fds;
}

/* ---- what takes places in the table ---------------------------------------------------------- */

int inflight_queue(struct inflight *inflight, size_t n_fds)
{
	struct user *user = inflight->user;
	LOCKED;
	if (!user) {
		return 0;
	}
	if (user->n_queued + n_fds > MAX_QUEUED) {
		return -ENOBUFS;
	}
	user->n_queued += n_fds;
	n_in_table_of_all += n_fds;
	return 0;
}

void inflight_unqueue(struct inflight *inflight, size_t n_fds)
{
	LOCKED;
	if (inflight->user) {
		inflight->user->n_queued -= n_fds;
		n_in_table_of_all -= n_fds;
	}
}

bool inflight_is_full(struct inflight *inflight, uint64_t now_ms)
{
	const struct user *user = inflight->user;
	LOCKED;
	size_t n = user ? in_table(user) : 0;
	return n > GLAKE_MAX_PACKET_FDS &&
	       (n > user_share(USER_TABLE_FDS, max_fds / TABLE_PART, n_in_table_of_all - n) ||
	        !may_send(inflight, GLAKE_MAX_PACKET_FDS, now_ms));
}

/* ---- the beginning and the end --------------------------------------------------------------- */

void inflight_init(struct inflight *inflight, int fd)
{
	*inflight = (struct inflight){.fd = fd};
	list_init(&inflight->link);
}

int inflight_enter(struct inflight *inflight, uid_t uid)
{
	struct rlimit limit;
	assert(!inflight->user && inflight->n_unread == 0);
	LOCKED;
	inflight->user = user_get(uid);
	if (!inflight->user) {
		return -ENOMEM;
	}
	inflight->user->n_connections++;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		max_fds = limit.rlim_cur;
	}
	return 0;
}

void inflight_close(struct inflight *inflight)
{
	LOCKED;
	struct user *user = inflight->user;
	struct user *owner = user ? user : user_get(INFLIGHT_OURS);
	look(inflight);
	if (!user) {
		forget_unread(inflight);
	}
	list_remove(&inflight->link);
	bool is_left = inflight->n_unread > 0;
	if (!add_closing(owner, CONNECTIONS, inflight->fd, inflight->n_unread) && is_left) {
		user->n_unread -= inflight->n_unread;
		n_unread_of_all -= inflight->n_unread;
		is_left = false;
	}
	n_left_of_all += is_left;
	if (user) {
		user->n_connections -= !is_left;
	}
	if (owner) {
		start_thread(&owner->lanes[CONNECTIONS]);
	}
	inflight_init(inflight, -1);
}

size_t inflight_n_of_user(const struct inflight *inflight)
{
	LOCKED;
	return inflight->user ? inflight->user->n_connections : 1;
}

size_t inflight_n_left(void)
{
	LOCKED;
	return n_left_of_all;
}

void inflight_tick(void)
{
	struct user *user;
	struct user *spare;
	LOCKED;
	list_for_each_safe (user, spare, &users, link) {
		look_at_all(user);
		start_thread(&user->lanes[FILES]);
		forget_if_idle(user);
	}
}
