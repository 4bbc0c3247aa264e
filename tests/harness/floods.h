/* SPDX-License-Identifier: Apache-2.0 */
/* Packets that take glaked long to decode. Each returns its size, at most GLAKE_MAX_PACKET_BYTES. Threads: one. */
#ifndef GLAKE_TESTS_HARNESS_FLOODS_H
#define GLAKE_TESTS_HARNESS_FLOODS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/glake.pb-c.h"
#include "proto/limits.h"

/* 64 KiB of rows without content: refused by its size alone, or milliseconds of decoding. */
static inline size_t pack_crowd(uint8_t *bytes)
{
	enum { N = 32000 };
	static Glake__Wire__DriverMemory row = GLAKE__WIRE__DRIVER_MEMORY__INIT;
	static Glake__Wire__DriverMemory *list[N];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__UsageReport body = GLAKE__WIRE__USAGE_REPORT__INIT;
	for (size_t i = 0; i < N; i++) {
		list[i] = &row;
	}
	body.driver = list;
	body.n_driver = N;
	request.id = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT;
	request.usage_report = &body;
	return glake__wire__request__pack(&request, bytes);
}

/* As many names as there may be, and no files: refused by an answer. */
static inline size_t pack_names(uint8_t *bytes)
{
	enum { N = GLAKE_MAX_PACKET_FDS - 1 };
	static char name[200];
	static char *list[N];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ModelOpen body = GLAKE__WIRE__MODEL_OPEN__INIT;
	memset(name, 'x', sizeof(name) - 1);
	for (size_t i = 0; i < N; i++) {
		list[i] = name;
	}
	body.files = list;
	body.n_files = N;
	request.id = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN;
	request.model_open = &body;
	return glake__wire__request__pack(&request, bytes);
}

#endif
