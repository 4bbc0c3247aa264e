/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of ranges, over the simulated driver and chunks of this process: no daemon.
 *
 * The model check does what a program, its library and whoever moves memory may do, in random order, and
 * compares with a plain table after each step: what is where, and all bytes, through the driver.
 */
#include <pthread.h>
#include <sched.h>

#include "libclient/space/sealed.h"
#include "tests/harness/churn.h"
#include "tests/unit/ranges.h"

static void begin_two(void)
{
	begin_with("2x1GiB", NULL);
}

static void begin_nothing(void)
{
}

BEGIN_EACH(begin_one)

/* ---- the window ------------------------------------------------------------------------------- */

START_TEST_WITH(the_window_is_sixteen_times_the_devices, .begin = begin_two)
{
	ck_assert_uint_eq(glake__pages.n_bytes, 32ull << 30);
	ck_assert_uint_eq(glake__page_of(glake__pages.base - 1), 0);
	ck_assert_uint_eq(glake__page_of(glake__pages.base + glake__pages.n_bytes), 0);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* Where no small number, no multiple of 256 and no pointer of the host is the upper half of an address. */
START_TEST_WITH(the_window_lies_where_integers_do_not_point, .begin = begin_two)
{
#ifdef __SANITIZE_THREAD__
	/* ThreadSanitizer has those addresses for itself. */
	return;
#endif
	uint64_t upper = glake__pages.base >> 32;
	ck_assert_uint_gt(upper, 0x100);
	ck_assert_uint_lt((glake__pages.base + glake__pages.n_bytes) >> 32, 0x5500);
	ck_assert_uint_gt(upper % 256, 0);
	ck_assert_uint_lt(upper % 256 + (glake__pages.n_bytes >> 32), 256);
}
END_TEST

START_TEST_WITH(a_window_too_large_is_halved, .begin = begin_nothing)
{
	begin_with("1GiB", "cuMemAddressReserve:1:fail=2\ncuMemAddressReserve:2:fail=2\n");
	ck_assert_uint_eq(glake__pages.n_bytes, 4ull << 30);
}
END_TEST

START_TEST(addresses_that_come_back_are_one_piece_again)
{
	struct glake__range *ranges[64];
	for (size_t i = 0; i < 64; i++) {
		ranges[i] = reserve_range(2 + i % 5 * 2);
		ck_assert(glake__window_has(ranges[i]->ptr));
	}
	ck_assert(glake__space_is_valid());
	for (size_t i = 0; i < 64; i++) {
		ck_assert_int_eq(glake__range_drop(ranges[i * 37 % 64]), 0);
		ck_assert(glake__space_is_valid());
	}
	struct glake__range *all = reserve_range(16 * 1024);
	ck_assert_uint_eq(all->ptr, glake__pages.base);
	ck_assert_int_eq(glake__range_drop(all), 0);
}
END_TEST

START_TEST(alignment_and_hints_are_kept)
{
	struct glake__range *odd = reserve_range(2);
	struct glake__range *range;
	ck_assert_int_eq(
		glake__range_reserve(&glake__use_placed, NULL, 0, 6 * MIB, 1ull << 30, 0, &range),
		0);
	ck_assert_uint_eq(range->ptr % (1ull << 30), 0);
	glake_ptr hint = range->ptr + 64 * MIB;
	struct glake__range *hinted;
	ck_assert_int_eq(
		glake__range_reserve(&glake__use_placed, NULL, 0, 6 * MIB, 0, hint, &hinted), 0);
	ck_assert_uint_eq(hinted->ptr, hint);
	struct glake__range *aligned;
	ck_assert_int_eq(glake__range_reserve(&glake__use_placed, NULL, 0, 6 * MIB, 1ull << 30,
	                                      hint + 64 * MIB, &aligned),
	                 0);
	ck_assert_uint_eq(aligned->ptr % (1ull << 30), 0);
	ck_assert(glake__window_has(aligned->ptr));
	ck_assert(glake__space_is_valid());
	glake__range_drop(odd);
	glake__range_drop(aligned);
	glake__range_drop(range);
	glake__range_drop(hinted);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* A word of a launch may be anything, and is looked up also while the first memory of the process comes. */
static atomic_bool is_window_open;

static void *look_up(void *user)
{
	while (!is_window_open) {
		for (uint64_t word = 1; word < 32ull << 30; word <<= 1) {
			if (glake__page_of(word) != 0) {
				return user;
			}
		}
	}
	return NULL;
}

START_TEST_WITH(words_are_looked_up_while_the_window_opens, .begin = begin_nothing)
{
	pthread_t thread;
	void *why = NULL;
	ck_assert_int_eq(pthread_create(&thread, NULL, look_up, &drv), 0);
	begin_one();
	is_window_open = true;
	pthread_join(thread, &why);
	ck_assert_ptr_null(why);
}
END_TEST

/* Addresses that the window has no room for are the driver's, and in the map all the same. */
START_TEST(a_range_outside_of_the_window_is_found_too)
{
	struct glake__range *range = reserve_range(17 * 1024);
	ck_assert(range->is_outside);
	ck_assert_uint_eq(glake__page_of(range->ptr), 0);
	struct glake__part parts[] = {hole(4), make_part(4), hole(2)};
	ck_assert_int_eq(range_reback(range, 2 * MIB, parts, 3, NULL), 0);
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(range->ptr + 7 * MIB);
	glake__unlock();
	ck_assert_ptr_eq(piece->chunk, parts[1].chunk);
	ck_assert_uint_eq(word_at(range->ptr + 7 * MIB), last_id);
	end_part(&parts[1]);
	ck_assert(glake__space_is_valid());
	struct glake__range *none;
	set_faults("cuMemAddressReserve:1:fail=2");
	ck_assert_int_eq(
		glake__range_reserve(&glake__use_placed, NULL, 0, 17ull << 30, 0, 0, &none),
		GLAKE_E_CUDA);
	set_faults("");
	ck_assert_int_eq(glake__range_drop(range), -EBUSY);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	ck_assert_uint_eq(n_released, 1);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(sealed_memory_outside_of_the_window_is_found)
{
	struct glake__range *range = reserve_range(17 * 1024);
	struct glake__part part = make_part(4);
	ck_assert(range->is_outside);
	ck_assert_int_eq(glake__range_fill(range, 4 * MIB, &part, 1), 0);
	ck_assert_uint_eq(glake__find_sealed(range->ptr, range->n_bytes), 0);
	glake__lock();
	glake__chunk_set_kind_locked(part.chunk, GLAKE__PAGE_BLOCK);
	glake__unlock();
	ck_assert_uint_eq(glake__find_sealed(range->ptr, range->n_bytes), range->ptr + 4 * MIB);
	ck_assert_uint_eq(glake__find_sealed(range->ptr + 5 * MIB, 1), range->ptr + 5 * MIB);
	ck_assert_uint_eq(glake__find_sealed(range->ptr, 4 * MIB), 0);
	ck_assert_uint_eq(glake__find_sealed(range->ptr + 8 * MIB, MIB), 0);
	ck_assert_uint_eq(glake__sealed_bytes(), 4 * MIB);
	ck_assert(glake__space_is_valid());
	end_part(&part);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	ck_assert_uint_eq(glake__sealed_bytes(), 0);
}
END_TEST

/* In no order that helps: as engines map a KV cache. */
static glake_ptr nth_place(glake_ptr base, uint64_t i, uint64_t n)
{
	return base + i * 7919 % n * 2 * MIB;
}

static void settle(struct glake__mapping *mapping)
{
	glake__program_settle(mapping, true);
}

/*
 * A walk over all pieces, or over all mappings of the chunk, for each of these steps would take minutes, as a program
 * that unmaps its KV cache when it exits took.
 */
START_TEST(a_chunk_is_mapped_at_a_hundred_thousand_places)
{
	enum { N = 100000 };
	glake_ptr ptr;
	struct glake__mapping *mapping;
	ck_assert_int_eq(glake__program_reserve(N * 2 * MIB, 0, 0, &ptr), 0);
	struct glake__chunk *chunk = glake__program_made(1, 2 * MIB, 0, NULL, NULL);
	for (uint64_t i = 0; i < N; i++) {
		glake_ptr at = nth_place(ptr, i, N);
		ck_assert_int_eq(glake__program_map(at, 2 * MIB, chunk, &mapping), 0);
		settle(mapping);
		ck_assert_int_eq(glake__program_hold(at, 2 * MIB, &mapping), 0);
		settle(mapping);
	}
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_ALIASED);
	for (uint64_t i = 0; i < N; i++) {
		ck_assert_int_eq(glake__program_unmap(nth_place(ptr, i, N), 2 * MIB, &mapping), 0);
		settle(mapping);
	}
	ck_assert(glake__space_is_valid());
	glake__program_released(1);
	ck_assert_int_eq(glake__program_unreserve(ptr, N * 2 * MIB), 0);
}
END_TEST

START_TEST_WITH(the_page_map_tells_kinds, .begin = begin_two)
{
	struct glake__range *range = reserve_range(8);
	struct glake__part part = make_part(4);
	part.chunk->kind = GLAKE__PAGE_BLOCK;
	part.access = GLAKE__ACCESS_READ;
	ck_assert_int_eq(glake__range_fill(range, 2 * MIB, &part, 1), 0);
	uint64_t page = glake__page_of(range->ptr + 5 * MIB);
	ck_assert_int_eq(glake__page_kind(page), GLAKE__PAGE_BLOCK);
	ck_assert_int_eq(glake__page_kind(glake__page_of(range->ptr)), GLAKE__PAGE_HOLE);
	ck_assert_int_eq(glake__page_kind(glake__page_of(range->ptr + 6 * MIB)), GLAKE__PAGE_HOLE);
	/* Read-only to the program as well. */
	ck_assert_int_ne(drv.cuMemcpyHtoD(range->ptr + 2 * MIB, "x", 1), CUDA_SUCCESS);
	end_part(&part);
	glake_ptr ptr = range->ptr;
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	ck_assert_uint_eq(glake__page_kind(glake__page_of(ptr)), GLAKE__PAGE_NONE);
}
END_TEST

/* ---- pins ------------------------------------------------------------------------------------- */

START_TEST(a_pin_has_a_reason_and_keeps_the_memory_in_its_place)
{
	struct glake__range *range = reserve_range(2);
	struct glake__part part = make_part(2);
	struct glake__part other = make_part(2);
	ck_assert_int_eq(glake__range_fill(range, 0, &part, 1), 0);
	for (enum glake__pin pin = GLAKE__PIN_SHARED; pin < GLAKE__N_PINS; pin++) {
		part.chunk->pins = 1u << pin;
		ck_assert_int_eq(range_reback(range, 0, &other, 1, NULL), -EBUSY);
		ck_assert_ptr_nonnull(strstr(glake_error(), glake__pin_text(pin)));
	}
	part.chunk->pins = 0;
	part.chunk->n_handles = 1;
	ck_assert_int_eq(range_reback(range, 0, &other, 1, NULL), -EBUSY);
	part.chunk->n_handles = 0;
	ck_assert_int_eq(range_reback(range, 0, &other, 1, NULL), 0);
	end_part(&part);
	end_part(&other);
	glake__range_end(range, NULL);
}
END_TEST

/* As often as it was given: by the driver's calls that make, import and retain one. */
START_TEST(a_handle_pins_memory_as_long_as_the_program_has_it)
{
	const unsigned long long handle = chunk_new(2 * MIB);
	struct glake__chunk *chunk = glake__program_made(handle, 2 * MIB, 0, NULL, NULL);
	struct glake__mapping *mapping = NULL;
	glake_ptr ptr = 0;
	ck_assert_int_eq(glake__program_reserve(2 * MIB, 0, 0, &ptr), 0);
	ck_assert_int_eq(glake__program_map(ptr, 2 * MIB, chunk, &mapping), 0);
	ck_ok(drv.cuMemMap(ptr, 2 * MIB, 0, handle, 0));
	glake__program_settle(mapping, true);
	glake__program_retained(handle, ptr);
	glake__program_imported(handle, 0);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_HANDLE);
		glake__program_released(handle);
	}
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_NONE);
	/* All had been released: the driver gives another one. */
	glake__program_retained(handle + 1, ptr);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_HANDLE);
	glake__program_released(handle + 1);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_NONE);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__program_unmap(ptr, 2 * MIB, &mapping), 0);
	ck_ok(drv.cuMemUnmap(ptr, 2 * MIB));
	glake__program_settle(mapping, true);
	ck_assert_int_eq(glake__program_unreserve(ptr, 2 * MIB), 0);
	ck_ok(cu.MemRelease(handle));
}
END_TEST

START_TEST(memory_that_others_have_made_is_pinned)
{
	const unsigned long long handle = chunk_new(2 * MIB);
	struct glake__mapping *mapping = NULL;
	glake_ptr ptr = 0;
	glake__program_imported(handle, 0);
	struct glake__chunk *chunk = glake__program_take(handle);
	ck_assert_int_eq(glake__program_reserve(2 * MIB, 0, 0, &ptr), 0);
	ck_assert_int_eq(glake__program_map(ptr, 2 * MIB, chunk, &mapping), 0);
	glake__program_settle(mapping, true);
	glake__program_give(chunk);
	glake__program_released(handle);
	ck_assert_int_eq(glake__pin_at(ptr), GLAKE__PIN_FOREIGN);
	ck_assert_int_eq(glake__program_unmap(ptr, 2 * MIB, &mapping), 0);
	glake__program_settle(mapping, true);
	ck_assert_int_eq(glake__program_unreserve(ptr, 2 * MIB), 0);
	ck_ok(cu.MemRelease(handle));
}
END_TEST

/* ---- the gate --------------------------------------------------------------------------------- */

static int n_closed;
static int n_opened;
static int gate_error;

static int close_gate(void *user, uint64_t patience_ns)
{
	ck_assert_uint_gt(patience_ns, 0);
	ck_assert_ptr_eq(user, &drv);
	n_closed++;
	return gate_error;
}

static void open_gate(void *user)
{
	ck_assert_ptr_eq(user, &drv);
	n_opened++;
}

START_TEST(the_gate_is_closed_when_access_goes_and_only_then)
{
	glake__space.gate = (struct glake__gate){
		.close = close_gate, .open = open_gate, .user = &drv};
	struct glake__range *range = reserve_range(4);
	struct glake__part one = make_part(2);
	struct glake__part two = make_part(2);
	ck_assert_int_eq(range_reback(range, 0, &one, 1, NULL), 0);
	ck_assert_int_eq(n_closed, 0);
	gate_error = -EAGAIN;
	ck_assert_int_eq(range_reback(range, 0, &two, 1, NULL), -EAGAIN);
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ), -EAGAIN);
	ck_assert_int_eq(n_closed, 2);
	ck_assert_int_eq(n_opened, 0);
	ck_assert_uint_eq(word_at(range->ptr), one.chunk->id);
	gate_error = 0;
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ), 0);
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_WRITE), 0);
	ck_assert_int_eq(range_reback(range, 0, &two, 1, NULL), 0);
	ck_assert_int_eq(n_closed, 4);
	ck_assert_int_eq(n_opened, 2);
	ck_assert_uint_eq(word_at(range->ptr), two.chunk->id);
	end_part(&one);
	end_part(&two);
	glake__range_end(range, NULL);
}
END_TEST

START_TEST(changes_under_one_closing_of_the_gate_close_it_once)
{
	glake__space.gate = (struct glake__gate){
		.close = close_gate, .open = open_gate, .user = &drv};
	struct glake__range *range = reserve_range(4);
	struct glake__part one = make_part(2);
	ck_assert_int_eq(range_reback(range, 0, &one, 1, NULL), 0);
	gate_error = -EBUSY;
	ck_assert_int_eq(glake__gate_close(1, GLAKE__GATE_PATIENCE_NS), -EBUSY);
	gate_error = 0;
	ck_assert_int_eq(glake__gate_close(1, GLAKE__GATE_PATIENCE_NS), 0);
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ), 0);
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_WRITE), 0);
	ck_assert_int_eq(n_opened, 0);
	/* Nobody has waited for what others read. */
	ck_assert_int_eq(glake__gate_close(3, GLAKE__GATE_PATIENCE_NS), -EINVAL);
	glake__gate_open();
	ck_assert_int_eq(n_closed, 2);
	ck_assert_int_eq(n_opened, 1);
	end_part(&one);
	glake__range_end(range, NULL);
}
END_TEST

static int close_gate_once(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	return n_closed++ > 0 ? -EBUSY : 0;
}

/* After a while the program has a pause. If it cannot be held back again, the rest does not happen. */
START_TEST(what_finds_no_second_moment_stays_as_it_was)
{
	struct glake__range *range = reserve_range(4);
	struct glake__part old[] = {make_part(2), make_part(2)};
	struct glake__part new[] = {make_part(2), make_part(2)};
	struct glake__rebacking list[] = {{.parts = &new[0], .n_parts = 1},
	                                  {.parts = &new[1], .n_parts = 1}};
	struct glake__hold holds[2];
	ck_assert_int_eq(glake__range_fill(range, 0, old, 2), 0);
	for (size_t i = 0; i < 2; i++) {
		ck_assert_int_eq(glake__hold_begin(&holds[i], range->ptr + i * 2 * MIB, 1, false),
		                 0);
		list[i].hold = &holds[i];
	}
	glake__space.gate = (struct glake__gate){
		.close = close_gate_once, .open = open_gate, .user = &drv};
	set_faults("cuMemUnmap:1:slow=20");
	ck_assert_int_eq(glake__hold_reback_all(list, 2, &(struct glake__rebacking_way){0}),
	                 -EBUSY);
	set_faults("");
	ck_assert_int_eq(list[0].result, 0);
	ck_assert_int_eq(list[1].result, -EBUSY);
	ck_assert_int_eq(n_closed, 2);
	ck_assert_int_eq(n_opened, 1);
	ck_assert_uint_eq(word_at(range->ptr), new[0].chunk->id);
	ck_assert_uint_eq(word_at(range->ptr + 2 * MIB), old[1].chunk->id);
	for (size_t i = 0; i < 2; i++) {
		glake__hold_end(&holds[i]);
		glake__chunks_release(list[i].dead);
		end_part(&old[i]);
		end_part(&new[i]);
	}
	glake__space.gate = (struct glake__gate){.close = NULL};
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST

START_TEST(what_is_mapped_is_not_filled_over)
{
	struct glake__range *range = reserve_range(4);
	struct glake__part parts[] = {make_part(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(range, 2 * MIB, &parts[0], 1), 0);
	ck_assert_int_eq(glake__range_fill(range, 2 * MIB, &parts[1], 1), -EINVAL);
	ck_assert_int_eq(glake__range_fill(range, 0, parts, 2), -EINVAL);
	ck_assert_uint_eq(word_at(range->ptr + 2 * MIB), parts[0].chunk->id);
	ck_assert_int_eq(glake__range_fill(range, 0, &parts[1], 1), 0);
	end_part(&parts[0]);
	end_part(&parts[1]);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST

/* ---- faults: whole or not at all --------------------------------------------------------------- */

/* Each driver call that a change makes fails once, the first, the second, ...: nothing is half done. */
START_TEST(a_step_that_fails_is_undone)
{
	static const char *const calls[] = {
		"cuMemImportFromShareableHandle",
		"cuMemRetainAllocationHandle",
		"cuMemUnmap",
		"cuMemMap",
		"cuMemSetAccess",
	};
	struct glake__range *range = reserve_range(8);
	struct glake__part old[] = {make_part(2), make_part(4), hole(2)};
	struct glake__part new[] = {make_part(4), hole(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(range, 0, old, 3), 0);
	uint32_t n_failures = 0;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (int nth = 1; nth <= 2; nth++) {
			char rule[100];
			snprintf(rule, sizeof(rule), "%s:%d:fail=999\n", calls[i], nth);
			set_faults(rule);
			bool is_lost = true;
			int r = range_reback(range, 0, new, 3, &is_lost);
			set_faults("");
			ck_assert_int_eq(r, GLAKE_E_CUDA);
			ck_assert(!is_lost);
			ck_assert(glake__space_is_valid());
			ck_assert_uint_eq(word_at(range->ptr), old[0].chunk->id);
			ck_assert_uint_eq(word_at(range->ptr + 4 * MIB), old[1].chunk->id);
			ck_assert_int_eq(drv.cuMemcpyHtoD(range->ptr + 3 * MIB, "x", 1),
			                 CUDA_SUCCESS);
			ck_assert_int_ne(drv.cuMemcpyHtoD(range->ptr + 6 * MIB, "x", 1),
			                 CUDA_SUCCESS);
			n_failures++;
		}
	}
	ck_assert_uint_eq(n_failures, 10);
	ck_assert_uint_eq(new[0].chunk->n_mappings, 0);
	ck_assert_int_eq(range_reback(range, 0, new, 3, NULL), 0);
	ck_assert_uint_eq(word_at(range->ptr), new[0].chunk->id);
	ck_assert_uint_eq(word_at(range->ptr + 6 * MIB), new[2].chunk->id);
	ck_assert_int_ne(drv.cuMemcpyHtoD(range->ptr + 4 * MIB, "x", 1), CUDA_SUCCESS);
	for (size_t i = 0; i < 3; i++) {
		end_part(&old[i]);
		end_part(&new[i]);
	}
	ck_assert_uint_eq(n_released, 2);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	ck_assert_uint_eq(n_released, 4);
}
END_TEST

/* The driver maps nothing any more, neither the new nor the old. */
START_TEST(what_cannot_be_put_back_is_a_hole_and_said_to_be_lost)
{
	struct glake__range *range = reserve_range(4);
	struct glake__part old[] = {make_part(2), make_part(2)};
	struct glake__part new = make_part(2);
	bool is_lost = false;
	ck_assert_int_eq(glake__range_fill(range, 0, old, 2), 0);
	set_faults("cuMemMap:1+:fail=999\n");
	ck_assert_int_eq(range_reback(range, 0, &new, 1, &is_lost), GLAKE_E_CUDA);
	set_faults("");
	ck_assert(is_lost);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__page_kind(glake__page_of(range->ptr)), GLAKE__PAGE_HOLE);
	ck_assert_uint_eq(word_at(range->ptr + 2 * MIB), old[1].chunk->id);
	ck_assert_int_eq(glake__range_fill(range, 0, &new, 1), 0);
	ck_assert_uint_eq(word_at(range->ptr), new.chunk->id);
	end_part(&old[0]);
	end_part(&old[1]);
	end_part(&new);
	glake__range_end(range, NULL);
}
END_TEST

START_TEST(what_the_driver_does_not_unmap_stays)
{
	struct glake__range *range = reserve_range(4);
	struct glake__part parts[] = {make_part(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(range, 0, parts, 2), 0);
	end_part(&parts[0]);
	end_part(&parts[1]);
	set_faults("cuMemUnmap:1:fail=999\n");
	ck_assert_int_eq(glake__range_clear(range, 0, 4 * MIB, NULL), GLAKE_E_CUDA);
	ck_assert_uint_eq(n_released, 1);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__page_kind(glake__page_of(range->ptr)), GLAKE__PAGE_CHUNK);
	ck_assert_int_eq(glake__page_kind(glake__page_of(range->ptr + 2 * MIB)), GLAKE__PAGE_HOLE);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	ck_assert_uint_eq(n_released, 2);
}
END_TEST

/* ---- readers ---------------------------------------------------------------------------------- */

static CUresult access_of(glake_ptr ptr, int device, unsigned long long *flags_out)
{
	const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	return cu.MemGetAccess(flags_out, &location, ptr);
}

START_TEST_WITH(a_new_reader_reads_what_there_is_and_what_comes, .begin = begin_two)
{
	unsigned long long flags = 0;
	struct glake__range *ranges[3];
	struct glake__part parts[] = {make_part(2), make_part(2), make_part(2)};
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(glake__range_reserve(&glake__use_private, NULL, 0, 2 * MIB, 0, 0,
		                                      &ranges[i]),
		                 0);
		if (i == 1) {
			ck_assert_int_eq(glake__space_add_reader(0, 1), 0);
		}
		ck_assert_int_eq(glake__range_fill(ranges[i], 0, &parts[i], 1), 0);
		if (i == 0) {
			ck_ok(access_of(ranges[0]->ptr, 1, &flags));
			ck_assert_uint_eq(flags, 0);
		}
	}
	for (int i = 0; i < 3; i++) {
		ck_ok(access_of(ranges[i]->ptr, 1, &flags));
		ck_assert_uint_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
		end_part(&parts[i]);
		glake__range_end(ranges[i], NULL);
	}
}
END_TEST

/* A peer comes while a change is under way, just before memory is touched. */
static int peer_error;
static pthread_t peer;

static void *add_peer(void *user)
{
	ck_assert_int_eq(glake__space_add_reader(0, 1), 0);
	return user;
}

static int close_as_a_peer_comes(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	ck_assert_int_eq(pthread_create(&peer, NULL, add_peer, NULL), 0);
	usleep(20000);
	return peer_error;
}

static void open_nothing(void *user)
{
	(void)user;
}

static struct glake__range *private_range(struct glake__part *part)
{
	struct glake__range *range = NULL;
	*part = make_part(2);
	ck_assert_int_eq(glake__range_reserve(&glake__use_private, NULL, 0, 2 * MIB, 0, 0, &range),
	                 0);
	ck_assert_int_eq(glake__range_fill(range, 0, part, 1), 0);
	glake__space.gate = (struct glake__gate){.close = close_as_a_peer_comes,
	                                         .open = open_nothing};
	return range;
}

/* 0: access, 1: reback, 2 and 3: the same, refused. */
START_TEST_WITH(a_reader_that_comes_during_a_change_reads_what_is_there_then, .n = 4,
                .begin = begin_two)
{
	bool is_refused = _i >= 2;
	unsigned long long flags = 0;
	struct glake__part old;
	struct glake__range *range = private_range(&old);
	struct glake__part new = make_part(2);
	new.access = GLAKE__ACCESS_READ;
	peer_error = is_refused ? -EAGAIN : 0;
	int r = _i % 2 ? range_reback(range, 0, &new, 1, NULL)
	               : glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ);
	ck_assert_int_eq(r, peer_error);
	/* The peer has access when it is told so. */
	pthread_join(peer, NULL);
	for (int device = 0; device < 2; device++) {
		ck_ok(access_of(range->ptr, device, &flags));
		ck_assert_uint_eq(flags, is_refused ? READ_WRITE : READ_ONLY);
	}
	end_part(&old);
	end_part(&new);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST

/* ---- against a plain model -------------------------------------------------------------------- */

#define N_RANGES 6
#define N_PAGES 12 /* of each range */
#define N_STEPS (TEST_SANITIZED ? 50 : 300)

struct plain {
	struct glake__range *range;
	uint64_t ids[N_PAGES];  /* 0: a hole */
	bool is_first[N_PAGES]; /* of its chunk */
	enum glake__access access[N_PAGES];
};

static struct plain plains[N_RANGES];
static unsigned seed;

/* Does [first, first + n) cut no chunk in two? */
static bool is_whole(const struct plain *plain, unsigned first, unsigned n)
{
	return (plain->ids[first] == 0 || plain->is_first[first]) &&
	       (first + n == N_PAGES || plain->ids[first + n] == 0 || plain->is_first[first + n]);
}

static void plain_set(struct plain *plain, unsigned first, unsigned n, uint64_t id,
                      enum glake__access access)
{
	for (unsigned i = 0; i < n; i++) {
		plain->ids[first + i] = id;
		plain->is_first[first + i] = i == 0;
		plain->access[first + i] = id ? access : GLAKE__ACCESS_NONE;
	}
}

/* Another backing for some pages, of up to three parts, perhaps with a fault in it. */
static void step_reback(struct plain *plain, unsigned first, unsigned n)
{
	static const char *const faults[] = {
		"cuMemMap:%u:fail=999\n",
		"cuMemUnmap:%u:fail=999\n",
		"cuMemSetAccess:%u:fail=999\n",
		"cuMemRetainAllocationHandle:%u:fail=2\n",
	};
	struct glake__part parts[3];
	unsigned sizes[3];
	size_t n_parts = 0;
	for (unsigned at = 0; at < n; n_parts++) {
		sizes[n_parts] = n_parts == 2 ? n - at : 1 + churn_pick(&seed, n - at);
		parts[n_parts] = churn_pick(&seed, 3) ? make_part(sizes[n_parts] * 2)
		                                      : hole(sizes[n_parts] * 2);
		parts[n_parts].access = churn_pick(&seed, 4) ? GLAKE__ACCESS_WRITE
		                                             : GLAKE__ACCESS_READ;
		at += sizes[n_parts];
	}
	char rule[100] = "";
	if (churn_pick(&seed, 4) == 0) {
		snprintf(rule, sizeof(rule), faults[churn_pick(&seed, 4)],
		         1 + churn_pick(&seed, 3));
		set_faults(rule);
	}
	bool is_lost = false;
	int r = range_reback(plain->range, first * GRANULE, parts, n_parts, &is_lost);
	if (rule[0]) {
		set_faults("");
	}
	ck_assert(!is_lost);
	ck_assert(r == 0 || rule[0] || !is_whole(plain, first, n));
	if (!is_whole(plain, first, n)) {
		ck_assert_int_eq(r, -EINVAL);
	}
	for (size_t i = 0; i < n_parts; i++) {
		if (r == 0) {
			plain_set(plain, first, sizes[i], parts[i].chunk ? parts[i].chunk->id : 0,
			          parts[i].access);
		}
		first += sizes[i];
		end_part(&parts[i]);
	}
}

static void step_clear(struct plain *plain, unsigned first, unsigned n)
{
	int r = glake__range_clear(plain->range, first * GRANULE, n * GRANULE, NULL);
	ck_assert_int_eq(r, is_whole(plain, first, n) ? 0 : -EINVAL);
	if (r == 0) {
		plain_set(plain, first, n, 0, GLAKE__ACCESS_NONE);
	}
}

static void step_access(struct plain *plain, unsigned first, unsigned n)
{
	enum glake__access access = churn_pick(&seed, 2) ? GLAKE__ACCESS_READ : GLAKE__ACCESS_WRITE;
	int r = glake__range_access(plain->range, first * GRANULE, n * GRANULE, access);
	ck_assert_int_eq(r, is_whole(plain, first, n) ? 0 : -EINVAL);
	for (unsigned i = 0; r == 0 && i < n; i++) {
		plain->access[first + i] = plain->ids[first + i] ? access : GLAKE__ACCESS_NONE;
	}
}

static void step_replace(struct plain *plain)
{
	ck_assert_int_eq(glake__range_end(plain->range, NULL), 0);
	*plain = (struct plain){.range = reserve_range(N_PAGES * 2)};
}

/* All words of a page, or the first and the last. */
static bool is_all(glake_ptr ptr, uint64_t id, bool is_thorough)
{
	static uint32_t words[GRANULE / 4];
	if (!is_thorough) {
		return word_at(ptr) == id && word_at(ptr + GRANULE - 4) == id;
	}
	ck_ok(drv.cuMemcpyDtoH(words, ptr, sizeof(words)));
	size_t n_equal = 0;
	while (n_equal < GRANULE / 4 && words[n_equal] == id) {
		n_equal++;
	}
	return n_equal == GRANULE / 4;
}

static void compare(const struct plain *plain, bool is_thorough)
{
	for (unsigned i = 0; i < N_PAGES; i++) {
		glake_ptr ptr = plain->range->ptr + i * GRANULE;
		uint32_t same = (uint32_t)plain->ids[i];
		bool is_hole = same == 0;
		ck_assert_int_eq(glake__page_kind(glake__page_of(ptr)),
		                 is_hole ? GLAKE__PAGE_HOLE : GLAKE__PAGE_CHUNK);
		ck_assert(is_hole || is_all(ptr, plain->ids[i], is_thorough));
		ck_assert_int_eq(drv.cuMemcpyDtoH(&same, ptr, sizeof(same)) == CUDA_SUCCESS,
		                 !is_hole);
		ck_assert_int_eq(drv.cuMemcpyHtoD(ptr, &same, sizeof(same)) == CUDA_SUCCESS,
		                 plain->access[i] == GLAKE__ACCESS_WRITE);
	}
}

START_TEST_WITH(the_map_does_what_a_plain_table_does, .n = 3)
{
	seed = (unsigned)_i + 1;
	for (size_t i = 0; i < N_RANGES; i++) {
		plains[i].range = reserve_range(N_PAGES * 2);
	}
	for (int step = 0; step < N_STEPS; step++) {
		struct plain *plain = &plains[churn_pick(&seed, N_RANGES)];
		unsigned first = churn_pick(&seed, N_PAGES);
		unsigned n = 1 + churn_pick(&seed, N_PAGES - first);
		unsigned what = churn_pick(&seed, 16);
		if (what < 9) {
			step_reback(plain, first, n);
		} else if (what < 12) {
			step_clear(plain, first, n);
		} else if (what < 15) {
			step_access(plain, first, n);
		} else {
			step_replace(plain);
		}
		ck_assert(glake__space_is_valid());
		compare(plain, step % 20 == 0);
	}
	for (size_t i = 0; i < N_RANGES; i++) {
		compare(&plains[i], true);
		ck_assert_int_eq(glake__range_end(plains[i].range, NULL), 0);
	}
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(n_released, last_id);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------- */

static atomic_bool is_over;

/* Readers take no lock, and see a page as it was or as it is. */
static void *read_pages(void *user)
{
	const struct glake__range *range = user;
	size_t n_seen = 0;
	while (!is_over) {
		uint64_t page = glake__page_of(range->ptr + n_seen++ % 8 * GRANULE);
		enum glake__page_kind kind = glake__page_kind(page);
		if (kind != GLAKE__PAGE_HOLE && kind != GLAKE__PAGE_CHUNK) {
			return user;
		}
		/* The pages change no faster for it. */
		if (n_seen % 1024 == 0) {
			sched_yield();
		}
	}
	return NULL;
}

static void reback_on_and_off(struct glake__range *range)
{
	struct glake__part part = make_part(4);
	size_t n_done = 0;
	for (int i = 0; i < 500 || n_done == 0; i++) {
		int r = glake__range_fill(range, (uint64_t)(i % 4) * 4 * MIB, &part, 1);
		n_done += r == 0;
		if (r == 0) {
			glake__range_clear(range, (uint64_t)(i % 4) * 4 * MIB, 4 * MIB, NULL);
		}
	}
	end_part(&part);
}

START_TEST(pages_are_read_while_they_change)
{
	pthread_t threads[2];
	void *why = NULL;
	struct glake__range *range = reserve_range(16);
	pthread_create(&threads[0], NULL, read_pages, range);
	pthread_create(&threads[1], NULL, read_pages, range);
	reback_on_and_off(range);
	is_over = true;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &why);
		ck_assert_ptr_null(why);
	}
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST

static atomic_bool is_changing;
static atomic_bool may_change;
static struct glake__part slow_part;

static int close_slowly(void *user, uint64_t patience_ns)
{
	(void)patience_ns;
	(void)user;
	is_changing = true;
	while (!may_change) {
		usleep(100);
	}
	return 0;
}

static void *reback_slowly(void *user)
{
	ck_assert_int_eq(range_reback(user, 0, &slow_part, 1, NULL), 0);
	return NULL;
}

static void *let_change(void *user)
{
	(void)user;
	usleep(20000);
	may_change = true;
	return NULL;
}

static atomic_bool is_pinned;

static void *pin_it(void *user)
{
	const struct glake__range *range = user;
	glake__pin_range(range->ptr, range->n_bytes, GLAKE__PIN_DMABUF, true);
	is_pinned = true;
	return NULL;
}

/* To look at what is there, and replace it by what is equal. */
START_TEST(memory_that_is_held_is_changed_by_the_holder_only)
{
	pthread_t thread;
	struct glake__hold hold;
	struct glake__hold other;
	struct glake__range *range = reserve_range(6);
	struct glake__part parts[] = {make_part(2), hole(2), make_part(2)};
	struct glake__part new = make_part(6);
	ck_assert_int_eq(glake__hold_begin(&hold, 4096, 4096, false), -ENOENT);
	ck_assert_int_eq(glake__range_fill(range, 0, parts, 3), 0);
	ck_assert_int_eq(glake__hold_begin(&hold, range->ptr + MIB, 4 * MIB, false), 0);
	ck_assert_ptr_eq(hold.range, range);
	ck_assert_uint_eq(hold.n_bytes, 6 * MIB);
	ck_assert_int_eq(glake__hold_begin(&other, range->ptr, 1, false), -EBUSY);
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ), -EBUSY);
	ck_assert_int_eq(glake__range_drop(range), -EBUSY);
	pthread_create(&thread, NULL, pin_it, range);
	ck_assert_int_eq(glake__hold_access(&hold, GLAKE__ACCESS_READ), 0);
	ck_assert_int_ne(drv.cuMemcpyHtoD(range->ptr, "x", 1), CUDA_SUCCESS);
	usleep(20000);
	ck_assert(!is_pinned);
	struct glake__rebacking rebacking = {.hold = &hold, .parts = &new, .n_parts = 1};
	ck_assert_int_eq(glake__hold_reback_all(&rebacking, 1, &(struct glake__rebacking_way){0}),
	                 0);
	glake__chunks_release(rebacking.dead);
	ck_assert_uint_eq(word_at(range->ptr + 3 * MIB), new.chunk->id);
	/* The memory is held still. */
	ck_assert_int_eq(glake__hold_begin(&other, range->ptr, 1, false), -EBUSY);
	ck_assert(!is_pinned);
	glake__hold_end(&hold);
	pthread_join(thread, NULL);
	ck_assert_int_eq(glake__pin_at(range->ptr), GLAKE__PIN_DMABUF);
	end_part(&parts[0]);
	end_part(&parts[2]);
	end_part(&new);
	ck_assert_uint_eq(n_released, 2);
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST

START_TEST(holes_are_not_held)
{
	struct glake__hold hold;
	struct glake__range *range = reserve_range(6);
	struct glake__part part = make_part(2);
	struct glake__part late = make_part(2);
	struct glake__part new = make_part(6);
	ck_assert_int_eq(glake__hold_begin(&hold, range->ptr, 6 * MIB, false), 0);
	ck_assert_ptr_null(hold.range);
	ck_assert_int_eq(glake__range_fill(range, 0, &part, 1), 0);
	glake__hold_end(&hold);
	ck_assert_int_eq(glake__hold_begin(&hold, range->ptr, 6 * MIB, false), 0);
	/* A chunk that another thread maps in a hole is not the holder's to replace. */
	ck_assert_int_eq(glake__range_fill(range, 4 * MIB, &late, 1), 0);
	struct glake__rebacking rebacking = {.hold = &hold, .parts = &new, .n_parts = 1};
	ck_assert_int_eq(glake__hold_reback_all(&rebacking, 1, &(struct glake__rebacking_way){0}),
	                 -EBUSY);
	glake__hold_end(&hold);
	ck_assert_uint_eq(word_at(range->ptr + 4 * MIB), late.chunk->id);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	/* Nor does an empty hold keep a range. */
	range = reserve_range(2);
	ck_assert_int_eq(glake__hold_begin(&hold, range->ptr, 2 * MIB, false), 0);
	ck_assert_int_eq(glake__range_drop(range), 0);
	glake__hold_end(&hold);
	end_part(&part);
	end_part(&late);
	end_part(&new);
	ck_assert(glake__space_is_valid());
}
END_TEST

static unsigned n_closings;

/* Each piece of work takes 15 ms, and the next is queued as soon as one ends. */
static int close_in_15_ms(void *user, uint64_t patience_ns)
{
	(void)user;
	n_closings++;
	return patience_ns < 15000000 ? -EAGAIN : 0;
}

static int close_at_the_tenth(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	return ++n_closings < 10 ? -EAGAIN : 0;
}

static int wait_result;

static int wait_for_end(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	return wait_result;
}

START_TEST(work_that_leaves_no_moment_between_is_held_back_in_the_end)
{
	glake__space.gate = (struct glake__gate){
		.close = close_in_15_ms, .open = open_nothing, .wait = wait_for_end};
	ck_assert_int_eq(glake__gate_close_soon(1), 0);
	glake__gate_open();
	/* Nor does all of it ever end while the program goes on. */
	wait_result = -EAGAIN;
	ck_assert_int_eq(glake__gate_close_soon(1), 0);
	glake__gate_open();
}
END_TEST

/* A model of hundreds of blocks is unsealed while graphs run: that no moment is left need not be found out each time. */
START_TEST(many_changes_in_a_hurry_look_for_a_moment_once)
{
	glake__space.gate = (struct glake__gate){.close = close_in_15_ms, .open = open_nothing};
	ck_assert_int_eq(glake__gate_close_in_a_hurry(1), 0);
	glake__gate_open();
	ck_assert_uint_gt(n_closings, 1);
	n_closings = 0;
	ck_assert_int_eq(glake__gate_close_in_a_hurry(1), 0);
	glake__gate_open();
	ck_assert_uint_eq(n_closings, 1);
	/* But it has as much patience. */
	glake__space.gate.close = close_at_the_tenth;
	n_closings = 0;
	ck_assert_int_eq(glake__gate_close_in_a_hurry(1), 0);
	glake__gate_open();
	glake__space.gate.close = close_in_15_ms;
	/* Who has time goes on looking. */
	n_closings = 0;
	ck_assert_int_eq(glake__gate_close_soon(1), 0);
	glake__gate_open();
	ck_assert_uint_gt(n_closings, 1);
}
END_TEST

/* A program frees what somebody is just about to seal or to move. */
START_TEST(the_end_of_a_range_waits_for_a_change_of_it)
{
	pthread_t threads[2];
	struct glake__range *range = reserve_range(2);
	struct glake__part part = make_part(2);
	slow_part = make_part(2);
	ck_assert_int_eq(glake__range_fill(range, 0, &part, 1), 0);
	end_part(&part);
	glake__space.gate = (struct glake__gate){.close = close_slowly, .open = open_nothing};
	pthread_create(&threads[0], NULL, reback_slowly, range);
	while (!is_changing) {
		usleep(100);
	}
	/* Two of a kind exclude each other. */
	ck_assert_int_eq(glake__range_access(range, 0, 2 * MIB, GLAKE__ACCESS_READ), -EBUSY);
	pthread_create(&threads[1], NULL, let_change, NULL);
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	end_part(&slow_part);
	ck_assert_uint_eq(n_released, 2);
	ck_assert(glake__space_is_valid());
}
END_TEST

struct cancelled {
	struct glake__range *range;
	const struct glake__part *part;
	bool clears;
};

static void *change_cancelled(void *user)
{
	const struct cancelled *cancelled = user;
	pthread_cancel(pthread_self());
	if (cancelled->clears) {
		glake__range_clear(cancelled->range, 0, 2 * MIB, NULL);
	} else {
		glake__range_fill(cancelled->range, 0, cancelled->part, 1);
	}
	pthread_testcancel();
	return NULL;
}

/* The driver's call may be where it is cancelled: others wait for the end of the change. */
START_TEST_WITH(who_changes_a_range_is_cancelled_later, .begin = begin_nothing)
{
	begin_with("1GiB", "cuMemMap:*:slow=10,cuMemUnmap:*:slow=10");
	struct glake__part part = make_part(2);
	struct cancelled cancelled = {.range = reserve_range(2), .part = &part};
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		cancelled.clears = i == 1;
		ck_assert_int_eq(pthread_create(&thread, NULL, change_cancelled, &cancelled), 0);
		pthread_join(thread, NULL);
		glake__lock();
		ck_assert_ptr_null(cancelled.range->first->holder);
		ck_assert_int_eq(cancelled.range->first->chunk != NULL, i == 0);
		glake__unlock();
	}
	end_part(&part);
	ck_assert_int_eq(glake__range_drop(cancelled.range), 0);
}
END_TEST
