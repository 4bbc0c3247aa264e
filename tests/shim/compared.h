/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For programs of tests/shim that are compared with themselves, with the shim and without: contents
 * of memory, lines that say what they are, and what the shim counted.
 */
#ifndef GLAKE_TESTS_SHIM_COMPARED_H
#define GLAKE_TESTS_SHIM_COMPARED_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/shim/must.h"

#define MIB (1ull << 20)

static inline void print(const char *what, uint64_t value)
{
	printf("%s %016llx\n", what, (unsigned long long)value);
}

/* Different in all places. */
TEST_BYTE_LOOP static inline void write_pattern(CUdeviceptr ptr, size_t n_bytes, uint64_t seed)
{
	uint8_t *bytes = malloc(n_bytes);
	must(bytes);
	for (size_t i = 0; i < n_bytes; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		bytes[i] = (uint8_t)(seed >> 56);
	}
	must_ok(cuMemcpyHtoD(ptr, bytes, n_bytes));
	free(bytes);
}

/* FNV-1a over what is there. */
TEST_BYTE_LOOP static inline uint64_t digest(CUdeviceptr ptr, size_t n_bytes)
{
	uint64_t hash = 14695981039346656037ull;
	uint8_t *bytes = malloc(n_bytes);
	must(bytes);
	must_ok(cuMemcpyDtoH(bytes, ptr, n_bytes));
	for (size_t i = 0; i < n_bytes; i++) {
		hash = (hash ^ bytes[i]) * 1099511628211ull;
	}
	free(bytes);
	return hash;
}

/* Adds a line to the file that $SHIM_COUNTS names, if the shim is there. */
static inline void note_counts(void)
{
	const char *path = getenv("SHIM_COUNTS");
	uint64_t (*count)(const char *) = dlsym(RTLD_DEFAULT, "glake_shim_count");
	FILE *file = path && count ? fopen(path, "ae") : NULL;
	if (file) {
		fprintf(file,
		        "{\"owned\": %llu, \"passed\": %llu, \"refused\": %llu, \"connects\": "
		        "%llu}\n",
		        (unsigned long long)count("owned"), (unsigned long long)count("passed"),
		        (unsigned long long)count("refused"),
		        (unsigned long long)count("connects"));
		fclose(file);
	}
}

#endif
