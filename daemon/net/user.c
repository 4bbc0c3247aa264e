/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/user.h"

/* The asserts are the accounting's proof: they stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>

#include "daemon/base/hash.h"
#include "proto/cleanup.h"

struct list users = LIST_INIT(users);

static void lane_init(struct lane *lane, struct user *user, bool has_connections)
{
	lane->user = user;
	lane->has_connections = has_connections;
	list_init(&lane->closings);
	list_init(&lane->left);
}

struct user *user_get(uid_t uid)
{
	struct user *user;
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
	list_init(&user->place);
	list_init(&user->line);
	list_init(&user->unread);
	lane_init(&user->lanes[FILES], user, false);
	lane_init(&user->lanes[CONNECTIONS], user, true);
	list_insert(&users, &user->link);
	return user;
}

struct user *user_ref(struct user *user)
{
	if (user) {
		user->n_refs++;
	}
	return user;
}

void user_unref(struct user *user)
{
	if (user) {
		assert(user->n_refs > 0);
		user->n_refs--;
	}
}

void user_forget(struct user *user)
{
	assert(user->n_shares == 0 && user->n_refs == 0);
	list_remove(&user->place);
	list_remove(&user->link);
	free(user);
}

/* ---- accounts -------------------------------------------------------------------------------- */

static const struct {
	unsigned part; /* 0: by a rule of its own */
	uint64_t least;
	bool binds_root;
} rows[USER_N_ROWS] = {
#define USER_ROW(name, part, least, binds_root, ...) [USER_##name] = {part, least, binds_root},
#include "daemon/net/users.def"
#undef USER_ROW
};

/* The share that one user has of one pot. */
struct share {
	UT_hash_handle hh; /* pot.shares */
	struct user *user; /* stays as long */
	struct pot *pot;
	uint64_t used;
};

uint64_t user_share(enum user_row row, uint64_t limit, uint64_t n_of_others)
{
	assert(rows[row].part > 0);
	uint64_t n = limit > n_of_others ? (limit - n_of_others) / rows[row].part : 0;
	return n > rows[row].least ? n : rows[row].least;
}

static struct share *find_share(const struct pot *pot, const struct user *user)
{
	struct share *share = NULL;
	if (pot->shares) {
		HASH_FIND(hh, pot->shares, &user, sizeof(user), share);
	}
	return share;
}

/* The user's share of @pot, made if there is none. NULL: no memory. */
static struct share *get_share(struct pot *pot, struct user *user)
{
	struct share *share = find_share(pot, user);
	if (share) {
		return share;
	}
	share = calloc(1, sizeof(*share));
	if (!share) {
		return NULL;
	}
	share->user = user;
	share->pot = pot;
	HASH_ADD(hh, pot->shares, user, sizeof(share->user), share);
	if (!hash_has(share)) {
		free(share);
		return NULL;
	}
	user->n_shares++;
	return share;
}

uint64_t pot_used_by(const struct pot *pot, const struct user *user)
{
	const struct share *share = find_share(pot, user);
	return share ? share->used : 0;
}

bool pot_has_room(const struct pot *pot, const struct user *user, uint64_t n)
{
	if (!user || pot->limit == 0 || n == 0) {
		return true;
	}
	uint64_t own = pot_used_by(pot, user);
	if (pot->used > pot->limit || n > pot->limit - pot->used) {
		return false;
	}
	bool is_free = user->uid == 0 && !rows[pot->row].binds_root;
	return is_free || own + n <= user_share(pot->row, pot->limit, pot->used - own);
}

void pot_deinit(struct pot *pot)
{
	assert(pot->used == 0 && !pot->shares);
}

void user_charge_anyway(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n)
{
	assert(!charge->share || (charge->share->pot == pot && charge->share->user == user));
	if (!user || n == 0) {
		return;
	}
	charge->share = charge->share ? charge->share : get_share(pot, user);
	if (charge->share) {
		charge->share->used += n;
		pot->used += n;
		charge->n += n;
	}
}

bool user_charge(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n)
{
	if (!pot_has_room(pot, user, n)) {
		return false;
	}
	user_charge_anyway(charge, pot, user, n);
	return !user || n == 0 || charge->share;
}

static void user_refund(struct user_charge *charge, uint64_t n)
{
	struct share *share = charge->share;
	if (!share) {
		return;
	}
	assert(charge->n >= n && share->used >= n && share->pot->used >= n);
	charge->n -= n;
	share->used -= n;
	share->pot->used -= n;
	if (charge->n == 0) {
		charge->share = NULL;
	}
	if (share->used == 0) {
		HASH_DEL(share->pot->shares, share);
		share->user->n_shares--;
		free(share);
	}
}

void user_refund_all(struct user_charge *charge)
{
	user_refund(charge, charge->n);
}

void user_charge_set(struct user_charge *charge, struct pot *pot, struct user *user, uint64_t n)
{
	if (n < charge->n) {
		user_refund(charge, charge->n - n);
	} else {
		user_charge_anyway(charge, pot, user, n - charge->n);
	}
}
