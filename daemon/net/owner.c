/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/owner.h"

#include <assert.h>
#include <errno.h>
#include <pwd.h>
#include <shadow/subid.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "daemon/net/inflight.h"
#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

#define KNOWN_MS 60000
/* glake_connect() does not wait longer either. */
#define MAX_WAIT_MS 5000
/* Beyond this number the oldest entry goes: a user may connect with each of its 65,536 uids. */
#define MAX_KNOWN 4096
#define ACCOUNT_BYTES (64u * 1024u)

struct known {
	UT_hash_handle hh; /* owners.known, by uid, in the order of arrival */
	uid_t uid;
	uid_t owner;
	uint64_t since_ms;
};

struct waiting {
	struct list link; /* link: owners.waiting */
	int fd;           /* owned */
	uid_t uid;
	uint64_t since_ms;
};

struct owners {
	uv_loop_t *loop; /* borrowed */
	owner_fn on_known;
	void *user;
	FILE *nowhere; /* owned: takes the messages of libsubid */
	struct known *known;
	struct list waiting;
	unsigned n_waiting;
	bool is_closed;
	struct log_limit log_limit;

	/* The look-up that is running; its thread writes this until it ends. */
	uv_work_t work;
	bool is_busy;
	bool is_stale; /* owners_forget() was called after its start */
	uid_t uid;
	uid_t owner;
	int n_owners; /* < 0: unknown */
};

/* ---- the look-up, on its thread -------------------------------------------------------------- */

/* Returns true as well if that is unknown. */
static bool may_be_account(uid_t uid)
{
	cleanup_free char *buffer = malloc(ACCOUNT_BYTES);
	struct passwd account;
	struct passwd *found = NULL;
	int error = buffer ? getpwuid_r(uid, &account, buffer, ACCOUNT_BYTES, &found) : ENOMEM;
	/* Not found is 0, or one of these (getpwuid(3)). */
	return found || (error != 0 && error != ENOENT && error != ESRCH);
}

/* libsubid is not thread-safe. Only one look-up runs at a time. */
static void look_up(uv_work_t *work)
{
	struct owners *owners = container_of(work, struct owners, work);
	uid_t *found = NULL;
	owners->owner = owners->uid;
	owners->n_owners = subid_get_uid_owners(owners->uid, &found);
	if (owners->n_owners == 1 && found[0] >= OWNER_MIN && !may_be_account(owners->uid)) {
		owners->owner = found[0];
	}
	free(found);
}

/* ---- what is known --------------------------------------------------------------------------- */

static void forget(struct owners *owners, struct known *known)
{
	HASH_DEL(owners->known, known);
	free(known);
}

/* NULL: it must be looked up. */
static const struct known *find_known(struct owners *owners, uid_t uid)
{
	struct known *known;
	HASH_FIND(hh, owners->known, &uid, sizeof(uid), known);
	if (known && uv_now(owners->loop) - known->since_ms >= KNOWN_MS) {
		forget(owners, known);
		known = NULL;
	}
	return known;
}

/* Without memory it is looked up again the next time. */
static void remember(struct owners *owners, uid_t uid, uid_t owner)
{
	struct known *known = calloc(1, sizeof(*known));
	if (!known) {
		return;
	}
	known->uid = uid;
	known->owner = owner;
	known->since_ms = uv_now(owners->loop);
	HASH_ADD(hh, owners->known, uid, sizeof(known->uid), known);
	if (!hash_has(known)) {
		free(known);
	} else if (HASH_COUNT(owners->known) > MAX_KNOWN) {
		forget(owners, owners->known);
	}
}

void owners_forget(struct owners *owners)
{
	while (owners->known) {
		forget(owners, owners->known);
	}
	owners->is_stale = true;
}

/* ---- who waits ------------------------------------------------------------------------------- */

/* Returns the fd; the caller owns it. */
static int leave(struct owners *owners, struct waiting *waiting)
{
	int fd = waiting->fd;
	list_remove(&waiting->link);
	owners->n_waiting--;
	free(waiting);
	return fd;
}

static void turn_away(struct owners *owners, struct waiting *waiting)
{
	uid_t uid = waiting->uid;
	int fd = leave(owners, waiting);
	inflight_close_socket(uid, fd);
}

static void start(struct owners *owners);

static void tell(struct owners *owners)
{
	struct waiting *waiting;
	struct waiting *spare;
	if (owners->n_owners > 1) {
		log_limited(&owners->log_limit, LOG_LEVEL_WARNING,
		            "uid %u is subordinate to %d users, so it counts as a user of its own",
		            (unsigned)owners->uid, owners->n_owners);
	} else if (owners->n_owners < 0) {
		log_limited(&owners->log_limit, LOG_LEVEL_DEBUG,
		            "the owner of uid %u cannot be looked up", (unsigned)owners->uid);
	}
	list_for_each_safe (waiting, spare, &owners->waiting, link) {
		if (waiting->uid == owners->uid) {
			owners->on_known(owners->user, leave(owners, waiting), owners->owner);
		}
	}
}

static void on_looked_up(uv_work_t *work, int status)
{
	struct owners *owners = container_of(work, struct owners, work);
	owners->is_busy = false;
	if (!owners->is_closed && !owners->is_stale) {
		remember(owners, owners->uid, owners->owner);
		tell(owners);
	}
	start(owners);
}

/* Start the next look-up, if there is one. */
static void start(struct owners *owners)
{
	if (owners->is_busy || list_is_empty(&owners->waiting)) {
		return;
	}
	owners->uid = list_first(&owners->waiting, struct waiting, link)->uid;
	owners->is_busy = true;
	owners->is_stale = false;
	uv_queue_work(owners->loop, &owners->work, look_up, on_looked_up);
}

static void await(struct owners *owners, int fd, uid_t uid)
{
	struct waiting *waiting = calloc(1, sizeof(*waiting));
	if (!waiting) {
		inflight_close_socket(uid, fd);
		return;
	}
	waiting->fd = fd;
	waiting->uid = uid;
	waiting->since_ms = uv_now(owners->loop);
	list_insert(&owners->waiting, &waiting->link);
	owners->n_waiting++;
	start(owners);
}

void owners_find(struct owners *owners, int fd)
{
	struct ucred peer;
	socklen_t n_bytes = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n_bytes) < 0) {
		inflight_close_socket(INFLIGHT_OURS, fd);
		return;
	}
	/* System accounts have no owner. So root gets in even if the database does not answer. */
	if (peer.uid < OWNER_MIN) {
		owners->on_known(owners->user, fd, peer.uid);
		return;
	}
	const struct known *known = find_known(owners, peer.uid);
	if (known) {
		owners->on_known(owners->user, fd, known->owner);
	} else {
		await(owners, fd, peer.uid);
	}
}

bool owners_is_full(const struct owners *owners)
{
	return owners->n_waiting >= OWNERS_MAX_WAITING;
}

void owners_tick(struct owners *owners)
{
	struct waiting *waiting;
	struct waiting *spare;
	list_for_each_safe (waiting, spare, &owners->waiting, link) {
		if (uv_now(owners->loop) - waiting->since_ms >= MAX_WAIT_MS) {
			log_limited(
				&owners->log_limit, LOG_LEVEL_WARNING,
				"a connection of uid %u closed: the owner of its subordinate uid "
				"cannot be looked up",
				(unsigned)waiting->uid);
			turn_away(owners, waiting);
		}
	}
}

/* ---- the beginning and the end --------------------------------------------------------------- */

int owners_new(uv_loop_t *loop, owner_fn on_known, void *user, struct owners **owners_out)
{
	struct owners *owners = calloc(1, sizeof(*owners));
	if (!owners) {
		return -ENOMEM;
	}
	owners->loop = loop;
	owners->on_known = on_known;
	owners->user = user;
	list_init(&owners->waiting);
	/* Otherwise libsubid opens its own, which glake-mover would inherit. */
	owners->nowhere = fopen("/dev/null", "we");
	subid_init("glaked", owners->nowhere);
	*owners_out = owners;
	return 0;
}

void owners_close(struct owners *owners)
{
	owners->is_closed = true;
	while (!list_is_empty(&owners->waiting)) {
		turn_away(owners, list_first(&owners->waiting, struct waiting, link));
	}
}

bool owners_is_busy(const struct owners *owners)
{
	return owners->is_busy;
}

void owners_free(struct owners *owners)
{
	if (!owners) {
		return;
	}
	assert(owners->is_closed && !owners->is_busy);
	owners_forget(owners);
	if (owners->nowhere) {
		fclose(owners->nowhere);
	}
	free(owners);
}
