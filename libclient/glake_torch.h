/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entry points that PyTorch's torch.cuda.memory.CUDAPluggableAllocator takes from a library: all
 * GPU memory of a program, or of a torch.cuda.MemPool, comes from glaked, in the order of its stream.
 * From Python, glake.torch.use_allocator() and glake.torch.mem_pool() set them up.
 *
 * They share one session of the process, which the first allocation makes and nothing ends. When its
 * glaked has ended, the next one serves: memory of the earlier stays until it is freed. The session
 * stitches (struct glake_connect_options). Streams are cudaStream_t, which are CUstream; devices are
 * CUDA ordinals. The device's primary context is used, and retained for ever. In a child of fork(),
 * memory of the parent is ignored, and allocations need a session of the child's own.
 *
 * Threads: any. Errors: NULL, and glake_error() has the cause.
 */
#ifndef GLAKE_TORCH_H
#define GLAKE_TORCH_H

#include <sys/types.h>

#include "glake.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * For torch.cuda.memory.change_current_allocator(): @size bytes on @device, for work on @stream. NULL
 * without an error if @size is 0. It may wait for glaked. While @stream is captured there is none:
 * nobody would say how long the graph needs it.
 *
 * PyTorch does not look at NULL, and would use it as an address. So that a program learns of the
 * failure, have it thrown: glake_torch_set_raise().
 */
GLAKE_API void *glake_torch_alloc(ssize_t size, int device, void *stream);

/*
 * For a torch.cuda.MemPool: the same, but memory is to be had during captures too. A pool keeps it for
 * its graphs, and frees it after them. PyTorch handles NULL, and nothing is thrown.
 */
GLAKE_API void *glake_torch_pool_alloc(ssize_t size, int device, void *stream);

/*
 * Give back memory of both, in the order of @stream and of the streams that
 * glake_torch_record_stream() has noted. @ptr may be NULL; @size is not looked at. While one of these
 * streams is captured, the memory stays, and a later allocation or glake_torch_empty_cache() gives it
 * back. If the driver fails, nobody knows what uses the memory, and it stays for good. Never waits for
 * a stream.
 */
GLAKE_API void glake_torch_free(void *ptr, ssize_t size, int device, void *stream);

/*
 * Work on @stream uses the memory at @ptr, which is of another stream: when it is freed, it is not used
 * again before that work is done. As torch.Tensor.record_stream(). The stream lives until then.
 */
GLAKE_API void glake_torch_record_stream(void *ptr, void *stream);

/* Give free memory of all devices back to glaked. As torch.cuda.empty_cache(). */
GLAKE_API void glake_torch_empty_cache(void);

/*
 * Give back what glaked asks for, and what streams are done with; wait for that, @timeout_ms at most, or
 * up to twice that while the connection is lost. Before the first allocation it is a pause. The
 * library starts no thread: a program has one that calls this again and again, so that it keeps nothing
 * from others while it works or sleeps.
 */
GLAKE_API void glake_torch_tend(int timeout_ms);

/*
 * The process's session, which stays the library's. NULL before the first allocation, and in a child of
 * fork() before its own first one.
 */
GLAKE_API struct glake_session *glake_torch_session(void);

/*
 * Have glake_torch_alloc() call @raise when it fails, which does not return but throws:
 * c10::detail::torchCheckFail() has this signature. NULL: it returns NULL.
 */
typedef void glake_torch_raise_fn(const char *function, const char *file, uint32_t line,
                                  const char *text);
GLAKE_API void glake_torch_set_raise(glake_torch_raise_fn *raise);

#ifdef __cplusplus
}
#endif
#endif
