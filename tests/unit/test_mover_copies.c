/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator: copies to host memory and back, several at a time. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/unit/made_model.h"
#include "tests/unit/mover_peer.h"

#define MIB (1024ull * 1024)
#define N_CHUNKS 20u
#define STEP (6 * MIB)

static struct peer peer;

/* Chunks of different sizes, with what was written to them, and their places in one large chunk. */
static struct chunk_in_test host;
static struct one {
	struct chunk_in_test chunk;
	uint8_t *bytes;
	struct digest digest;
	uint64_t offset;
} ones[N_CHUNKS];

static void copies_begin(const char *fault)
{
	peer_start(&peer, fault);
	host = peer_host_chunk(&peer, N_CHUNKS * STEP);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		struct one *one = &ones[i];
		uint64_t n_bytes = (1 + i % 3) * 2 * MIB;
		one->chunk = peer_chunk(&peer, 0, n_bytes);
		one->bytes = malloc(n_bytes);
		ck_assert_ptr_nonnull(one->bytes);
		made_fill(one->bytes, n_bytes);
		one->offset = i * STEP;
		one->digest = digest_of(one->bytes, n_bytes);
		peer_move(&peer, &one->chunk, 0, one->bytes, true);
	}
}

static void copies_end(void)
{
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		peer_drop_chunk(&peer, &ones[i].chunk);
		free(ones[i].bytes);
	}
	peer_forget(&peer, 9999);
	peer_free_report(peer_expect(&peer, 9999, GLAKE__MOVER__REPORT__BODY_FORGOTTEN));
	peer_drop_chunk(&peer, &host);
	peer_end(&peer);
}

END_EACH(copies_end)

/* Fresh chunks, to which it comes back. */
static void renew_chunks(void)
{
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		uint64_t n_bytes = ones[i].chunk.bytes;
		peer_drop_chunk(&peer, &ones[i].chunk);
		ones[i].chunk = peer_chunk(&peer, 0, n_bytes);
	}
}

static void copy_one(unsigned i, bool to_host)
{
	peer_copy(&peer, 100 + i, &ones[i].chunk, &host, ones[i].offset, to_host);
}

static void expect_copied(unsigned i)
{
	Glake__Mover__Report *report = peer_expect(&peer, 100 + i,
	                                           GLAKE__MOVER__REPORT__BODY_DIGESTED);
	struct digest have = digest_from_bytes(report->digested->digest.data);
	ck_assert_msg(digest_equal(&have, &ones[i].digest), "%u", i);
	peer_free_report(report);
}

static void check_content(void)
{
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		uint8_t *bytes = malloc(ones[i].chunk.bytes);
		ck_assert_ptr_nonnull(bytes);
		peer_move(&peer, &ones[i].chunk, 0, bytes, false);
		ck_assert_msg(same_bytes(bytes, ones[i].bytes, ones[i].chunk.bytes), "%u", i);
		free(bytes);
	}
}

START_TEST(chunks_go_out_and_come_back)
{
	copies_begin(NULL);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		copy_one(i, true);
	}
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		expect_copied(i);
	}
	renew_chunks();
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		copy_one(i, false);
	}
	/* The order to forget waits for the copies that are under way. */
	peer_forget(&peer, 50);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		expect_copied(i);
	}
	peer_free_report(peer_expect(&peer, 50, GLAKE__MOVER__REPORT__BODY_FORGOTTEN));
	check_content();
}
END_TEST

/* Both ways at once: each comes back as soon as it is there. */
START_TEST(chunks_go_out_while_others_come_back)
{
	copies_begin(NULL);
	for (unsigned i = 0; i < N_CHUNKS / 2; i++) {
		copy_one(i, true);
	}
	for (unsigned i = 0; i < N_CHUNKS / 2; i++) {
		expect_copied(i);
	}
	for (unsigned i = 0; i < N_CHUNKS / 2; i++) {
		copy_one(i, false);
		copy_one(N_CHUNKS / 2 + i, true);
	}
	for (unsigned i = 0; i < N_CHUNKS / 2; i++) {
		expect_copied(i);
		expect_copied(N_CHUNKS / 2 + i);
	}
	check_content();
}
END_TEST

static const char *const faults[] = {
	"glake-mover/cuCtxGetStreamPriorityRange:1:fail=1",
	"glake-mover/cuStreamCreateWithPriority:1:fail=1",
	"glake-mover/cuStreamCreateWithPriority:2:fail=1",
	"glake-mover/cuMemImportFromShareableHandle:1:fail=1",
	"glake-mover/cuMemImportFromShareableHandle:2:fail=1",
	"glake-mover/cuMemMap:2:fail=1",
	"glake-mover/cuMemSetAccess:2:fail=1",
	"glake-mover/cuMemcpyDtoDAsync:1:fail=1",
	"glake-mover/cuMemcpyDtoDAsync:3:fail=1",
	"glake-mover/cuLaunchKernel:2:fail=1",
	"glake-mover/cuLaunchKernel:3:fail=1",
	"glake-mover/cuLaunchKernel:12:fail=1",
	"glake-mover/cuEventRecord:1:fail=1",
	"glake-mover/cuEventRecord:2:fail=1",
	"glake-mover/cuEventRecord:5:fail=1",
	"glake-mover/cuStreamWaitEvent:1:fail=1",
	"glake-mover/cuStreamWaitEvent:3:fail=1",
	"glake-mover/cuEventSynchronize:1:fail=1",
	"glake-mover/cuEventSynchronize:4:fail=1",
};

/* Work that was queued for the copy has ended before its chunk is unmapped, else the device would be lost. */
START_TEST_WITH(a_driver_fault_costs_one_copy, .n = n_elements(faults))
{
	unsigned n_failed = 0;
	copies_begin(faults[_i]);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		copy_one(i, true);
	}
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		if (report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED) {
			ck_assert_ptr_nonnull(strstr(report->failed->error, "CUDA_ERROR"));
			ck_assert_uint_eq(report->failed->status, GLAKE__WIRE__STATUS__INTERNAL);
			n_failed++;
		} else {
			struct digest have = digest_from_bytes(report->digested->digest.data);
			ck_assert(digest_equal(&have, &ones[report->job - 100].digest));
		}
		peer_free_report(report);
	}
	ck_assert_uint_eq(n_failed, 1);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		copy_one(i, true);
		expect_copied(i);
	}
}
END_TEST

static atomic_bool is_over;

static void *write_on(void *word)
{
	for (uint64_t i = 0; !is_over; i++) {
		*(volatile uint64_t *)word = i;
	}
	return NULL;
}

/* Whoever shares a private chunk can write to it: a copy that is neither the old nor the new content is none. */
START_TEST(a_chunk_that_is_written_to_meanwhile_is_not_copied)
{
	unsigned n_tries = 0;
	bool is_refused = false;
	pthread_t thread;
	copies_begin(NULL);
	struct one *one = &ones[2];
	uint8_t *mapped = mmap(NULL, one->chunk.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
	                       one->chunk.fd, 0);
	ck_assert_ptr_ne(mapped, MAP_FAILED);
	is_over = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, write_on, mapped + one->chunk.bytes - 8), 0);
	while (!is_refused) {
		ck_assert_uint_lt(n_tries++, 1000);
		copy_one(2, true);
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		is_refused = report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED;
		if (is_refused) {
			ck_assert_uint_eq(report->failed->status,
			                  GLAKE__WIRE__STATUS__MOVER_FAILED);
			ck_assert_str_eq(report->failed->error, "the copy is not what was copied");
		}
		peer_free_report(report);
	}
	is_over = true;
	pthread_join(thread, NULL);
	munmap(mapped, one->chunk.bytes);
}
END_TEST

START_TEST(a_copy_beyond_its_chunk_is_refused)
{
	copies_begin(NULL);
	peer_copy(&peer, 1, &ones[0].chunk, &host, host.bytes - MIB, true);
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__BAD_REQUEST, "beyond its chunk");
	peer_copy(&peer, 2, &ones[0].chunk, &host, host.bytes + MIB, false);
	peer_expect_failed(&peer, 2, GLAKE__WIRE__STATUS__BAD_REQUEST, "beyond its chunk");
}
END_TEST

/* ---- equal bytes, and zeros -------------------------------------------------------------------- */

static bool is_equal_to_host(unsigned i, uint64_t offset)
{
	peer_compare_host(&peer, 3, &ones[i].chunk, &host, offset);
	Glake__Mover__Report *report = peer_expect(&peer, 3, GLAKE__MOVER__REPORT__BODY_COMPARED);
	bool equal = report->compared->equal;
	peer_free_report(report);
	return equal;
}

/* Also behind the piece that is looked at first. */
START_TEST(every_byte_is_compared_with_host_memory)
{
	static const uint64_t places[] = {0, 15, 16, 4096, 8 * MIB - 1, 8 * MIB, 20 * MIB - 1};
	copies_begin(NULL);
	struct one *one = &ones[0];
	peer_drop_chunk(&peer, &one->chunk);
	one->chunk = peer_chunk(&peer, 0, 20 * MIB);
	uint8_t *bytes = malloc(20 * MIB);
	ck_assert_ptr_nonnull(bytes);
	made_fill(bytes, 20 * MIB);
	peer_move(&peer, &one->chunk, 0, bytes, true);
	one->digest = digest_of(bytes, 20 * MIB);
	one->offset = 2 * MIB;
	copy_one(0, true);
	expect_copied(0);
	ck_assert(is_equal_to_host(0, 2 * MIB));
	ck_assert(!is_equal_to_host(0, 4 * MIB));
	for (size_t i = 0; i < n_elements(places); i++) {
		bytes[places[i]] ^= 0x80;
		peer_move(&peer, &one->chunk, 0, bytes, true);
		ck_assert_msg(!is_equal_to_host(0, 2 * MIB), "%zu", i);
		bytes[places[i]] ^= 0x80;
	}
	peer_move(&peer, &one->chunk, 0, bytes, true);
	ck_assert(is_equal_to_host(0, 2 * MIB));
	peer_compare_host(&peer, 4, &one->chunk, &host, host.bytes - 18 * MIB);
	peer_expect_failed(&peer, 4, GLAKE__WIRE__STATUS__BAD_REQUEST, "beyond its chunk");
	free(bytes);
}
END_TEST

START_TEST(a_driver_fault_costs_one_comparison)
{
	copies_begin("glake-mover/cuMemImportFromShareableHandle:3:fail=1,"
	             "glake-mover/cuLaunchKernel:5:fail=1");
	copy_one(0, true);
	expect_copied(0);
	for (unsigned i = 0; i < 2; i++) {
		peer_compare_host(&peer, 3, &ones[0].chunk, &host, ones[0].offset);
		peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR");
		ck_assert(is_equal_to_host(0, ones[0].offset));
	}
}
END_TEST

/* Whether a digest, or a copy, says that the chunk reads zero. */
static bool reads_zero(unsigned i, bool is_copied)
{
	if (is_copied) {
		copy_one(i, true);
	} else {
		peer_digest(&peer, 100 + i, &ones[i].chunk, ones[i].chunk.bytes);
	}
	Glake__Mover__Report *report = peer_expect(&peer, 100 + i,
	                                           GLAKE__MOVER__REPORT__BODY_DIGESTED);
	bool zero = report->digested->zero;
	peer_free_report(report);
	return zero;
}

START_TEST_WITH(zeros_are_told_from_other_bytes, .n = 2)
{
	copies_begin(NULL);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t n_bytes = ones[i].chunk.bytes;
		const uint64_t places[] = {0, 15, 16, 31, 32, n_bytes / 2, n_bytes - 1};
		uint8_t *bytes = calloc(1, n_bytes);
		ck_assert_ptr_nonnull(bytes);
		ck_assert(!reads_zero(i, _i > 0));
		for (size_t k = 0; k < n_elements(places); k++) {
			bytes[places[k]] = 1;
			peer_move(&peer, &ones[i].chunk, 0, bytes, true);
			ck_assert(!reads_zero(i, _i > 0));
			bytes[places[k]] = 0;
		}
		peer_move(&peer, &ones[i].chunk, 0, bytes, true);
		ck_assert(reads_zero(i, _i > 0));
		free(bytes);
	}
}
END_TEST

START_TEST(a_chunk_is_made_to_read_zero)
{
	copies_begin(NULL);
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		memset(ones[i].bytes, 0, ones[i].chunk.bytes);
		ones[i].digest = digest_of(ones[i].bytes, ones[i].chunk.bytes);
		peer_zero(&peer, 100 + i, &ones[i].chunk);
	}
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		expect_copied(i);
	}
	check_content();
}
END_TEST
