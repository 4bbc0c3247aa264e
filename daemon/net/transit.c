/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/transit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "daemon/net/closer.h"
#include "proto/limits.h"

/*
 * Of the fds that may be unread in sockets a user may have a third of what others do not have: much
 * while he is alone, and however many have theirs, there is something left for one more.
 */
#define UNREAD_SHARE 3
/* Nothing more is taken from a user with half of it; what was taken before may still be answered. */
#define MAX_QUEUED ((size_t)16 * GLAKE_MAX_PACKET_FDS)
/* Each takes the place of a session. */
#define MAX_LEFT 64
/* Looking at all of a user's sockets is not repeated sooner than they can be looked at like this. */
#define LOOKS_PER_MS 25

struct transit_user {
	struct list link; /* link: users */
	uid_t uid;
	size_t n_transits; /* entered, and left */
	size_t n_left;
	size_t n_unread; /* of all of them, and so the next */
	size_t n_queued;
	struct list unread; /* of struct transit */
	uint64_t look_ms;   /* not before that */
};

static struct list users = LIST_INIT(users);
static size_t n_left_of_all;
static size_t n_unread_of_all;
static size_t max_unread_of_all;

/* ---- users ----------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct transit_user *get_user(uid_t uid)
{
	struct transit_user *user;
	struct rlimit limit;
	list_for_each (user, &users, link) {
		if (user->uid == uid) {
			return user;
		}
	}
	user = calloc(1, sizeof(*user));
	if (!user) {
		return NULL;
	}
	user->uid = uid;
	list_init(&user->unread);
	list_insert(&users, &user->link);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		max_unread_of_all = limit.rlim_cur;
	}
	return user;
}

static void unref_user(struct transit_user *user)
{
	if (--user->n_transits == 0) {
		assert(user->n_left == 0 && user->n_unread == 0 && user->n_queued == 0);
		list_remove(&user->link);
		free(user);
	}
}

/* ---- what is unread -------------------------------------------------------------------------- */

static void forget_unread(struct transit *transit)
{
	if (transit->user) {
		transit->user->n_unread -= transit->n_unread;
		n_unread_of_all -= transit->n_unread;
	}
	transit->n_unread = 0;
	list_remove(&transit->link);
}

static void look(struct transit *transit)
{
	int n_bytes = 0;
	if (transit->n_unread > 0 && ioctl(transit->fd, SIOCOUTQ, &n_bytes) == 0 && n_bytes == 0) {
		forget_unread(transit);
	}
}

/*
 * The socket is left open, but not what lies in it: that is closed now. It might be the peer's end
 * itself, which then nobody could read from, and nothing would ever end.
 */
static void discard_packets(struct transit *left)
{
	int copy = fcntl(left->fd, F_DUPFD_CLOEXEC, 0);
	closer_close(left->uid, CLOSER_CONNECTION, &copy, 1);
	left->has_packets = copy < 0;
}

static void close_left(struct transit *transit)
{
	forget_unread(transit);
	closer_close(transit->uid, CLOSER_CONNECTION, &transit->fd, 1);
	transit->user->n_left--;
	n_left_of_all--;
	unref_user(transit->user);
	free(transit);
}

/* Returns how many there were. @user may be gone afterwards, if all that he had was left. */
static size_t look_at_all(struct transit_user *user)
{
	struct transit *transit;
	struct transit *spare;
	size_t n_looks = 0;
	user->n_transits++;
	list_for_each_safe (transit, spare, &user->unread, link) {
		n_looks++;
		look(transit);
		if (transit->is_left && transit->n_unread == 0) {
			close_left(transit);
		} else if (transit->has_packets) {
			discard_packets(transit);
		}
	}
	unref_user(user);
	return n_looks;
}

/* Many may want it, each of them again and again. */
static void look_again(struct transit_user *user, uint64_t now_ms)
{
	if (now_ms >= user->look_ms) {
		user->look_ms = now_ms + 1 + look_at_all(user) / LOOKS_PER_MS;
	}
}

/* A packet's fds in any case. */
static bool has_room(const struct transit_user *user, size_t n_fds)
{
	size_t n_others = n_unread_of_all - user->n_unread;
	size_t n_left = max_unread_of_all > n_others ? max_unread_of_all - n_others : 0;
	size_t share = n_left / UNREAD_SHARE;
	return user->n_unread + n_fds <=
	       (share > GLAKE_MAX_PACKET_FDS ? share : GLAKE_MAX_PACKET_FDS);
}

bool transit_may_send(struct transit *transit, size_t n_fds, uint64_t now_ms)
{
	struct transit_user *user = transit->user;
	if (transit->n_unread + n_fds > GLAKE_MAX_PACKET_FDS) {
		look(transit);
		if (transit->n_unread + n_fds > GLAKE_MAX_PACKET_FDS) {
			return false;
		}
	}
	if (!user || has_room(user, n_fds)) {
		return true;
	}
	look_again(user, now_ms);
	return has_room(user, n_fds);
}

void transit_sent(struct transit *transit, size_t n_fds)
{
	if (transit->user && n_fds > 0) {
		transit->user->n_unread += n_fds;
		n_unread_of_all += n_fds;
		list_remove(&transit->link);
		list_insert(&transit->user->unread, &transit->link);
	}
	transit->n_unread += n_fds;
}

/* ---- what is queued -------------------------------------------------------------------------- */

int transit_queue(struct transit *transit, size_t n_fds)
{
	struct transit_user *user = transit->user;
	if (user && user->n_queued + n_fds > MAX_QUEUED) {
		return -ENOBUFS;
	}
	if (user) {
		user->n_queued += n_fds;
	}
	return 0;
}

void transit_unqueue(struct transit *transit, size_t n_fds)
{
	if (transit->user) {
		transit->user->n_queued -= n_fds;
	}
}

bool transit_is_full(struct transit *transit, uint64_t now_ms)
{
	const struct transit_user *user = transit->user;
	if (!user || user->n_queued <= GLAKE_MAX_PACKET_FDS) {
		return false;
	}
	return user->n_queued > MAX_QUEUED / 2 ||
	       !transit_may_send(transit, GLAKE_MAX_PACKET_FDS, now_ms);
}

/* ---- the beginning and the end --------------------------------------------------------------- */

void transit_init(struct transit *transit, int fd)
{
	*transit = (struct transit){.uid = CLOSER_NOBODY, .fd = fd};
	list_init(&transit->link);
}

int transit_enter(struct transit *transit, uid_t uid)
{
	assert(!transit->user && transit->n_unread == 0);
	struct transit_user *user = get_user(uid);
	if (!user) {
		return -ENOMEM;
	}
	user->n_transits++;
	transit->user = user;
	transit->uid = uid;
	return 0;
}

static bool leave(struct transit *transit)
{
	struct transit *left = malloc(sizeof(*left));
	if (!left) {
		return false;
	}
	*left = *transit;
	left->is_left = true;
	left->user->n_left++;
	n_left_of_all++;
	list_init(&left->link);
	list_insert(&transit->link, &left->link);
	list_remove(&transit->link);
	discard_packets(left);
	return true;
}

void transit_close(struct transit *transit)
{
	struct transit_user *user = transit->user;
	look(transit);
	if (!user || transit->n_unread == 0 || !leave(transit)) {
		forget_unread(transit);
		closer_close(transit->uid, CLOSER_CONNECTION, &transit->fd, 1);
		if (user) {
			unref_user(user);
		}
	}
	transit->user = NULL;
	transit->n_unread = 0;
	transit->fd = -1;
}

bool transit_has_left_too_many(struct transit *transit, uint64_t now_ms)
{
	struct transit_user *user = transit->user;
	if (!user || user->n_left <= MAX_LEFT) {
		return false;
	}
	look_again(user, now_ms);
	return user->n_left > MAX_LEFT;
}

size_t transit_n_of_user(const struct transit *transit)
{
	return transit->user ? transit->user->n_transits : 1;
}

size_t transit_n_left(void)
{
	return n_left_of_all;
}

void transit_tick(void)
{
	struct transit_user *user;
	struct transit_user *spare;
	list_for_each_safe (user, spare, &users, link) {
		look_at_all(user);
	}
}

void transit_end(void)
{
	struct transit_user *user;
	struct transit_user *spare_user;
	list_for_each_safe (user, spare_user, &users, link) {
		struct transit *transit;
		struct transit *spare;
		user->n_transits++;
		list_for_each_safe (transit, spare, &user->unread, link) {
			assert(transit->is_left);
			close_left(transit);
		}
		unref_user(user);
	}
}
