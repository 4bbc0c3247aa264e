/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's books of the driver's memory, and what arrays take. */
#include <pthread.h>

#include "shim/driver_usage.h"
#include "shim/array_size.h"
#include "shim/context.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)

/* ---- a driver that has a current context, and no more ---------------------------------------- */

struct shim_real shim_real;
static _Thread_local CUcontext current = (CUcontext)0x10;
static _Thread_local CUdevice current_device;

static CUresult get_current(CUcontext *ctx_out)
{
	*ctx_out = current;
	return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device_out)
{
	*device_out = current_device;
	return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static void set_up(void)
{
	shim_real.real_cuCtxGetCurrent = get_current;
	shim_real.real_cuCtxGetDevice = get_device;
}

/* ---- the books -------------------------------------------------------------------------------- */

START_TEST(what_is_freed_is_off_the_books)
{
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000, DRIVER_USAGE_MANAGED, 5);
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x2000, DRIVER_USAGE_OTHER, 7);
	/* An array and an address of the same number are two things. */
	driver_usage_add(DRIVER_USAGE_BY_ARRAY, 0x1000, DRIVER_USAGE_ARRAYS, 11);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 5);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_OTHER), 7);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_ARRAYS), 11);
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_ARRAYS), 0);
	ck_assert_ptr_null(driver_usage_take(DRIVER_USAGE_BY_MIPMAPPED_ARRAY, 0x1000));
	ck_assert_ptr_null(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x1001));
	driver_usage_settle(NULL, true);

	/* The driver did not free it. */
	driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x1000), false);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 5);
	driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x1000), true);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 0);
	ck_assert_ptr_null(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x1000));
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_ARRAYS), 11);
}
END_TEST

START_TEST(a_number_that_comes_again_is_another_thing)
{
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000, DRIVER_USAGE_MANAGED, 5);
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000, DRIVER_USAGE_OTHER, 7);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 0);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_OTHER), 7);
	/* As soon as the driver has freed it, somebody else may get the number. */
	struct driver_usage_entry *taken = driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x1000);
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000, DRIVER_USAGE_MANAGED, 9);
	driver_usage_settle(taken, true);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 9);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_OTHER), 0);
}
END_TEST

START_TEST(a_context_takes_its_own_along)
{
	for (uint64_t i = 0; i < 1000; i++) {
		current = (CUcontext)(uintptr_t)(0x10 + i % 2);
		current_device = (CUdevice)(i % 2);
		driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000 + (i * 7919) % 1000,
		                 DRIVER_USAGE_MANAGED, 1);
		driver_usage_add(DRIVER_USAGE_BY_MIPMAPPED_ARRAY, 0x1000 + i, DRIVER_USAGE_ARRAYS,
		                 2);
	}
	driver_usage_grow(0, DRIVER_USAGE_OTHER, 3);
	uint64_t generation = context_next_generation();
	/* The handle is another context's already. */
	current = (CUcontext)0x10;
	current_device = 0;
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x9000, DRIVER_USAGE_OTHER, 4);
	driver_usage_release_ctx((CUcontext)0x10, generation);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 0);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_ARRAYS), 0);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_OTHER), 3 + 4);
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_MANAGED), 500);
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_ARRAYS), 1000);
	ck_assert_ptr_null(driver_usage_take(DRIVER_USAGE_BY_MIPMAPPED_ARRAY, 0x1000));
	driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_MIPMAPPED_ARRAY, 0x1001), true);
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_ARRAYS), 998);
	driver_usage_release_ctx((CUcontext)0x11, context_next_generation());
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_MANAGED), 0);
	ck_assert_uint_eq(driver_usage_bytes(1, DRIVER_USAGE_ARRAYS), 0);
}
END_TEST

START_TEST(what_has_no_place_is_not_counted)
{
	current = NULL;
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x1000, DRIVER_USAGE_MANAGED, 5);
	current = (CUcontext)0x10;
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x2000, DRIVER_USAGE_MANAGED, 0);
	current_device = SHIM_MAX_DEVICES;
	driver_usage_add(DRIVER_USAGE_BY_ADDRESS, 0x3000, DRIVER_USAGE_MANAGED, 5);
	driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, 0x3000), true);
	driver_usage_grow(-1, DRIVER_USAGE_OTHER, 1);
	for (CUdevice i = 0; i < SHIM_MAX_DEVICES; i++) {
		ck_assert_uint_eq(driver_usage_bytes(i, DRIVER_USAGE_MANAGED), 0);
		ck_assert_uint_eq(driver_usage_bytes(i, DRIVER_USAGE_OTHER), 0);
	}
}
END_TEST

static void *churn(void *user)
{
	uint64_t base = (uintptr_t)user;
	for (uint64_t i = 0; i < 2000; i++) {
		driver_usage_add(DRIVER_USAGE_BY_ADDRESS, base + i, DRIVER_USAGE_MANAGED, 3);
		driver_usage_add(DRIVER_USAGE_BY_ARRAY, base + i, DRIVER_USAGE_ARRAYS, 5);
		driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_ADDRESS, base + i),
		                    i % 3 > 0);
		driver_usage_settle(driver_usage_take(DRIVER_USAGE_BY_ARRAY, base + i), true);
	}
	return NULL;
}

START_TEST(threads_share_the_books)
{
	pthread_t threads[4];
	for (uintptr_t i = 0; i < 4; i++) {
		ck_assert_int_eq(
			pthread_create(&threads[i], NULL, churn, (void *)((i + 1) * 0x100000)), 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_ARRAYS), 0);
	ck_assert_uint_eq(driver_usage_bytes(0, DRIVER_USAGE_MANAGED), 4 * 667 * 3);
}
END_TEST

/* ---- arrays ----------------------------------------------------------------------------------- */

START_TEST(arrays_have_the_size_of_their_texels)
{
	static const struct {
		CUDA_ARRAY3D_DESCRIPTOR descriptor;
		unsigned n_levels;
		uint64_t n_bytes;
	} cases[] = {
		/* As an H200 was seen to take. */
		{{4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0}, 1, 256 * MIB},
		{{100, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 1, 100},
		{{100, 100, 0, CU_AD_FORMAT_HALF, 2, 0}, 1, 40000},
		{{64, 64, 64, CU_AD_FORMAT_SIGNED_INT16, 1, 0}, 1, 64 * 64 * 64 * 2},
		{{64, 64, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP}, 1, 64 * 64 * 6 * 4},
		/* Levels halve, layers do not. */
		{{8, 8, 8, CU_AD_FORMAT_FLOAT, 1, 0}, 4, 4 * (512 + 64 + 8 + 1)},
		{{8, 8, 8, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED},
	         4,
	         4 * 8 * (64 + 16 + 4 + 1)},
		{{8, 2, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, 4, 16 + 4 + 2 + 1},
		/* Blocks of 4 x 4 texels. */
		{{8, 8, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0}, 1, 4 * 8},
		{{9, 1, 0, CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 0}, 1, 3 * 16},
		{{16, 16, 0, CU_AD_FORMAT_NV12, 3, 0}, 1, 16 * 16 * 3 / 2},
		{{10, 10, 0, CU_AD_FORMAT_UNORM_INT16X4, 4, 0}, 1, 800},
		/* The program maps memory to it. */
		{{100, 100, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE}, 1, 0},
		{{100, 100, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING}, 1, 0},
		{{UINT64_MAX, UINT64_MAX, 2, CU_AD_FORMAT_FLOAT, 4, 0}, 100, UINT64_MAX},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t n_bytes = array_size(&cases[i].descriptor, cases[i].n_levels);
		ck_assert_msg(n_bytes == cases[i].n_bytes, "case %zu: %llu", i,
		              (unsigned long long)n_bytes);
	}
}
END_TEST

int main(void)
{
	set_up();
	return tests_run();
}
