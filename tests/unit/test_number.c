/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and what a program does with them, over the simulated driver: while their chunks are cut, replaced and sealed.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "libclient/link/session.h"
#include "libclient/space/fill.h"
#include "libclient/space/number.h"
#include "tests/unit/ranges.h"

BEGIN_EACH(begin_one)

static atomic_uint n_ended;

static void no_report(struct glake_session *session)
{
	ck_assert_ptr_nonnull(session->devices);
}

static void note_end(void *user)
{
	ck_assert_ptr_eq(user, &n_ended);
	n_ended++;
}

/* A number of memory whose every word is @value. The memory is no glaked's: nothing is given back to one. */
static unsigned long long new_number(uint64_t n_mib, uint32_t value)
{
	static struct glake__device device;
	static struct glake_session session;
	CUmemGenericAllocationHandle handle = chunk_new(n_mib * MIB);
	unsigned long long number = 0;
	session.devices = &device;
	session.n_devices = 1;
	session.report = no_report;
	device.session = &session;
	CUdeviceptr at = chunk_map(handle, n_mib * MIB, READ_WRITE);
	ck_ok(drv.cuMemsetD32Async(at, value, n_mib * MIB / 4, NULL));
	ck_ok(drv.cuCtxSynchronize());
	ck_ok(cu.MemUnmap(at, n_mib * MIB));
	ck_ok(cu.MemAddressFree(at, n_mib * MIB));
	ck_assert_int_eq(glake__number_make(&session, 0, 0, n_mib * MIB, handle, &n_ended, note_end,
	                                    &number),
	                 0);
	ck_assert(glake__is_number(number));
	return number;
}

static glake_ptr reserve_mib(uint64_t n_mib)
{
	glake_ptr ptr = 0;
	ck_assert_int_eq(glake__program_reserve(n_mib * MIB, 0, 0, &ptr), 0);
	return ptr;
}

/* As cuMemMap() under the shim. */
static int map(glake_ptr ptr, unsigned long long value)
{
	struct glake__number *number = glake__number_take(value);
	uint64_t n_bytes;
	ck_assert_ptr_nonnull(number);
	glake__number_address(number, &n_bytes);
	int r = glake__number_map(number, ptr, n_bytes);
	glake__number_give(number);
	return r;
}

static int unmap(glake_ptr ptr, uint64_t n_mib)
{
	struct glake__mapping *mapping = NULL;
	int r = glake__program_unmap(ptr, n_mib * MIB, &mapping);
	if (r == 0) {
		ck_ok(drv.cuMemUnmap(ptr, n_mib * MIB));
		glake__program_settle(mapping, true);
	}
	return r;
}

static int open_to_read(glake_ptr ptr, uint64_t n_mib)
{
	struct glake__mapping *mapping = NULL;
	int r = glake__program_hold_whole(ptr, n_mib * MIB, &mapping);
	if (r == 0) {
		ck_ok(set_access(ptr, n_mib * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
		glake__program_opened(ptr, n_mib * MIB, 0, true, true);
		glake__program_settle(mapping, true);
	}
	return r;
}

static void map_to_read(glake_ptr ptr, unsigned long long number, uint64_t n_mib)
{
	ck_assert_int_eq(map(ptr, number), 0);
	ck_assert_int_eq(open_to_read(ptr, n_mib), 0);
}

static unsigned long long retain(glake_ptr ptr)
{
	struct glake__mapping *mapping = NULL;
	ck_assert_int_eq(glake__program_hold(ptr, 1, &mapping), 0);
	unsigned long long value = glake__number_retain(ptr);
	glake__program_settle(mapping, true);
	ck_assert_uint_ne(value, 0);
	return value;
}

static bool is_known(unsigned long long value)
{
	struct glake__number *number = glake__number_take(value);
	if (number) {
		glake__number_give(number);
	}
	return number;
}

/* Parts of fresh chunks in place of all that is at @ptr. */
static void replace_at(glake_ptr ptr, const struct glake__part *parts, size_t n)
{
	glake__lock();
	struct glake__range *range = glake__range_at_locked(ptr, &glake__use_program);
	glake__unlock();
	ck_assert_int_eq(range_reback(range, ptr - range->ptr, parts, n, NULL), 0);
}

static void cut_at(glake_ptr ptr, uint32_t *values_out)
{
	struct glake__part parts[] = {make_part(2), make_part(2), make_part(2)};
	for (size_t i = 0; i < 3; i++) {
		values_out[i] = (uint32_t)parts[i].chunk->id;
		/* Or they would be returned to a glaked. */
		parts[i].chunk->id = 0;
	}
	replace_at(ptr, parts, 3);
	for (size_t i = 0; i < 3; i++) {
		end_part(&parts[i]);
	}
}

static void expect_words_at(glake_ptr ptr, const uint32_t *values, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		ck_assert_uint_eq(word_at(ptr + i * 2 * MIB), values[i]);
	}
}

/* ---- life ------------------------------------------------------------------------------------- */

START_TEST(a_number_lives_as_long_as_it_is_used)
{
	const uint64_t used = used_bytes();
	glake_ptr ptr = reserve_mib(4);
	unsigned long long number = new_number(4, 17);
	map_to_read(ptr, number, 4);
	ck_assert_uint_eq(retain(ptr + 3 * MIB), number);
	ck_assert(glake__number_release(number));
	ck_assert(is_known(number));
	ck_assert(glake__number_release(number));
	ck_assert(!is_known(number));
	ck_assert(!glake__number_release(number));
	ck_assert_uint_eq(word_at(ptr + 2 * MIB), 17);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_NONE);
	/* The mapping has a number again. */
	unsigned long long again = retain(ptr);
	ck_assert_int_eq(unmap(ptr, 4), 0);
	ck_assert_uint_eq(n_ended, 0);
	map_to_read(ptr, again, 4);
	ck_assert_uint_eq(word_at(ptr), 17);
	ck_assert(glake__number_release(again));
	ck_assert_int_eq(unmap(ptr, 4), 0);
	ck_assert_uint_eq(n_ended, 1);
	ck_assert_uint_eq(used_bytes(), used);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__program_unreserve(ptr, 4 * MIB), 0);
}
END_TEST

START_TEST(a_number_that_is_mapped_nowhere_ends_with_its_last_reference)
{
	unsigned long long number = new_number(2, 1);
	struct glake__number *used = glake__number_take(number);
	ck_assert(glake__number_release(number));
	ck_assert_uint_eq(n_ended, 0);
	glake__number_give(used);
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* The memory that stood there before may be anybody's. */
START_TEST(what_was_copied_to_a_place_does_not_count_for_what_comes)
{
	glake__lock();
	glake__fill_start();
	glake__unlock();
	glake_ptr ptr = reserve_mib(2);
	unsigned long long number = new_number(2, 1);
	map_to_read(ptr, number, 2);
	glake__fill_copied(ptr, 2 * MIB);
	ck_assert_int_eq(glake__fill_at(ptr, 2 * MIB), GLAKE__FILL_WHOLE);
	ck_assert_int_eq(unmap(ptr, 2), 0);
	map_to_read(ptr, number, 2);
	ck_assert_int_eq(glake__fill_at(ptr, 2 * MIB), GLAKE__FILL_PARTLY);
	ck_assert_int_eq(unmap(ptr, 2), 0);
	ck_assert(glake__number_release(number));
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* ---- several chunks --------------------------------------------------------------------------- */

START_TEST(a_number_of_several_chunks_is_mapped_and_unmapped_as_one)
{
	uint32_t values[3];
	glake_ptr one = reserve_mib(8);
	glake_ptr two = reserve_mib(8);
	unsigned long long number = new_number(6, 5);
	unsigned long long other = new_number(2, 6);
	map_to_read(one, number, 6);
	map_to_read(one + 6 * MIB, other, 2);
	cut_at(one, values);
	expect_words_at(one, values, 3);
	map_to_read(two + 2 * MIB, number, 6);
	expect_words_at(two + 2 * MIB, values, 3);
	ck_assert(glake__space_is_valid());
	/* As if it were one still. */
	ck_assert_int_eq(unmap(one, 2), -EINVAL);
	ck_assert_int_eq(unmap(one, 4), -EINVAL);
	ck_assert_int_eq(unmap(one + 2 * MIB, 4), -EINVAL);
	ck_assert_int_eq(unmap(one + 4 * MIB, 4), -EINVAL);
	ck_assert_int_eq(open_to_read(one + 2 * MIB, 2), -EINVAL);
	ck_assert_uint_eq(retain(one + 4 * MIB), number);
	ck_assert(glake__number_release(number));
	ck_assert(glake__number_release(number));
	ck_assert(glake__number_release(other));
	ck_assert_int_eq(unmap(one, 8), 0);
	ck_assert_uint_eq(n_ended, 1);
	expect_words_at(two + 2 * MIB, values, 3);
	ck_assert_int_eq(unmap(two, 8), 0);
	ck_assert_uint_eq(n_ended, 2);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* The owner inherits what takes the place of its memory, and ends with the last of it. */
START_TEST(what_replaces_memory_is_of_the_same_owner)
{
	uint32_t values[3];
	glake_ptr ptr = reserve_mib(6);
	unsigned long long number = new_number(6, 5);
	map_to_read(ptr, number, 6);
	cut_at(ptr, values);
	ck_assert_uint_eq(n_ended, 0);
	ck_assert(glake__number_release(number));
	glake__lock();
	struct glake__chunk *chunk = glake__piece_at_locked(ptr)->chunk;
	chunk->n_uses++;
	glake__unlock();
	ck_assert_int_eq(unmap(ptr, 6), 0);
	ck_assert_uint_eq(n_ended, 0);
	/* The number has gone before it. */
	glake__lock();
	ck_assert_ptr_null(glake__number_use_locked(chunk));
	glake__unlock();
	glake__chunk_put(chunk);
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

START_TEST(what_the_driver_does_not_map_whole_is_not_mapped)
{
	uint32_t values[3];
	glake_ptr one = reserve_mib(6);
	glake_ptr two = reserve_mib(6);
	unsigned long long number = new_number(6, 5);
	map_to_read(one, number, 6);
	cut_at(one, values);
	for (int i = 1; i <= 3; i++) {
		char rule[64];
		snprintf(rule, sizeof(rule), "cuMemMap:%d:fail=2", i);
		set_faults(rule);
		ck_assert_int_eq(map(two, number), GLAKE_E_CUDA);
		set_faults("");
		ck_assert(glake__space_is_valid());
	}
	map_to_read(two, number, 6);
	expect_words_at(two, values, 3);
	ck_assert_int_eq(unmap(two, 6), 0);
	ck_assert_int_eq(unmap(one, 6), 0);
	ck_assert(glake__number_release(number));
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* ---- what is handed out ----------------------------------------------------------------------- */

START_TEST(what_is_handed_out_is_one_private_chunk)
{
	uint32_t values[3];
	uint64_t id;
	unsigned long long handle = 0;
	glake_ptr ptr = reserve_mib(6);
	unsigned long long number = new_number(6, 5);
	map_to_read(ptr, number, 6);
	struct glake__number *taken = glake__number_take(number);
	glake__lock();
	struct glake__chunk *chunk = glake__piece_at_locked(ptr)->chunk;
	glake__chunk_set_kind_locked(chunk, GLAKE__PAGE_BLOCK);
	glake__unlock();
	ck_assert_int_eq(glake__number_pin(taken, GLAKE__PIN_EXPORTED, &id, &handle), -EROFS);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_NONE);
	glake__lock();
	glake__chunk_set_kind_locked(chunk, GLAKE__PAGE_CHUNK);
	glake__unlock();
	cut_at(ptr, values);
	ck_assert_int_eq(glake__number_pin(taken, GLAKE__PIN_EXPORTED, &id, &handle), -EBUSY);
	glake__number_give(taken);
	ck_assert(glake__number_release(number));
	ck_assert_int_eq(unmap(ptr, 6), 0);
	number = new_number(2, 5);
	taken = glake__number_take(number);
	map_to_read(ptr, number, 2);
	ck_assert_int_eq(glake__number_pin(taken, GLAKE__PIN_EXPORTED, &id, &handle), 0);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_EXPORTED);
	ck_assert_uint_ne(handle, 0);
	glake__number_give(taken);
	ck_assert(glake__number_release(number));
	ck_assert_int_eq(unmap(ptr, 2), 0);
	ck_assert_uint_eq(n_ended, 2);
}
END_TEST

/* The CPU, where a driver lets it: the books of access have only devices. */
START_TEST(what_is_open_to_others_than_devices_keeps_its_place)
{
	glake_ptr ptr = reserve_mib(4);
	unsigned long long number = new_number(2, 5);
	map_to_read(ptr, number, 2);
	glake__program_opened(ptr, 2 * MIB, -1, false, false);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_NONE);
	glake__program_opened(ptr, 2 * MIB, -1, true, true);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_DMABUF);
	ck_assert(glake__number_release(number));
	ck_assert_int_eq(unmap(ptr, 2), 0);
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* ---- many places ------------------------------------------------------------------------------ */

/* As a page of zeroes of a KV cache: it is pinned, and a number all the same. */
START_TEST(a_number_of_very_many_places_lives_as_long_as_it_is_mapped)
{
	enum { N = 2 * GLAKE__MAX_PLACES };
	glake_ptr ptr = reserve_mib(N * 2);
	unsigned long long number = new_number(2, 9);
	for (uint64_t i = 0; i < N; i++) {
		ck_assert_int_eq(map(ptr + i * 2 * MIB, number), 0);
	}
	ck_assert(glake__number_release(number));
	ck_assert_int_eq(open_to_read(ptr, N * 2), 0);
	ck_assert_uint_eq(word_at(ptr + (N - 1) * 2 * MIB), 9);
	ck_assert(glake__is_number(retain(ptr + 100 * MIB)));
	ck_assert_int_eq(unmap(ptr, N * 2), 0);
	ck_assert_uint_eq(n_ended, 0);
	ck_assert(is_known(number));
	ck_assert(glake__number_release(number));
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------- */

enum { N_ROUNDS = 400, N_PARTS = 3 };
static unsigned long long shared;
static glake_ptr home;
static atomic_bool is_over;

/* Chunks of the same content take turns under it, whole or cut. */
static void *replace_on_and_on(void *argument)
{
	ck_ok(cu.CtxSetCurrent(driver_start()));
	while (!is_over) {
		struct glake__part parts[N_PARTS];
		for (size_t i = 0; i < N_PARTS; i++) {
			last_id = 6;
			parts[i] = make_part(2);
			parts[i].chunk->id = 0;
		}
		int r = -EBUSY;
		while (r == -EBUSY) {
			glake__lock();
			struct glake__range *range = glake__range_at_locked(home,
			                                                    &glake__use_program);
			glake__unlock();
			r = range_reback(range, 0, parts, N_PARTS, NULL);
		}
		ck_assert_int_eq(r, 0);
		for (size_t i = 0; i < N_PARTS; i++) {
			end_part(&parts[i]);
		}
	}
	return argument;
}

/* No gate keeps the memory in its place meanwhile. */
static void expect_sevens(glake_ptr ptr)
{
	struct glake__mapping *mapping = NULL;
	ck_assert_int_eq(glake__program_hold_whole(ptr, 6 * MIB, &mapping), 0);
	for (uint64_t k = 0; k < N_PARTS; k++) {
		ck_assert_uint_eq(word_at(ptr + k * 2 * MIB), 7);
	}
	glake__program_settle(mapping, true);
}

static void *map_on_and_on(void *argument)
{
	unsigned seed = (unsigned)(uintptr_t)argument;
	glake_ptr ptr = reserve_mib(6);
	ck_ok(cu.CtxSetCurrent(driver_start()));
	for (int i = 0; i < N_ROUNDS; i++) {
		ck_assert_int_eq(map(ptr, shared), 0);
		if (rand_r(&seed) % 2) {
			ck_assert_int_eq(open_to_read(ptr, 6), 0);
			expect_sevens(ptr);
		}
		if (rand_r(&seed) % 2) {
			ck_assert_uint_eq(retain(ptr + 4 * MIB), shared);
			ck_assert(glake__number_release(shared));
		}
		ck_assert_int_eq(unmap(ptr, 6), 0);
	}
	ck_assert_int_eq(glake__program_unreserve(ptr, 6 * MIB), 0);
	return NULL;
}

START_TEST(a_number_is_mapped_while_its_memory_is_replaced)
{
	pthread_t threads[4];
	home = reserve_mib(6);
	shared = new_number(6, 7);
	map_to_read(home, shared, 6);
	for (uintptr_t i = 0; i < 4; i++) {
		pthread_create(&threads[i], NULL, i ? map_on_and_on : replace_on_and_on, (void *)i);
	}
	for (size_t i = 1; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	is_over = true;
	pthread_join(threads[0], NULL);
	ck_assert(glake__space_is_valid());
	ck_assert(glake__number_release(shared));
	ck_assert_uint_eq(n_ended, 0);
	ck_assert_int_eq(unmap(home, 6), 0);
	ck_assert_uint_eq(n_ended, 1);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* Who maps, and who has what is to be mapped. */
struct mapper {
	glake_ptr ptr;
	unsigned long long number;
	int result;
};

static void *map_once(void *argument)
{
	struct mapper *mapper = argument;
	ck_ok(cu.CtxSetCurrent(driver_start()));
	mapper->result = map(mapper->ptr, mapper->number);
	return NULL;
}

static uint32_t uses_at(glake_ptr ptr)
{
	glake__lock();
	uint32_t n_uses = glake__piece_at_locked(ptr)->chunk->n_uses;
	glake__unlock();
	return n_uses;
}

/* Whoever maps it has looked up what that is, and waits for the holder, who replaces it. */
START_TEST(a_number_is_mapped_as_what_it_has_become_meanwhile)
{
	pthread_t thread;
	struct glake__hold hold;
	struct mapper mapper = {.ptr = reserve_mib(2), .number = new_number(2, 5)};
	struct glake__part new = make_part(2);
	const uint32_t value = (uint32_t) new.chunk->id;
	glake_ptr one = reserve_mib(2);
	new.chunk->id = 0;
	map_to_read(one, mapper.number, 2);
	ck_assert_int_eq(glake__hold_begin(&hold, one, 1, false), 0);
	const uint32_t n_uses = uses_at(one);
	pthread_create(&thread, NULL, map_once, &mapper);
	while (uses_at(one) == n_uses) {
		sched_yield();
	}
	ck_assert_int_eq(hold_reback(&hold, &new, 1), 0);
	glake__hold_end(&hold);
	pthread_join(thread, NULL);
	ck_assert_int_eq(mapper.result, 0);
	ck_assert_int_eq(open_to_read(mapper.ptr, 2), 0);
	ck_assert_uint_eq(word_at(one), value);
	ck_assert_uint_eq(word_at(mapper.ptr), value);
	end_part(&new);
	ck_assert(glake__number_release(mapper.number));
	ck_assert_int_eq(unmap(one, 2), 0);
	ck_assert_int_eq(unmap(mapper.ptr, 2), 0);
	ck_assert_uint_eq(n_ended, 1);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* Who wants to hand it out, and what he got. */
struct pinner {
	unsigned long long number;
	unsigned long long handle;
	int result;
};

static void *pin_once(void *argument)
{
	struct pinner *pinner = argument;
	struct glake__number *number = glake__number_take(pinner->number);
	uint64_t id;
	pinner->result = glake__number_pin(number, GLAKE__PIN_EXPORTED, &id, &pinner->handle);
	glake__number_give(number);
	return NULL;
}

START_TEST(what_is_handed_out_waits_for_its_holder)
{
	pthread_t thread;
	struct glake__hold hold;
	struct pinner pinner = {.number = new_number(2, 5)};
	struct glake__part new = make_part(2);
	glake_ptr ptr = reserve_mib(2);
	new.chunk->id = 0;
	map_to_read(ptr, pinner.number, 2);
	ck_assert_int_eq(glake__hold_begin(&hold, ptr, 1, false), 0);
	pthread_create(&thread, NULL, pin_once, &pinner);
	usleep(20000);
	ck_assert_int_eq(hold_reback(&hold, &new, 1), 0);
	glake__hold_end(&hold);
	pthread_join(thread, NULL);
	ck_assert_int_eq(pinner.result, 0);
	ck_assert_uint_eq(pinner.handle, new.chunk->handle);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_EXPORTED);
	end_part(&new);
	ck_assert(glake__number_release(pinner.number));
	ck_assert_int_eq(unmap(ptr, 2), 0);
	ck_assert_uint_eq(n_ended, 1);
}
END_TEST

/* A place that comes and goes. */
static _Atomic(glake_ptr) place;

static void *reserve_on_and_on(void *argument)
{
	while (!is_over) {
		place = reserve_mib(6);
		for (int i = 0; i < 20; i++) {
			sched_yield();
		}
		/* Until nobody has mapped anything there. */
		while (glake__program_unreserve(place, 6 * MIB) < 0) {
			sched_yield();
		}
	}
	return argument;
}

/* Who maps where another thread has just given its addresses back is refused. */
START_TEST(a_reservation_may_end_while_a_number_is_mapped)
{
	pthread_t thread;
	unsigned n_mapped = 0;
	unsigned n_refused = 0;
	unsigned long long number = new_number(6, 7);
	pthread_create(&thread, NULL, reserve_on_and_on, NULL);
	while (n_mapped < 200 || n_refused < 20) {
		glake_ptr ptr = place;
		int r = ptr ? map(ptr, number) : -EINVAL;
		ck_assert(r == 0 || r == -EINVAL);
		n_mapped += r == 0;
		n_refused += ptr && r < 0;
		if (r == 0) {
			ck_assert_int_eq(unmap(ptr, 6), 0);
		}
	}
	is_over = true;
	pthread_join(thread, NULL);
	ck_assert(glake__number_release(number));
	ck_assert_uint_eq(n_ended, 1);
	ck_assert(glake__space_is_valid());
}
END_TEST
