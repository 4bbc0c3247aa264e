/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine does with an elastic range, without the engine: a KV cache of 4 layers that takes what it needs, and lends what
 * it does not.
 *
 *   cache NAME
 *
 * It says "ready ..." and takes commands: "fill" (have all of it, and write to it), "lend" (none of it is needed now), "take"
 * (what of it is there still? It has to be as it was), "quit". Each is answered by one line that starts with the command's name.
 * It ends with its parent.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "glake_elastic.h"
#include "proto/cudrv.h"
#include "tests/demo/fail.h"

#define CHUNK_BYTES (8u << 20)
#define N_LANES 4u
#define N_STEPS 4u

static struct cudrv drv;
static struct glake_session *session;
static struct glake_elastic *elastic;
static glake_ptr base;
static uint8_t content[CHUNK_BYTES];

static void check(int err, const char *what)
{
	if (err < 0) {
		fail("%s: %s: %s", what, glake_strerror(err), glake_error());
	}
}

static glake_ptr place(uint32_t step, uint32_t lane)
{
	return base + (glake_ptr)lane * N_STEPS * CHUNK_BYTES + (glake_ptr)step * CHUNK_BYTES;
}

static uint8_t mark(uint32_t step, uint32_t lane)
{
	return (uint8_t)(1 + step * N_LANES + lane);
}

static void expect(uint32_t step, uint32_t lane, uint8_t byte)
{
	check(glake_read(session, 0, content, place(step, lane), CHUNK_BYTES), "glake_read");
	if (content[0] != byte || memcmp(content, content + 1, CHUNK_BYTES - 1) != 0) {
		fail("step %u of layer %u is not as it was", step, lane);
	}
}

static void fill(void)
{
	struct timespec from;
	struct timespec to;
	uint32_t n_there = glake_elastic_take(elastic, 0, N_STEPS);
	clock_gettime(CLOCK_MONOTONIC, &from);
	check(glake_elastic_commit(elastic, 0, N_STEPS, NULL), "glake_elastic_commit");
	clock_gettime(CLOCK_MONOTONIC, &to);
	for (uint32_t i = 0; i < N_STEPS * N_LANES; i++) {
		uint32_t step = i / N_LANES;
		uint32_t lane = i % N_LANES;
		/* Another process's bytes are nowhere. */
		expect(step, lane, step < n_there ? mark(step, lane) : 0);
		CUresult result = drv.cuMemsetD8(place(step, lane), mark(step, lane), CHUNK_BYTES);
		if (result != CUDA_SUCCESS) {
			fail("step %u cannot be written: %s", step, cudrv_error(&drv, result));
		}
	}
	drv.cuCtxSynchronize();
	printf("fill ok steps=%u came=%u commit_ms=%.1f\n", N_STEPS, N_STEPS - n_there,
	       (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6);
}

static void take(void)
{
	uint32_t n = glake_elastic_take(elastic, 0, N_STEPS);
	for (uint32_t i = 0; i < n * N_LANES; i++) {
		expect(i / N_LANES, i % N_LANES, mark(i / N_LANES, i % N_LANES));
	}
	check(n > 0 ? glake_elastic_lend(elastic, 0, n) : 0, "glake_elastic_lend");
	printf("take ok steps=%u there=%u\n", N_STEPS, n);
}

static void serve(void)
{
	char line[64];
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (strcmp(line, "fill") == 0) {
			fill();
		} else if (strcmp(line, "lend") == 0) {
			check(glake_elastic_lend(elastic, 0, N_STEPS), "glake_elastic_lend");
			puts("lend ok");
		} else if (strcmp(line, "take") == 0) {
			take();
		} else if (strcmp(line, "quit") == 0) {
			return;
		}
	}
}

static void make_context(void)
{
	char error[256] = "";
	struct glake_device device;
	CUcontext context;
	if (cudrv_open(&drv, NULL, error, sizeof(error)) < 0) {
		fail("%s", error);
	}
	check(glake_device_at(session, 0, &device), "glake_device_at");
	if (drv.cuInit(0) != CUDA_SUCCESS ||
	    drv.cuDevicePrimaryCtxRetain(&context, device.ordinal) != CUDA_SUCCESS ||
	    drv.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
		fail("no CUDA context");
	}
}

int main(int argc, char **argv)
{
	struct glake_connect_options options = {.size = sizeof(options)};
	const struct glake_elastic_desc desc = {
		.size = sizeof(desc),
		.n_lanes = N_LANES,
		.lane_stride = (uint64_t)N_STEPS * CHUNK_BYTES,
		.chunk_bytes = CHUNK_BYTES,
		.n_steps = N_STEPS,
		.flags = GLAKE_ELASTIC_SERVE,
	};
	if (argc != 2) {
		fprintf(stderr, "usage: cache NAME\n");
		return 2;
	}
	options.program = argv[1];
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	setvbuf(stdout, NULL, _IOLBF, 0);
	check(glake_connect(&options, &session), "glake_connect");
	make_context();
	check(glake_elastic_open(session, &desc, &elastic, &base), "glake_elastic_open");
	printf("ready steps=%u step_bytes=%u\n", N_STEPS, N_LANES * CHUNK_BYTES);
	serve();
	check(glake_elastic_close(elastic), "glake_elastic_close");
	glake_disconnect(session);
	puts("quit ok");
	return 0;
}
