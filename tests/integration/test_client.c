/* SPDX-License-Identifier: Apache-2.0 */
/* The client library against the real daemon: sessions, private memory, blocks. */
#include <pthread.h>

#include "libclient/glake_shim.h"
#include "libclient/link/session.h"
#include "libclient/space/range.h"
#include "tests/harness/world.h"

#define CONFIG \
	"pool = (); reserve_bytes = \"2GiB\"; " \
	"warm_bytes = \"64MiB\"; tenants = ({ name = \"default\"; device_bytes = \"8GiB\"; });"

static void fill(glake_ptr ptr, uint8_t value, uint64_t n_bytes)
{
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemsetD8(ptr, value, n_bytes), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
}

static bool can_write(glake_ptr ptr)
{
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	/* A memset that is still queued when the access changes is a fault. */
	return drv.cuMemsetD8(ptr, 1, 1) == CUDA_SUCCESS && drv.cuCtxSynchronize() == CUDA_SUCCESS;
}

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x16GiB");
	world_open_driver();
}
BEGIN_EACH(begin)

START_TEST(a_session_knows_its_devices)
{
	struct glake_session *session = world_connect();
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	ck_assert_uint_eq(info.n_devices, 2);
	ck_assert_str_eq(info.tenant, "default");
	ck_assert_str_eq(info.daemon_version, glake_version());
	struct glake_device device;
	for (uint32_t i = 0; i < 2; i++) {
		assert_ok(glake_device_at(session, i, &device));
		ck_assert_int_eq(device.ordinal, (int)i);
		ck_assert_int_eq(glake_device_index(session, device.ordinal), (int)device.index);
		ck_assert_uint_eq(device.total_bytes, 16 * GIB);
		ck_assert_uint_eq(device.quota_bytes, 8 * GIB);
	}
	ck_assert_int_eq(glake_device_at(session, 2, &device), -ENOENT);
	ck_assert_int_eq(glake_device_index(session, 7), -ENOENT);
	assert_ok(glake_ping(session));
}
END_TEST

START_TEST(devices_are_found_by_uuid)
{
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	/* The driver was initialised by begin(): the numbering is read in a process of its own. */
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "test_client", "--renumbered", (char *)NULL);
		_exit(127);
	}
	world_join(pid);
}
END_TEST

/* In a process that sees only the daemon's second device. */
static int renumbered(void)
{
	struct glake_session *session;
	struct glake_device first;
	struct glake_device second;
	glake_ptr ptr = 0;
	if (glake_connect(NULL, &session) < 0) {
		return 2;
	}
	bool good = glake_device_at(session, 0, &first) == 0 && first.ordinal == -1 &&
	            glake_device_at(session, 1, &second) == 0 && second.ordinal == 0 &&
	            glake_device_index(session, 0) == 1 &&
	            glake_alloc(session, 0, 1, 0, &ptr) == -ENODEV &&
	            glake_alloc(session, 1, 1, 0, &ptr) == 0 && glake_free(session, ptr) == 0;
	world_disconnect(session);
	return good ? 0 : 1;
}

/* Memory smaller than a chunk shares one, and comes and goes without a word to glaked. */
START_TEST(small_memory_shares_a_chunk)
{
	enum { N = 300 };
	struct glake_session *session = world_connect();
	struct glake_block *block;
	struct glake_share share;
	glake_ptr ptrs[N];
	for (size_t i = 0; i < N; i++) {
		assert_ok(glake_alloc(session, 0, 1 + i * 20, 0, &ptrs[i]));
		ck_assert((ptrs[i] & 511) == 0);
		fill(ptrs[i], (uint8_t)i, 1 + i * 20);
	}
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * MIB);
	ck_assert_uint_eq(world_row(session).n_chunks, 1);
	ck_assert_uint_eq(world_usage(session).n_cold_allocs, 1);
	ck_assert_uint_eq(world_usage(session).n_warm_allocs, N - 1);
	for (size_t i = 0; i < N; i++) {
		ck_assert(world_is_all(session, ptrs[i], (uint8_t)i, 1 + i * 20));
	}
	ck_assert_int_eq(glake_free(session, ptrs[7] + 1), -EINVAL);
	ck_assert_int_eq(glake_block_publish(session, ptrs[7], 1, &block), -EINVAL);
	ck_assert_int_eq(glake_share(session, ptrs[7], &share), -EINVAL);
	ck_assert_ptr_nonnull(strstr(glake_error(), "whole chunk"));
	for (size_t i = 0; i < N; i++) {
		glake_ptr ptr = ptrs[i * 7 % N];
		assert_ok(glake_free(session, ptr));
		ck_assert_int_eq(glake_free(session, ptr), -EINVAL);
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);

	/* Zeroed memory is a chunk of its own: it can be made a block. */
	assert_ok(glake_alloc(session, 0, 1, GLAKE_ZERO, &ptrs[0]));
	assert_ok(glake_block_publish(session, ptrs[0], 1, &block));
	glake_block_release(block);
}
END_TEST

START_TEST(memory_is_zero_then_warm_then_given_back)
{
	struct glake_session *session = world_connect();
	size_t n_fds = world_own_n_fds();
	glake_ptr first = 0;
	assert_ok(glake_alloc(session, 0, 3 * MIB, 0, &first));
	ck_assert(world_is_all(session, first, 0, 4 * MIB));
	fill(first, 0x5a, 4 * MIB);
	ck_assert(world_is_all(session, first, 0x5a, 4 * MIB));
	ck_assert_uint_eq(world_usage(session).live_bytes, 4 * MIB);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 4 * MIB);
	assert_ok(glake_free(session, first));
	ck_assert_int_eq(glake_free(session, first), -EINVAL);
	ck_assert_uint_eq(world_usage(session).warm_bytes, 4 * MIB);
	ck_assert(glake__heap_has(first));
	ck_assert(glake__heap_has(first + 4 * MIB - 1));
	ck_assert(!glake__heap_has(first + 4 * MIB));
	ck_assert(!glake__heap_find(first, NULL));

	glake_ptr second = 0;
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &second));
	ck_assert_uint_eq(second, first);
	ck_assert(glake__heap_find(first, NULL));
	ck_assert_uint_eq(world_usage(session).n_warm_allocs, 1);
	assert_ok(glake_free(session, second));

	glake_ptr zeroed = 0;
	assert_ok(glake_alloc(session, 0, 4 * MIB, GLAKE_ZERO, &zeroed));
	ck_assert_uint_ne(zeroed, first);
	ck_assert(world_is_all(session, zeroed, 0, 4 * MIB));
	assert_ok(glake_free(session, zeroed));
	assert_ok(glake_trim(session, 0, 4 * MIB));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 4 * MIB);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_own_n_fds(), n_fds);
}
END_TEST

START_TEST(large_requests_are_rows_of_chunks)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 1, 2 * GIB + 6 * MIB, 0, &ptr));
	ck_assert_uint_eq(world_row(session).n_chunks, 3);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * GIB + 6 * MIB);
	/* Larger than all warm memory may be: it goes back at once. */
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
}
END_TEST

START_TEST(warm_memory_has_a_limit)
{
	struct glake_session *session = world_connect();
	glake_ptr ptrs[6];
	for (int i = 0; i < 6; i++) {
		assert_ok(glake_alloc(session, 0, 16 * MIB, 0, &ptrs[i]));
	}
	for (int i = 0; i < 6; i++) {
		assert_ok(glake_free(session, ptrs[i]));
	}
	ck_assert_uint_eq(world_usage(session).warm_bytes, 64 * MIB);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 64 * MIB);
}
END_TEST

START_TEST(own_warm_memory_goes_before_a_refusal)
{
	struct glake_session *session = world_connect();
	glake_ptr small = 0;
	glake_ptr large = 0;
	assert_ok(glake_alloc(session, 0, 64 * MIB, 0, &small));
	assert_ok(glake_free(session, small));
	assert_ok(glake_alloc(session, 0, 8 * GIB, 0, &large));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 0);
	glake_ptr none = 0;
	ck_assert_int_eq(glake_alloc(session, 0, 1, 0, &none), GLAKE_E_OVER_QUOTA);
	ck_assert_ptr_nonnull(strstr(glake_error(), "default"));
	ck_assert_uint_eq(none, 0);
	/* All or nothing, over several requests to the daemon. */
	assert_ok(glake_free(session, large));
	ck_assert_int_eq(glake_alloc(session, 0, 8 * GIB + 2 * MIB, 0, &none), GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

START_TEST(nothing_remains_of_a_failed_allocation)
{
	static const char *const calls[] = {
		"cuMemImportFromShareableHandle:1:fail=1",
		"cuMemImportFromShareableHandle:3:fail=1",
		"cuMemMap:2:fail=1",
		"cuMemSetAccess:1:fail=2",
	};
	struct glake_session *session = world_connect();
	size_t n_fds = world_own_n_fds();
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		world_set_own_faults(calls[i]);
		glake_ptr ptr = 0;
		ck_assert_msg(glake_alloc(session, 0, 3 * GIB + 2 * MIB, 0, &ptr) == GLAKE_E_CUDA,
		              "%s", calls[i]);
		ck_assert_ptr_nonnull(strstr(glake_error(), "CUDA_ERROR"));
		ck_assert_uint_eq(world_row(session).n_chunks, 0);
		ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
		ck_assert_uint_eq(world_own_n_fds(), n_fds);
	}
	world_set_own_faults("");
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 3 * GIB + 2 * MIB, 0, &ptr));
	assert_ok(glake_free(session, ptr));
}
END_TEST

static uint64_t live_bytes(struct glake_session *session)
{
	return world_usage(session).live_bytes;
}

/* More than one answer carries, of several sizes, in no order; one of several chunks, one of a slab. */
START_TEST(many_allocations_are_each_as_one)
{
	enum { N = 60 };
	struct glake_session *session = world_connect();
	uint64_t sizes[N];
	glake_ptr ptrs[N];
	for (int i = 0; i < N; i++) {
		sizes[i] = (i % 3 + 1) * 2 * MIB - (i % 2) * 700;
	}
	sizes[7] = GIB + 2 * MIB;
	sizes[11] = 1000;
	for (unsigned flags = 0; flags <= GLAKE_ZERO; flags += GLAKE_ZERO) {
		assert_ok(glake_alloc_many(session, 0, sizes, N, flags, ptrs));
		ck_assert(glake__space_is_valid());
		for (int i = 0; i < N; i++) {
			fill(ptrs[i], (uint8_t)i, i == 7 ? 1 : sizes[i]);
		}
		for (int i = 0; i < N; i++) {
			uint64_t n_seen = i == 7 ? 1 : sizes[i];
			ck_assert_msg(world_is_all(session, ptrs[i], (uint8_t)i, n_seen), "%d", i);
			assert_ok(glake_free(session, ptrs[i]));
		}
		ck_assert_uint_eq(world_usage(session).n_cold_allocs, N * (flags + 1));
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
	assert_ok(glake_alloc_many(session, 0, NULL, 0, 0, NULL));
}
END_TEST

START_TEST(many_allocations_are_zero_if_asked)
{
	struct glake_session *session = world_connect();
	static const uint64_t sizes[] = {2 * MIB, 4 * MIB, 2 * MIB, 1000};
	glake_ptr ptrs[4];
	assert_ok(glake_alloc_many(session, 0, sizes, 4, 0, ptrs));
	for (int i = 0; i < 4; i++) {
		fill(ptrs[i], 7, sizes[i]);
		assert_ok(glake_free(session, ptrs[i]));
	}
	assert_ok(glake_alloc_many(session, 0, sizes, 4, GLAKE_ZERO, ptrs));
	for (int i = 0; i < 4; i++) {
		ck_assert(world_is_all(session, ptrs[i], 0, sizes[i]));
	}
}
END_TEST

START_TEST(many_allocations_are_all_or_none)
{
	enum { N = 40 };
	struct glake_session *session = world_connect();
	uint64_t sizes[N];
	glake_ptr ptrs[N] = {0};
	glake_ptr warm = 0;
	for (int i = 0; i < N; i++) {
		sizes[i] = 256 * MIB;
	}
	/* Warm memory goes first. */
	assert_ok(glake_alloc(session, 0, 64 * MIB, 0, &warm));
	assert_ok(glake_free(session, warm));
	ck_assert_int_eq(glake_alloc_many(session, 0, sizes, 33, 0, ptrs), GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(live_bytes(session), 0);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
	assert_ok(glake_alloc(session, 0, 64 * MIB, 0, &warm));
	assert_ok(glake_free(session, warm));
	assert_ok(glake_alloc_many(session, 0, sizes, 32, 0, ptrs));
	ck_assert_uint_eq(live_bytes(session), 8 * GIB);
}
END_TEST

START_TEST(many_allocations_survive_a_failure_in_the_middle)
{
	static const char *const calls[] = {
		"cuMemImportFromShareableHandle:3:fail=1",
		"cuMemMap:2:fail=1",
		"cuMemSetAccess:5:fail=2",
	};
	enum { N = 30 };
	struct glake_session *session = world_connect();
	uint64_t sizes[N];
	glake_ptr ptrs[N];
	size_t n_fds = world_own_n_fds();
	for (int i = 0; i < N; i++) {
		sizes[i] = 2 * MIB;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		world_set_own_faults(calls[i]);
		/* Once, so the second try finds the driver well. */
		assert_ok(glake_alloc_many(session, 0, sizes, N, GLAKE_ZERO, ptrs));
		ck_assert_uint_eq(world_row(session).n_chunks, N);
		for (int k = 0; k < N; k++) {
			assert_ok(glake_free(session, ptrs[k]));
		}
		assert_ok(glake_trim(session, 0, 0));
		ck_assert_uint_eq(world_row(session).n_chunks, 0);
		ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
		ck_assert_uint_eq(world_own_n_fds(), n_fds);
	}
	world_set_own_faults("cuMemMap:*:fail=1");
	ck_assert_int_eq(glake_alloc_many(session, 0, sizes, N, 0, ptrs), GLAKE_E_CUDA);
	world_set_own_faults("");
	ck_assert_uint_eq(live_bytes(session), 0);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).n_chunks, 0);
}
END_TEST

START_TEST(placed_memory_fills_and_empties_a_range)
{
	struct glake_session *session = world_connect();
	glake_ptr base = 0;
	assert_ok(glake_reserve(session, 64 * MIB, 0, &base));
	ck_assert_int_eq(glake_map(session, 0, base, 3 * MIB), -EINVAL);
	ck_assert_int_eq(glake_map(session, 0, base + 62 * MIB, 4 * MIB), -EINVAL);
	assert_ok(glake_map(session, 0, base + 8 * MIB, 4 * MIB));
	assert_ok(glake_map(session, 0, base + 12 * MIB, 2 * MIB));
	assert_ok(glake_map(session, 0, base, 2 * MIB));
	ck_assert_int_eq(glake_map(session, 0, base + 6 * MIB, 4 * MIB), -EINVAL);
	fill(base + 8 * MIB, 7, 6 * MIB);
	ck_assert(world_is_all(session, base + 8 * MIB, 7, 6 * MIB));
	ck_assert_int_eq(glake_unreserve(session, base), -EBUSY);
	ck_assert_int_eq(glake_unmap(session, base + 8 * MIB, 2 * MIB), -EINVAL);
	ck_assert_int_eq(glake_unmap(session, base, 14 * MIB), -EINVAL);
	ck_assert_int_eq(glake_free(session, base), -EINVAL);
	assert_ok(glake_unmap(session, base + 8 * MIB, 6 * MIB));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * MIB);
	assert_ok(glake_map(session, 0, base + 8 * MIB, 2 * MIB));
	ck_assert(world_is_all(session, base + 8 * MIB, 0, 2 * MIB));
	assert_ok(glake_unmap(session, base + 8 * MIB, 2 * MIB));
	assert_ok(glake_unmap(session, base, 2 * MIB));
	assert_ok(glake_unreserve(session, base));
	ck_assert_int_eq(glake_unreserve(session, base), -EINVAL);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

START_TEST(equal_content_becomes_one_block)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr a = 0;
	glake_ptr b = 0;
	assert_ok(glake_alloc(one, 0, 4 * MIB, GLAKE_ZERO, &a));
	assert_ok(glake_alloc(two, 0, 4 * MIB, GLAKE_ZERO, &b));
	fill(a, 9, 3 * MIB);
	fill(b, 9, 3 * MIB);
	struct glake_block *block_a;
	struct glake_block *block_b;
	struct glake_block *block_c;
	assert_ok(glake_block_publish(one, a, 3 * MIB, &block_a));
	assert_ok(glake_block_publish(two, b, 3 * MIB, &block_b));
	struct glake_block_info info_a = {.size = sizeof(info_a)};
	struct glake_block_info info_b = {.size = sizeof(info_b)};
	assert_ok(glake_block_info(block_a, &info_a));
	assert_ok(glake_block_info(block_b, &info_b));
	ck_assert_int_eq(info_a.was_known, 0);
	ck_assert_int_eq(info_b.was_known, 1);
	ck_assert_uint_eq(info_b.ptr, b);
	ck_assert_mem_eq(&info_a.digest, &info_b.digest, sizeof(info_a.digest));
	uint8_t *bytes = malloc(3 * MIB);
	memset(bytes, 9, 3 * MIB);
	struct glake_digest digest;
	glake_digest_bytes(bytes, 3 * MIB, &digest);
	free(bytes);
	ck_assert_mem_eq(&info_a.digest, &digest, sizeof(digest));

	ck_assert(world_is_all(one, a, 9, 3 * MIB));
	ck_assert(world_is_all(two, b, 9, 3 * MIB));
	ck_assert(!can_write(a));
	ck_assert(!can_write(b));
	ck_assert_int_eq(glake_free(two, b), -EINVAL);
	ck_assert_uint_eq(world_row(two).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 4 * MIB);

	assert_ok(glake_block_lookup(two, 0, &digest, &block_c));
	struct glake_block_info info_c = {.size = sizeof(info_c)};
	assert_ok(glake_block_info(block_c, &info_c));
	ck_assert(world_is_all(two, info_c.ptr, 9, 3 * MIB));
	digest.bytes[0] ^= 1;
	struct glake_block *none;
	ck_assert_int_eq(glake_block_lookup(two, 0, &digest, &none), GLAKE_E_NOT_FOUND);

	world_disconnect(one);
	ck_assert(world_is_all(two, b, 9, 3 * MIB));
	glake_block_release(block_b);
	ck_assert(world_is_all(two, info_c.ptr, 9, 3 * MIB));
	glake_block_release(block_c);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
}
END_TEST

START_TEST(a_refused_block_stays_writable_memory)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	struct glake_block *block;
	assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
	/* Behind the content there are other bytes than zeros. */
	fill(ptr, 3, 2 * MIB);
	ck_assert_int_ne(glake_block_publish(session, ptr, MIB, &block), 0);
	ck_assert(can_write(ptr));
	ck_assert_int_eq(glake_block_publish(session, ptr, 0, &block), -EINVAL);
	ck_assert_int_eq(glake_block_publish(session, ptr, 3 * MIB, &block), -EINVAL);
	ck_assert_int_eq(glake_block_publish(session, ptr + 1, MIB, &block), -EINVAL);
	world_set_own_faults("cuMemSetAccess:1:fail=1");
	ck_assert_int_eq(glake_block_publish(session, ptr, 2 * MIB, &block), GLAKE_E_CUDA);
	ck_assert(can_write(ptr));
	ck_assert_uint_eq(world_usage(session).live_bytes, 2 * MIB);
	/* The daemon dies with the request: another process may have the block. */
	kill(harness.pid, SIGSTOP);
	pid_t killer = fork();
	if (killer == 0) {
		usleep(200000);
		kill(harness.pid, SIGKILL);
		_exit(0);
	}
	ck_assert_int_eq(glake_block_publish(session, ptr, 2 * MIB, &block), GLAKE_E_GONE);
	waitpid(killer, NULL, 0);
	harness_wait_exit(&harness);
	ck_assert(!can_write(ptr));
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
}
END_TEST

START_TEST(a_block_survives_a_failed_exchange)
{
	struct glake_session *session = world_connect();
	glake_ptr ptrs[2];
	struct glake_block *blocks[2];
	for (int i = 0; i < 2; i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptrs[i]));
		fill(ptrs[i], 5, 2 * MIB);
	}
	assert_ok(glake_block_publish(session, ptrs[0], 2 * MIB, &blocks[0]));
	world_set_own_faults("cuMemImportFromShareableHandle:1:fail=1");
	assert_ok(glake_block_publish(session, ptrs[1], 2 * MIB, &blocks[1]));
	ck_assert(world_is_all(session, ptrs[1], 5, 2 * MIB));
	ck_assert(!can_write(ptrs[1]));
	glake_block_release(blocks[0]);
	glake_block_release(blocks[1]);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
}
END_TEST

/* Who has a name has the memory, and who has it still is not surprised by somebody else's. */
START_TEST(named_memory_is_opened_and_never_warm)
{
	struct glake_session *session = world_connect();
	struct glake_session *other = world_connect();
	struct glake_share share;
	struct glake_share again;
	glake_ptr ptr;
	glake_ptr opened = 0;
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	ck_assert_int_eq(glake_share(session, ptr + 2 * MIB, &share), -EINVAL);
	assert_ok(glake_share(session, ptr, &share));
	uint64_t n_requests = world_row(session).n_requests;
	assert_ok(glake_share(session, ptr, &again));
	/* The list is a request itself. */
	ck_assert_uint_eq(world_row(session).n_requests, n_requests + 1);
	ck_assert_mem_eq(&again, &share, sizeof(share));

	again.ticket ^= 1;
	ck_assert_int_eq(glake_share_open(other, &again, 0, &opened), GLAKE_E_NOT_FOUND);
	again = share;
	again.session = 0;
	ck_assert_int_eq(glake_share_open(other, &again, 0, &opened), -EINVAL);
	again = share;
	again.ticket = 0;
	ck_assert_int_eq(glake_share_open(other, &again, 0, &opened), -EINVAL);
	again = share;
	again.bytes += 2 * MIB;
	ck_assert_int_eq(glake_share_open(other, &again, 0, &opened), -EINVAL);
	ck_assert_uint_eq(opened, 0);
	assert_ok(glake_share_open(other, &share, 0, &opened));
	fill(ptr, 0x77, 4 * MIB);
	ck_assert(world_is_all(other, opened, 0x77, 4 * MIB));
	ck_assert_uint_eq(world_row(other).reserved_bytes, 0);

	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 0);
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	fill(ptr, 0x11, 4 * MIB);
	ck_assert(world_is_all(other, opened, 0x77, 4 * MIB));
	glake_ptr second = 0;
	ck_assert_int_eq(glake_share_open(other, &share, 0, &second), GLAKE_E_NOT_FOUND);
	assert_ok(glake_share_close(other, &share, opened));
}
END_TEST

START_TEST(memory_outlives_the_daemon)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	glake_ptr other = 0;
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptr));
	assert_ok(glake_alloc(session, 0, 128 * MIB, 0, &other));
	fill(ptr, 8, 2 * MIB);
	harness_kill(&harness);
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	ck_assert_int_eq(glake_fd(session), -1);
	ck_assert(world_is_all(session, ptr, 8, 2 * MIB));
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptr));
	assert_ok(glake_free(session, other));
	ck_assert_int_eq(glake_alloc(session, 0, 4 * MIB, 0, &other), GLAKE_E_GONE);
	world_disconnect(session);
	struct glake_session *again;
	ck_assert_int_eq(glake_connect(NULL, &again), GLAKE_E_GONE);
}
END_TEST

START_TEST(a_forked_child_is_told_so)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptr));
	fill(ptr, 6, 2 * MIB);
	pid_t pid = fork();
	if (pid == 0) {
		glake_ptr none;
		bool good = glake_ping(session) == GLAKE_E_FORKED &&
		            glake_alloc(session, 0, 1, 0, &none) == GLAKE_E_FORKED &&
		            glake_free(session, ptr) == GLAKE_E_FORKED &&
		            glake_dispatch(session) == GLAKE_E_FORKED && glake_fd(session) == -1;
		world_disconnect(session);
		_exit(good ? 0 : 1);
	}
	world_join(pid);
	assert_ok(glake_ping(session));
	ck_assert(world_is_all(session, ptr, 6, 2 * MIB));
	assert_ok(glake_free(session, ptr));
}
END_TEST

static void call_in_a_child(struct glake_session *session, glake_ptr ptr)
{
	const struct glake_span span = {.ptr = ptr, .bytes = 2 * MIB};
	const struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	struct glake_session *own = NULL;
	bool good = glake_seal(&span, 1, NULL) == GLAKE_E_FORKED &&
	            glake_unseal(ptr, 2 * MIB) == GLAKE_E_FORKED &&
	            glake_free(session, ptr) == GLAKE_E_FORKED;
	world_disconnect(session);
	good = good && glake_connect(&options, &own) == 0 && glake_ping(own) == 0 &&
	       glake_seal(&span, 1, NULL) == -EINVAL;
	glake_disconnect(own);
	_exit(good ? 0 : 1);
}

/* Another thread may hold any lock of the library when a program forks: here it is this one. */
START_TEST(a_forked_child_waits_for_no_lock_of_its_parent)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptr));
	pthread_mutex_lock(&session->link.send_lock);
	pthread_mutex_lock(&session->link.lock);
	glake__lock();
	pid_t pid = fork();
	if (pid == 0) {
		call_in_a_child(session, ptr);
	}
	glake__unlock();
	pthread_mutex_unlock(&session->link.lock);
	pthread_mutex_unlock(&session->link.send_lock);
	world_join(pid);
	assert_ok(glake_free(session, ptr));
}
END_TEST

/* The allocators of sanitizers may hang in a child of a program with threads. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int connect_too_far(void)
{
	static const char path[] = {[0 ... 254] = 'x', 0};
	const struct glake_connect_options options = {.size = sizeof(options), .socket_path = path};
	struct glake_session *session;
	return glake_connect(&options, &session);
}

static void *connect_in_vain(void *user)
{
	const _Atomic bool *is_over = user;
	while (!*is_over) {
		ck_assert_int_eq(connect_too_far(), -ENAMETOOLONG);
	}
	return NULL;
}

START_TEST(a_child_connects_while_its_parent_does)
{
	enum { N_THREADS = 6, N_FORKS = 100 };
	_Atomic bool is_over = false;
	pthread_t threads[N_THREADS];
	for (unsigned i = 0; i < N_THREADS; i++) {
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, connect_in_vain, (void *)&is_over), 0);
	}
	for (unsigned i = 0; i < N_FORKS; i++) {
		pid_t pid = fork();
		if (pid == 0) {
			_exit(connect_too_far() == -ENAMETOOLONG ? 0 : 1);
		}
		world_join(pid);
	}
	is_over = true;
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
}
END_TEST
#endif

START_TEST(a_session_ends_though_a_child_holds_the_socket)
{
	struct glake_session *session = world_connect();
	struct glake_session *watcher = world_connect();
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	pid_t pid = fork();
	if (pid == 0) {
		pause();
		_exit(0);
	}
	world_disconnect(session);
	struct glake_session_row row = {.session = info.session};
	int r;
	while ((r = glake_list_sessions(watcher, world_find_row, &row)) == 1) {
		usleep(10000);
	}
	ck_assert_int_eq(r, 0);
	world_kill(pid);
}
END_TEST

struct worker {
	struct glake_session *session;
	unsigned seed;
};

static void *work(void *argument)
{
	struct worker *worker = argument;
	glake_ptr held[8] = {0};
	for (int i = 0; i < 400; i++) {
		unsigned slot = rand_r(&worker->seed) % 8;
		if (held[slot]) {
			assert_ok(glake_free(worker->session, held[slot]));
			held[slot] = 0;
		} else {
			uint64_t n_bytes = (1 + rand_r(&worker->seed) % 6) * 2 * MIB;
			assert_ok(glake_alloc(worker->session, 0, n_bytes, 0, &held[slot]));
		}
		if (i % 50 == 0) {
			assert_ok(glake_ping(worker->session));
		}
	}
	for (int i = 0; i < 8; i++) {
		assert_ok(glake_free(worker->session, held[i]));
	}
	return NULL;
}

START_TEST(threads_share_a_session)
{
	struct glake_session *session = world_connect();
	struct worker workers[8];
	pthread_t threads[8];
	for (unsigned i = 0; i < 8; i++) {
		workers[i] = (struct worker){session, i + 1};
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
	}
	struct glake_usage usage = world_usage(session);
	ck_assert_uint_eq(usage.live_bytes, 0);
	ck_assert_uint_eq(usage.reserved_bytes, usage.warm_bytes);
	ck_assert_uint_le(usage.warm_bytes, 64 * MIB);
	ck_assert_uint_gt(usage.n_warm_allocs, 0);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
}
END_TEST

START_TEST(the_daemon_learns_of_usage)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 6 * MIB, 0, &ptr));
	usleep(120000);
	assert_ok(glake_ping(session));
	ck_assert_uint_eq(world_row(session).live_bytes, 6 * MIB);
	assert_ok(glake_free(session, ptr));
	usleep(120000);
	ck_assert_int_ge(glake_dispatch(session), 0);
	struct glake_session_row row = world_row(session);
	ck_assert_uint_eq(row.live_bytes, 0);
	ck_assert_uint_eq(row.warm_bytes, 6 * MIB);
}
END_TEST

static int find_driver(void *user, const struct glake_session_row *row)
{
	struct glake_session_device *device = user;
	if (row->pid != (uint32_t)getpid() || row->n_devices == 0) {
		return 0;
	}
	*device = row->devices[row->n_devices - 1];
	return 1;
}

START_TEST(what_the_program_says_of_itself_is_passed_on)
{
	struct glake_session *session = world_connect();
	struct glake_session_device device = {0};
	struct glake__driver_memory driver[] = {
		{.device = 1,
	         .managed_bytes = 5,
	         .array_bytes = 6,
	         .graph_bytes = 7,
	         .other_bytes = 8},
		{.device = 1},
	};
	struct glake__program_usage usage = {
		.n_owned = 11,
		.n_passed = 3,
		.driver = driver,
		.n_driver = 1,
	};
	assert_ok(glake__set_program_usage(session, &usage));
	usleep(120000);
	ck_assert_int_ge(glake_dispatch(session), 0);
	ck_assert_uint_eq(world_row(session).n_owned, 11);
	ck_assert_uint_eq(world_row(session).n_passed, 3);
	ck_assert_int_eq(glake_list_sessions(session, find_driver, &device), 1);
	ck_assert_uint_eq(device.device, 1);
	ck_assert_uint_eq(device.managed_bytes, 5);
	ck_assert_uint_eq(device.array_bytes, 6);
	ck_assert_uint_eq(device.graph_bytes, 7);
	ck_assert_uint_eq(device.other_bytes, 8);

	/* Equal usage is no news; what makes no sense changes nothing. */
	uint64_t n_requests = world_row(session).n_requests;
	assert_ok(glake__set_program_usage(session, &usage));
	usleep(120000);
	ck_assert_int_ge(glake_dispatch(session), 0);
	ck_assert_uint_eq(world_row(session).n_requests, n_requests + 1);
	usage.n_driver = 2;
	usage.n_owned = 99;
	ck_assert_int_eq(glake__set_program_usage(session, &usage), -EINVAL);
	driver[0].device = 2;
	usage.n_driver = 1;
	ck_assert_int_eq(glake__set_program_usage(session, &usage), -ENODEV);
	usleep(120000);
	ck_assert_int_ge(glake_dispatch(session), 0);
	ck_assert_uint_eq(world_row(session).n_owned, 11);
}
END_TEST

START_TEST(the_highest_that_was_live_is_kept)
{
	struct glake_session *session = world_connect();
	glake_ptr one;
	glake_ptr two;
	uint64_t chunk;
	int fd;
	assert_ok(glake_alloc(session, 0, 6 * MIB, 0, &one));
	assert_ok(glake_alloc(session, 1, 4 * MIB, 0, &two));
	assert_ok(glake_chunk_new(session, 0, 2 * MIB, &chunk, &fd));
	close(fd);
	assert_ok(glake_free(session, one));
	assert_ok(glake_chunk_free(session, chunk, 2 * MIB));
	assert_ok(glake_alloc(session, 0, 6 * MIB, 0, &one));
	ck_assert_uint_eq(world_usage(session).live_bytes, 10 * MIB);
	ck_assert_uint_eq(world_usage(session).peak_bytes, 12 * MIB);
	usleep(120000);
	assert_ok(glake_ping(session));
	ck_assert_uint_eq(world_row(session).peak_bytes, 12 * MIB);
}
END_TEST

static struct glake_device_view view_of(struct glake_session *session, uint32_t index)
{
	struct glake_device_view view = {.size = sizeof(view)};
	assert_ok(glake_device_view(session, index, &view));
	return view;
}

START_TEST(what_is_left_of_a_device_is_one_question)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_block *block;
	glake_ptr ptr = 0;
	/* 2 MiB of the room are the device's anchor. */
	struct glake_device_view empty = view_of(one, 0);
	ck_assert_uint_eq(empty.quota_bytes, 8 * GIB);
	ck_assert_uint_eq(empty.used_bytes, 0);
	ck_assert_uint_eq(empty.reserved_bytes, 0);
	ck_assert_uint_eq(empty.idle_bytes, 0);
	ck_assert_uint_eq(empty.room_bytes, 14 * GIB - 2 * MIB);

	assert_ok(glake_alloc(one, 0, 6 * MIB, 0, &ptr));
	struct glake_device_view own = view_of(one, 0);
	ck_assert_uint_eq(own.used_bytes, 6 * MIB);
	ck_assert_uint_eq(own.reserved_bytes, 6 * MIB);
	ck_assert_uint_eq(own.room_bytes, 14 * GIB - 8 * MIB);
	struct glake_device_view other = view_of(two, 0);
	ck_assert_uint_eq(other.used_bytes, 6 * MIB);
	ck_assert_uint_eq(other.reserved_bytes, 0);
	ck_assert_uint_eq(view_of(one, 1).used_bytes, 0);

	/* Warm memory is so on its own device, for its own session. */
	glake_ptr warm = 0;
	assert_ok(glake_alloc(one, 1, 4 * MIB, 0, &warm));
	assert_ok(glake_free(one, warm));
	ck_assert_uint_eq(view_of(one, 1).warm_bytes, 4 * MIB);
	ck_assert_uint_eq(view_of(one, 1).reserved_bytes, 4 * MIB);
	ck_assert_uint_eq(view_of(one, 0).warm_bytes, 0);
	ck_assert_uint_eq(view_of(two, 1).warm_bytes, 0);

	/* A block in use is not to be had; one that nobody uses is, and nobody pays for it. */
	assert_ok(glake_block_publish(one, ptr, 6 * MIB, &block));
	ck_assert_uint_eq(view_of(one, 0).idle_bytes, 0);
	ck_assert_uint_eq(view_of(one, 0).used_bytes, 6 * MIB);
	ck_assert_uint_eq(view_of(one, 0).reserved_bytes, 0);
	glake_block_release(block);
	ck_assert_uint_eq(view_of(one, 0).idle_bytes, 6 * MIB);
	ck_assert_uint_eq(view_of(one, 0).used_bytes, 0);
	ck_assert_uint_eq(view_of(one, 0).room_bytes, 14 * GIB - 8 * MIB);

	struct glake_device_view view = {.size = sizeof(view)};
	ck_assert_int_eq(glake_device_view(one, 2, &view), GLAKE_E_BAD_REQUEST);
	ck_assert_int_eq(glake_device_view(one, 0, NULL), -EINVAL);
}
END_TEST

START_TEST(without_the_driver_only_requests_work)
{
	struct glake_connect_options options = {
		.size = sizeof(options),
		.libcuda = "/nonexistent/libcuda.so",
	};
	struct glake_session *session;
	ck_assert_int_eq(glake_connect(&options, &session), GLAKE_E_NO_DRIVER);
	ck_assert_ptr_nonnull(strstr(glake_error(), "/nonexistent/libcuda.so"));
	session = world_connect_blind();
	assert_ok(glake_ping(session));
	glake_ptr ptr = 0;
	ck_assert_int_eq(glake_alloc(session, 0, 1, 0, &ptr), GLAKE_E_NO_DRIVER);
	ck_assert_int_eq(glake_reserve(session, 2 * MIB, 0, &ptr), GLAKE_E_NO_DRIVER);
	ck_assert_int_eq(glake_alloc(session, 9, 1, 0, &ptr), -ENODEV);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--renumbered") == 0) {
		return renumbered();
	}
	return tests_run();
}
