/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/promise.h"

/* Reserved bytes must come back: the asserts stay in every build. */
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>

static uint64_t at_most(uint64_t bytes, uint64_t limit)
{
	return bytes < limit ? bytes : limit;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
	return bytes > taken ? bytes - taken : 0;
}

struct promise *promise_new(struct promises *promises, struct location *at, struct tenant *tenant)
{
	struct promise *promise = calloc(1, sizeof(*promise));
	if (promise) {
		promise->at = at;
		promise->n_refs = 1;
		promise->charge = tenant_charge_adopted(payer_alone(tenant), at->slot, 0, 0, 0);
		list_insert(&promises->all, &promise->link);
	}
	return promise;
}

struct promise *promise_ref(struct promise *promise)
{
	promise->n_refs++;
	return promise;
}

void promise_unref(struct promise *promise)
{
	if (!promise || --promise->n_refs > 0) {
		return;
	}
	assert(promise->used_bytes == 0 && promise->drawn_bytes == 0);
	promise->bytes = 0;
	promise_settle(promise);
	charge_refund(&promise->charge);
	list_remove(&promise->link);
	free(promise);
}

void promise_enter(struct promise *promise, uint64_t used_bytes)
{
	promise_ref(promise);
	promise->n_users++;
	promise_use(promise, used_bytes);
}

void promise_leave(struct promise *promise)
{
	if (--promise->n_users == 0) {
		promise->bytes = 0;
		promise_settle(promise);
	}
	promise_unref(promise);
}

/* ---- what is reserved -------------------------------------------------------------------------- */

static uint64_t wanted_bytes(const struct promise *promise)
{
	return promise->is_lent ? 0
	                        : less(promise->bytes, promise->used_bytes + promise->drawn_bytes);
}

static void give_back(struct promise *promise, uint64_t bytes)
{
	assert(bytes <= promise->reserved_bytes && bytes <= promise->at->promised_bytes);
	promise->reserved_bytes -= bytes;
	promise->at->promised_bytes -= bytes;
	charge_shrink(&promise->charge, bytes);
}

void promise_put(struct promise *promise, uint64_t bytes)
{
	promise->reserved_bytes += bytes;
	promise->at->promised_bytes += bytes;
	charge_grow(&promise->charge, bytes);
}

void promise_settle(struct promise *promise)
{
	uint64_t wanted = promise ? wanted_bytes(promise) : 0;
	if (!promise || wanted == promise->reserved_bytes) {
		return;
	}
	if (wanted < promise->reserved_bytes) {
		give_back(promise, promise->reserved_bytes - wanted);
		return;
	}
	uint64_t room = at_most(location_room_bytes(promise->at),
	                        charge_room_bytes(&promise->charge));
	promise_put(promise, at_most(wanted - promise->reserved_bytes, room));
}

void promises_settle(struct promises *promises)
{
	struct promise *promise;
	list_for_each (promise, &promises->all, link) {
		promise_settle(promise);
	}
}

void promise_use(struct promise *promise, uint64_t bytes)
{
	if (promise) {
		promise->used_bytes += bytes;
		promise_settle(promise);
	}
}

void promise_unuse(struct promise *promise, uint64_t bytes)
{
	if (promise) {
		assert(promise->used_bytes >= bytes);
		promise->used_bytes -= bytes;
	}
}

uint64_t promise_lent_bytes(const struct promise *promise)
{
	return less(promise->bytes,
	            promise->used_bytes + promise->drawn_bytes + promise->reserved_bytes);
}

void promise_lend(struct promise *promise)
{
	if (promise) {
		promise->is_lent = true;
		promise_settle(promise);
	}
}

/* ---- requests ---------------------------------------------------------------------------------- */

uint64_t promise_left_bytes(const struct promise *promise)
{
	return less(promise->bytes,
	            promise->used_bytes + promise->drawn_bytes + promise->driver_bytes);
}

bool promise_draw(struct promise *promise, uint64_t bytes)
{
	if (bytes > promise_left_bytes(promise)) {
		return false;
	}
	promise_ref(promise);
	promise->drawn_bytes += bytes;
	return true;
}

void promise_undraw(struct promise *promise, uint64_t bytes)
{
	assert(promise->drawn_bytes >= bytes);
	promise->drawn_bytes -= bytes;
	promise_settle(promise);
	promise_unref(promise);
}

/* Up to @bytes of what was drawn are no more reserved, but the caller's to charge. Returns how many. */
static uint64_t take(struct promise *promise, uint64_t bytes)
{
	uint64_t taken = at_most(bytes, promise->reserved_bytes);
	give_back(promise, taken);
	return taken;
}

int promise_charge(struct promise *promise, struct tenant *tenant, uint32_t slot,
                   const uint64_t *sizes, size_t n, struct charge *charges_out, uint64_t *taken_out)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < n; i++) {
		bytes += sizes[i];
	}
	uint64_t taken_bytes = promise ? take(promise, bytes) : 0;
	for (size_t i = 0; i < n; i++) {
		int r = (taken_bytes == bytes ? tenant_charge_promised : tenant_charge)(
			tenant, slot, sizes[i], 1, &charges_out[i]);
		if (r != 0) {
			while (i-- > 0) {
				charge_refund(&charges_out[i]);
			}
			if (taken_bytes > 0) {
				promise_put(promise, taken_bytes);
			}
			return r;
		}
	}
	*taken_out = taken_bytes;
	return 0;
}
