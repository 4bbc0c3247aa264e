/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises (promise.h) and the sessions of a process: all of them are in one, which takes what each has there.
 */
#include "daemon/holders/holder.h"

#include "daemon/memory/promise.h"
#include "proto/cleanup.h"

/* The process: one number names one after the other, and an image one after the other in one. */
static bool is_same_process(const struct holder *holder, const struct holder *other)
{
	return other->state != HOLDER_NEW && holder_is_of(other, &holder->peer) &&
	       other->image == holder->image && other->tenant == holder->tenant;
}

struct promise *holder_find_promise(const struct holder *holder, uint32_t slot)
{
	struct promise *promise = holder->at[slot].promise;
	const struct holder *other;
	list_for_each (other, &holder->all->list, link) {
		if (!promise && is_same_process(holder, other)) {
			promise = other->at[slot].promise;
		}
	}
	return promise;
}

static uint64_t driver_bytes(const struct driver_memory *driver)
{
	/* How much of managed memory is on the device is not known. */
	return driver->array_bytes + driver->graph_bytes + driver->other_bytes;
}

static void enter_promise(struct holder *holder, uint32_t slot, struct promise *promise)
{
	struct holder_location *at = &holder->at[slot];
	if (promise && !at->promise) {
		at->promise = promise;
		promise->driver_bytes += driver_bytes(&at->driver);
		promise_enter(promise, at->reserved_bytes + at->shared_bytes);
		holder_note_changed(holder);
	}
}

void holder_enter_promises(struct holder *holder)
{
	const struct holder *other;
	list_for_each (other, &holder->all->list, link) {
		if (!is_same_process(holder, other)) {
			continue;
		}
		for (uint32_t i = 0; i < holder->all->n_locations; i++) {
			enter_promise(holder, i, other->at[i].promise);
		}
	}
}

void holder_leave_promises(struct holder *holder)
{
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		struct promise *promise = ptr_steal(holder->at[i].promise);
		if (promise) {
			promise->driver_bytes -= driver_bytes(&holder->at[i].driver);
			promise_leave(promise);
		}
	}
}

void holder_set_promise(struct holder *holder, struct promise *promise, uint64_t bytes)
{
	struct holder *other;
	uint32_t slot = promise->at->slot;
	promise->bytes = bytes;
	list_for_each (other, &holder->all->list, link) {
		if (other == holder || is_same_process(holder, other)) {
			enter_promise(other, slot, promise);
		}
	}
	promise_settle(promise);
}

uint64_t holder_process_bytes(const struct holder *holder, uint32_t slot)
{
	uint64_t bytes = 0;
	const struct holder *other;
	list_for_each (other, &holder->all->list, link) {
		if (other == holder || is_same_process(holder, other)) {
			bytes += other->at[slot].reserved_bytes + other->at[slot].shared_bytes;
		}
	}
	return bytes;
}

void holder_set_driver(struct holder *holder, uint32_t slot, const struct driver_memory *driver)
{
	struct holder_location *at = &holder->at[slot];
	if (at->promise) {
		at->promise->driver_bytes -= driver_bytes(&at->driver);
		at->promise->driver_bytes += driver_bytes(driver);
	}
	at->driver = *driver;
}
