/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of memory that is stitched have in common: a session that stitches, streams, and bytes.
 *
 * Owner: the test that includes it, which calls stitching_begin() once. Threads: any, behind that.
 */
#ifndef GLAKE_TESTS_STITCHING_H
#define GLAKE_TESTS_STITCHING_H

#include <stdlib.h>

#include "libclient/link/session.h"
#include "libclient/heap/heap.h"
#include "libclient/stitch/pool.h"
#include "libclient/space/range.h"
#include "tests/harness/world.h"

static struct glake_session *session;
static CUcontext context;

static inline void must(CUresult result)
{
	ck_assert_int_eq(result, CUDA_SUCCESS);
}

static inline struct glake_session *connect_stitching(void)
{
	setenv("GLAKE_ALLOC", "stitch", 1);
	struct glake_session *made = world_connect();
	unsetenv("GLAKE_ALLOC");
	return made;
}

/* In a world: this process has a context, and `session`. */
static inline void stitching_begin(void)
{
	world_open_driver();
	must(drv.cuDevicePrimaryCtxRetain(&context, 0));
	must(drv.cuCtxSetCurrent(context));
	session = connect_stitching();
}

static inline CUstream stream_new(void)
{
	CUstream stream;
	must(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static inline void synchronize(CUstream stream)
{
	must(drv.cuStreamSynchronize(stream));
}

/* An event on @stream, of what is there by now. */
static inline CUevent record(CUstream stream)
{
	CUevent event;
	must(drv.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	must(drv.cuEventRecord(event, stream));
	return event;
}

static inline glake_ptr alloc_on(CUstream stream, uint64_t n_bytes)
{
	glake_ptr ptr = 0;
	assert_ok(glake_alloc_async(session, stream, n_bytes, 0, &ptr));
	return ptr;
}

static inline void free_on(CUstream stream, glake_ptr ptr)
{
	assert_ok(glake_free_async(session, stream, ptr, 0));
}

static inline void queue_write(CUstream stream, glake_ptr ptr, uint64_t n_bytes,
                               unsigned char value)
{
	must(drv.cuMemsetD8Async(ptr, value, n_bytes, stream));
}

static inline struct glake__pool *the_pool(void)
{
	return session->heaps[0].stitching;
}

static inline struct glake_pool_stats stats(void)
{
	struct glake_pool_stats now = {.size = sizeof(now)};
	assert_ok(glake_pool_stats(session, 0, &now));
	ck_assert(glake__pool_is_valid(the_pool()));
	ck_assert(glake__space_is_valid());
	return now;
}

/* How many of the bytes are not @value. Some at a time: what has to be mapped first takes longer than to compare it. */
TEST_BYTE_LOOP static inline uint64_t n_wrong(glake_ptr ptr, uint64_t n_bytes, unsigned char value)
{
	static _Thread_local unsigned char bytes[256 << 10];
	uint64_t n = 0;
	for (uint64_t at = 0; at < n_bytes; at += sizeof(bytes)) {
		size_t n_some = n_bytes - at < sizeof(bytes) ? n_bytes - at : sizeof(bytes);
		must(drv.cuMemcpyDtoH(bytes, ptr + at, n_some));
		for (size_t i = 0; i < n_some; i++) {
			n += bytes[i] != value;
		}
	}
	return n;
}

#endif
