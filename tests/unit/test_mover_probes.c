/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator: digest and compare, and orders that make no sense. */
#include "tests/unit/made_model.h"
#include "tests/unit/mover_peer.h"

#define MIB (1024ull * 1024)

TEST_BYTE_LOOP static uint8_t *random_bytes(uint64_t n_bytes, uint64_t chunk_bytes)
{
	uint8_t *bytes = calloc(1, chunk_bytes);
	ck_assert_ptr_nonnull(bytes);
	for (uint64_t i = 0; i < n_bytes; i++) {
		bytes[i] = (uint8_t)(made_random() | 1);
	}
	return bytes;
}

/* Digest a chunk of @chunk_bytes with @content_bytes of content. */
static void digest_one(struct peer *peer, uint64_t chunk_bytes, uint64_t content_bytes)
{
	struct chunk_in_test chunk = peer_chunk(peer, 0, chunk_bytes);
	uint8_t *bytes = random_bytes(content_bytes, chunk_bytes);
	peer_move(peer, &chunk, 0, bytes, true);
	peer_digest(peer, 3, &chunk, content_bytes);
	Glake__Mover__Report *report = peer_expect(peer, 3, GLAKE__MOVER__REPORT__BODY_DIGESTED);
	ck_assert_uint_eq(report->digested->digest.len, DIGEST_BYTES);
	struct digest have = digest_from_bytes(report->digested->digest.data);
	struct digest want = digest_of(bytes, content_bytes);
	ck_assert_msg(digest_equal(&have, &want), "%" PRIu64 " of %" PRIu64, content_bytes,
	              chunk_bytes);
	peer_free_report(report);
	peer_drop_chunk(peer, &chunk);
	free(bytes);
}

static struct peer peer;
static struct made_model model;

START_TEST(digests_match_the_definition)
{
	peer_start(&peer, NULL);
	digest_one(&peer, 2 * MIB, 2 * MIB);
	digest_one(&peer, 2 * MIB, 1);
	digest_one(&peer, 2 * MIB, 16);
	digest_one(&peer, 2 * MIB, 2 * MIB - 1);
	digest_one(&peer, 2 * MIB, 2 * MIB - 16);
	digest_one(&peer, 2 * MIB, 2 * MIB - 33);
	digest_one(&peer, 6 * MIB, 5 * MIB + 12345);
	/* Much more chunk than content, and then a larger one than the buffer had room for. */
	digest_one(&peer, 8 * MIB, 1000);
	digest_one(&peer, 66 * MIB, 65 * MIB);
	peer_end(&peer);
}
END_TEST

static const struct {
	uint64_t content_bytes;
	uint64_t dirty_at;
} paddings[] = {
	{100, 100},
	{100, 111},
	{100, 112},
	{100, 127},
	{100, 128},
	{100, 2 * MIB},
	{100, 4 * MIB - 1},
	{96, 96},
	{4 * MIB - 1, 4 * MIB - 1},
	{4 * MIB - 20, 4 * MIB - 16},
	{0, 0},
	{1, 1 * MIB + 7},
};

START_TEST_WITH(dirty_padding_is_refused, .n = n_elements(paddings))
{
	peer_start(&peer, NULL);
	struct chunk_in_test chunk = peer_chunk(&peer, 0, 4 * MIB);
	uint8_t *bytes = random_bytes(paddings[_i].content_bytes, 4 * MIB);
	bytes[paddings[_i].dirty_at] = 1;
	peer_move(&peer, &chunk, 0, bytes, true);
	peer_digest(&peer, 3, &chunk, paddings[_i].content_bytes);
	peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__BAD_REQUEST, "not zero behind");
	peer_drop_chunk(&peer, &chunk);
	free(bytes);
	peer_end(&peer);
}
END_TEST

static bool compare_one(const struct chunk_in_test *a, const struct chunk_in_test *b)
{
	peer_compare(&peer, 4, a, b);
	Glake__Mover__Report *report = peer_expect(&peer, 4, GLAKE__MOVER__REPORT__BODY_COMPARED);
	bool equal = report->compared->equal;
	peer_free_report(report);
	return equal;
}

START_TEST(every_byte_is_compared)
{
	static const uint64_t places[] = {0, 1, 15, 16, 4095, 2 * MIB, 4 * MIB - 1};
	peer_start(&peer, NULL);
	struct chunk_in_test a = peer_chunk(&peer, 0, 4 * MIB);
	struct chunk_in_test b = peer_chunk(&peer, 0, 4 * MIB);
	uint8_t *bytes = random_bytes(4 * MIB, 4 * MIB);
	peer_move(&peer, &a, 0, bytes, true);
	peer_move(&peer, &b, 0, bytes, true);
	ck_assert(compare_one(&a, &b));
	for (size_t i = 0; i < n_elements(places); i++) {
		bytes[places[i]] ^= 0x80;
		peer_move(&peer, &b, 0, bytes, true);
		ck_assert(!compare_one(&a, &b));
		bytes[places[i]] ^= 0x80;
	}
	peer_move(&peer, &b, 0, bytes, true);
	ck_assert(compare_one(&a, &b));
	free(bytes);
	peer_drop_chunk(&peer, &a);
	peer_drop_chunk(&peer, &b);
	peer_end(&peer);
}
END_TEST

/* A digest of one chunk, and whether another is equal: also behind the content. */
START_TEST(a_chunk_is_compared_while_it_is_digested)
{
	static const uint64_t places[] = {0, 2 * MIB, 3 * MIB - 1, 4 * MIB - 1};
	enum { N = n_elements(places) };
	peer_start(&peer, NULL);
	struct chunk_in_test a = peer_chunk(&peer, 0, 4 * MIB);
	struct chunk_in_test b = peer_chunk(&peer, 0, 4 * MIB);
	uint8_t *bytes = random_bytes(3 * MIB, 4 * MIB);
	struct digest want = digest_of(bytes, 3 * MIB);
	peer_move(&peer, &a, 0, bytes, true);
	for (size_t i = 0; i <= N; i++) {
		if (i < N) {
			bytes[places[i]] ^= 0x80;
		}
		peer_move(&peer, &b, 0, bytes, true);
		peer_digest_beside(&peer, 5, &a, 3 * MIB, &b);
		Glake__Mover__Report *report = peer_expect(&peer, 5,
		                                           GLAKE__MOVER__REPORT__BODY_DIGESTED);
		struct digest have = digest_from_bytes(report->digested->digest.data);
		ck_assert(digest_equal(&have, &want));
		ck_assert_msg(report->digested->equal == (i == N), "%zu", i);
		peer_free_report(report);
		if (i < N) {
			bytes[places[i]] ^= 0x80;
		}
	}
	/* Alone it equals nothing. */
	peer_digest(&peer, 5, &a, 3 * MIB);
	Glake__Mover__Report *report = peer_expect(&peer, 5, GLAKE__MOVER__REPORT__BODY_DIGESTED);
	ck_assert(!report->digested->equal);
	peer_free_report(report);
	free(bytes);
	peer_drop_chunk(&peer, &a);
	peer_drop_chunk(&peer, &b);
	peer_end(&peer);
}
END_TEST

static const char *const faults[] = {
	"glake-mover/cuMemImportFromShareableHandle:1:fail=1",
	"glake-mover/cuMemAddressReserve:1:fail=1",
	"glake-mover/cuMemMap:1:fail=1",
	"glake-mover/cuMemSetAccess:1:fail=1",
	"glake-mover/cuLaunchKernel:1:fail=1",
	"glake-mover/cuLaunchKernel:2:fail=1",
	"glake-mover/cuLaunchKernel:3:fail=1",
	"glake-mover/cuMemcpyDtoHAsync:1:fail=1",
	"glake-mover/cuEventSynchronize:1:fail=1",
};

START_TEST_WITH(a_driver_fault_fails_one_probe, .n = n_elements(faults))
{
	peer_start(&peer, faults[_i]);
	struct chunk_in_test chunk = peer_chunk(&peer, 0, 2 * MIB);
	peer_digest(&peer, 3, &chunk, 1000);
	peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR");
	peer_drop_chunk(&peer, &chunk);
	digest_one(&peer, 2 * MIB, 1000);
	peer_end(&peer);
}
END_TEST

/* More than are under way at a time, of both kinds. One fails, and the others know nothing of it. */
START_TEST(probes_under_way_do_not_meet)
{
	enum { N = 12, BAD = 5 };
	struct chunk_in_test chunks[N];
	struct digest want[N];
	peer_start(&peer, NULL);
	for (unsigned i = 0; i < N; i++) {
		uint64_t n_bytes = (1 + i % 3) * 2 * MIB;
		uint8_t *bytes = random_bytes(n_bytes - 1000 * i, n_bytes);
		want[i] = digest_of(bytes, n_bytes - 1000 * i);
		bytes[n_bytes - 1] |= i == BAD;
		chunks[i] = peer_chunk(&peer, 0, n_bytes);
		peer_move(&peer, &chunks[i], 0, bytes, true);
		free(bytes);
	}
	for (unsigned i = 0; i < N; i++) {
		peer_digest(&peer, 100 + i, &chunks[i], chunks[i].bytes - 1000 * i);
		/* Every other one with itself, the rest with one of its size. */
		unsigned k = i % 2 && i > 2 ? i - 3 : i;
		peer_compare(&peer, 200 + i, &chunks[i], &chunks[k]);
	}
	for (unsigned i = 0; i < N; i++) {
		if (i == BAD) {
			peer_expect_failed(&peer, 100 + i, GLAKE__WIRE__STATUS__BAD_REQUEST,
			                   "not zero behind");
		} else {
			Glake__Mover__Report *report = peer_expect(
				&peer, 100 + i, GLAKE__MOVER__REPORT__BODY_DIGESTED);
			struct digest have = digest_from_bytes(report->digested->digest.data);
			ck_assert_msg(digest_equal(&have, &want[i]), "%u", i);
			peer_free_report(report);
		}
		Glake__Mover__Report *report = peer_expect(&peer, 200 + i,
		                                           GLAKE__MOVER__REPORT__BODY_COMPARED);
		ck_assert_msg(report->compared->equal == (i % 2 == 0 || i == 1), "%u", i);
		peer_free_report(report);
	}
	for (unsigned i = 0; i < N; i++) {
		peer_drop_chunk(&peer, &chunks[i]);
	}
	peer_end(&peer);
}
END_TEST

START_TEST(probes_do_not_wait_for_loads)
{
	peer_start(&peer, NULL);
	made_add(&model, "w", 10 * MIB);
	made_write(&model, peer.folder, "m");
	peer_load(&peer, 1, "m");
	peer_free_report(peer_expect(&peer, 1, GLAKE__MOVER__REPORT__BODY_PLAN_TENSORS));
	peer_free_report(peer_expect(&peer, 1, GLAKE__MOVER__REPORT__BODY_PLAN_BLOCKS));
	peer_free_report(peer_expect(&peer, 1, GLAKE__MOVER__REPORT__BODY_PLAN_END));
	/* The load now waits for chunks that do not come. */
	digest_one(&peer, 2 * MIB, 1000);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* ---- orders that make no sense -------------------------------------------------------------- */

START_TEST(bad_sizes_are_refused)
{
	peer_start(&peer, NULL);
	struct chunk_in_test chunk = peer_chunk(&peer, 0, 2 * MIB);
	peer_digest(&peer, 1, &chunk, 2 * MIB + 1);
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__BAD_REQUEST, "larger than its chunk");
	struct chunk_in_test lie = chunk;
	lie.bytes = 0;
	peer_digest(&peer, 2, &lie, 0);
	peer_expect_failed(&peer, 2, GLAKE__WIRE__STATUS__BAD_REQUEST, "no chunk has 0 bytes");
	lie.bytes = 4 * MIB;
	peer_digest(&peer, 3, &lie, 100);
	peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__INTERNAL, "cuMemMap");
	peer_drop_chunk(&peer, &chunk);
	digest_one(&peer, 2 * MIB, 1);
	peer_end(&peer);
}
END_TEST

START_TEST(unknown_devices_are_refused)
{
	peer_start(&peer, NULL);
	made_add(&model, "w", 100);
	made_write(&model, peer.folder, "m");
	struct chunk_in_test chunk = peer_chunk(&peer, 0, 2 * MIB);
	peer.uuids[0][3] ^= 1;
	peer_digest(&peer, 1, &chunk, 1);
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__INTERNAL, "no device");
	peer_load(&peer, 2, "m");
	peer_expect_failed(&peer, 2, GLAKE__WIRE__STATUS__INTERNAL, "no device");
	peer_drop_chunk(&peer, &chunk);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

START_TEST(senseless_orders_are_answered)
{
	peer_start(&peer, NULL);
	struct chunk_in_test chunk = peer_chunk(&peer, 0, 2 * MIB);
	peer_grant(&peer, 11, 0, &chunk.fd, 1);
	peer_expect_failed(&peer, 11, GLAKE__WIRE__STATUS__INTERNAL, "to no load");
	Glake__Mover__Order empty = ORDER(12, _NOT_SET);
	peer_send(&peer, &empty, &chunk.fd, 1);
	peer_expect_failed(&peer, 12, GLAKE__WIRE__STATUS__INTERNAL, "does not know");
	Glake__Mover__Compare compare = GLAKE__MOVER__COMPARE__INIT;
	Glake__Mover__Order one_fd = ORDER(13, COMPARE);
	compare.device_uuid = peer_uuid(&peer, 0);
	compare.chunk_bytes = 2 * MIB;
	one_fd.compare = &compare;
	peer_send(&peer, &one_fd, &chunk.fd, 1);
	peer_expect_failed(&peer, 13, GLAKE__WIRE__STATUS__INTERNAL, "1 chunks were sent");
	Glake__Mover__LoadStart start = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order no_files = ORDER(14, LOAD_START);
	start.device_uuid = peer_uuid(&peer, 0);
	no_files.load_start = &start;
	peer_send(&peer, &no_files, NULL, 0);
	peer_expect_failed(&peer, 14, GLAKE__WIRE__STATUS__BAD_REQUEST, "0 files were named");
	/* To cancel what is not there is a race, not a mistake. */
	peer_cancel(&peer, 99);
	peer_drop_chunk(&peer, &chunk);
	digest_one(&peer, 2 * MIB, 1);
	peer_end(&peer);
}
END_TEST

START_TEST(one_number_is_one_load)
{
	peer_start(&peer, NULL);
	made_add(&model, "w", 100);
	made_write(&model, peer.folder, "m");
	peer_load(&peer, 1, "m");
	peer_load(&peer, 1, "m");
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__INTERNAL, "a second load");
	digest_one(&peer, 2 * MIB, 1);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

START_TEST(garbage_ends_the_mover)
{
	peer_start(&peer, NULL);
	ck_assert_int_eq(wire_send(peer.socket, "\xff\xff\xff\xff", 4, NULL, 0, 0), 0);
	int status = peer_wait(&peer);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
	ck_assert_ptr_null(peer_next(&peer));
	peer_remove_folder(&peer);
}
END_TEST

START_TEST(without_a_socket_it_does_not_start)
{
	char command[600];
	snprintf(command, sizeof(command), "exec '%s/bin/glake-mover' 3</dev/null 2>/dev/null",
	         peer_build());
	int status = system(command);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
}
END_TEST

START_TEST(without_a_driver_it_does_not_start)
{
	peer = (struct peer){.socket = -1};
	peer_environment(&peer);
	setenv("GLAKE_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	peer_spawn(&peer, NULL);
	ck_assert_ptr_null(peer_next(&peer));
	int status = peer_wait(&peer);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE);
	peer_remove_folder(&peer);
}
END_TEST
