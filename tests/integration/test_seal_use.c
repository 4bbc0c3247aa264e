/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of an owner that the library does not know can be sealed, held and dropped.
 *
 * Whoever brings another kind of backing touches two rooms: space/, whose ranges, chunks and holds it uses, and
 * its own. Here that is this file: a use of ranges with its two functions, and what allocates and frees.
 * Nothing in heap/, seal/, api/ or model/ says its name, and sealing works by glake_seal() and glake_unseal().
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/space/held.h"
#include "libclient/space/number.h"
#include "libclient/space/program.h"
#include "libclient/space/range.h"
#include "libclient/space/reback.h"
#include "libclient/space/sealed.h"
#include "libclient/space/unsealed.h"
#include "proto/limits.h"
#include "tests/harness/words.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x4GiB");
	words_open_driver();
}
BEGIN_EACH(begin)

/* ---- the owner: one allocation of its own in each range, from its second page on ------------------ */

struct toy {
	struct glake__device *device;
	struct glake__range *range;
	uint64_t n_bytes;
	bool is_held;
};

/* The first page has no allocation, and the rest of the last one is nobody's. */
static int hold_toy(struct glake__range *range, glake_ptr address, struct glake__held *held_out)
{
	struct toy *toy = range->user;
	const glake_ptr begin = range->ptr + GLAKE__PAGE_BYTES;
	if (address - begin >= toy->n_bytes) {
		return -ENOENT;
	}
	if (toy->is_held) {
		return -EBUSY;
	}
	toy->is_held = true;
	*held_out = (struct glake__held){
		.begin = begin,
		.end = begin + toy->n_bytes,
		.tail = range->ptr + range->n_bytes,
		.device = toy->device,
		.user = toy,
	};
	return 0;
}

static void let_toy(struct glake__held *held)
{
	((struct toy *)held->user)->is_held = false;
}

static const struct glake__use toy_use = {
	.name = "toy",
	.kind = GLAKE__OWN,
	.is_private = true,
	.hold = hold_toy,
	.let = let_toy,
};

static glake_ptr toy_alloc(struct toy *toy, struct glake_session *session, uint64_t n_bytes)
{
	const uint64_t n_range = GLAKE__PAGE_BYTES + (n_bytes + GLAKE__PAGE_BYTES - 1) /
	                                                     GLAKE__PAGE_BYTES * GLAKE__PAGE_BYTES;
	struct glake__wait wait = {0};
	*toy = (struct toy){.device = glake__session_device(session, 0), .n_bytes = n_bytes};
	assert_ok(glake__range_reserve(&toy_use, toy, toy->device->handle, n_range, 0, 0,
	                               &toy->range));
	assert_ok(glake__grant_fill(toy->device, toy->range, 0, n_range, GRANT_CHUNK_BYTES, &wait));
	return toy->range->ptr + GLAKE__PAGE_BYTES;
}

/* Whoever frees waits for who holds, as any user of ranges. */
static void toy_free(struct toy *toy)
{
	struct glake__chunk *dead = NULL;
	glake__lock();
	while (toy->is_held) {
		glake__held_wait_locked();
	}
	toy->n_bytes = 0;
	glake__unsealed_forget_locked(toy->range);
	glake__unlock();
	assert_ok(glake__range_end(toy->range, &dead));
	glake__grant_return(toy->device->session, dead);
}

/* ---- */

START_TEST(it_is_sealed_and_unsealed_in_place)
{
	struct toy toy;
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr known = words_alloc(one, 6 * MIB, 7);
	glake_ptr ptr = toy_alloc(&toy, two, 6 * MIB);
	words_write(ptr, 6 * MIB, 7);
	words_write(ptr - 2 * MIB, 2 * MIB, 1);
	words_seal(known, 6 * MIB);
	struct glake_sealed sealed = words_seal(ptr, 6 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 6 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 6 * MIB);
	words_check(ptr, 6 * MIB, 7);
	ck_assert(!words_can_write(ptr));
	ck_assert(words_can_write(ptr - 8));
	ck_assert_uint_eq(world_usage(two).shared_bytes, 6 * MIB);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 2 * MIB);
	assert_ok(glake_unseal(ptr, 1));
	words_check(ptr, 6 * MIB, 7);
	ck_assert(words_can_write(ptr));
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert(glake__space_is_valid());
	toy_free(&toy);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	assert_ok(glake_free(one, known));
}
END_TEST

START_TEST(nobodys_bytes_behind_it_are_zero)
{
	struct toy toy;
	struct glake_session *session = world_connect();
	glake_ptr known = words_alloc(session, 3 * MIB, 7);
	glake_ptr ptr = toy_alloc(&toy, session, 3 * MIB);
	words_write(ptr, 4 * MIB, 9);
	words_write(ptr, 3 * MIB, 7);
	words_seal(known, 3 * MIB);
	ck_assert_uint_eq(words_seal(ptr, 3 * MIB).shared_bytes, 4 * MIB);
	words_check(ptr, 3 * MIB, 7);
	toy_free(&toy);
	ck_assert_uint_eq(world_usage(session).shared_bytes, 4 * MIB);
}
END_TEST

START_TEST(what_it_does_not_hold_is_refused)
{
	struct toy toy;
	struct glake_session *session = world_connect();
	glake_ptr ptr = toy_alloc(&toy, session, 4 * MIB);
	struct glake_span wrong[] = {
		{ptr - 2 * MIB, 2 * MIB}, {ptr, 4 * MIB + 1}, {ptr + 4 * MIB, 1}};
	for (size_t i = 0; i < 3; i++) {
		ck_assert_int_eq(glake_seal(&wrong[i], 1, NULL), -EINVAL);
		ck_assert(!toy.is_held);
	}
	toy_free(&toy);
}
END_TEST

/* One seal of memory of two sessions and two kinds: each session hears of its own. */
START_TEST(it_is_sealed_with_memory_of_other_kinds_and_sessions)
{
	struct toy toy;
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr other = words_alloc(one, 4 * MIB, 7);
	glake_ptr ptr = toy_alloc(&toy, two, 4 * MIB);
	words_write(ptr, 4 * MIB, 7);
	struct glake_span spans[] = {{ptr, 4 * MIB}, {other, 4 * MIB}};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	assert_ok(glake_seal(spans, 2, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, 8 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_row(one).n_seals, 1);
	ck_assert_uint_eq(world_row(two).n_seals, 1);
	ck_assert_uint_eq(world_row(one).shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_row(two).shared_bytes, 4 * MIB);
	toy_free(&toy);
	assert_ok(glake_free(one, other));
}
END_TEST

/* The memory comes in several requests, of which the last one is refused. */
START_TEST(what_does_not_come_whole_leaves_nothing)
{
	enum { CHUNK = 8, N = GLAKE_MAX_PACKET_FDS * 5 / 2 };
	struct glake_session *session = world_connect();
	struct toy toy = {.device = glake__session_device(session, 0)};
	struct glake__wait wait = {0};
	assert_ok(glake__range_reserve(&toy_use, &toy, toy.device->handle, N * CHUNK * MIB, 0, 0,
	                               &toy.range));
	ck_assert_int_eq(
		glake__grant_fill(toy.device, toy.range, 0, N * CHUNK * MIB, CHUNK * MIB, &wait),
		GLAKE_E_NO_DEVICE_MEMORY);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
	ck_assert(glake__space_is_valid());
	assert_ok(glake__range_drop(toy.range));
}
END_TEST

/* ---- what a program places itself -------------------------------------------------------------- */

static glake_ptr place(struct glake_session *session)
{
	glake_ptr ptr;
	assert_ok(glake_reserve(session, 16 * MIB, 0, &ptr));
	assert_ok(glake_map(session, 0, ptr, 4 * MIB));
	assert_ok(glake_map(session, 0, ptr + 4 * MIB, 4 * MIB));
	words_write(ptr, 8 * MIB, 7);
	return ptr;
}

START_TEST(placed_memory_is_sealed_as_it_was_mapped)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = place(one);
	glake_ptr second = place(two);
	ck_assert_uint_eq(words_seal(first, 8 * MIB).sealed_bytes, 8 * MIB);
	ck_assert_uint_eq(words_seal(second, 8 * MIB).shared_bytes, 8 * MIB);
	/* The memory was mapped in two calls, of which one is undone. */
	assert_ok(glake_unmap(two, second, 4 * MIB));
	ck_assert_uint_eq(world_usage(two).shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_usage(two).live_bytes, 4 * MIB);
	ck_assert(!words_can_write(second + 4 * MIB));
	assert_ok(glake_unseal(second + 4 * MIB, 1));
	ck_assert(words_can_write(second + 4 * MIB));
	ck_assert(!words_can_write(first + 4 * MIB));
	/* A free span is no memory, and one that is half free is sealed by half. */
	struct glake_span hole = {second, 2 * MIB};
	ck_assert_int_eq(glake_seal(&hole, 1, NULL), -EINVAL);
	struct glake_sealed sealed = words_seal(second + 4 * MIB, 8 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(sealed.edge_bytes, 4 * MIB);
	assert_ok(glake_unmap(two, second + 4 * MIB, 4 * MIB));
	assert_ok(glake_unmap(one, first, 8 * MIB));
	ck_assert_uint_eq(world_usage(one).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_unreserve(one, first));
	assert_ok(glake_unreserve(two, second));
}
END_TEST

/* Whoever wants to map a chunk has a use of it, and looks again when it has been replaced. */
START_TEST(what_a_block_has_replaced_may_end_later)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake__chunk *dead = NULL;
	glake_ptr known = words_alloc(one, 4 * MIB, 7);
	glake_ptr ptr = words_alloc(two, 4 * MIB, 7);
	words_seal(known, 4 * MIB);
	glake__lock();
	struct glake__chunk *chunk = glake__piece_at_locked(ptr)->chunk;
	chunk->n_uses++;
	glake__unlock();
	ck_assert_uint_eq(words_seal(ptr, 4 * MIB).shared_bytes, 4 * MIB);
	glake__lock();
	glake__chunk_put_locked(chunk, &dead);
	glake__unlock();
	glake__grant_return(two, dead);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_row(two).shared_bytes, 4 * MIB);
	words_check(ptr, 4 * MIB, 7);
	assert_ok(glake_free(two, ptr));
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	assert_ok(glake_free(one, known));
}
END_TEST

static void *seal_it(void *user)
{
	const struct glake_span *span = user;
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	assert_ok(glake_seal(span, 1, &sealed));
	return NULL;
}

/* A seal waits for who holds the memory, and a free for the seal. */
START_TEST(seals_and_frees_wait_for_its_holder)
{
	struct toy toy;
	struct glake__held held;
	pthread_t thread;
	struct glake_session *session = world_connect();
	struct glake_span span = {toy_alloc(&toy, session, 4 * MIB), 4 * MIB};
	words_write(span.ptr, span.bytes, 7);
	ck_assert_int_eq(glake__held_begin(span.ptr + 3 * MIB, &held), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, seal_it, &span), 0);
	usleep(50000);
	ck_assert_uint_eq(glake__find_sealed(span.ptr, span.bytes), 0);
	glake__held_end(&held);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(glake__find_sealed(span.ptr, span.bytes), span.ptr);
	ck_assert(!toy.is_held);
	toy_free(&toy);
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
}
END_TEST

static void *end_session(void *user)
{
	world_disconnect(user);
	return NULL;
}

/* The holder has not looked at the memory yet. */
START_TEST(the_end_of_a_session_waits_for_who_holds_its_memory)
{
	struct glake__held held;
	pthread_t thread;
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 4 * MIB, 7);
	ck_assert_int_eq(glake__held_begin(ptr, &held), 0);
	ck_assert_int_eq(pthread_create(&thread, NULL, end_session, session), 0);
	usleep(50000);
	words_check(ptr, 4 * MIB, 7);
	ck_assert_ptr_eq(held.device->session, session);
	glake__held_end(&held);
	pthread_join(thread, NULL);
	ck_assert_int_eq(glake__held_begin(ptr, &held), -ENOENT);
}
END_TEST

struct unmapping {
	struct glake_session *session;
	glake_ptr ptr;
};

static void *unmap_and_unreserve(void *user)
{
	const struct unmapping *unmapping = user;
	assert_ok(glake_unmap(unmapping->session, unmapping->ptr, 4 * MIB));
	assert_ok(glake_unreserve(unmapping->session, unmapping->ptr));
	return NULL;
}

static bool is_changed(glake_ptr ptr)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	bool is_changed = !piece || piece->holder != NULL;
	glake__unlock();
	return is_changed;
}

/* The driver takes its time. */
START_TEST(what_is_being_unmapped_is_not_held)
{
	struct glake__held held;
	pthread_t thread;
	struct unmapping unmapping = {.session = world_connect()};
	assert_ok(glake_reserve(unmapping.session, 4 * MIB, 0, &unmapping.ptr));
	assert_ok(glake_map(unmapping.session, 0, unmapping.ptr, 4 * MIB));
	world_set_own_faults("cuMemUnmap:1:slow=300");
	ck_assert_int_eq(pthread_create(&thread, NULL, unmap_and_unreserve, &unmapping), 0);
	while (!is_changed(unmapping.ptr)) {
		usleep(1000);
	}
	ck_assert_int_eq(glake__held_begin(unmapping.ptr, &held), -ENOENT);
	pthread_join(thread, NULL);
}
END_TEST

struct cancelled {
	struct glake_session *session;
	glake_ptr ptr;
	bool is_published;
	atomic_bool is_over;
};

static void *call_cancelled(void *user)
{
	struct cancelled *cancelled = user;
	struct glake_share share = {.session = 0};
	struct glake_block *block = NULL;
	/* Check's own checks may be where it ends. */
	pthread_cancel(pthread_self());
	int r = cancelled->is_published
	                ? glake_block_publish(cancelled->session, cancelled->ptr, 4 * MIB, &block)
	                : glake_share(cancelled->session, cancelled->ptr, &share);
	cancelled->is_over = r == 0;
	pthread_testcancel();
	return NULL;
}

static void run_cancelled(struct cancelled *cancelled)
{
	pthread_t thread;
	void *result = NULL;
	ck_assert_int_eq(pthread_create(&thread, NULL, call_cancelled, cancelled), 0);
	pthread_join(thread, &result);
	ck_assert_ptr_eq(result, PTHREAD_CANCELED);
	ck_assert(cancelled->is_over);
}

/* Whoever waits for the memory would wait for ever. */
START_TEST(who_holds_memory_is_cancelled_later)
{
	struct glake_session *session = world_connect();
	struct cancelled cancelled = {.session = session};
	struct cancelled published = {.session = session, .is_published = true};
	cancelled.ptr = words_alloc(session, 4 * MIB, 7);
	words_seal(cancelled.ptr, 4 * MIB);
	run_cancelled(&cancelled);
	words_seal(words_alloc(session, 4 * MIB, 8), 4 * MIB);
	published.ptr = words_alloc(session, 4 * MIB, 8);
	run_cancelled(&published);
	assert_ok(glake_free(session, cancelled.ptr));
}
END_TEST

/* Whoever seals notes it behind the last step: the program may have unmapped the memory by then, and give it up. */
START_TEST(what_is_gone_has_no_cause)
{
	struct glake_session *session = world_connect();
	const uint64_t *n_bytes = &session->books.unsealed_bytes[GLAKE__UNSEALED_EDGE];
	struct glake__chunk *chunk = glake__program_made(1, 2 * MIB, 0, NULL, NULL);
	struct glake__mapping *mapping;
	glake_ptr ptr;
	assert_ok(glake__program_reserve(4 * MIB, 0, 0, &ptr));
	assert_ok(glake__program_map(ptr, 2 * MIB, chunk, &mapping));
	glake__program_settle(mapping, true);
	glake__unsealed_note(session, ptr, ptr + 4 * MIB, GLAKE__UNSEALED_EDGE);
	ck_assert_uint_eq(*n_bytes, 2 * MIB);
	/* The driver has failed, having unmapped it. */
	assert_ok(glake__program_unmap(ptr, 2 * MIB, &mapping));
	glake__program_settle(mapping, false);
	assert_ok(glake__program_unreserve(ptr, 4 * MIB));
	ck_assert_uint_eq(*n_bytes, 0);
	glake__program_released(1);
}
END_TEST

/* ---- what a program maps, unmaps and maps again ------------------------------------------------- */

static void end_nothing(void *user)
{
	(void)user;
}

static void map_number(glake_ptr ptr, unsigned long long value, uint64_t n_bytes)
{
	const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct glake__mapping *mapping;
	struct glake__number *number = glake__number_take(value);
	assert_ok(glake__number_map(number, ptr, n_bytes));
	glake__number_give(number);
	assert_ok(glake__program_hold_whole(ptr, n_bytes, &mapping));
	ck_assert_int_eq(drv.cuMemSetAccess(ptr, n_bytes, &access, 1), CUDA_SUCCESS);
	glake__program_opened(ptr, n_bytes, 0, true, true);
	glake__program_settle(mapping, true);
}

static void unmap_number(glake_ptr ptr, uint64_t n_bytes)
{
	struct glake__mapping *mapping;
	assert_ok(glake__program_unmap(ptr, n_bytes, &mapping));
	ck_assert_int_eq(drv.cuMemUnmap(ptr, n_bytes), CUDA_SUCCESS);
	glake__program_settle(mapping, true);
}

/* At @ptr, with a number of its own that goes with the mapping. */
static void map_words(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes,
                      uint64_t content)
{
	CUmemGenericAllocationHandle handle;
	unsigned long long value;
	uint64_t id;
	cleanup_fd int fd = -1;
	assert_ok(glake_chunk_new(session, 0, n_bytes, &id, &fd));
	ck_assert_int_eq(
		drv.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
	                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		CUDA_SUCCESS);
	assert_ok(glake__number_make(session, 0, id, n_bytes, handle, NULL, end_nothing, &value));
	map_number(ptr, value, n_bytes);
	ck_assert(glake__number_release(value));
	words_write(ptr, n_bytes, content);
}

/* A gate that lets a program do something the first time that its work is to end. */
static struct {
	void (*first)(void);
	struct glake_session *session;
	glake_ptr ptr;
} meanwhile;

static int close_meanwhile(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	return 0;
}

static void open_meanwhile(void *user)
{
	(void)user;
}

static int wait_meanwhile(void *user, uint64_t patience_ns)
{
	void (*first)(void) = meanwhile.first;
	(void)user;
	(void)patience_ns;
	meanwhile.first = NULL;
	if (first) {
		first();
	}
	return 0;
}

static struct glake_sealed seal_meanwhile(const struct glake_span *spans, size_t n,
                                          void (*first)(void))
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	meanwhile.first = first;
	glake__space.gate = (struct glake__gate){
		.close = close_meanwhile, .open = open_meanwhile, .wait = wait_meanwhile};
	assert_ok(glake_seal(spans, n, &sealed));
	glake__space.gate = (struct glake__gate){.close = NULL};
	ck_assert_ptr_null(meanwhile.first);
	return sealed;
}

static void map_anew(void)
{
	unmap_number(meanwhile.ptr, 4 * MIB);
	map_words(meanwhile.session, meanwhile.ptr, 4 * MIB, 9);
}

/* Before anything is held, the bytes behind another allocation are zeroed, and work is waited for. */
START_TEST(what_is_mapped_anew_meanwhile_is_not_sealed)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr;
	glake_ptr other = words_alloc(session, 3 * MIB, 7);
	assert_ok(glake__program_reserve(4 * MIB, 0, 0, &ptr));
	map_words(session, ptr, 4 * MIB, 7);
	meanwhile.session = session;
	meanwhile.ptr = ptr;
	const struct glake_span spans[] = {{other, 3 * MIB}, {ptr, 4 * MIB}};
	ck_assert_uint_eq(seal_meanwhile(spans, 2, map_anew).sealed_bytes, 4 * MIB);
	ck_assert(!words_can_write(other));
	words_check(ptr, 4 * MIB, 9);
	ck_assert(words_can_write(ptr));
	ck_assert(glake__space_is_valid());
	unmap_number(ptr, 4 * MIB);
	assert_ok(glake__program_unreserve(ptr, 4 * MIB));
	assert_ok(glake_free(session, other));
}
END_TEST

static void open_to_others(void)
{
	glake__program_opened(meanwhile.ptr, 4 * MIB, -1, true, true);
}

START_TEST(what_is_pinned_meanwhile_is_not_sealed)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr;
	glake_ptr other = words_alloc(session, 3 * MIB, 7);
	assert_ok(glake__program_reserve(4 * MIB, 0, 0, &ptr));
	map_words(session, ptr, 4 * MIB, 7);
	meanwhile.ptr = ptr;
	const struct glake_span spans[] = {{other, 3 * MIB}, {ptr, 4 * MIB}};
	struct glake_sealed sealed = seal_meanwhile(spans, 2, open_to_others);
	ck_assert_uint_eq(sealed.sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(sealed.pinned_bytes, 4 * MIB);
	ck_assert(!words_can_write(other));
	ck_assert(words_can_write(ptr));
	unmap_number(ptr, 4 * MIB);
	assert_ok(glake__program_unreserve(ptr, 4 * MIB));
	assert_ok(glake_free(session, other));
}
END_TEST

static void unmap_it(void)
{
	unmap_number(meanwhile.ptr, 8 * MIB);
}

/* While parts of the one become chunks of their own, the program unmaps the other. */
START_TEST(what_is_unmapped_meanwhile_is_no_error)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr;
	assert_ok(glake__program_reserve(16 * MIB, 0, 0, &ptr));
	map_words(session, ptr, 8 * MIB, 7);
	map_words(session, ptr + 8 * MIB, 8 * MIB, 8);
	meanwhile.ptr = ptr + 8 * MIB;
	const struct glake_span spans[] = {{ptr, 4 * MIB}, {ptr + 8 * MIB, 4 * MIB}};
	ck_assert_uint_eq(seal_meanwhile(spans, 2, unmap_it).sealed_bytes, 4 * MIB);
	words_check(ptr, 8 * MIB, 7);
	ck_assert(!words_can_write(ptr));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 4 * MIB);
	ck_assert(glake__space_is_valid());
	unmap_number(ptr, 8 * MIB);
	assert_ok(glake__program_unreserve(ptr, 16 * MIB));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
}
END_TEST
