/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/sleeper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	sleeper->holder->sleep.is_asleep = state != SLEEPER_COPIED;
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

static uint64_t *sum_of(struct sleeper *sleeper, const struct slept *slept)
{
	return slept->kind == HELD_CHUNK ? &sleeper->private_bytes : &sleeper->shared_bytes;
}

/* Make a slept thing. NULL: no memory. */
static struct slept *new_slept(const struct slept_from *from)
{
	struct slept *slept = calloc(1, sizeof(*slept) + from->n_copies * sizeof(slept->copies[0]));
	char *name = slept && from->name ? strdup(from->name) : NULL;
	if (!slept || (from->name && !name)) {
		free(slept);
		return NULL;
	}
	slept->name = name;
	slept->kind = from->kind;
	slept->at = from->at;
	slept->model = from->model;
	slept->record = from->record;
	slept->n_copies = from->n_copies;
	for (size_t i = 0; i < from->n_copies; i++) {
		slept->copies[i] = from->copies[i];
		slept->bytes += from->copies[i]->bytes;
	}
	return slept;
}

static void forget_past(struct held *held)
{
	if (held->past) {
		copies_forget(held->past);
		free(held->past);
		held->past = NULL;
	}
}

/* Remember the copy of @held. If there is no memory for that, the chunk is copied once more. */
static void remember(struct held *held, struct copies *copies, struct copy *copy)
{
	forget_past(held);
	held->past = malloc(sizeof(*held->past));
	if (held->past) {
		copies_remember(copies, copy, held->past);
	}
}

bool sleeper_add(struct sleeper *sleeper, struct held *held, const struct slept_from *from)
{
	struct slept *slept = new_slept(from);
	if (!slept) {
		return false;
	}
	slept->sleeper = sleeper;
	slept->held = held;
	*sum_of(sleeper, slept) += slept->bytes;
	held->slept = slept;
	forget_past(held);
	list_insert(&sleeper->slept, &slept->link);
	sleeper_note(held);
	return true;
}

/* @slept is on the GPU, or nobody wants it any more. */
static void slept_free(struct sleeper *sleeper, struct slept *slept)
{
	struct copies *copies = sleeper->context->copies;
	*sum_of(sleeper, slept) -= slept->bytes;
	note_gone(slept);
	list_remove(&slept->link);
	slept->held->slept = NULL;
	for (size_t i = 0; i < slept->n_copies; i++) {
		copies_unpark(copies, slept->copies[i]);
		copies_let(copies, slept->copies[i]);
	}
	charge_refund(&slept->record);
	free(slept->name);
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
		sleeper->holder->sleep.is_asleep = false;
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
		if (slept->kind == HELD_CHUNK) {
			remember(slept->held, sleeper->context->copies, slept->copies[0]);
		}
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
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		promise_lend(holder->at[i].promise);
	}
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
	stats->sleeps_asked += sleeper->why == SLEEP_ASKED;
	stats->sleeps_idle += sleeper->why == SLEEP_IDLE;
	stats->sleeps_pressure += sleeper->why == SLEEP_PRESSURE;
	stats->slept_bytes += sleeper->private_bytes + sleeper->shared_bytes;
	histogram_add(&stats->sleep_time, sleeper->copy_ns);
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
	forget_past(held);
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

/*
 * Returns the thing that was adopted under the same id; or, if none was, a new one of which only the copy is left. NULL: no
 * memory.
 */
static struct held *held_of(struct holder *holder, const struct slept_adopted *as)
{
	struct held *held = holder_find_any(holder, as->held->id);
	return held ? held : holder_adopt_slept(holder, as->held, as->from.kind != HELD_CHUNK);
}

static bool is_of(const struct chunk *chunk, const struct slept_from *from)
{
	return chunk->at == from->at && chunk->bytes == from->copies[0]->bytes;
}

static bool is_of_model(const struct model *model, const struct slept_from *from)
{
	size_t i = 0;
	if (&model->device->at != from->at || model->n_blocks != from->n_copies) {
		return false;
	}
	while (i < from->n_copies &&
	       model->blocks[i].block->chunk.bytes == from->copies[i]->bytes) {
		i++;
	}
	return i == from->n_copies;
}

static bool fits(const struct held *held, const struct slept_from *from)
{
	switch (held->kind) {
	case HELD_CHUNK:
		return from->kind == HELD_CHUNK && is_of(&held->chunk, from);
	case HELD_BLOCK:
		return from->kind == HELD_BLOCK && is_of(&held->block->chunk, from);
	case HELD_MODEL:
		return from->kind == HELD_MODEL && is_of_model(held->model, from);
	default:
		return held->kind == HELD_SLEPT;
	}
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
	int r = held->slept || !fits(held, &as->from)    ? -EINVAL
	        : !sleeper_add(sleeper, held, &as->from) ? -ENOMEM
	                                                 : 0;
	if (r < 0) {
		sleeper_free_if_over(sleeper);
		return r;
	}
	for (size_t i = 0; i < as->from.n_copies; i++) {
		/* The copy is parked already, so copies_park() cannot fail. */
		copies_hold(copies, as->from.copies[i]);
		copies_park(copies, as->from.copies[i], NULL);
	}
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
