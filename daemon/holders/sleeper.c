/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/sleeper.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define BIT(state) (1u << (state))

void sleeper_set_state(struct sleeper *sleeper, enum sleeper_state state)
{
	static const unsigned legal[N_SLEEPER_STATES] = {
		[SLEEPER_COPIED] = BIT(SLEEPER_ASLEEP),
		[SLEEPER_ASLEEP] = BIT(SLEEPER_WAKING),
		[SLEEPER_WAKING] = BIT(SLEEPER_ASLEEP),
	};
	assert(legal[sleeper->state] & BIT(state));
	sleeper->state = state;
}

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

bool sleeper_add(struct sleeper *sleeper, struct held *held, struct copy *copy)
{
	struct slept *slept = calloc(1, sizeof(*slept));
	if (!slept) {
		return false;
	}
	const struct chunk *chunk = held->kind == HELD_BLOCK ? &held->block->chunk : &held->chunk;
	slept->sleeper = sleeper;
	slept->held = held;
	slept->copy = copy;
	slept->at = chunk->at;
	slept->bytes = chunk->bytes;
	slept->is_block = held->kind == HELD_BLOCK;
	*(slept->is_block ? &sleeper->shared_bytes : &sleeper->private_bytes) += slept->bytes;
	held->slept = slept;
	list_insert(&sleeper->slept, &slept->link);
	return true;
}

void slept_free(struct sleeper *sleeper, struct slept *slept)
{
	uint64_t *sum = slept->is_block ? &sleeper->shared_bytes : &sleeper->private_bytes;
	*sum -= slept->bytes;
	list_remove(&slept->link);
	slept->held->slept = NULL;
	copies_let(sleeper->context->copies, slept->copy);
	free(slept);
}

void sleeper_free_if_over(struct sleeper *sleeper)
{
	if (list_is_empty(&sleeper->slept) && !sleeper->wake) {
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
	struct slept *slept;
	list_for_each (slept, &sleeper->slept, link) {
		holder_put_to_sleep(holder, slept->held);
	}
	sleeper_set_state(sleeper, SLEEPER_ASLEEP);
	sleeper->why = why;
	sleeper->since_ms = uv_now(holder->all->loop);
	sleeper->n_stays = (uint32_t)n_stays;
	memcpy(sleeper->stays, stays, n_stays * sizeof(stays[0]));
	list_insert(&holder->all->sleepers, &sleeper->link);
	holder->sleep.n_sleeps++;
	holder->sleep.slept_ns = sleeper->copy_ns;
	return STATUS_OK;
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
