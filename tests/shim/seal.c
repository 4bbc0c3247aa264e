/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has memory from the driver and seals it with the library, linked against both.
 *
 *   seal SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/glake.h"
#include "tests/shim/must.h"

#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define N_BYTES (2 * PAGE)

/* ---- help ---- */

static CUstream stream;
static CUcontext ctx;

static CUcontext start(int device)
{
	must_ok(cuInit(0));
	must_ok(cuDevicePrimaryCtxRetain(&ctx, device));
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return ctx;
}

static CUdeviceptr alloc(size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemAlloc(&ptr, n_bytes));
	return ptr;
}

/* What memory holds, here as well. */
static uint8_t bytes[N_BYTES];
static uint8_t seen[N_BYTES];

static void fill(CUdeviceptr ptr, unsigned seed)
{
	for (size_t i = 0; i < N_BYTES; i++) {
		bytes[i] = (uint8_t)(i * 31 + i / 977 + seed);
	}
	must_ok(cuMemcpyHtoD(ptr, bytes, N_BYTES));
}

static void expect(CUdeviceptr ptr, const uint8_t *want, const char *what)
{
	must_ok(cuMemcpyDtoH(seen, ptr, N_BYTES));
	size_t i = 0;
	while (i < N_BYTES && seen[i] == want[i]) {
		i++;
	}
	if (i < N_BYTES) {
		fprintf(stderr, "%s: byte 0x%zx is 0x%x, not 0x%x\n", what, i, seen[i], want[i]);
		_exit(1);
	}
}

/* A block for each page. Returns the bytes that the realm had already. */
static uint64_t seal(CUdeviceptr ptr)
{
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	const struct glake_span spans[] = {{ptr, PAGE}, {ptr + PAGE, PAGE}};
	int r = glake_seal(spans, 2, &sealed);
	if (r < 0) {
		fprintf(stderr, "glake_seal: %s\n", glake_error());
		_exit(1);
	}
	must(sealed.sealed_bytes == N_BYTES);
	return sealed.shared_bytes;
}

/* ---- scenarios ---- */

/* The library that the program is linked with is the shim's, so that it knows the shim's memory. */
static void one_library(void)
{
	Dl_info shim;
	Dl_info library;
	must(dladdr(dlsym(RTLD_DEFAULT, "glake_shim_count"), &shim));
	must(dladdr(dlsym(RTLD_DEFAULT, "glake_seal"), &library));
	must(strcmp(shim.dli_fname, library.dli_fname) == 0);
	start(0);
	CUdeviceptr one = alloc(N_BYTES);
	CUdeviceptr two = alloc(N_BYTES);
	fill(one, 1);
	fill(two, 1);
	must(seal(one) == 0);
	must(seal(two) == N_BYTES);
	expect(one, bytes, "sealed");
	expect(two, bytes, "shared");
}

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
	{"one_library", one_library},
};

int main(int argc, char **argv)
{
	must(argc == 2);
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			scenarios[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no scenario %s\n", argv[1]);
	return 1;
}
