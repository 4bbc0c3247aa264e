/* SPDX-License-Identifier: Apache-2.0 */
/* Which launches the shim notes, with a driver that knows some functions. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/eyes.h"
#include "shim/gates.h"
#include "shim/kernels.h"
#include "shim/shim.h"
#include "tests/check_glake.h"
#include "tests/unit/fake_window.h"

#define PRIVATE (BASE + 9 * PAGE)
#define MAX_PARAMS 8
#define N_FUNCTIONS 200u

/* ---- a driver --------------------------------------------------------------------------------- */

struct function {
	char name[16];
	bool is_kernel; /* a handle of a library */
	unsigned n;
	size_t offsets[MAX_PARAMS];
	size_t sizes[MAX_PARAMS];
};

static struct function functions[N_FUNCTIONS];
static atomic_uint n_asked;

static CUresult name_of(const char **name, const void *handle, bool is_kernel)
{
	const struct function *function = handle;
	n_asked++;
	if (function->is_kernel != is_kernel) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*name = function->name;
	return CUDA_SUCCESS;
}

static CUresult info_of(const void *handle, size_t i, size_t *offset, size_t *size, bool is_kernel)
{
	const struct function *function = handle;
	if (function->is_kernel != is_kernel) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (i >= function->n) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*offset = function->offsets[i];
	*size = function->sizes[i];
	return CUDA_SUCCESS;
}

static CUresult func_name(const char **name, CUfunction function)
{
	return name_of(name, function, false);
}

static CUresult kernel_name(const char **name, CUkernel kernel)
{
	return name_of(name, kernel, true);
}

static CUresult func_info(CUfunction function, size_t i, size_t *offset, size_t *size)
{
	return info_of(function, i, offset, size, false);
}

static CUresult kernel_info(CUkernel kernel, size_t i, size_t *offset, size_t *size)
{
	return info_of(kernel, i, offset, size, true);
}

static void begin(void)
{
	make_window();
	glake__sealed.n_sealings = 1;
	glake__sealed.base = glake__pages.base;
	glake__sealed.n_bytes = glake__pages.n_bytes;
	shim_real.real_cuFuncGetName = func_name;
	shim_real.real_cuKernelGetName = kernel_name;
	shim_real.real_cuFuncGetParamInfo = func_info;
	shim_real.real_cuKernelGetParamInfo = kernel_info;
	for (unsigned i = 0; i < N_FUNCTIONS; i++) {
		functions[i] = (struct function){.n = 1, .offsets = {0}, .sizes = {8}};
		snprintf(functions[i].name, sizeof(functions[i].name), "f%u", i);
	}
}

BEGIN_EACH(begin)

/* ---- launches --------------------------------------------------------------------------------- */

static CUfunction handle(unsigned i)
{
	return (CUfunction)&functions[i];
}

static void launch(unsigned i, uint64_t word)
{
	void *params[] = {&word};
	eyes_look(handle(i), params, NULL);
}

/* Names of the suspects, with a space behind each. Static. */
static const char *suspects(void)
{
	static char names[256];
	struct glake__suspect list[GLAKE_MAX_SUSPECTS];
	size_t n = eyes_suspects(list, GLAKE_MAX_SUSPECTS);
	names[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		strcat(names, list[i].kernel);
		strcat(names, " ");
	}
	return names;
}

START_TEST(a_kernel_is_noted_when_it_meets_sealed_memory)
{
	launch(0, PRIVATE);
	launch(0, 0);
	launch(0, UINT64_MAX);
	ck_assert_str_eq(suspects(), "");
	launch(0, SEALED + 8);
	struct glake__suspect one;
	ck_assert_uint_eq(eyes_suspects(&one, 1), 1);
	ck_assert_str_eq(one.kernel, "f0");
	ck_assert_uint_eq(one.ptr, SEALED + 8);
	launch(1, SEALED);
	/* Not the first time any more. */
	launch(0, SEALED + 16);
	ck_assert_str_eq(suspects(), "f1 f0 ");
	ck_assert_uint_eq(n_asked, 2);
	/* Something is sealed: all are new to it. */
	glake__sealed.n_sealings++;
	launch(0, SEALED + 16);
	ck_assert_str_eq(suspects(), "f0 f1 f0 ");
}
END_TEST

START_TEST(the_latest_are_the_most_suspect)
{
	for (unsigned i = 0; i < N_FUNCTIONS; i++) {
		launch(i, SEALED);
	}
	for (unsigned i = 0; i < N_FUNCTIONS - 1; i++) {
		launch(i, SEALED);
	}
	ck_assert_str_eq(suspects(), "f199 f198 f197 f196 f195 f194 f193 f192 ");
}
END_TEST

START_TEST(memory_that_is_private_again_accuses_nobody)
{
	launch(0, SEALED);
	fake_entries[(SEALED - BASE) / PAGE] = glake__page_entry(GLAKE__PAGE_CHUNK, NULL);
	ck_assert_str_eq(suspects(), "");
}
END_TEST

/* Pointers lie at multiples of 8 of the kernel's own layout. */
START_TEST(words_of_all_parameters_are_looked_at)
{
	struct {
		uint32_t n;
		uint32_t words[5];
		char rest[28];
	} given;
	functions[0] = (struct function){
		.name = "f0",
		.n = 4,
		.offsets = {0, 4, 24, 56},
		.sizes = {4, 20, 32, 8},
	};
	const uint64_t sealed = SEALED;
	const uint64_t nothing = 0;
	char inner[33];
	/* The second one has words at 4 and 12 of itself, the third at 0 to 24; their copies lie anywhere. */
	for (unsigned word = 0; word < 7; word++) {
		memset(&given, 0, sizeof(given));
		memset(inner, 0, sizeof(inner));
		if (word < 2) {
			memcpy((char *)given.words + 4 + 8 * word, &sealed, 8);
		} else if (word < 6) {
			memcpy(inner + 1 + 8 * (word - 2), &sealed, 8);
		}
		void *params[] = {&given.n, given.words, inner + 1,
		                  (void *)(word == 6 ? &sealed : &nothing)};
		glake__sealed.n_sealings++;
		launch(1, SEALED);
		eyes_look(handle(0), params, NULL);
		struct glake__suspect last;
		ck_assert_uint_eq(eyes_suspects(&last, 1), 1);
		ck_assert_msg(strcmp(last.kernel, "f0") == 0, "word %u", word);
	}
	/* Between words: two numbers that look like an address. */
	memset(&given, 0, sizeof(given));
	memset(inner, 0, sizeof(inner));
	memcpy(given.words, &sealed, 8);
	memcpy(inner + 1 + 4, &sealed, 8);
	void *params[] = {&given.n, given.words, inner + 1, (void *)&nothing};
	glake__sealed.n_sealings++;
	launch(1, SEALED);
	eyes_look(handle(0), params, NULL);
	struct glake__suspect last;
	ck_assert_uint_eq(eyes_suspects(&last, 1), 1);
	ck_assert_str_eq(last.kernel, "f1");
}
END_TEST

START_TEST(packed_parameters_are_looked_at)
{
	functions[0] = (struct function){.name = "f0", .n = 2, .offsets = {0, 8}, .sizes = {4, 8}};
	struct {
		uint32_t n;
		uint64_t ptr;
		uint64_t beyond;
	} packed = {.ptr = PRIVATE, .beyond = SEALED};
	size_t n_bytes = sizeof(packed);
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &n_bytes, CU_LAUNCH_PARAM_BUFFER_POINTER,
	                 &packed, CU_LAUNCH_PARAM_END};
	eyes_look(handle(0), NULL, extra);
	ck_assert_str_eq(suspects(), "");
	packed.ptr = SEALED;
	n_bytes = 8;
	eyes_look(handle(0), NULL, extra);
	ck_assert_str_eq(suspects(), "");
	n_bytes = sizeof(packed);
	eyes_look(handle(0), NULL, extra);
	ck_assert_str_eq(suspects(), "f0 ");
	/* Launches that the driver refuses do no harm. */
	void *nothing[] = {CU_LAUNCH_PARAM_END};
	void *null[] = {NULL};
	eyes_look(handle(0), NULL, nothing);
	eyes_look(handle(0), NULL, NULL);
	eyes_look(handle(1), null, NULL);
	eyes_look(NULL, null, NULL);
}
END_TEST

/* A handle of code that was unloaded is another function's: its parameters are read, and no more. */
START_TEST(handles_may_be_others_after_unloading)
{
	long page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(memory, MAP_FAILED);
	ck_assert_int_eq(mprotect(memory + page, (size_t)page, PROT_NONE), 0);
	functions[0].sizes[0] = 4096;
	uint64_t large[512] = {SEALED};
	void *params[] = {large};
	eyes_look(handle(0), params, NULL);
	ck_assert_str_eq(suspects(), "f0 ");
	kernels_hide_code();
	functions[0] = (struct function){.name = "other", .n = 1, .sizes = {8}};
	void *small[] = {memory + page - 8};
	memcpy(small[0], &(uint64_t){SEALED}, 8);
	eyes_look(handle(0), small, NULL);
	ck_assert_str_eq(suspects(), "f0 ");
	kernels_show_code(true);
	eyes_look(handle(0), small, NULL);
	ck_assert_str_eq(suspects(), "other f0 ");
	/* The same function is not new because something else was unloaded. */
	kernels_hide_code();
	kernels_hide_code();
	kernels_show_code(true);
	kernels_show_code(true);
	launch(1, SEALED);
	eyes_look(handle(0), small, NULL);
	ck_assert_str_eq(suspects(), "f1 other f0 ");
	/* Nothing is asked again if nothing was unloaded. */
	unsigned n = n_asked;
	kernels_hide_code();
	kernels_show_code(false);
	eyes_look(handle(0), small, NULL);
	ck_assert_uint_eq(n_asked, n);
	munmap(memory, 2 * (size_t)page);
}
END_TEST

static CUresult unload_result;
static unsigned n_asked_meanwhile;

/* While code may be going, no function is looked at. */
static CUresult unload(CUmodule module)
{
	static unsigned n_calls;
	const unsigned n = n_asked;
	launch(++n_calls, SEALED);
	n_asked_meanwhile = n_asked - n;
	return unload_result;
}

START_TEST(calls_that_unload_code_say_so)
{
	size_t i = 0;
	while (strcmp(gated_calls[i].symbol, "cuModuleUnload") != 0) {
		i++;
	}
	*gated_calls[i].real = (void *)unload;
	CUresult (*body)(CUmodule module) = gated_calls[i].body;
	launch(0, SEALED);
	for (int fails = 0; fails < 2; fails++) {
		unload_result = fails ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
		launch(0, SEALED);
		ck_assert_int_eq(body(NULL), unload_result);
		ck_assert_uint_eq(n_asked_meanwhile, 0);
		unsigned n = n_asked;
		launch(0, SEALED);
		ck_assert_int_eq(n_asked == n, fails);
	}
}
END_TEST

START_TEST(kernels_of_libraries_are_launched_as_functions)
{
	functions[0].is_kernel = true;
	launch(0, SEALED);
	ck_assert_str_eq(suspects(), "f0 ");
	/* A driver that knows neither. */
	shim_real.real_cuKernelGetName = NULL;
	functions[1].is_kernel = true;
	launch(1, SEALED);
	ck_assert_str_eq(suspects(), "f0 ");
}
END_TEST

START_TEST(a_graph_is_one_suspect)
{
	uint64_t seen[2] = {0, 0};
	launch(0, SEALED);
	eyes_look_at_graph(&seen[0]);
	launch(1, SEALED);
	eyes_look_at_graph(&seen[0]);
	ck_assert_str_eq(suspects(), "f1 a CUDA graph f0 ");
	eyes_look_at_graph(&seen[1]);
	struct glake__suspect one;
	ck_assert_uint_eq(eyes_suspects(&one, 1), 1);
	ck_assert_str_eq(one.kernel, "a CUDA graph");
	ck_assert_uint_eq(one.ptr, 0);
	ck_assert_uint_eq(one.range, 0);
}
END_TEST

START_TEST(an_older_driver_tells_nothing)
{
	shim_real.real_cuFuncGetParamInfo = NULL;
	launch(0, SEALED);
	ck_assert(!eyes_can_see());
	ck_assert_str_eq(suspects(), "");
}
END_TEST

#define N_THREADS 4
#define N_LAUNCHES 20000u

static void *launch_many(void *user)
{
	unsigned state = (unsigned)(uintptr_t)user;
	for (unsigned i = 0; i < N_LAUNCHES; i++) {
		launch((unsigned)rand_r(&state) % N_FUNCTIONS, i % 3 ? SEALED : PRIVATE);
		if (i % 64 == 0) {
			kernels_hide_code();
			kernels_show_code(true);
			glake__sealed.n_sealings++;
			struct glake__suspect list[GLAKE_MAX_SUSPECTS];
			eyes_suspects(list, GLAKE_MAX_SUSPECTS);
		}
	}
	return NULL;
}

START_TEST(many_threads_launch_at_once)
{
	pthread_t threads[N_THREADS];
	for (uintptr_t i = 0; i < N_THREADS; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, launch_many, (void *)i), 0);
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	launch(7, PRIVATE);
	glake__sealed.n_sealings++;
	launch(7, SEALED);
	struct glake__suspect one;
	ck_assert_uint_eq(eyes_suspects(&one, 1), 1);
	ck_assert_str_eq(one.kernel, "f7");
}
END_TEST
