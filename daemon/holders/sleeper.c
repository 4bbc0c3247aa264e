/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/sleeper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define BIT(state) (1u << (state))

void sleeper_set_state(struct sleeper *sleeper, enum sleeper_state state)
{
	static const unsigned legal[N_SLEEPER_STATES] = {
		[SLEEPER_COPIED] = BIT(SLEEPER_ASLEEP),
		[SLEEPER_ASLEEP] = BIT(SLEEPER_WAKING),
		[SLEEPER_WAKING] = BIT(SLEEPER_ASLEEP) | BIT(SLEEPER_COPIED),
	};
	assert(legal[sleeper->state] & BIT(state));
	sleeper->state = state;
}

/* ---- who watches ------------------------------------------------------------------------------ */

void sleeper_note(const struct held *held)
{
	const struct slept *slept = held->slept;
	const struct holders *all = slept ? slept->sleeper->holder->all : NULL;
	if (all && all->watch) {
		all->watch->slept(all->watcher, slept);
	}
}

static void note_gone(const struct slept *slept)
{
	const struct holders *all = slept->sleeper->holder->all;
	if (all->watch) {
		all->watch->slept_gone(all->watcher, slept);
	}
}

static bool is_asleep(const struct sleeper *sleeper)
{
	return sleeper->state != SLEEPER_COPIED;
}

void sleeper_note_asleep(const struct holder *holder)
{
	if (holder->sleeper && is_asleep(holder->sleeper) && holder->all->watch) {
		holder->all->watch->sleeper(holder->all->watcher, holder->sleeper);
	}
}

/* ---- what it has ------------------------------------------------------------------------------ */

struct sleeper *sleeper_of(struct holder *holder, const struct sleep_context *context)
{
	if (!holder->sleeper) {
		struct sleeper *sleeper = calloc(1, sizeof(*sleeper));
		if (sleeper) {
			sleeper->holder = holder;
			sleeper->context = context;
			list_init(&sleeper->link);
			list_init(&sleeper->slept);
		}
		holder->sleeper = sleeper;
	}
	return holder->sleeper;
}

static bool add(struct sleeper *sleeper, struct held *held, struct copy *copy, struct location *at,
                bool is_block)
{
	struct slept *slept = calloc(1, sizeof(*slept));
	if (!slept) {
		return false;
	}
	slept->sleeper = sleeper;
	slept->held = held;
	slept->copy = copy;
	slept->at = at;
	slept->bytes = copy->bytes;
	slept->is_block = is_block;
	*(is_block ? &sleeper->shared_bytes : &sleeper->private_bytes) += slept->bytes;
	held->slept = slept;
	list_insert(&sleeper->slept, &slept->link);
	sleeper_note(held);
	return true;
}

static const struct chunk *chunk_of(const struct held *held)
{
	return held->kind == HELD_BLOCK ? &held->block->chunk : &held->chunk;
}

bool sleeper_add(struct sleeper *sleeper, struct held *held, struct copy *copy)
{
	return add(sleeper, held, copy, chunk_of(held)->at, held->kind == HELD_BLOCK);
}

void slept_free(struct sleeper *sleeper, struct slept *slept)
{
	uint64_t *sum = slept->is_block ? &sleeper->shared_bytes : &sleeper->private_bytes;
	*sum -= slept->bytes;
	note_gone(slept);
	list_remove(&slept->link);
	slept->held->slept = NULL;
	copies_unpark(sleeper->context->copies, slept->copy);
	copies_let(sleeper->context->copies, slept->copy);
	free(slept);
}

static void note_awake(const struct sleeper *sleeper)
{
	const struct holders *all = sleeper->holder->all;
	if (all->watch) {
		all->watch->sleeper_gone(all->watcher, sleeper);
	}
}

void sleeper_free_if_over(struct sleeper *sleeper)
{
	if (list_is_empty(&sleeper->slept) && !sleeper->wake) {
		if (is_asleep(sleeper)) {
			note_awake(sleeper);
		}
		list_remove(&sleeper->link);
		sleeper->holder->sleeper = NULL;
		free(sleeper);
	}
}

void sleeper_leave(struct holder *holder)
{
	struct sleeper *sleeper = holder->sleeper;
	if (!sleeper) {
		return;
	}
	assert(sleeper->state == SLEEPER_COPIED);
	struct slept *slept;
	struct slept *spare;
	list_for_each_safe (slept, spare, &sleeper->slept, link) {
		slept_free(sleeper, slept);
	}
	sleeper_free_if_over(sleeper);
}

/* ---- asleep ----------------------------------------------------------------------------------- */

/*
 * The record that it sleeps comes first. With it, or without one of its things on the GPU, the next glaked does what is left
 * of this.
 */
static void go_to_sleep(struct sleeper *sleeper)
{
	struct holder *holder = sleeper->holder;
	struct slept *slept;
	sleeper_set_state(sleeper, SLEEPER_ASLEEP);
	sleeper_note_asleep(holder);
	list_for_each (slept, &sleeper->slept, link) {
		if (slept->held->kind != HELD_SLEPT) {
			holder_put_to_sleep(holder, slept->held);
		}
	}
}

static void count(const struct sleeper *sleeper)
{
	struct stats *stats = sleeper->context->allocator->stats;
	stats->sleeps++;
	stats->sleeps_idle += sleeper->why == SLEEP_IDLE;
	stats->sleeps_pressure += sleeper->why == SLEEP_PRESSURE;
	stats->slept_bytes += sleeper->private_bytes + sleeper->shared_bytes;
}

enum status sleeper_enter(struct holder *holder, enum sleep_why why, const struct sleep_stay *stays,
                          size_t n_stays)
{
	struct sleeper *sleeper = holder->sleeper;
	if (!sleeper) {
		return STATUS_BAD_REQUEST;
	}
	if (sleeper->state != SLEEPER_COPIED) {
		return STATUS_OK;
	}
	sleeper->why = why;
	sleeper->since_ms = uv_now(holder->all->loop);
	sleeper->n_stays = (uint32_t)n_stays;
	memcpy(sleeper->stays, stays, n_stays * sizeof(stays[0]));
	list_insert(&holder->all->sleepers, &sleeper->link);
	count(sleeper);
	holder->sleep.n_sleeps++;
	holder->sleep.slept_ns = sleeper->copy_ns;
	go_to_sleep(sleeper);
	return STATUS_OK;
}

void sleeper_wake_up(struct sleeper *sleeper)
{
	note_awake(sleeper);
	sleeper_set_state(sleeper, SLEEPER_COPIED);
	list_remove(&sleeper->link);
}

void sleeper_forget(struct held *held)
{
	struct slept *slept = held->slept;
	if (slept) {
		struct sleeper *sleeper = slept->sleeper;
		if (sleeper->wake) {
			sleep_wake_forget(sleeper->wake, slept);
		}
		slept_free(sleeper, slept);
		sleeper_free_if_over(sleeper);
	}
}

void sleeper_end(struct holder *holder)
{
	struct sleeper *sleeper = holder->sleeper;
	if (sleeper && sleeper->wake) {
		sleep_wake_cancel(sleeper->wake);
	}
}

/* ---- from an earlier glaked ------------------------------------------------------------------- */

/* What was adopted under the same id; or, if nothing was, what only the copy is left of. NULL: no memory. */
static struct held *held_of(struct holder *holder, const struct slept_adopted *as)
{
	struct held *held = holder_find_any(holder, as->held->id);
	return held ? held : holder_adopt_slept(holder, as->held, as->is_block);
}

static bool fits(const struct held *held, const struct slept_adopted *as)
{
	bool is_kind = held->kind == HELD_SLEPT ||
	               held->kind == (as->is_block ? HELD_BLOCK : HELD_CHUNK);
	return is_kind && !held->slept &&
	       (held->kind == HELD_SLEPT ||
	        (chunk_of(held)->at == as->at && chunk_of(held)->bytes == as->copy->bytes));
}

int sleeper_adopt(struct holder *holder, const struct sleep_context *context,
                  const struct slept_adopted *as)
{
	struct copies *copies = context->copies;
	struct held *held = held_of(holder, as);
	struct sleeper *sleeper = held ? sleeper_of(holder, context) : NULL;
	if (!sleeper) {
		return -ENOMEM;
	}
	if (!fits(held, as)) {
		sleeper_free_if_over(sleeper);
		return -EINVAL;
	}
	if (!add(sleeper, held, as->copy, as->at, as->is_block)) {
		sleeper_free_if_over(sleeper);
		return -ENOMEM;
	}
	/* It is parked already, so this cannot fail. */
	copies_hold(copies, as->copy);
	copies_park(copies, as->copy, NULL);
	return 0;
}

static void enter_by_age(struct sleeper *sleeper)
{
	struct list *all = &sleeper->holder->all->sleepers;
	struct list *next = all;
	while (next->prev != all &&
	       container_of(next->prev, struct sleeper, link)->since_ms > sleeper->since_ms) {
		next = next->prev;
	}
	list_insert(next, &sleeper->link);
}

static bool has_slept(const struct sleeper *sleeper)
{
	const struct slept *slept;
	list_for_each (slept, &sleeper->slept, link) {
		if (slept->held->kind == HELD_SLEPT) {
			return true;
		}
	}
	return sleeper->has_entered;
}

void sleepers_settle_adopted(struct holders *holders)
{
	struct holder *holder;
	list_for_each (holder, &holders->list, link) {
		struct sleeper *sleeper = holder->sleeper;
		if (sleeper && has_slept(sleeper)) {
			sleeper->since_ms = sleeper->has_entered ? sleeper->since_ms
			                                         : uv_now(holders->loop);
			enter_by_age(sleeper);
			go_to_sleep(sleeper);
		}
	}
}
