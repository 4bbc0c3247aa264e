/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program under the shim that has elastic ranges, and gives their memory to other devices and processes.
 *
 *   elastic SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr.
 */
#include <cuda.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "libclient/glake_elastic.h"
#include "tests/shim/device.h"
#include "tests/shim/scenario.h"

#define CHUNK (2ull << 20)
#define N_LANES 2u
#define N_STEPS 5u
#define STRIDE (N_STEPS * CHUNK)

static struct glake_session *session;
static struct glake_elastic *elastic;
static glake_ptr base;

static CUdeviceptr place(uint32_t step, uint32_t lane)
{
	return base + lane * STRIDE + step * CHUNK;
}

static void start(uint32_t flags)
{
	const struct glake_elastic_desc desc = {
		.size = sizeof(desc),
		.n_lanes = N_LANES,
		.lane_stride = STRIDE,
		.chunk_bytes = CHUNK,
		.n_steps = N_STEPS,
		.flags = flags,
		.key = "key",
		.n_key = 3,
	};
	use_device(0);
	must(glake_connect(NULL, &session) == 0);
	must(glake_elastic_open(session, &desc, &elastic, &base) == 0);
}

static void expect_states(const char *letters)
{
	for (uint32_t i = 0; letters[i]; i++) {
		must("-cHLgxSR"[glake_elastic_states(elastic)[i]] == letters[i]);
	}
}

static void expect(uint32_t step, uint8_t wanted)
{
	static uint8_t bytes[CHUNK];
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		must_ok(cuMemcpyDtoH(bytes, place(step, lane), CHUNK));
		for (size_t i = 0; i < CHUNK; i += 997) {
			must(bytes[i] == wanted);
		}
	}
}

static void set(uint32_t step, uint8_t value)
{
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		must_ok(cuMemsetD8(place(step, lane), value, CHUNK));
	}
	must_ok(cuCtxSynchronize());
}

/* Steps 1 and 2: each is known to somebody by another way. There is no handle of such memory. */
static void name_some(void)
{
	CUmemGenericAllocationHandle handle;
	int fd = -1;
	int yes = 1;
	must_ok(cuMemGetHandleForAddressRange(&fd, place(1, 1), CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	must_ok(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, place(2, 0)));
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)place(3, 1)),
	        CUDA_ERROR_INVALID_VALUE);
}

static void give_back_all(uint32_t flags)
{
	start(flags);
	must(glake_elastic_commit(elastic, 0, N_STEPS, NULL) == 0);
	for (uint32_t i = 0; i < N_STEPS; i++) {
		set(i, (uint8_t)(i + 1));
	}
	name_some();
	must(glake_elastic_lend(elastic, 0, N_STEPS) == 0);
	must(glake_trim(session, 0, 0) == 0);
	/* Only what nobody knows went. */
	expect_states("-LL--");
	must(glake_elastic_return(elastic, 0, N_STEPS) == 0);
	must(glake_elastic_take(elastic, 1, 4) == 2);
	for (uint32_t i = 1; i < 3; i++) {
		expect(i, (uint8_t)(i + 1));
		set(i, 9);
	}
	must(glake_elastic_close(elastic) == 0);
	glake_disconnect(session);
}

static void what_others_know_is_not_given(void)
{
	give_back_all(0);
}

static void what_others_know_is_not_given_for_a_guard(void)
{
	give_back_all(GLAKE_ELASTIC_GUARD);
}

/* Whoever had it could write to all holes, and would not see what comes to them. */
static void nobody_is_given_a_guard(void)
{
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc writable = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUipcMemHandle name;
	int fd = -1;
	int yes = 1;
	start(GLAKE_ELASTIC_GUARD);
	must(glake_elastic_commit(elastic, 0, 2, NULL) == 0);
	set(0, 1);
	set(1, 2);
	must_be(cuMemGetHandleForAddressRange(&fd, place(2, 0), CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuMemGetHandleForAddressRange(&fd, place(1, 0), 2 * CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, place(2, 0)),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)place(2, 1)),
	        CUDA_ERROR_INVALID_VALUE);
	must(cuMemSetAccess(place(2, 0), CHUNK, &writable, 1) != CUDA_SUCCESS);
	must(cuIpcGetMemHandle(&name, place(2, 0)) != CUDA_SUCCESS);
	must(cuMemUnmap(place(2, 0), CHUNK) != CUDA_SUCCESS);
	must(cuMemsetD8(place(2, 0), 1, CHUNK) != CUDA_SUCCESS);
	for (uint32_t i = 2; i < N_STEPS; i++) {
		expect(i, 0);
	}
	/* A call that was refused pins nothing. */
	must(glake_elastic_lend(elastic, 0, 2) == 0);
	must(glake_elastic_return(elastic, 0, 2) == 2);
	expect(1, 0);
	must(glake_elastic_commit(elastic, 2, 1, NULL) == 0);
	must_ok(cuMemGetHandleForAddressRange(&fd, place(2, 0), CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	glake_disconnect(session);
}

/* Steps 1 and 2 are others', who may write to them behind the end of this process. */
static void what_others_know_is_not_kept(void)
{
	start(0);
	must(glake_elastic_commit(elastic, 0, 4, NULL) == 0);
	for (uint32_t i = 0; i < 4; i++) {
		set(i, (uint8_t)(i + 1));
		must(glake_elastic_seal(elastic, i, &i, sizeof(i)) == 0);
	}
	name_some();
	must(glake_elastic_seal(elastic, 1, NULL, 0) == -EBUSY);
	kill(getpid(), SIGKILL);
}

/* The next one. */
static void what_nobody_knows_is_kept(void)
{
	static uint32_t record[GLAKE_ELASTIC_RECORD_BYTES / sizeof(uint32_t)];
	size_t n_record;
	uint32_t n_living;
	start(0);
	for (uint32_t i = 0; i < 2; i++) {
		int r;
		while ((r = glake_elastic_adopt(elastic, i, record, &n_record, &n_living)) ==
		       -ENOENT) {
			usleep(10000);
		}
		must(r == 0);
		must(record[0] == 3 - 3 * i);
		expect(i, (uint8_t)(record[0] + 1));
	}
	must(glake_elastic_adopt(elastic, 2, record, &n_record, &n_living) == -ENOENT);
	must(n_living == 2);
	glake_disconnect(session);
}

static void expect_no_name(uint32_t step)
{
	CUmemGenericAllocationHandle handle;
	CUipcMemHandle name;
	int fd = -1;
	int yes = 1;
	must_be(cuMemGetHandleForAddressRange(&fd, place(step, 0), CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, place(step, 0)),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)place(step, 1)),
	        CUDA_ERROR_INVALID_VALUE);
	must(cuIpcGetMemHandle(&name, place(step, 0)) != CUDA_SUCCESS);
	must(cuMemUnmap(place(step, 0), CHUNK) != CUDA_SUCCESS);
	must(cuMemsetD8(place(step, 0), 77, CHUNK) != CUDA_SUCCESS);
	must(cuMemcpyDtoD(place(step, 1), place(step, 0), CHUNK) != CUDA_SUCCESS);
}

/* Whoever had one could write where others read. What has names of its own already is read all the same, and hidden. */
static void a_second_place_has_no_name(uint32_t flags)
{
	static const uint32_t steps[] = {0, 1};
	int fd = -1;
	unsigned type = 0;
	start(flags);
	must(glake_elastic_commit(elastic, 0, 3, NULL) == 0);
	for (uint32_t i = 0; i < 3; i++) {
		set(i, (uint8_t)(i + 1));
	}
	name_some();
	must(glake_elastic_seal(elastic, 0, "x", 1) == 0);
	must(glake_elastic_show(elastic, 3, elastic, steps, 2) == 0);
	expect_states("SSHRR");
	expect(3, 1);
	expect(4, 2);
	expect_no_name(3);
	expect(0, 1);
	must_ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, place(3, 1)));
	must(type == CU_MEMORYTYPE_DEVICE);
	/* A call that was refused pins nothing, and ends no seal. */
	must(glake_elastic_seal(elastic, 0, "x", 1) == 0);
	must(glake_elastic_hide(elastic, 3, 2) == 0);
	expect_states("HHH--");
	expect(1, 2);
	must_ok(cuMemGetHandleForAddressRange(&fd, place(0, 0), CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	must(glake_elastic_close(elastic) == 0);
	glake_disconnect(session);
}

static void a_second_place_beside_holes(void)
{
	a_second_place_has_no_name(0);
}

static void a_second_place_beside_guards(void)
{
	a_second_place_has_no_name(GLAKE_ELASTIC_GUARD);
}

/* The step belongs to another session of this program, which makes no difference to calls that name memory. */
static void what_others_own_has_no_name(void)
{
	static uint8_t record[GLAKE_ELASTIC_RECORD_BYTES];
	size_t n_record;
	start(GLAKE_ELASTIC_SHARED);
	must(glake_elastic_commit(elastic, 0, 1, NULL) == 0);
	set(0, 5);
	must(glake_elastic_seal(elastic, 0, "name", 4) == 0);
	struct glake_elastic *theirs = elastic;
	struct glake_session *owner = session;
	glake_ptr their_base = base;
	start(GLAKE_ELASTIC_GUARD);
	must(glake_elastic_read(elastic, 2, "name", 4, record, &n_record) == 0);
	expect_states("--R--");
	expect(2, 5);
	expect_no_name(2);
	must(glake_elastic_unseal(theirs, 0, 1) == GLAKE_E_BUSY);
	/* Nor do others get what somebody reads. */
	int fd = -1;
	must(cuMemGetHandleForAddressRange(&fd, their_base, CHUNK,
	                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) != CUDA_SUCCESS);
	must(glake_elastic_hide(elastic, 2, 1) == 0);
	must(glake_elastic_unseal(theirs, 0, 1) == 0);
	must_ok(cuMemGetHandleForAddressRange(&fd, their_base, CHUNK,
	                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	glake_disconnect(session);
	glake_disconnect(owner);
}

static const struct scenario scenarios[] = {
	{"a_second_place_beside_holes", a_second_place_beside_holes},
	{"a_second_place_beside_guards", a_second_place_beside_guards},
	{"what_others_own_has_no_name", what_others_own_has_no_name},
	{"what_others_know_is_not_kept", what_others_know_is_not_kept},
	{"what_nobody_knows_is_kept", what_nobody_knows_is_kept},
	{"what_others_know_is_not_given", what_others_know_is_not_given},
	{"what_others_know_is_not_given_for_a_guard", what_others_know_is_not_given_for_a_guard},
	{"nobody_is_given_a_guard", nobody_is_given_a_guard},
};

int main(int argc, char **argv)
{
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
