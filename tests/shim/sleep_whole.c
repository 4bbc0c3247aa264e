/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program under the shim that has memory of its own, and a model that it opens with the library. It sleeps as a whole.
 *
 *   sleep_whole SCENARIO MODEL
 *
 * It ends with 0, or with 1 and a line on stderr. Where it waits, it prints "ready" and reads a line.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "glake.h"
#include "glake_elastic.h"
#include "tests/shim/device.h"
#include "tests/shim/scenario.h"

#define N_BYTES (8u << 20)

static CUcontext ctx;
static CUdeviceptr memory;
static uint8_t content[N_BYTES];
static uint8_t seen[N_BYTES];

static const char *path;
static struct glake_session *session;
static struct glake_model *model;
static struct glake_model_info info = {.size = sizeof(info)};
static uint8_t *model_content;
static uint8_t *model_seen;

static void open_model(struct glake_session **session_out, struct glake_model **model_out)
{
	must(glake_connect(NULL, session_out) == 0);
	must(glake_model_open(*session_out, path, NULL, model_out) == 0);
}

static void start_model(void)
{
	open_model(&session, &model);
	must(glake_model_info(model, &info) == 0);
	model_content = malloc(info.mapped_bytes);
	model_seen = malloc(info.mapped_bytes);
	must(model_content && model_seen);
	must_ok(cuMemcpyDtoH(model_content, info.base, info.mapped_bytes));
}

static void start_memory(void)
{
	for (size_t i = 0; i < N_BYTES; i++) {
		content[i] = (uint8_t)(i * 31 + i / 977);
	}
	memory = alloc(N_BYTES);
	must_ok(cuMemcpyHtoD(memory, content, N_BYTES));
}

static void expect_memory(void)
{
	memset(seen, 0, N_BYTES);
	must_ok(cuMemcpyDtoH(seen, memory, N_BYTES));
	must(same_bytes(seen, content, N_BYTES));
}

static void expect_model(void)
{
	memset(model_seen, 0, info.mapped_bytes);
	must_ok(cuMemcpyDtoH(model_seen, info.base, info.mapped_bytes));
	must(same_bytes(model_seen, model_content, info.mapped_bytes));
}

static void expect_all(void)
{
	expect_memory();
	expect_model();
}

/* ---- scenarios -------------------------------------------------------------------------------- */

static void works_once(void)
{
	wait_for_line();
	expect_all();
}

static void works(void)
{
	wait_for_line();
	expect_all();
	wait_for_line();
	expect_all();
}

/* Either session is all of it. */
static void sleeps_by_itself(void)
{
	struct glake_slept slept = {.size = sizeof(slept)};
	must(glake_sleep(session, 1000, &slept) == 0);
	must(slept.private_bytes == 0 && slept.shared_bytes == info.mapped_bytes);
	must(slept.n_stays == 0);
	must(glake_is_asleep(session));
	wait_for_line();
	must(glake_wake(session, NULL) == 0);
	must(!glake_is_asleep(session));
	expect_all();
	must(glake_sleep(session, 1000, NULL) == 0);
	wait_for_line();
	expect_all();
}

/* A session that comes while the others sleep does not; it can join them. */
static void joins(void)
{
	struct glake_session *late;
	struct glake_model *same;
	wait_for_line();
	open_model(&late, &same);
	must(!glake_is_asleep(late) && glake_is_asleep(session));
	wait_for_line();
	must(glake_sleep(late, 1000, NULL) == 0);
	must(glake_is_asleep(late));
	wait_for_line();
	expect_all();
	must(!glake_is_asleep(late) && !glake_is_asleep(session));
	glake_disconnect(late);
	expect_all();
}

static void *use_memory(void *user)
{
	(void)user;
	must_ok(cuCtxSetCurrent(ctx));
	expect_memory();
	return NULL;
}

/* The session ends while it sleeps: the rest goes on sleeping. */
static void ends_asleep(void)
{
	wait_for_line();
	glake_disconnect(session);
	wait_for_line();
	expect_memory();
}

/* And while a thread waits for the wake, which waits for room. */
static void ends_waking(void)
{
	pthread_t thread;
	wait_for_line();
	must(pthread_create(&thread, NULL, use_memory, NULL) == 0);
	wait_for_line();
	glake_disconnect(session);
	wait_for_line();
	must(pthread_join(thread, NULL) == 0);
	expect_memory();
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr address)
{
	uint64_t word = 0;
	must_ok(cuPointerGetAttribute(&word, which, address));
	return word;
}

static void expect_known(glake_ptr base, uint64_t n_bytes)
{
	const glake_ptr within = base + 100;
	CUmemorytype type = 0;
	unsigned ordinal = 99;
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *to[] = {&type, &ordinal};
	must(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, within) == within);
	must((uint32_t)attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, within) == CU_MEMORYTYPE_DEVICE);
	must(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, within) == base);
	must(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, within) == n_bytes);
	must_ok(cuPointerGetAttributes(2, which, to, within));
	must(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
}

/* The shim's thread may be at the end of a wake still. */
static void sleep_again(void)
{
	int r;
	while ((r = glake_sleep(session, 30000, NULL)) == -EBUSY) {
		sched_yield();
	}
	must(r == 0);
}

/* PyTorch and Triton ask before they use an address. */
static void is_known(void)
{
	const struct glake_elastic_desc desc = {.size = sizeof(desc),
	                                        .n_lanes = 2,
	                                        .lane_stride = 8 << 20,
	                                        .chunk_bytes = 2 << 20,
	                                        .n_steps = 4,
	                                        .floor_steps = 1};
	struct glake_elastic *elastic;
	glake_ptr base;
	must(glake_elastic_open(session, &desc, &elastic, &base) == 0);
	for (int i = 0; i < 2; i++) {
		expect_known(base, 2 * desc.lane_stride);
		expect_known(info.base, info.mapped_bytes);
		sleep_again();
	}
	must(glake_wake(session, NULL) == 0);
	must(glake_elastic_close(elastic) == 0);
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
		{"works", works},
		{"works_once", works_once},
		{"sleeps_by_itself", sleeps_by_itself},
		{"joins", joins},
		{"ends_asleep", ends_asleep},
		{"ends_waking", ends_waking},
		{"is_known", is_known},
	};
	must(argc == 3);
	path = argv[2];
	ctx = use_device(0);
	start_memory();
	start_model();
	return run_scenario(2, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
