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
#include "daemon/net/owner_line.h"
#include "proto/cleanup.h"

#define KNOWN_MS 60000
/* glake_connect() does not wait longer either. */
#define MAX_WAIT_MS 5000
/* Accepting waits for room in a line as long as the line moves. A line whose first waits longer turns the next away. */
#define MOVES_MS 250
/* A line's turn has several look-ups, as the thread may be slow to wake. None begins after TURN_NS: others wait. */
#define TURN_LOOKUPS 16
#define TURN_NS 1000000u
#define MAX_KNOWN 4096
/* The share of a line is half of what others leave, but at least this. */
#define LEAST_KNOWN 16
#define LEAST_WAITING 4
#define ACCOUNT_BYTES (64u * 1024u)

struct known {
	UT_hash_handle hh; /* owners.known, by uid */
	struct list link;  /* link: line.known */
	struct line *line;
	uid_t uid;
	uid_t owner;
	uint64_t since_ms;
};

struct waiting {
	struct list link; /* link: owners.waiting, in the order of arrival */
	struct list turn; /* link: line.waiting, the same */
	struct line *line;
	int fd; /* owned */
	uid_t uid;
	uint64_t since_ms;
};

struct lookup {
	uid_t uid;
	uid_t owner;
	int n_owners; /* < 0: unknown */
};

enum turn_state {
	TURN_NONE,
	TURN_RUNS,
	TURN_STALE, /* it runs, and nobody wants any more what it finds */
};

struct owners {
	uv_loop_t *loop; /* borrowed */
	owner_fn on_known;
	void *user;
	FILE *nowhere; /* owned: takes the messages of libsubid */
	struct known *known;
	struct lines lines;
	struct list waiting;
	unsigned n_waiting;
	const struct line *full; /* the last that got its share */
	struct log_limit log_limit;

	/* The turn that is running; its thread writes this until it ends. */
	uv_work_t work;
	enum turn_state turn;
	struct lookup lookups[TURN_LOOKUPS];
	unsigned n_wanted;
	unsigned n_done;
	bool wants_ranges;
	struct subid_range *ranges; /* owned: those of ranges_of; n_ranges <= 0: none */
	int n_ranges;
	uid_t ranges_of;
};

/* ---- the look-up, on its thread -------------------------------------------------------------- */

enum { FOUND, NOT_FOUND, UNKNOWN };

static int find_account(uid_t uid, struct passwd *account, char *buffer)
{
	struct passwd *found = NULL;
	int error = getpwuid_r(uid, account, buffer, ACCOUNT_BYTES, &found);
	if (found) {
		return FOUND;
	}
	/* Not found is 0, or one of these (getpwuid(3)). */
	return error == 0 || error == ENOENT || error == ESRCH ? NOT_FOUND : UNKNOWN;
}

/* Look up the ranges of @owner: more of them may connect. */
static void look_up_ranges(struct owners *owners, uid_t owner, char *buffer)
{
	struct passwd account;
	if (find_account(owner, &account, buffer) == FOUND) {
		owners->n_ranges = subid_get_uid_ranges(account.pw_name, &owners->ranges);
		owners->ranges_of = owner;
	}
}

static void look_up_one(struct owners *owners, struct lookup *lookup, char *buffer)
{
	struct passwd account;
	uid_t *found = NULL;
	lookup->owner = lookup->uid;
	lookup->n_owners = buffer ? subid_get_uid_owners(lookup->uid, &found) : -1;
	if (lookup->n_owners == 1 && found[0] >= OWNER_MIN) {
		if (find_account(lookup->uid, &account, buffer) == NOT_FOUND) {
			lookup->owner = found[0];
		}
		if (owners->wants_ranges) {
			owners->wants_ranges = false;
			look_up_ranges(owners, found[0], buffer);
		}
	}
	free(found);
}

/* libsubid is not thread-safe. Only one turn runs at a time. */
static void look_up(uv_work_t *work)
{
	struct owners *owners = container_of(work, struct owners, work);
	cleanup_free char *buffer = malloc(ACCOUNT_BYTES);
	uint64_t began_ns = uv_hrtime();
	owners->n_ranges = 0;
	owners->n_done = 0;
	do {
		look_up_one(owners, &owners->lookups[owners->n_done++], buffer);
	} while (owners->n_done < owners->n_wanted && uv_hrtime() - began_ns < TURN_NS);
}

/* ---- what is known --------------------------------------------------------------------------- */

static void forget(struct owners *owners, struct known *known)
{
	HASH_DEL(owners->known, known);
	line_forget(&owners->lines, known->line, &known->link);
	free(known);
}

/* The known owner of @uid; NULL: it must be looked up. */
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

static void forget_beyond_share(struct owners *owners, const struct line *line)
{
	unsigned share = line_share(MAX_KNOWN, HASH_COUNT(owners->known), line->n_known,
	                            LEAST_KNOWN);
	while (line->n_known > share) {
		forget(owners, list_first(&line->known, struct known, link));
	}
}

/* Remember the owner of @uid. If there is no memory, it is looked up again the next time. */
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
		return;
	}
	known->line = line_of(&owners->lines, uid, known->since_ms);
	if (!known->line) {
		HASH_DEL(owners->known, known);
		free(known);
		return;
	}
	list_insert(&known->line->known, &known->link);
	known->line->n_known++;
	forget_beyond_share(owners, known->line);
}

/* Leave the turn that runs to itself. */
static void end_turn(struct owners *owners)
{
	owners->turn = owners->turn == TURN_NONE ? TURN_NONE : TURN_STALE;
}

void owners_forget(struct owners *owners)
{
	while (owners->known) {
		forget(owners, owners->known);
	}
	lines_forget_ranges(&owners->lines);
	end_turn(owners);
}

/* ---- who waits ------------------------------------------------------------------------------- */

/* Returns the fd; the caller owns it. */
static int leave(struct owners *owners, struct waiting *waiting)
{
	int fd = waiting->fd;
	if (owners->full == waiting->line) {
		owners->full = NULL;
	}
	line_leave(&owners->lines, waiting->line, &waiting->turn);
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

static void tell(struct owners *owners, const struct lookup *lookup)
{
	struct waiting *waiting;
	struct waiting *spare;
	if (lookup->n_owners > 1) {
		log_limited(&owners->log_limit, LOG_LEVEL_WARNING,
		            "uid %u is subordinate to %d users, so it counts as a user of its own",
		            (unsigned)lookup->uid, lookup->n_owners);
	} else if (lookup->n_owners < 0) {
		log_limited(&owners->log_limit, LOG_LEVEL_DEBUG,
		            "the owner of uid %u cannot be looked up", (unsigned)lookup->uid);
	}
	list_for_each_safe (waiting, spare, &owners->waiting, link) {
		if (waiting->uid == lookup->uid) {
			owners->on_known(owners->user, leave(owners, waiting), lookup->owner);
		}
	}
}

/* A connection that stood among strangers joins the line of its owner. */
static void stand_anew(struct owners *owners)
{
	struct waiting *waiting;
	list_for_each (waiting, &owners->waiting, link) {
		struct line *line = line_of(&owners->lines, waiting->uid, uv_now(owners->loop));
		if (line && line != waiting->line) {
			line_leave(&owners->lines, waiting->line, &waiting->turn);
			line_enter(&owners->lines, line, &waiting->turn);
			waiting->line = line;
		}
	}
}

static void learn_ranges(struct owners *owners)
{
	for (int i = 0; i < owners->n_ranges; i++) {
		lines_add_range(&owners->lines, owners->ranges_of, owners->ranges[i].start,
		                owners->ranges[i].count, uv_now(owners->loop));
	}
	if (owners->n_ranges > 0) {
		owners->full = NULL;
		stand_anew(owners);
	}
}

static void on_looked_up(uv_work_t *work, int status)
{
	struct owners *owners = container_of(work, struct owners, work);
	if (owners->turn == TURN_RUNS) {
		learn_ranges(owners);
		for (unsigned i = 0; i < owners->n_done; i++) {
			remember(owners, owners->lookups[i].uid, owners->lookups[i].owner);
			tell(owners, &owners->lookups[i]);
		}
	}
	free(ptr_steal(owners->ranges));
	owners->turn = TURN_NONE;
	start(owners);
}

static bool is_wanted(const struct owners *owners, uid_t uid)
{
	bool is = false;
	for (unsigned i = 0; !is && i < owners->n_wanted; i++) {
		is = owners->lookups[i].uid == uid;
	}
	return is;
}

/* The next uids of the line. */
static void want(struct owners *owners, const struct line *line)
{
	const struct waiting *waiting;
	owners->n_wanted = 0;
	list_for_each (waiting, &line->waiting, turn) {
		if (owners->n_wanted == TURN_LOOKUPS) {
			return;
		}
		if (!is_wanted(owners, waiting->uid)) {
			owners->lookups[owners->n_wanted++].uid = waiting->uid;
		}
	}
}

/* Start the next turn, if somebody waits. */
static void start(struct owners *owners)
{
	struct line *line = owners->turn == TURN_NONE ? lines_next(&owners->lines) : NULL;
	if (!line) {
		return;
	}
	want(owners, line);
	owners->wants_ranges = !line_is_of_owner(line);
	owners->turn = TURN_RUNS;
	uv_queue_work(owners->loop, &owners->work, look_up, on_looked_up);
}

static bool has_share(const struct owners *owners, const struct line *line)
{
	return line->n_waiting >=
	       line_share(OWNERS_MAX_WAITING, owners->n_waiting, line->n_waiting, LEAST_WAITING);
}

static bool moves(const struct owners *owners, const struct line *line)
{
	const struct waiting *first = list_first(&line->waiting, struct waiting, turn);
	return uv_now(owners->loop) - first->since_ms < MOVES_MS;
}

static void refuse(struct owners *owners, int fd, uid_t uid)
{
	log_limited(&owners->log_limit, LOG_LEVEL_WARNING,
	            "a connection of uid %u closed: too many of its user's wait for the look-up of "
	            "the owner",
	            (unsigned)uid);
	inflight_close_socket(uid, fd);
}

static void await(struct owners *owners, int fd, uid_t uid)
{
	struct waiting *waiting = calloc(1, sizeof(*waiting));
	struct line *line = waiting ? line_of(&owners->lines, uid, uv_now(owners->loop)) : NULL;
	if (!line || (has_share(owners, line) && !moves(owners, line))) {
		free(waiting);
		refuse(owners, fd, uid);
		return;
	}
	waiting->fd = fd;
	waiting->uid = uid;
	waiting->since_ms = uv_now(owners->loop);
	list_insert(&owners->waiting, &waiting->link);
	owners->n_waiting++;
	waiting->line = line;
	line_enter(&owners->lines, line, &waiting->turn);
	if (has_share(owners, line)) {
		owners->full = line;
	}
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
	return owners->full && moves(owners, owners->full);
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
	lines_init(&owners->lines);
	/* Otherwise libsubid opens its own, which glake-mover would inherit. */
	owners->nowhere = fopen("/dev/null", "we");
	subid_init("glaked", owners->nowhere);
	*owners_out = owners;
	return 0;
}

void owners_close(struct owners *owners)
{
	end_turn(owners);
	while (!list_is_empty(&owners->waiting)) {
		turn_away(owners, list_first(&owners->waiting, struct waiting, link));
	}
}

bool owners_is_busy(const struct owners *owners)
{
	return owners->turn != TURN_NONE;
}

void owners_free(struct owners *owners)
{
	if (!owners) {
		return;
	}
	assert(owners->turn == TURN_NONE && list_is_empty(&owners->waiting));
	owners_forget(owners);
	assert(!owners->lines.table);
	if (owners->nowhere) {
		fclose(owners->nowhere);
	}
	free(owners);
}
