/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels for the simulated driver and for a real one:
 *
 *   spin(flag, done)        until the word at flag is not 0; then the word at done is 1
 *   hold(flag, begun)       the word at begun is 1; then until the word at flag is not 0
 *   last(ns)                for so long
 *   add(ptr, n_words, by)   to each word, by loading and storing it
 *
 * Owner: the test that includes it. Threads: spin_load() once, then any.
 */
#ifndef GLAKE_TESTS_SPIN_H
#define GLAKE_TESTS_SPIN_H

#include <cuda.h>
#include <string.h>

#include "tests/cudasim/kernel_image.h"

struct spin_params {
	uint64_t flag;
	uint64_t done;
};

struct hold_params {
	uint64_t flag;
	uint64_t begun;
};

struct add_params {
	uint64_t ptr;
	uint64_t n_words;
	uint32_t by;
};

static inline void spin_run(const struct cudasim_run *run, const void *user)
{
	const struct spin_params *params = user;
	const uint32_t one = 1;
	uint32_t now = 0;
	const struct timespec pause = {.tv_nsec = 50000};
	while (run->load(run, params->flag, &now, sizeof(now)) && now == 0) {
		nanosleep(&pause, NULL);
	}
	run->store(run, params->done, &one, sizeof(one));
}

static inline void hold_run(const struct cudasim_run *run, const void *user)
{
	const struct hold_params *params = user;
	const uint32_t one = 1;
	const struct spin_params spin = {params->flag, params->begun};
	run->store(run, params->begun, &one, sizeof(one));
	spin_run(run, &spin);
}

static inline void last_run(const struct cudasim_run *run, const void *user)
{
	const uint64_t *ns = user;
	const struct timespec pause = {(time_t)(*ns / 1000000000), (long)(*ns % 1000000000)};
	(void)run;
	nanosleep(&pause, NULL);
}

static inline void add_run(const struct cudasim_run *run, const void *user)
{
	const struct add_params *params = user;
	uint32_t words[1024];
	for (uint64_t at = 0; at < params->n_words;) {
		uint64_t n = params->n_words - at < 1024 ? params->n_words - at : 1024;
		if (!run->load(run, params->ptr + 4 * at, words, 4 * n)) {
			return;
		}
		for (uint64_t i = 0; i < n; i++) {
			words[i] += params->by;
		}
		if (!run->store(run, params->ptr + 4 * at, words, 4 * n)) {
			return;
		}
		at += n;
	}
}

static const struct cudasim_kernel spin_kernels[] = {
	{"spin", spin_run, 2, {8, 8}},
	{"add", add_run, 3, {8, 8, 4}},
	{"hold", hold_run, 2, {8, 8}},
	{"last", last_run, 1, {8}},
};

static const struct cudasim_image spin_image = {
	.magic = CUDASIM_IMAGE_MAGIC,
	.n_kernels = sizeof(spin_kernels) / sizeof(spin_kernels[0]),
	.kernels = spin_kernels,
};

static const char spin_ptx[] =
	".version 7.0\n"
	".target sm_75\n"
	".address_size 64\n"
	".visible .entry spin(.param .u64 flag, .param .u64 done)\n"
	"{\n"
	"	.reg .pred go;\n"
	"	.reg .b32 now;\n"
	"	.reg .b64 f, d;\n"
	"	ld.param.u64 f, [flag];\n"
	"	ld.param.u64 d, [done];\n"
	"again:\n"
	"	ld.relaxed.sys.u32 now, [f];\n"
	"	setp.eq.u32 go, now, 0;\n"
	"	@go bra again;\n"
	"	st.relaxed.sys.u32 [d], 1;\n"
	"	ret;\n"
	"}\n"
	".visible .entry hold(.param .u64 flag, .param .u64 begun)\n"
	"{\n"
	"	.reg .pred go;\n"
	"	.reg .b32 now;\n"
	"	.reg .b64 f, b;\n"
	"	ld.param.u64 f, [flag];\n"
	"	ld.param.u64 b, [begun];\n"
	"	st.relaxed.sys.u32 [b], 1;\n"
	"again:\n"
	"	ld.relaxed.sys.u32 now, [f];\n"
	"	setp.eq.u32 go, now, 0;\n"
	"	@go bra again;\n"
	"	ret;\n"
	"}\n"
	".visible .entry last(.param .u64 ns)\n"
	"{\n"
	"	.reg .pred go;\n"
	"	.reg .b64 n, begin, now;\n"
	"	ld.param.u64 n, [ns];\n"
	"	mov.u64 begin, %globaltimer;\n"
	"again:\n"
	"	mov.u64 now, %globaltimer;\n"
	"	sub.u64 now, now, begin;\n"
	"	setp.lt.u64 go, now, n;\n"
	"	@go bra again;\n"
	"	ret;\n"
	"}\n"
	".visible .entry add(.param .u64 ptr, .param .u64 n_words, .param .u32 by)\n"
	"{\n"
	"	.reg .pred over;\n"
	"	.reg .b32 word, more, t, s;\n"
	"	.reg .b64 base, at, i, n, step;\n"
	"	ld.param.u64 base, [ptr];\n"
	"	ld.param.u64 n, [n_words];\n"
	"	ld.param.u32 more, [by];\n"
	"	mov.u32 t, %tid.x;\n"
	"	mov.u32 s, %ntid.x;\n"
	"	cvt.u64.u32 i, t;\n"
	"	cvt.u64.u32 step, s;\n"
	"next:\n"
	"	setp.ge.u64 over, i, n;\n"
	"	@over bra end;\n"
	"	shl.b64 at, i, 2;\n"
	"	add.u64 at, at, base;\n"
	"	ld.u32 word, [at];\n"
	"	add.u32 word, word, more;\n"
	"	st.u32 [at], word;\n"
	"	add.u64 i, i, step;\n"
	"	bra next;\n"
	"end:\n"
	"	ret;\n"
	"}\n";

/* Returns the image for cuModuleLoadData() of device 0's driver, which is initialised. */
static inline const void *spin_image_of(__typeof__(cuDeviceGetName) *get_name)
{
	char name[64] = "";
	get_name(name, sizeof(name), 0);
	return strcmp(name, "CUDASIM") == 0 ? (const void *)&spin_image : (const void *)spin_ptx;
}

#endif
