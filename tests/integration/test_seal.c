/* SPDX-License-Identifier: Apache-2.0 */
/* Sealing: equal private memory becomes one copy at the same addresses, and copies again. */
#include <pthread.h>

#include "libclient/glake_shim.h"
#include "libclient/link/session.h"
#include "libclient/space/range.h"
#include "proto/glake.pb-c.h"
#include "tests/harness/proxy.h"
#include "tests/harness/words.h"

static void begin_blind(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x4GiB");
}

static void begin(void)
{
	begin_blind();
	words_open_driver();
}
BEGIN_EACH(begin)

START_TEST(equal_memory_becomes_one_copy)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 6 * MIB, 7);
	glake_ptr second = words_alloc(two, 6 * MIB, 7);
	ck_assert_uint_eq(words_device_bytes(), 12 * MIB);
	struct glake_sealed sealed = words_seal(first, 6 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 6 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 0);
	sealed = words_seal(second, 6 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 6 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 6 * MIB);
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	words_check(first, 6 * MIB, 7);
	words_check(second, 6 * MIB, 7);
	ck_assert(!words_can_write(first));
	ck_assert(!words_can_write(second));
	ck_assert_uint_eq(world_usage(two).shared_bytes, 6 * MIB);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	ck_assert(glake__space_is_valid());

	assert_ok(glake_unseal(second, 1));
	ck_assert(words_can_write(second));
	ck_assert(!words_can_write(first));
	words_write(second, 6 * MIB, 8);
	words_check(first, 6 * MIB, 7);
	words_check(second, 6 * MIB, 8);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 6 * MIB);
	assert_ok(glake_free(one, first));
	assert_ok(glake_free(two, second));
	ck_assert_uint_eq(world_usage(one).shared_bytes, 0);
}
END_TEST

/* A gate that closes once, for the flip, and then only when it is let. */
static struct {
	unsigned n_closings;
	bool is_busy;
} fake;

static int close_fake(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	return fake.is_busy && fake.n_closings++ > 0 ? -EAGAIN : 0;
}

static void open_fake(void *user)
{
	(void)user;
}

/* Two sessions with equal memory, of which the second could not map the first one's blocks. */
static glake_ptr seal_twice_busy(struct glake_session *one, struct glake_session *two)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	glake_ptr first = words_alloc(one, 4 * MIB, 7);
	struct glake_span span = {words_alloc(two, 4 * MIB, 7), 4 * MIB};
	words_seal(first, 4 * MIB);
	fake = (__typeof__(fake)){.is_busy = true};
	glake__space.gate = (struct glake__gate){.close = close_fake, .open = open_fake};
	ck_assert_int_eq(glake_seal(&span, 1, &sealed), -EBUSY);
	glake__space.gate = (struct glake__gate){.close = NULL};
	ck_assert_uint_eq(sealed.sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 0);
	ck_assert(!words_can_write(span.ptr));
	return span.ptr;
}

START_TEST(a_copy_that_could_not_be_replaced_is_charged_and_replaced_later)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	uint64_t charged_bytes = world_books().charged_bytes;
	glake_ptr ptr = seal_twice_busy(one, two);
	/* Both copies are there, and nothing is saved. */
	struct books books = world_books();
	ck_assert_uint_eq(books.charged_bytes, charged_bytes + 8 * MIB);
	ck_assert_uint_eq(books.private_bytes, 4 * MIB);
	ck_assert_uint_eq(books.block_bytes, 4 * MIB);
	ck_assert_uint_eq(books.logical_bytes, 8 * MIB);
	ck_assert_uint_eq(world_row(two).shared_bytes, 0);
	ck_assert_uint_eq(world_row(two).reserved_bytes, 4 * MIB);
	/* Asked for any part of it. */
	struct glake_sealed sealed = words_seal(ptr, 2 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 4 * MIB);
	books = world_books();
	ck_assert_uint_eq(books.charged_bytes, charged_bytes + 4 * MIB);
	ck_assert_uint_eq(books.private_bytes, 0);
	ck_assert_uint_eq(world_row(two).shared_bytes, 4 * MIB);
	ck_assert_uint_eq(world_row(two).reserved_bytes, 0);
	words_check(ptr, 4 * MIB, 7);
	/* There is nothing left to replace. */
	ck_assert_uint_eq(words_seal(ptr, 4 * MIB).shared_bytes, 0);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_copy_that_could_not_be_replaced_may_go)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	uint64_t charged_bytes = world_books().charged_bytes;
	glake_ptr ptr = seal_twice_busy(one, two);
	assert_ok(glake_unseal(ptr, 4 * MIB));
	words_check(ptr, 4 * MIB, 7);
	ck_assert(words_can_write(ptr));
	ck_assert_uint_eq(world_books().charged_bytes, charged_bytes + 8 * MIB);
	ck_assert_uint_eq(world_row(two).reserved_bytes, 4 * MIB);
	ptr = seal_twice_busy(one, two);
	assert_ok(glake_free(two, ptr));
	ck_assert_uint_eq(world_row(two).shared_bytes, 0);
	/* With its session. */
	seal_twice_busy(one, two);
}
END_TEST

/* glake-mover refuses, and then the driver does not make the memory writable again. */
START_TEST(memory_that_stays_read_only_is_not_called_private)
{
	struct glake_session *session = world_connect();
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	struct glake_span span = {words_alloc(session, 2 * MIB, 7), 2 * MIB};
	world_set_faults("glake-mover/cuMemSetAccess:*:fail=1");
	world_set_own_faults("cuMemSetAccess:2+:fail=1");
	assert_fails(GLAKE_E_CUDA, "cuMemSetAccess", glake_seal(&span, 1, &sealed));
	world_set_own_faults("");
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert_uint_eq(glake__find_sealed(span.ptr, span.bytes), span.ptr);
	ck_assert(!words_can_write(span.ptr));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * MIB);
	/* A write gets a copy. */
	assert_ok(glake_unseal(span.ptr, 1));
	words_check(span.ptr, 2 * MIB, 7);
	ck_assert(words_can_write(span.ptr));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * MIB);
	/* Or the next sealing goes on with it. */
	words_write(span.ptr, 2 * MIB, 7);
	world_set_own_faults("cuMemSetAccess:2+:fail=1");
	ck_assert_int_lt(glake_seal(&span, 1, &sealed), 0);
	world_set_own_faults("");
	world_set_faults(NULL);
	ck_assert_uint_eq(words_seal(span.ptr, span.bytes).sealed_bytes, 2 * MIB);
	ck_assert_uint_eq(world_row(session).shared_bytes, 2 * MIB);
	words_check(span.ptr, 2 * MIB, 7);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(where_one_stays_writable_the_others_are_so_again)
{
	struct glake_session *session = world_connect();
	struct glake_span spans[] = {{words_alloc(session, 2 * MIB, 7), 2 * MIB},
	                             {words_alloc(session, 2 * MIB, 8), 2 * MIB}};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	world_set_own_faults("cuMemSetAccess:2:fail=1");
	assert_fails(GLAKE_E_CUDA, "cuMemSetAccess", glake_seal(spans, 2, &sealed));
	world_set_own_faults("");
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_uint_eq(glake__find_sealed(spans[i].ptr, spans[i].bytes), 0);
		words_check(spans[i].ptr, 2 * MIB, 7 + i);
		ck_assert(words_can_write(spans[i].ptr));
	}
	ck_assert_uint_eq(world_row(session).reserved_bytes, 4 * MIB);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_block_that_was_refused_and_stays_read_only_is_told)
{
	struct glake_session *session = world_connect();
	struct glake_block *block;
	glake_ptr ptr = words_alloc(session, 2 * MIB, 7);
	world_set_faults("glake-mover/cuMemSetAccess:*:fail=1");
	world_set_own_faults("cuMemSetAccess:2+:fail=1");
	assert_fails(GLAKE_E_CUDA, "cuMemSetAccess",
	             glake_block_publish(session, ptr, 2 * MIB, &block));
	world_set_own_faults("");
	world_set_faults(NULL);
	ck_assert_uint_eq(glake__find_sealed(ptr, 1), ptr);
	assert_ok(glake_unseal(ptr, 1));
	words_check(ptr, 2 * MIB, 7);
	ck_assert(words_can_write(ptr));
	assert_ok(glake_free(session, ptr));
}
END_TEST

/* Memory larger than a block is cut, where the spans say, and stays where it is. */
START_TEST(large_memory_is_cut_where_tensors_end)
{
	enum { A = 130, B = 4, ALL = 140 };
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, ALL * MIB, 1);
	glake_ptr second = words_alloc(two, ALL * MIB, 1);
	/* Two tensors that touch, and a rest that differs. */
	words_write(first + (A + B) * MIB, (ALL - A - B) * MIB, 2);
	words_write(second + (A + B) * MIB, (ALL - A - B) * MIB, 3);
	for (unsigned i = 0; i < 2; i++) {
		glake_ptr ptr = i ? second : first;
		struct glake_span spans[] = {
			{ptr + A * MIB, B * MIB},
			{ptr, A * MIB},
		};
		struct glake_sealed sealed = {.size = sizeof(sealed)};
		assert_ok(glake_seal(spans, 2, &sealed));
		ck_assert_uint_eq(sealed.sealed_bytes, (A + B) * MIB);
		ck_assert_uint_eq(sealed.shared_bytes, i * (A + B) * MIB);
		ck_assert_uint_eq(sealed.edge_bytes, 0);
		ck_assert(!words_can_write(ptr + 20 * MIB));
		ck_assert(words_can_write(ptr + (A + B) * MIB));
	}
	words_write(first + (A + B) * MIB, (ALL - A - B) * MIB, 2);
	words_write(second + (A + B) * MIB, (ALL - A - B) * MIB, 3);
	ck_assert_uint_eq(words_device_bytes(), (A + B + 2 * (ALL - A - B)) * MIB);
	ck_assert(glake__space_is_valid());
	/* Only the block that is written to becomes private. */
	assert_ok(glake_unseal(first + (A + 1) * MIB, 1));
	ck_assert(words_can_write(first + A * MIB));
	ck_assert(!words_can_write(first));
	ck_assert_uint_eq(world_usage(one).shared_bytes, A * MIB);
	assert_ok(glake_unseal(first, ALL * MIB));
	assert_ok(glake_unseal(second, ALL * MIB));
	glake_free(one, first);
	glake_free(two, second);
	ck_assert_uint_eq(world_usage(one).shared_bytes, 0);
}
END_TEST

/* The memory of a tensor may come in several chunks, in one program and not in the other. */
START_TEST(tensors_are_found_across_chunks)
{
	enum { ALL = 140, AT = 120, B = 12 };
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr alone = words_alloc(one, B * MIB, 7);
	words_seal(alone, B * MIB);
	glake_ptr ptr = words_alloc(two, ALL * MIB, 1);
	struct glake_span spans[] = {{ptr, 130 * MIB}, {ptr + 130 * MIB, 4 * MIB}};
	assert_ok(glake_seal(spans, 2, NULL));
	assert_ok(glake_unseal(ptr, ALL * MIB));
	/* Now it has chunks that end at 128, 130 and 134 MiB. */
	words_write(ptr + AT * MIB, B * MIB, 7);
	uint64_t held = words_device_bytes();
	struct glake_sealed sealed = words_seal(ptr + AT * MIB, B * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, B * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, B * MIB);
	ck_assert_uint_eq(words_device_bytes(), held - B * MIB);
	words_check(ptr + AT * MIB, B * MIB, 7);
	ck_assert(words_are(ptr, AT * MIB, 1));
	ck_assert(words_can_write(ptr + AT * MIB - 8));
	ck_assert(!words_can_write(ptr + AT * MIB));
	ck_assert(words_can_write(ptr + (AT + B) * MIB));
	ck_assert(glake__space_is_valid());
	assert_ok(glake_unseal(ptr, ALL * MIB));
	words_check(ptr + AT * MIB, B * MIB, 7);
	glake_free(two, ptr);
}
END_TEST

START_TEST(pages_with_anything_else_stay_private)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 10 * MIB, 1);
	struct glake_sealed sealed = words_seal(ptr + MIB, 6 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(sealed.edge_bytes, 2 * MIB);
	ck_assert(words_can_write(ptr + MIB));
	ck_assert(!words_can_write(ptr + 2 * MIB));
	ck_assert(!words_can_write(ptr + 6 * MIB - 8));
	ck_assert(words_can_write(ptr + 6 * MIB));
	/* Again, and the page that both spans have a half of. */
	struct glake_span spans[] = {{ptr + 7 * MIB + 512, 3 * MIB - 512}, {ptr + MIB, 6 * MIB}};
	assert_ok(glake_seal(spans, 2, NULL));
	ck_assert(words_can_write(ptr + 6 * MIB));
	spans[0] = (struct glake_span){ptr + 7 * MIB + 256, 3 * MIB - 256};
	sealed.size = sizeof(sealed);
	assert_ok(glake_seal(spans, 2, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, 8 * MIB);
	ck_assert(!words_can_write(ptr + 6 * MIB));
	/* Small memory lies with other small memory. */
	glake_ptr small = words_alloc(session, MIB, 1);
	sealed = words_seal(small, MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert_uint_eq(sealed.edge_bytes, MIB);
	struct glake_span wrong[] = {{ptr, 10 * MIB + 1}, {ptr - 1, 5}, {ptr, 0}};
	for (size_t i = 0; i < 3; i++) {
		ck_assert_int_eq(glake_seal(&wrong[i], 1, NULL), -EINVAL);
	}
}
END_TEST

/* The end of an allocation that fills no page: the rest of the page is nobody's, whatever it held. */
START_TEST(nobodys_bytes_behind_an_allocation_are_zero)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr old = words_alloc(two, 4 * MIB, 9);
	assert_ok(glake_free(two, old));
	glake_ptr first = words_alloc(one, 3 * MIB, 1);
	glake_ptr second = words_alloc(two, 3 * MIB, 1);
	ck_assert_uint_eq(second, old);
	ck_assert_uint_eq(words_seal(first, 3 * MIB).sealed_bytes, 4 * MIB);
	ck_assert_uint_eq(words_seal(second, 3 * MIB).shared_bytes, 4 * MIB);
	words_check(second, 3 * MIB, 1);
}
END_TEST

START_TEST(memory_that_others_may_write_is_pinned)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 4 * MIB, 1);
	struct glake_share share;
	assert_ok(glake_share(session, ptr, &share));
	struct glake_sealed sealed = words_seal(ptr, 4 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert_uint_eq(sealed.pinned_bytes, 4 * MIB);
	ck_assert_str_eq(sealed.pinned_why, "named for other processes");
	ck_assert(words_can_write(ptr));
}
END_TEST

/* A name is given to private memory in whole chunks, as before it was sealed. */
START_TEST(a_name_ends_sealing)
{
	struct glake_session *session = world_connect();
	struct glake_session *other = world_connect();
	glake_ptr ptr = words_alloc(session, 140 * MIB, 1);
	ck_assert_uint_eq(words_seal(ptr, 132 * MIB).sealed_bytes, 132 * MIB);
	struct glake_share share;
	assert_ok(glake_share(session, ptr, &share));
	glake_ptr opened;
	assert_ok(glake_share_open(other, &share, -1, &opened));
	words_write(opened, 140 * MIB, 2);
	words_check(ptr, 140 * MIB, 2);
	assert_ok(glake_share_close(other, &share, opened));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	assert_ok(glake_free(session, ptr));
}
END_TEST

START_TEST(sealed_memory_is_freed_and_never_warm)
{
	struct glake_session *session = world_connect();
	CUstream stream;
	ck_assert_int_eq(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	for (unsigned i = 0; i < 2; i++) {
		glake_ptr ptr = words_alloc(session, 4 * MIB, 1);
		words_seal(ptr, 2 * MIB);
		if (i) {
			assert_ok(glake_free(session, ptr));
		} else {
			assert_ok(glake_free_async(session, stream, ptr, 0));
		}
		glake_ptr next = words_alloc(session, 4 * MIB, 2);
		words_check(next, 4 * MIB, 2);
		assert_ok(glake_free(session, next));
		assert_ok(glake_trim(session, 0, 0));
		ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
		ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	}
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
	ck_assert_int_eq(drv.cuStreamDestroy(stream), CUDA_SUCCESS);
}
END_TEST

/* The test's own session as a listing shows it. */
struct listed {
	uint64_t session;
	struct glake_session_row row; /* without its lists */
	uint64_t n_unsealed;
	uint64_t all_bytes; /* unsealed */
	const char *why;    /* of the bytes that follow */
	uint64_t bytes;
};

static int take_listed(void *user, const struct glake_session_row *row)
{
	struct listed *listed = user;
	if (row->session != listed->session) {
		return 0;
	}
	listed->row = *row;
	for (uint32_t i = 0; i < row->n_unsealed; i++) {
		listed->n_unsealed++;
		listed->all_bytes += row->unsealed[i].bytes;
		listed->bytes += strcmp(row->unsealed[i].why, listed->why) == 0
		                         ? row->unsealed[i].bytes
		                         : 0;
	}
	return 1;
}

static struct listed listed_for(struct glake_session *session, const char *why)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	struct listed listed = {.session = info.session, .why = why};
	ck_assert_int_eq(glake_list_sessions(session, take_listed, &listed), 1);
	return listed;
}

#define UNFILLED "only a part of the page is to be sealed"

/* Each page that was to be sealed and is live has one cause, or is sealed. */
START_TEST(private_memory_is_listed_by_cause)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 10 * MIB, 1);
	struct listed listed;
	for (unsigned i = 0; i < 2; i++) {
		/* Again: nothing is counted twice. */
		words_seal(ptr + MIB, 6 * MIB);
		listed = listed_for(session, UNFILLED);
		ck_assert_uint_eq(listed.bytes, 4 * MIB);
		ck_assert_uint_eq(listed.all_bytes, 4 * MIB);
		ck_assert_uint_eq(listed.row.n_seals, i + 1);
		ck_assert_uint_gt(listed.row.seal_ns, 0);
		ck_assert_uint_eq(listed.row.held_ns, 0);
	}
	assert_ok(glake_unseal(ptr + 2 * MIB, 1));
	listed = listed_for(session, "unsealed by the program");
	ck_assert_uint_eq(listed.bytes, 4 * MIB);
	ck_assert_uint_eq(listed.all_bytes, 8 * MIB);
	/* A part. */
	words_seal(ptr + 2 * MIB, 2 * MIB);
	listed = listed_for(session, "unsealed by the program");
	ck_assert_uint_eq(listed.bytes, 2 * MIB);
	ck_assert_uint_eq(listed.all_bytes, 6 * MIB);
	/* All of it. */
	words_seal(ptr, 10 * MIB);
	ck_assert_uint_eq(listed_for(session, "").n_unsealed, 0);
	struct glake_share share;
	assert_ok(glake_share(session, ptr, &share));
	listed = listed_for(session, "handed out to another process or device");
	ck_assert_uint_eq(listed.bytes, 10 * MIB);
	words_seal(ptr, 10 * MIB);
	listed = listed_for(session, "named for other processes");
	ck_assert_uint_eq(listed.bytes, 10 * MIB);
	ck_assert_uint_eq(listed.all_bytes, 10 * MIB);
	assert_ok(glake_free(session, ptr));
	/* That is reported with a later request. */
	for (unsigned i = 0; i < 200 && listed_for(session, "").n_unsealed > 0; i++) {
		usleep(50000);
	}
	ck_assert_uint_eq(listed_for(session, "").n_unsealed, 0);
	/* Nobody can compare the bytes. */
	ptr = words_alloc(session, 4 * MIB, 1);
	struct glake_session *other = world_connect();
	glake_ptr equal = words_alloc(other, 4 * MIB, 1);
	words_seal(equal, 4 * MIB);
	world_set_faults("cuMemcpyDtoH*=999,cuLaunchKernel*=999,cuModuleLoad*=999");
	kill(world_running_mover(), SIGKILL);
	struct glake_span span = {.ptr = ptr, .bytes = 4 * MIB};
	ck_assert_int_lt(glake_seal(&span, 1, NULL), 0);
	world_set_faults(NULL);
	listed = listed_for(session, "sealing failed");
	ck_assert_uint_eq(listed.bytes, 4 * MIB);
	ck_assert_uint_eq(listed.all_bytes, 4 * MIB);
}
END_TEST

struct blocks {
	uint64_t logical_bytes;
	uint64_t physical_bytes;
};

static int add_block(void *user, const struct glake_block_row *row)
{
	struct blocks *blocks = user;
	blocks->logical_bytes += row->n_mappings * row->chunk_bytes;
	blocks->physical_bytes += row->n_mappings ? row->chunk_bytes : 0;
	return 0;
}

/* The parts of sessions are the whole. */
START_TEST(each_session_has_its_part_of_a_block)
{
	enum { N = 3 };
	struct glake_session *sessions[N];
	glake_ptr ptrs[N];
	for (unsigned i = 0; i < N; i++) {
		sessions[i] = world_connect();
		ptrs[i] = words_alloc(sessions[i], 12 * MIB, 1);
		words_write(ptrs[i] + 6 * MIB, 6 * MIB, i + 2);
		struct glake_span spans[] = {{ptrs[i], 6 * MIB}, {ptrs[i] + 6 * MIB, 6 * MIB}};
		assert_ok(glake_seal(spans, 2, NULL));
	}
	struct blocks blocks = {.logical_bytes = 0};
	assert_ok(glake_list_blocks(eye, add_block, &blocks));
	ck_assert_uint_eq(blocks.logical_bytes, N * 12 * MIB);
	ck_assert_uint_eq(blocks.physical_bytes, (1 + N) * 6 * MIB);
	for (unsigned i = 0; i < N; i++) {
		struct glake_session_row row = world_row(sessions[i]);
		ck_assert_uint_eq(row.shared_bytes, 12 * MIB);
		ck_assert_uint_eq(row.sealed_bytes, 12 * MIB);
		ck_assert_uint_eq(row.sealed_common_bytes, 6 * MIB);
		ck_assert_uint_eq(row.part_bytes, 8 * MIB);
	}
	/* The last one has all that is left, whoever was first. */
	assert_ok(glake_free(sessions[0], ptrs[0]));
	assert_ok(glake_unseal(ptrs[1], 12 * MIB));
	ck_assert_uint_eq(world_row(sessions[1]).sealed_bytes, 0);
	struct glake_session_row row = world_row(sessions[2]);
	ck_assert_uint_eq(row.sealed_common_bytes, 0);
	ck_assert_uint_eq(row.part_bytes, 12 * MIB);
}
END_TEST

START_TEST(dedup_off_wins)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	struct glake_sealed sealed = {.size = sizeof(sealed), .sealed_bytes = 1};
	setenv("GLAKE_DEDUP", "off", 1);
	ck_assert_int_eq(glake_seal(&span, 1, &sealed), -EPERM);
	unsetenv("GLAKE_DEDUP");
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert(words_can_write(ptr));
}
END_TEST

/* Sealed memory is a block already, which others have mapped: a refusal must not make it writable again. */
START_TEST(sealed_memory_is_not_published_as_private)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 2 * MIB, 1);
	glake_ptr second = words_alloc(two, 2 * MIB, 1);
	struct glake_block *block;
	words_seal(first, 2 * MIB);
	ck_assert_uint_eq(words_seal(second, 2 * MIB).shared_bytes, 2 * MIB);
	ck_assert_int_eq(glake_block_publish(one, first, 2 * MIB, &block), -EINVAL);
	ck_assert_int_eq(glake_block_publish(two, second, 2 * MIB, &block), -EINVAL);
	ck_assert(!words_can_write(first));
	ck_assert(!words_can_write(second));
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(world_usage(i ? two : one).reserved_bytes, 0);
		ck_assert_uint_eq(world_usage(i ? two : one).shared_bytes, 2 * MIB);
	}
	/* As private memory it is. */
	assert_ok(glake_unseal(second, 2 * MIB));
	assert_ok(glake_block_publish(two, second, 2 * MIB, &block));
	glake_block_release(block);
	assert_ok(glake_free(one, first));
	ck_assert_uint_eq(world_usage(one).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
}
END_TEST

START_TEST(without_room_for_the_result_nothing_is_sealed)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	struct glake_sealed sealed = {.size = 0};
	ck_assert_int_eq(glake_seal(&span, 1, &sealed), -EINVAL);
	ck_assert(words_can_write(ptr));
}
END_TEST

static void *free_it(void *user)
{
	glake_ptr *ptr = user;
	assert_ok(glake_free((struct glake_session *)(uintptr_t)ptr[0], ptr[1]));
	return NULL;
}

/* Freed by one thread while another seals it: after that, and then it is gone. */
START_TEST(a_free_waits_for_a_seal)
{
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 20; i++) {
		glake_ptr ptr = words_alloc(session, 4 * MIB, i);
		glake_ptr what[] = {(glake_ptr)(uintptr_t)session, ptr};
		struct glake_span span = {.ptr = ptr, .bytes = 4 * MIB};
		pthread_t thread;
		ck_assert_int_eq(pthread_create(&thread, NULL, free_it, what), 0);
		int r = glake_seal(&span, 1, NULL);
		ck_assert_msg(r == 0 || r == -EINVAL, "%d: %s", r, glake_error());
		pthread_join(thread, NULL);
		ck_assert_int_eq(glake_free(session, ptr), -EINVAL);
		ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
		ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	}
	ck_assert(glake__space_is_valid());
}
END_TEST

struct ending {
	struct glake_session *session;
	glake_ptr ptr;
	pthread_t thread;
	_Atomic bool is_over;
	bool was_over; /* while the handler ran */
};

static void *free_and_disconnect(void *user)
{
	struct ending *ending = user;
	assert_ok(glake_free(ending->session, ending->ptr));
	world_disconnect(ending->session);
	ending->is_over = true;
	return NULL;
}

/* Runs at the end of glake_seal() or glake_unseal(), which let the memory go before. */
static void end_meanwhile(void *user, const struct glake_notice *notice)
{
	struct ending *ending = user;
	(void)notice;
	ck_assert_int_eq(pthread_create(&ending->thread, NULL, free_and_disconnect, ending), 0);
	for (unsigned i = 0; i < 200 && !ending->is_over; i++) {
		usleep(1000);
	}
	ending->was_over = ending->is_over;
}

/* As under the shim, where the last free ends the session of a glaked that is gone. */
START_TEST_WITH(a_session_ends_after_the_seal_of_its_last_memory, .n = 2)
{
	struct ending ending = {.session = world_connect()};
	struct glake__link *link = &ending.session->link;
	ending.ptr = words_alloc(ending.session, 4 * MIB, 1);
	if (_i == 0) {
		words_seal(ending.ptr, 4 * MIB);
	}
	glake_set_notice_handler(ending.session, end_meanwhile, &ending);
	pthread_mutex_lock(&link->lock);
	ck_assert(glake__notices_add(&link->notices, GLAKE_NOTICE_MODEL_EVICTED));
	pthread_mutex_unlock(&link->lock);
	/* Nothing is left to do, so that it asks glaked for nothing, which would deliver the notice. */
	struct glake_span span = {.ptr = ending.ptr, .bytes = 4 * MIB};
	assert_ok(_i == 0 ? glake_seal(&span, 1, NULL) : glake_unseal(ending.ptr, 4 * MIB));
	pthread_join(ending.thread, NULL);
	ck_assert(!ending.was_over);
	ck_assert(glake__space_is_valid());
}
END_TEST

/*
 * The driver fails once, at each call in turn, of cutting, sealing and unsealing. The bytes of both programs
 * stay, and in the end nothing is left over.
 */
static void seal_with_faults(void *user)
{
	words_open_driver();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 6 * MIB, 1);
	words_seal(first, 6 * MIB);
	unsigned n_failed = 0;
	/* Asking whether a copy is over is a call, too: where that fails, it is asked again. */
	for (unsigned n = 1; n < 60 || (n_failed <= 20 && n < 1000); n++) {
		glake_ptr second = words_alloc(two, 6 * MIB, 1);
		words_write(second + 4 * MIB, 2 * MIB, 2);
		char rule[64];
		snprintf(rule, sizeof(rule), "*:%u:fail=1", n);
		struct glake_span span = {.ptr = second, .bytes = 4 * MIB};
		world_set_own_faults(rule);
		bool has_failed = glake_seal(&span, 1, NULL) < 0;
		has_failed |= glake_unseal(second, MIB) < 0;
		world_set_own_faults(NULL);
		n_failed += has_failed;
		/* Memory that is private has a cause. */
		uint64_t n_sealed = glake__find_sealed(second, 4 * MIB) ? 4 * MIB : 0;
		ck_assert_uint_eq(listed_for(two, "").all_bytes, 4 * MIB - n_sealed);
		words_check(second, 4 * MIB, 1);
		words_check(second + 4 * MIB, 2 * MIB, 2);
		words_check(first, 6 * MIB, 1);
		ck_assert(words_can_write(second + 4 * MIB));
		assert_ok(glake_unseal(second, 6 * MIB));
		words_write(second, 6 * MIB, 3);
		words_check(second, 6 * MIB, 3);
		words_check(first, 6 * MIB, 1);
		assert_ok(glake_free(two, second));
		assert_ok(glake_trim(two, 0, 0));
		ck_assert_msg(world_usage(two).reserved_bytes == 0 &&
		                      world_usage(two).shared_bytes == 0,
		              "call %u: %lu reserved, %lu shared", n,
		              world_usage(two).reserved_bytes, world_usage(two).shared_bytes);
		ck_assert_uint_eq(world_row(two).n_chunks, 0);
		ck_assert_uint_eq(world_row(two).shared_bytes, 0);
		ck_assert(glake__space_is_valid());
	}
	ck_assert_uint_gt(n_failed, 20);
}

/* In a process of its own: handles that the driver does not release go with it. */
START_TEST_WITH(no_byte_is_lost_when_the_driver_fails, .begin = begin_blind)
{
	world_join(world_client(seal_with_faults, NULL));
}
END_TEST

/* The driver maps nothing any more, neither the block nor what was there. */
static void seal_without_maps(void *user)
{
	words_open_driver();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 2 * MIB, 1);
	glake_ptr second = words_alloc(two, 2 * MIB, 1);
	struct glake_span span = {.ptr = second, .bytes = 2 * MIB};
	words_seal(first, 2 * MIB);
	world_set_own_faults("cuMemMap:1+:fail=1");
	ck_assert_int_eq(glake_seal(&span, 1, NULL), GLAKE_E_CUDA);
	world_set_own_faults(NULL);
	/* The bytes are lost, and nobody goes on paying for them. */
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(two).shared_bytes, 0);
	ck_assert_uint_eq(world_row(two).reserved_bytes, 0);
	ck_assert(glake__space_is_valid());
	words_check(first, 2 * MIB, 1);
	assert_ok(glake_free(two, second));
}

START_TEST_WITH(what_the_driver_loses_goes_back_to_glaked, .begin = begin_blind)
{
	world_join(world_client(seal_without_maps, NULL));
}
END_TEST

static void publish_without_maps(void *user)
{
	words_open_driver();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_block *block;
	struct glake_block *none = NULL;
	glake_ptr second = words_alloc(two, 2 * MIB, 1);
	assert_ok(glake_block_publish(one, words_alloc(one, 2 * MIB, 1), 2 * MIB, &block));
	world_set_own_faults("cuMemMap:1+:fail=1");
	ck_assert_int_eq(glake_block_publish(two, second, 2 * MIB, &none), GLAKE_E_CUDA);
	world_set_own_faults(NULL);
	/* There is no block of no memory, and nothing to be freed. */
	ck_assert_ptr_null(none);
	ck_assert_int_eq(glake_free(two, second), -EINVAL);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(two).shared_bytes, 0);
	ck_assert(glake__space_is_valid());
	glake_block_release(block);
}

START_TEST_WITH(what_the_driver_loses_becomes_no_block, .begin = begin_blind)
{
	world_join(world_client(publish_without_maps, NULL));
}
END_TEST

/* Memory of several sessions, more than is worked on at a time. */
START_TEST(many_are_sealed_in_one_call)
{
	enum { N = 110 };
	struct glake_session *sessions[] = {world_connect(), world_connect(), world_connect()};
	struct glake_span first[N];
	struct glake_span second[N];
	for (unsigned i = 0; i < N; i++) {
		first[i] = (struct glake_span){words_alloc(sessions[0], 2 * MIB, i), 2 * MIB};
		second[i] = (struct glake_span){words_alloc(sessions[1 + i % 2], 2 * MIB, i),
		                                2 * MIB};
	}
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	assert_ok(glake_seal(first, N, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, N * 2 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, 0);

	/* glake-mover fails once, in the middle. Each is sealed or not, and nothing is lost. */
	world_set_faults("glake-mover/cuMemSetAccess:100:fail=1");
	ck_assert_int_eq(glake_seal(second, N, &sealed), GLAKE_E_INTERNAL);
	ck_assert_ptr_nonnull(strstr(glake_error(), "cuMemSetAccess"));
	world_set_faults("");
	unsigned n_sealed = 0;
	for (unsigned i = 0; i < N; i++) {
		words_check(second[i].ptr, 2 * MIB, i);
		bool is_sealed = !words_can_write(second[i].ptr);
		n_sealed += is_sealed;
		if (!is_sealed) {
			words_write(second[i].ptr, 2 * MIB, i);
		}
	}
	ck_assert_uint_eq(sealed.sealed_bytes, n_sealed * 2 * MIB);
	ck_assert_uint_eq(sealed.shared_bytes, n_sealed * 2 * MIB);
	ck_assert_uint_gt(n_sealed, 0);
	ck_assert_uint_lt(n_sealed, N);

	assert_ok(glake_seal(second, N, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, N * 2 * MIB);
	ck_assert_uint_eq(words_device_bytes(), N * 2 * MIB);
	ck_assert(glake__space_is_valid());
	for (unsigned i = 0; i < N; i++) {
		words_check(second[i].ptr, 2 * MIB, i);
		words_check(first[i].ptr, 2 * MIB, i);
		ck_assert(!words_can_write(second[i].ptr));
	}
}
END_TEST

/* Nobody has room for a copy: what cannot be cut stays private, and what is sealed stays sealed. */
START_TEST(without_memory_for_a_copy_nothing_changes)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 1);
	words_seal(ptr + 4 * MIB, 2 * MIB);
	assert_ok(glake_set_quota(session, "default", 0, 6 * MIB));
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	int r = glake_seal(&span, 1, NULL);
	ck_assert_int_eq(r, GLAKE_E_OVER_QUOTA);
	ck_assert_int_eq(glake_unseal(ptr + 4 * MIB, 1), GLAKE_E_OVER_QUOTA);
	words_check(ptr, 6 * MIB, 1);
	ck_assert(words_can_write(ptr));
	ck_assert(!words_can_write(ptr + 4 * MIB));
}
END_TEST

START_TEST(a_dead_glaked_seals_nothing)
{
	struct glake_session *session = world_connect();
	glake_ptr sealed = words_alloc(session, 2 * MIB, 1);
	glake_ptr ptr = words_alloc(session, 2 * MIB, 2);
	words_seal(sealed, 2 * MIB);
	harness_kill(&harness);
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	ck_assert_int_eq(glake_seal(&span, 1, NULL), GLAKE_E_GONE);
	words_check(ptr, 2 * MIB, 2);
	ck_assert(words_can_write(ptr));
	/* Whoever writes gets a copy all the same: memory of the driver. */
	assert_ok(glake_unseal(sealed, 1));
	words_check(sealed, 2 * MIB, 1);
	ck_assert(words_can_write(sealed));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	assert_ok(glake_free(session, sealed));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 2 * MIB);
}
END_TEST

/*
 * The answer is lost, and with it whether the memory is a block that others may have: it stays read-only.
 */
START_TEST(after_a_lost_answer_nobody_writes)
{
	struct glake_session *session = world_connect();
	glake_ptr first = words_alloc(session, 2 * MIB, 1);
	glake_ptr ptr = words_alloc(session, 2 * MIB, 2);
	words_seal(first, 2 * MIB);
	/* The mover hangs, so glaked has heard of the request and has not answered. */
	kill(world_running_mover(), SIGSTOP);
	pid_t killer = fork();
	if (killer == 0) {
		usleep(300000);
		kill(harness.pid, SIGKILL);
		_exit(0);
	}
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	ck_assert_int_eq(glake_seal(&span, 1, &sealed), GLAKE_E_GONE);
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	waitpid(killer, NULL, 0);
	harness_wait_exit(&harness);
	ck_assert(!words_can_write(ptr));
	words_check(ptr, 2 * MIB, 2);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_free(session, first));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

/* glaked answers what makes no sense: a block of another size, or a digest too short. */
struct nonsense {
	bool is_digest;
	bool by_block; /* glake_block_publish() */
};

static bool bend(void *user, struct proxy_packet *packet)
{
	const struct nonsense *nonsense = user;
	Glake__Wire__Answer *answer = packet->is_answer
	                                      ? glake__wire__answer__unpack(NULL, packet->n_bytes,
	                                                                    packet->bytes)
	                                      : NULL;
	if (answer && answer->body_case == GLAKE__WIRE__ANSWER__BODY_BLOCK) {
		if (nonsense->is_digest) {
			answer->block->digest.len = 3;
		} else {
			answer->block->chunk_bytes += 2 * MIB;
		}
		packet->n_bytes = glake__wire__answer__pack(answer, packet->bytes);
	}
	if (answer) {
		glake__wire__answer__free_unpacked(answer, NULL);
	}
	return true;
}

static void seal_with_nonsense(void *user)
{
	const struct nonsense *nonsense = user;
	struct glake_block *block;
	words_open_driver();
	proxy_start(bend, user);
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	int r = nonsense->by_block ? glake_block_publish(session, ptr, 2 * MIB, &block)
	                           : glake_seal(&span, 1, NULL);
	ck_assert_int_eq(r, GLAKE_E_PROTOCOL);
	/* The memory is a block, for all that this program knows, and others may have it. */
	ck_assert(!words_can_write(ptr));
	words_check(ptr, 2 * MIB, 1);
	ck_assert(glake__space_is_valid());
}

START_TEST_WITH(after_an_answer_without_sense_nobody_writes, .n = 4, .begin = begin_blind)
{
	struct nonsense nonsense = {.is_digest = _i & 1, .by_block = _i >> 1};
	world_join(world_client(seal_with_nonsense, &nonsense));
}
END_TEST
