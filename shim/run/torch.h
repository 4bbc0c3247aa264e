/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's allocator, as the environment of a program chooses it.
 *
 * All versions of PyTorch read PYTORCH_CUDA_ALLOC_CONF. Newer ones read PYTORCH_ALLOC_CONF if that is
 * not set; an empty one is set.
 *
 * Threads: one, the values are the process's environment.
 */
#ifndef GLAKE_SHIM_RUN_TORCH_H
#define GLAKE_SHIM_RUN_TORCH_H

/*
 * Have PyTorch allocate by cudaMallocAsync(), so that every allocation comes with its stream. A
 * backend that the user has chosen stays. Says on stderr if it stays, and if another setting of the
 * user has no effect then. Returns 0 or -ENOMEM.
 */
int torch_use_async(void);

#endif
