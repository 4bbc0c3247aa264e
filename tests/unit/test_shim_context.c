/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's view of contexts. */
#include <stdio.h>
#include <string.h>

#include "shim/context.h"
#include "tests/check_glake.h"

/* ---- a driver in whose current context one can allocate, or not ------------------------------- */

struct shim_real shim_real;
static CUresult answer;
static unsigned n_asked;
static unsigned n_freed;

static CUresult alloc(CUdeviceptr *address_out, size_t n_bytes)
{
	(void)n_bytes;
	n_asked++;
	*address_out = 0x1000;
	return answer;
}

static CUresult free_it(CUdeviceptr address)
{
	ck_assert_uint_eq(address, 0x1000);
	n_freed++;
	return CUDA_SUCCESS;
}

static CUcontext ctx_of(unsigned i)
{
	return (CUcontext)(uintptr_t)(0x100 + i * 16);
}

/* With a handle of its own. */
static CUgreenCtx handle_of(unsigned i)
{
	return (CUgreenCtx)(uintptr_t)(0x108 + i * 16);
}

static void begin(unsigned i)
{
	context_add_green(&(struct context_green){
		.handle = handle_of(i), .ctx = ctx_of(i), .primary = (CUcontext)0x10});
}

static void end(unsigned i)
{
	struct context_green green;
	ck_assert(context_end_green(handle_of(i), &green));
	ck_assert_ptr_eq(green.ctx, ctx_of(i));
	ck_assert(!context_end_green(handle_of(i), &green));
}

static void set_up(void)
{
	shim_real.real_cuMemAlloc_v2 = alloc;
	shim_real.real_cuMemFree_v2 = free_it;
	answer = CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

START_TEST(a_green_context_is_of_its_primary)
{
	begin(0);
	ck_assert_ptr_eq(context_primary(ctx_of(0)), (CUcontext)0x10);
	ck_assert_ptr_eq(context_primary(ctx_of(1)), ctx_of(1));
	end(0);
	ck_assert_ptr_eq(context_primary(ctx_of(0)), ctx_of(0));
}
END_TEST

START_TEST(one_that_has_ended_is_remembered)
{
	ck_assert(!context_has_ended(ctx_of(0)));
	begin(0);
	begin(1);
	ck_assert(!context_has_ended(ctx_of(0)));
	end(0);
	ck_assert(!context_has_ended(NULL));
	ck_assert(!context_has_ended(ctx_of(1)));
	ck_assert_uint_eq(n_asked, 0);
	ck_assert(context_has_ended(ctx_of(0)));
	ck_assert(context_has_ended(ctx_of(0)));
	/* The handle is used again. */
	begin(0);
	ck_assert(!context_has_ended(ctx_of(0)));
	ck_assert_uint_eq(n_asked, 2);
}
END_TEST

/* The other is of a kind that we are not told of. The probe that finds that out is not freed: that would wait for the GPU. */
START_TEST(another_may_have_its_handle)
{
	begin(0);
	end(0);
	answer = CUDA_ERROR_OUT_OF_MEMORY;
	ck_assert(!context_has_ended(ctx_of(0)));
	ck_assert_uint_eq(n_freed, 0);
	answer = CUDA_SUCCESS;
	ck_assert(!context_has_ended(ctx_of(0)));
	ck_assert(!context_has_ended(ctx_of(0)));
	ck_assert_uint_eq(n_freed, 0);
	ck_assert_uint_eq(n_asked, 2);
}
END_TEST

START_TEST(only_the_last_are_remembered)
{
	for (unsigned i = 0; i < 1000; i++) {
		begin(i);
		end(i);
	}
	ck_assert(context_has_ended(ctx_of(999)));
	ck_assert(context_has_ended(ctx_of(940)));
	ck_assert(!context_has_ended(ctx_of(0)));
}
END_TEST

/* ---- all of them ------------------------------------------------------------------------------ */

static int n_retained;

/* Devices 0 and 1 have a primary context. */
static CUresult primary_state(CUdevice device, unsigned *flags, int *is_active)
{
	*flags = 0;
	*is_active = device < 2;
	return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *ctx, CUdevice device)
{
	n_retained++;
	*ctx = (CUcontext)(uintptr_t)(0x10 + device);
	return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
	(void)device;
	n_retained--;
	return CUDA_SUCCESS;
}

static char seen[200];

static void see(void *user, CUcontext ctx, CUdevice device)
{
	ck_assert_ptr_eq(user, seen);
	size_t n = strlen(seen);
	snprintf(seen + n, sizeof(seen) - n, "%d:%lx ", device, (unsigned long)(uintptr_t)ctx);
}

static const char *contexts(void)
{
	seen[0] = '\0';
	ck_assert(context_each(see, seen));
	return seen;
}

/* Contexts of all devices: primary ones, those that were made, green ones. */
START_TEST(all_live_contexts_are_known)
{
	shim_real.real_cuDevicePrimaryCtxGetState = primary_state;
	shim_real.real_cuDevicePrimaryCtxRetain = retain;
	shim_real.real_cuDevicePrimaryCtxRelease_v2 = release;
	ck_assert_str_eq(contexts(), "0:10 1:11 ");
	context_created((CUcontext)0x1000, 0);
	context_created((CUcontext)0x2000, 2);
	begin(1);
	ck_assert_str_eq(contexts(), "0:10 1:11 2:2000 0:1000 0:110 ");
	end(1);
	/* The handle is another one's at once: only what came before is over. */
	uint64_t generation = context_next_generation();
	context_created((CUcontext)0x1000, 2);
	context_gone((CUcontext)0x1000, generation);
	ck_assert_str_eq(contexts(), "0:10 1:11 2:1000 2:2000 ");
	context_gone((CUcontext)0x1000, context_next_generation());
	ck_assert_str_eq(contexts(), "0:10 1:11 2:2000 ");
	ck_assert_int_eq(n_retained, 0);
}
END_TEST

int main(void)
{
	set_up();
	return tests_run();
}
