/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of graphics.txt that wake a process, for gates.awk. Their own headers need those of OpenGL and VDPAU. */
#include <cuda.h>
#include <stdint.h>

CUresult cuGLCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device);
CUresult cuGLCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);
CUresult cuVDPAUCtxCreate(CUcontext *ctx, unsigned flags, CUdevice device, uint32_t vdp_device,
                          void *vdp_get_proc);
CUresult cuVDPAUCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device, uint32_t vdp_device,
                             void *vdp_get_proc);
