/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk at several places: aliases in other ranges, and the row of a number, which has no addresses. What replaces it,
 * or takes access, does so at all of them, or at none.
 */
#include <pthread.h>

#include "libclient/seal/look.h"
#include "tests/unit/ranges.h"

BEGIN_EACH(begin_one)

static const struct glake__use toy_program = {
	.name = "toy program", .kind = GLAKE__PROGRAMS, .is_programs = true};
static const struct glake__use toy_number = {.name = "toy number", .is_nowhere = true};

static struct glake__range *reserve_as(const struct glake__use *use, uint64_t n_mib)
{
	struct glake__range *range = NULL;
	ck_assert_int_eq(glake__range_reserve(use, NULL, 0, n_mib * MIB, 0, 0, &range), 0);
	return range;
}

/* The chunk of @part once more. */
static void alias(struct glake__range *range, uint64_t offset, const struct glake__part *part)
{
	struct glake__part again = *part;
	again.fd = -1; /* it is mapped, and that is asked */
	ck_assert_int_eq(glake__range_fill(range, offset, &again, 1), 0);
}

/* Into a row without addresses: the driver is not asked. */
static void name(struct glake__range *range, uint64_t offset, const struct glake__part *part)
{
	alias(range, offset, part);
}

static struct glake__chunk *chunk_at(const struct glake__range *range, uint64_t offset)
{
	glake__lock();
	struct glake__chunk *chunk = glake__range_piece_locked(range, offset)->chunk;
	glake__unlock();
	return chunk;
}

/* As the program's calls do: here device 0 may read, and maybe write. */
static void open_place(struct glake__range *range, uint64_t offset, uint64_t n_bytes, bool writes)
{
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(range, offset);
	piece->readers = 1;
	piece->writers = writes;
	piece->access = writes ? GLAKE__ACCESS_WRITE : GLAKE__ACCESS_READ;
	glake__unlock();
	ck_assert_int_eq(glake__map_access(range->ptr + offset, n_bytes, 1, piece->access), 0);
}

static bool is_writable(glake_ptr ptr)
{
	uint32_t word = 0;
	return drv.cuMemcpyDtoH(&word, ptr, sizeof(word)) == CUDA_SUCCESS &&
	       drv.cuMemcpyHtoD(ptr, &word, sizeof(word)) == CUDA_SUCCESS;
}

static void end_all(struct glake__range *const *ranges, size_t n)
{
	ck_assert(glake__space_is_valid());
	for (size_t i = 0; i < n; i++) {
		struct glake__chunk *dead = NULL;
		if (ranges[i]->use->is_nowhere) {
			/* Nothing is mapped there. */
			const struct glake__part hole_of = {.n_bytes = ranges[i]->n_bytes,
			                                    .fd = -1};
			const struct glake__site site = {.range = ranges[i]};
			struct glake__change change;
			ck_assert_int_eq(glake__change_begin(&change, &site, &hole_of, 1), 0);
			glake__change_commit(&change, &dead);
			glake__chunks_release(dead);
			ck_assert_int_eq(glake__range_drop(ranges[i]), 0);
		} else {
			ck_assert_int_eq(glake__range_end(ranges[i], NULL), 0);
		}
	}
}

START_TEST(what_is_mapped_in_several_places_is_replaced_in_all)
{
	struct glake__range *ranges[] = {reserve_range(4), reserve_range(6), reserve_range(2)};
	struct glake__part old[] = {make_part(2), make_part(2)};
	struct glake__part new[] = {make_part(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, old, 2), 0);
	alias(ranges[1], 4 * MIB, &old[0]);
	alias(ranges[1], 0, &old[1]);
	alias(ranges[2], 0, &old[0]);
	ck_assert_int_eq(range_reback(ranges[0], 0, new, 2, NULL), 0);
	ck_assert_uint_eq(word_at(ranges[0]->ptr), new[0].chunk->id);
	ck_assert_uint_eq(word_at(ranges[0]->ptr + 2 * MIB), new[1].chunk->id);
	ck_assert_uint_eq(word_at(ranges[1]->ptr + 4 * MIB), new[0].chunk->id);
	ck_assert_uint_eq(word_at(ranges[1]->ptr), new[1].chunk->id);
	ck_assert_uint_eq(word_at(ranges[2]->ptr), new[0].chunk->id);
	ck_assert_uint_eq(old[0].chunk->n_mappings, 0);
	for (size_t i = 0; i < 2; i++) {
		end_part(&old[i]);
		end_part(&new[i]);
	}
	ck_assert_uint_eq(n_released, 2);
	end_all(ranges, 3);
	ck_assert_uint_eq(n_released, 4);
}
END_TEST

/* One chunk of 6 MiB becomes three, everywhere. */
START_TEST(what_is_cut_is_cut_in_all_places)
{
	struct glake__range *ranges[] = {reserve_range(6), reserve_range(8),
	                                 reserve_as(&toy_number, 6)};
	struct glake__part old = make_part(6);
	struct glake__part new[] = {make_part(2), make_part(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &old, 1), 0);
	alias(ranges[1], 2 * MIB, &old);
	name(ranges[2], 0, &old);
	ck_assert_int_eq(range_reback(ranges[1], 2 * MIB, new, 3, NULL), 0);
	for (uint64_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(word_at(ranges[0]->ptr + i * 2 * MIB), new[i].chunk->id);
		ck_assert_uint_eq(word_at(ranges[1]->ptr + 2 * MIB + i * 2 * MIB),
		                  new[i].chunk->id);
		ck_assert_ptr_eq(chunk_at(ranges[2], i * 2 * MIB), new[i].chunk);
		/* A number can be mapped again when it is mapped nowhere: so there is a handle. */
		ck_assert_uint_ne(new[i].chunk->handle, 0);
	}
	for (uint64_t i = 0; i < 3; i++) {
		/* note_release() does not. */
		glake__map_release(new[i].chunk->handle);
		new[i].chunk->handle = 0;
		end_part(&new[i]);
	}
	end_part(&old);
	end_all(ranges, 3);
	ck_assert_uint_eq(n_released, 4);
}
END_TEST

/* Chunks that lie side by side here need not do so there. */
START_TEST(a_chunk_with_other_places_is_joined_with_no_neighbour)
{
	struct glake__range *ranges[] = {reserve_range(4), reserve_range(2)};
	struct glake__part old[] = {make_part(2), make_part(2)};
	struct glake__part new = make_part(4);
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, old, 2), 0);
	alias(ranges[1], 0, &old[1]);
	ck_assert_int_eq(range_reback(ranges[0], 0, &new, 1, NULL), -EINVAL);
	ck_assert_uint_eq(word_at(ranges[0]->ptr), old[0].chunk->id);
	ck_assert_uint_eq(word_at(ranges[1]->ptr), old[1].chunk->id);
	ck_assert_int_eq(glake__range_clear(ranges[1], 0, 2 * MIB, NULL), 0);
	ck_assert_int_eq(range_reback(ranges[0], 0, &new, 1, NULL), 0);
	end_part(&old[0]);
	end_part(&old[1]);
	end_part(&new);
	end_all(ranges, 2);
}
END_TEST

START_TEST(a_hold_has_the_chunk_wherever_it_is_mapped)
{
	struct glake__range *ranges[] = {reserve_range(4), reserve_range(4), reserve_range(4)};
	struct glake__part part = make_part(2);
	struct glake__part other = make_part(2);
	struct glake__hold hold;
	struct glake__hold second;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &part, 1), 0);
	alias(ranges[1], 2 * MIB, &part);
	ck_assert_int_eq(glake__range_fill(ranges[1], 0, &other, 1), 0);
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
	/* Neither there nor by one place more. */
	ck_assert_int_eq(glake__hold_begin(&second, ranges[1]->ptr + 2 * MIB, 1, false), -EBUSY);
	ck_assert_int_eq(glake__range_access(ranges[1], 2 * MIB, 2 * MIB, GLAKE__ACCESS_READ),
	                 -EBUSY);
	struct glake__holding here = {
		.hold = &second, .ptr = ranges[1]->ptr + 2 * MIB, .n_bytes = 1, .is_here = true};
	ck_assert_int_eq(glake__holds_begin(&here, 1, false), -EBUSY);
	struct glake__part more = part;
	ck_assert_int_eq(glake__range_fill(ranges[2], 0, &more, 1), -EBUSY);
	/* Anybody may change the piece beside. */
	ck_assert_int_eq(glake__range_access(ranges[1], 0, 2 * MIB, GLAKE__ACCESS_READ), 0);
	glake__hold_end(&hold);
	ck_assert_int_eq(glake__range_fill(ranges[2], 0, &more, 1), 0);
	ck_assert_int_eq(glake__hold_begin(&second, ranges[1]->ptr + 2 * MIB, 1, false), 0);
	glake__hold_end(&second);
	end_part(&part);
	end_part(&other);
	end_all(ranges, 3);
}
END_TEST

/* Its place comes only when the change has ended: a hold would not know it. */
START_TEST(what_is_being_mapped_once_more_is_not_held)
{
	struct glake__range *ranges[] = {reserve_range(2), reserve_range(2)};
	const struct glake__site site = {.range = ranges[1], .ptr = ranges[1]->ptr};
	struct glake__part part = make_part(2);
	struct glake__chunk *none = NULL;
	struct glake__change change;
	struct glake__hold hold;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &part, 1), 0);
	ck_assert_int_eq(glake__change_begin(&change, &site, &part, 1), 0);
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), -EBUSY);
	glake__change_cancel(&change, &none);
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
	glake__hold_end(&hold);
	alias(ranges[1], 0, &part);
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
	glake__hold_end(&hold);
	end_part(&part);
	end_all(ranges, 2);
}
END_TEST

/* Who looks at memory twice, before it is held and then: it is the same, or it is not. */
START_TEST(what_is_mapped_anew_is_not_what_was_looked_at)
{
	enum glake__pin pin;
	struct glake__hold hold;
	struct glake__range *ranges[] = {reserve_range(4), reserve_range(4)};
	struct glake__part parts[] = {make_part(2), make_part(2), make_part(2)};
	glake_ptr ptr = ranges[0]->ptr;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, parts, 2), 0);
	const uint64_t last = glake__look_last();
	ck_assert_int_eq(glake__hold_begin(&hold, ptr, 4 * MIB, false), 0);
	ck_assert(glake__look_is_still(&hold, ptr, 4 * MIB, last, &pin));
	ck_assert_int_eq(pin, GLAKE__PIN_NONE);
	ck_assert(!glake__look_is_still(&hold, ptr, 2 * MIB, last, &pin));
	ck_assert(!glake__look_is_still(&hold, ptr + 2 * MIB, 4 * MIB, last, &pin));
	glake__hold_end(&hold);
	/* A piece whose chunk is replaced under a hold is the same mapping still. */
	ck_assert_int_eq(glake__hold_begin(&hold, ptr, 2 * MIB, false), 0);
	ck_assert_int_eq(hold_reback(&hold, &parts[2], 1), 0);
	ck_assert(glake__look_is_still(&hold, ptr, 2 * MIB, last, &pin));
	glake__hold_end(&hold);
	/* Two with another place are not one. */
	alias(ranges[1], 0, &parts[1]);
	ck_assert_int_eq(glake__hold_begin(&hold, ptr, 4 * MIB, false), 0);
	ck_assert(!glake__look_is_still(&hold, ptr, 4 * MIB, last, &pin));
	glake__hold_end(&hold);
	ck_assert_int_eq(glake__hold_begin(&hold, ptr + 2 * MIB, 2 * MIB, false), 0);
	ck_assert(glake__look_is_still(&hold, ptr + 2 * MIB, 2 * MIB, last, &pin));
	glake__hold_end(&hold);
	/* The same chunk, mapped anew at the same place, is another mapping. */
	ck_assert_int_eq(glake__range_clear(ranges[0], 2 * MIB, 2 * MIB, NULL), 0);
	alias(ranges[0], 2 * MIB, &parts[1]);
	ck_assert_int_eq(glake__hold_begin(&hold, ptr + 2 * MIB, 2 * MIB, false), 0);
	ck_assert(!glake__look_is_still(&hold, ptr + 2 * MIB, 2 * MIB, last, &pin));
	glake__hold_end(&hold);
	for (size_t i = 0; i < 3; i++) {
		end_part(&parts[i]);
	}
	end_all(ranges, 2);
}
END_TEST

/* The program has asked for writing, and gets that when the memory is private again. */
START_TEST(a_block_that_is_opened_to_be_written_stays_read_only)
{
	struct glake__range *range = reserve_as(&toy_program, 2);
	struct glake__part part = make_part(2);
	struct glake__part other = make_part(2);
	part.access = GLAKE__ACCESS_READ;
	ck_assert_int_eq(glake__range_fill(range, 0, &part, 1), 0);
	glake__lock();
	glake__chunk_set_kind_locked(part.chunk, GLAKE__PAGE_BLOCK);
	glake__unlock();
	ck_assert_int_eq(glake__map_access(range->ptr, 2 * MIB, 1, GLAKE__ACCESS_READ), 0);
	glake__program_opened(range->ptr, 2 * MIB, 0, true, true);
	/* A chunk that could not be replaced is put back as it was. */
	set_faults("cuMemMap:1:fail=1");
	ck_assert_int_eq(range_reback(range, 0, &other, 1, NULL), GLAKE_E_CUDA);
	set_faults("");
	ck_assert_uint_eq(word_at(range->ptr), part.chunk->id);
	ck_assert(!is_writable(range->ptr));
	ck_assert_int_eq(range_reback(range, 0, &other, 1, NULL), 0);
	ck_assert(is_writable(range->ptr));
	end_part(&part);
	end_part(&other);
	end_all(&range, 1);
}
END_TEST

static const struct glake__use toy_aside = {.name = "toy aside", .is_ours = true};

/* Places of our own come while it is held: with one of those it has more than any hold takes. */
START_TEST(a_hold_ends_at_as_many_places_as_it_took)
{
	struct glake__range *ranges[] = {reserve_range(2 * GLAKE__MAX_PLACES),
	                                 reserve_as(&toy_aside, 2)};
	struct glake__part part = make_part(2);
	struct glake__hold hold;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &part, 1), 0);
	for (uint64_t i = 1; i < GLAKE__MAX_PLACES; i++) {
		alias(ranges[0], i * 2 * MIB, &part);
	}
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
	alias(ranges[1], 0, &part);
	ck_assert_int_eq(glake__pin_at(ranges[0]->ptr), GLAKE__PIN_NONE);
	glake__hold_end(&hold);
	end_part(&part);
	for (uint64_t i = 0; i < GLAKE__MAX_PLACES; i++) {
		glake__lock();
		ck_assert_ptr_null(glake__range_piece_locked(ranges[0], i * 2 * MIB)->holder);
		glake__unlock();
	}
	end_all(ranges, 2);
}
END_TEST

/* A place of our own may be on its way out, by another thread. */
START_TEST(a_handle_is_asked_for_at_a_place_that_stays)
{
	struct glake__range *ranges[] = {reserve_range(2), reserve_as(&toy_aside, 2),
	                                 reserve_as(&toy_aside, 2)};
	struct glake__part part = make_part(2);
	struct glake__hold hold;
	const struct glake__part nothing = hole(2);
	const struct glake__site site = {.range = ranges[1], .ptr = ranges[1]->ptr};
	struct glake__change change;
	struct glake__chunk *none = NULL;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &part, 1), 0);
	alias(ranges[1], 0, &part);
	ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
	ck_assert_int_eq(glake__change_begin(&change, &site, &nothing, 1), 0);
	ck_assert_int_eq(glake__map_unmap(ranges[1]->ptr, 2 * MIB), 0);
	alias(ranges[2], 0, &part);
	ck_assert_uint_eq(word_at(ranges[2]->ptr), part.chunk->id);
	glake__change_commit(&change, &none);
	glake__hold_end(&hold);
	end_part(&part);
	end_all(ranges, 3);
}
END_TEST

/* Who holds several takes them at once, or none. */
START_TEST(holds_begin_together)
{
	struct glake__range *ranges[] = {reserve_range(4), reserve_range(2)};
	struct glake__part parts[] = {make_part(2), make_part(2)};
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, parts, 2), 0);
	alias(ranges[1], 0, &parts[0]);
	struct glake__hold holds[3];
	struct glake__hold other;
	struct glake__holding list[] = {
		{.hold = &holds[0], .ptr = ranges[0]->ptr, .n_bytes = 1},
		{.hold = &holds[1], .range = ranges[1], .ptr = 0, .n_bytes = 1},
		{.hold = &holds[2], .ptr = ranges[0]->ptr + 2 * MIB, .n_bytes = 1},
	};
	ck_assert_int_eq(glake__hold_begin(&other, ranges[0]->ptr + 2 * MIB, 1, false), 0);
	ck_assert_int_eq(glake__holds_begin(list, 3, false), -EBUSY);
	glake__hold_end(&other);
	ck_assert_int_eq(glake__hold_begin(&other, ranges[0]->ptr, 1, false), 0);
	glake__hold_end(&other);
	ck_assert_int_eq(glake__holds_begin(list, 3, true), 0);
	ck_assert_int_eq(list[0].result, 0);
	ck_assert_int_eq(list[1].result, -EALREADY);
	ck_assert_int_eq(list[2].result, 0);
	ck_assert_ptr_null(holds[1].range);
	for (size_t i = 0; i < 3; i++) {
		glake__hold_end(&holds[i]);
	}
	ck_assert_int_eq(glake__hold_begin(&other, ranges[1]->ptr, 1, false), 0);
	glake__hold_end(&other);
	end_part(&parts[0]);
	end_part(&parts[1]);
	end_all(ranges, 2);
}
END_TEST

/* The program's places: one to write, one to read, one that it has not opened yet. */
START_TEST(each_place_keeps_the_access_that_it_was_given)
{
	struct glake__range *ranges[] = {reserve_as(&toy_program, 2), reserve_as(&toy_program, 2),
	                                 reserve_as(&toy_program, 2)};
	struct glake__part part = make_part(2);
	struct glake__part new = make_part(2);
	struct glake__hold hold;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &part, 1), 0);
	alias(ranges[1], 0, &part);
	alias(ranges[2], 0, &part);
	open_place(ranges[0], 0, 2 * MIB, true);
	open_place(ranges[1], 0, 2 * MIB, false);
	for (int round = 0; round < 2; round++) {
		ck_assert(is_writable(ranges[0]->ptr));
		ck_assert(!is_writable(ranges[1]->ptr));
		ck_assert_int_eq(glake__hold_begin(&hold, ranges[1]->ptr, 1, false), 0);
		ck_assert_uint_eq(glake__hold_readers(&hold), 1);
		ck_assert_int_eq(glake__hold_access(&hold, GLAKE__ACCESS_READ), 0);
		ck_assert(!is_writable(ranges[0]->ptr));
		word_at(ranges[0]->ptr);
		word_at(ranges[1]->ptr);
		ck_assert_int_eq(glake__hold_access(&hold, GLAKE__ACCESS_WRITE), 0);
		glake__hold_end(&hold);
		ck_assert(is_writable(ranges[0]->ptr));
		ck_assert(!is_writable(ranges[1]->ptr));
		uint32_t word;
		ck_assert_int_ne(drv.cuMemcpyDtoH(&word, ranges[2]->ptr, 4), CUDA_SUCCESS);
		if (round == 0) {
			/* And so does what replaces it. */
			ck_assert_int_eq(range_reback(ranges[2], 0, &new, 1, NULL), 0);
			ck_assert_uint_eq(word_at(ranges[0]->ptr), new.chunk->id);
		}
	}
	end_part(&part);
	end_part(&new);
	end_all(ranges, 3);
}
END_TEST

START_TEST(a_change_of_several_places_happens_in_all_or_in_none)
{
	static const char *const calls[] = {
		"cuMemImportFromShareableHandle",
		"cuMemRetainAllocationHandle",
		"cuMemUnmap",
		"cuMemMap",
		"cuMemSetAccess",
	};
	struct glake__range *ranges[] = {reserve_range(2), reserve_range(2), reserve_range(2)};
	struct glake__part old = make_part(2);
	struct glake__part new = make_part(2);
	struct glake__hold hold;
	unsigned n_failures = 0;
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &old, 1), 0);
	alias(ranges[1], 0, &old);
	alias(ranges[2], 0, &old);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (int nth = 1; nth <= 3; nth++) {
			char rule[100];
			bool is_lost = true;
			snprintf(rule, sizeof(rule), "%s:%d:fail=999\n", calls[i], nth);
			set_faults(rule);
			int r = range_reback(ranges[1], 0, &new, 1, &is_lost);
			set_faults("");
			if (r == 0) {
				/* There are not so many of these calls. Back. */
				ck_assert_int_eq(range_reback(ranges[0], 0, &old, 1, NULL), 0);
				continue;
			}
			n_failures++;
			ck_assert_int_eq(r, GLAKE_E_CUDA);
			ck_assert(!is_lost);
			ck_assert(glake__space_is_valid());
			for (size_t k = 0; k < 3; k++) {
				ck_assert_uint_eq(word_at(ranges[k]->ptr), old.chunk->id);
				ck_assert(is_writable(ranges[k]->ptr));
				/* And nobody has it. */
				ck_assert_int_eq(glake__hold_begin(&hold, ranges[k]->ptr, 1, false),
				                 0);
				glake__hold_end(&hold);
			}
		}
	}
	ck_assert_uint_ge(n_failures, 10);
	end_part(&old);
	end_part(&new);
	end_all(ranges, 3);
}
END_TEST

/* One place is lost: the others are, or are not, and nobody holds them any more. */
START_TEST(places_that_are_lost_are_held_by_nobody)
{
	struct glake__range *ranges[] = {reserve_range(2), reserve_range(2)};
	struct glake__part old = make_part(2);
	struct glake__part new = make_part(2);
	ck_assert_int_eq(glake__range_fill(ranges[0], 0, &old, 1), 0);
	alias(ranges[1], 0, &old);
	for (int nth = 1; nth <= 4; nth++) {
		char rule[100];
		struct glake__hold hold;
		struct glake__rebacking rebacking = {.hold = &hold, .parts = &new, .n_parts = 1};
		ck_assert_int_eq(glake__hold_begin(&hold, ranges[0]->ptr, 1, false), 0);
		snprintf(rule, sizeof(rule), "cuMemMap:%d+:fail=999\n", nth);
		set_faults(rule);
		int r = glake__hold_reback_all(&rebacking, 1, &(struct glake__rebacking_way){0});
		set_faults("");
		glake__hold_end(&hold);
		ck_assert_int_eq(r, nth <= 2 ? GLAKE_E_CUDA : 0);
		ck_assert(glake__space_is_valid());
		for (size_t k = 0; k < 2; k++) {
			struct glake__chunk *there = chunk_at(ranges[k], 0);
			if (there) {
				ck_assert_int_eq(glake__hold_begin(&hold, ranges[k]->ptr, 1, false),
				                 0);
				glake__hold_end(&hold);
				ck_assert_int_eq(glake__range_clear(ranges[k], 0, 2 * MIB, NULL),
				                 0);
			}
		}
		ck_assert_ptr_null(old.chunk->holder);
		ck_assert_int_eq(glake__range_fill(ranges[0], 0, &old, 1), 0);
		alias(ranges[1], 0, &old);
	}
	end_part(&old);
	end_part(&new);
	end_all(ranges, 2);
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------- */

enum { N_RANGES = 6, N_CHUNKS = 4, N_ROUNDS = 300 };

static struct glake__range *shared[N_RANGES];
static struct glake__part pool[2 * N_CHUNKS];

/* Places come and go, as a program maps and unmaps; chunk i stands at offset i only. */
static void *map_and_unmap(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	for (int i = 0; i < N_ROUNDS; i++) {
		struct glake__range *range = shared[1 + rand_r(&state) % (N_RANGES - 1)];
		uint64_t k = rand_r(&state) % N_CHUNKS;
		if (rand_r(&state) % 2) {
			glake__range_clear(range, k * 2 * MIB, 2 * MIB, NULL);
			continue;
		}
		glake__lock();
		struct glake__chunk *chunk =
			glake__range_piece_locked(shared[0], k * 2 * MIB)->chunk;
		chunk->n_uses++;
		glake__unlock();
		const struct glake__part part = {.chunk = chunk,
		                                 .n_bytes = 2 * MIB,
		                                 .access = GLAKE__ACCESS_WRITE,
		                                 .fd = -1};
		glake__range_fill(range, k * 2 * MIB, &part, 1);
		glake__chunk_put(chunk);
	}
	return NULL;
}

/* And others replace what is there, held or not; chunks i and i + N_CHUNKS take turns. */
static void *replace(void *seed)
{
	unsigned state = (unsigned)(uintptr_t)seed;
	for (int i = 0; i < N_ROUNDS; i++) {
		uint64_t k = rand_r(&state) % N_CHUNKS;
		struct glake__hold hold;
		ck_assert_int_eq(glake__hold_begin(&hold, shared[0]->ptr + k * 2 * MIB, 1, true),
		                 0);
		struct glake__chunk *there = chunk_at(shared[0], k * 2 * MIB);
		bool is_first = there == pool[k].chunk;
		struct glake__rebacking rebacking = {
			.hold = &hold, .parts = &pool[is_first ? k + N_CHUNKS : k], .n_parts = 1};
		if (rand_r(&state) % 2) {
			ck_assert_int_eq(glake__hold_access(&hold, GLAKE__ACCESS_READ), 0);
			ck_assert_int_eq(glake__hold_access(&hold, GLAKE__ACCESS_WRITE), 0);
		}
		ck_assert_int_eq(
			glake__hold_reback_all(&rebacking, 1, &(struct glake__rebacking_way){0}),
			0);
		ck_assert_uint_eq(there->n_mappings, 0);
		glake__hold_end(&hold);
	}
	return NULL;
}

/* Nobody waits for ever, and all places of a chunk are the same in the end. */
START_TEST(places_come_and_go_while_memory_is_replaced)
{
	pthread_t threads[4];
	for (size_t i = 0; i < 2 * N_CHUNKS; i++) {
		pool[i] = make_part(2);
	}
	for (size_t i = 0; i < N_RANGES; i++) {
		shared[i] = reserve_range(2 * N_CHUNKS);
	}
	ck_assert_int_eq(glake__range_fill(shared[0], 0, pool, N_CHUNKS), 0);
	for (uintptr_t i = 0; i < 4; i++) {
		pthread_create(&threads[i], NULL, i % 2 ? map_and_unmap : replace, (void *)(i + 1));
	}
	for (size_t i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert(glake__space_is_valid());
	for (size_t i = 1; i < N_RANGES; i++) {
		for (uint64_t k = 0; k < N_CHUNKS; k++) {
			const struct glake__chunk *there = chunk_at(shared[i], k * 2 * MIB);
			if (there) {
				ck_assert_ptr_eq(there, chunk_at(shared[0], k * 2 * MIB));
				ck_assert_uint_eq(word_at(shared[i]->ptr + k * 2 * MIB), there->id);
			}
		}
	}
	for (size_t i = 0; i < 2 * N_CHUNKS; i++) {
		end_part(&pool[i]);
	}
	end_all(shared, N_RANGES);
}
END_TEST
