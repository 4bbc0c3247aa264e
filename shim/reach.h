/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies reach the memory of all GPUs, whichever context is current and without peer access. So it is with memory that the driver
 * allocates. Memory that is mapped (glaked's) has the access that it was given, and the driver refuses the same copy with
 * CUDA_ERROR_INVALID_VALUE. Behind such a refusal memory of glaked is opened to the current context's GPU, as by
 * cuCtxEnablePeerAccess(), and the call is made again: only programs that do so pay for it, once. Sets then reach it as well, which
 * the driver refuses of its own memory too, and so could kernels, where those of a program without the shim would fault.
 *
 * Who frees memory waits for the copies of the contexts that there were at the opening. Those of a context that is made later must
 * have ended before, as CUDA demands of any memory.
 *
 * GPUs that cannot be peers are left out, and so is what a program has mapped or attached by glake.h: there the refusal stays.
 */
#ifndef GLAKE_SHIM_REACH_H
#define GLAKE_SHIM_REACH_H

#include <stdbool.h>

#include "shim/gate.h"
#include "shim/shim.h"

/*
 * Called inside the gate, behind a refusal; leaves it and enters it again. True: memory was opened, and the call is worth another
 * try: *result is CUDA_SUCCESS, or an error if *thread is NULL. False: nothing has changed.
 */
bool reach_others(struct gate_thread **thread, CUresult *result);

#endif
