/* SPDX-License-Identifier: Apache-2.0 */
/* nvJitLink: two parts of a program are linked when it runs, and the result is loaded and started. */
#include <nvJitLink.h>
#include <string.h>

#include "tests/shim/toolkit.h"

#define N (1u << 20)

static const char scale[] = ".version 7.8\n.target sm_75\n.address_size 64\n"
			    ".visible .func (.param .b32 out) scale(.param .b32 in)\n{\n"
			    "	.reg .f32 %f<3>;\n	ld.param.f32 %f1, [in];\n"
			    "	fma.rn.f32 %f2, %f1, 0f40490FDB, 0f3F800000;\n"
			    "	st.param.f32 [out], %f2;\n	ret;\n}\n";
static const char kernel[] =
	".version 7.8\n.target sm_75\n.address_size 64\n"
	".extern .func (.param .b32 out) scale(.param .b32 in);\n"
	".visible .entry every(.param .u64 data)\n{\n"
	"	.reg .b32 %r<6>;\n	.reg .b64 %d<4>;\n	.reg .f32 %f<3>;\n"
	"	ld.param.u64 %d1, [data];\n	cvta.to.global.u64 %d2, %d1;\n"
	"	mov.u32 %r1, %ctaid.x;\n	mov.u32 %r2, %ntid.x;\n	mov.u32 %r3, %tid.x;\n"
	"	mad.lo.s32 %r4, %r1, %r2, %r3;\n	mul.wide.s32 %d3, %r4, 4;\n"
	"	add.s64 %d2, %d2, %d3;\n	ld.global.f32 %f1, [%d2];\n"
	"	{\n	.param .b32 a;\n	.param .b32 b;\n	st.param.f32 [a], %f1;\n"
	"	call (b), scale, (a);\n	ld.param.f32 %f2, [b];\n	}\n"
	"	st.global.f32 [%d2], %f2;\n	ret;\n}\n";

static void *link_parts(void)
{
	char architecture[32];
	const char *options[] = {architecture};
	struct cudaDeviceProp properties;
	nvJitLinkHandle linker;
	size_t n_bytes;
	must_do(cudaGetDeviceProperties(&properties, 0));
	snprintf(architecture, sizeof(architecture), "-arch=sm_%d%d", properties.major,
	         properties.minor);
	must_do(nvJitLinkCreate(&linker, 1, options));
	must_do(nvJitLinkAddData(linker, NVJITLINK_INPUT_PTX, scale, sizeof(scale), "scale"));
	must_do(nvJitLinkAddData(linker, NVJITLINK_INPUT_PTX, kernel, sizeof(kernel), "kernel"));
	must_do(nvJitLinkComplete(linker));
	must_do(nvJitLinkGetLinkedCubinSize(linker, &n_bytes));
	void *cubin = malloc(n_bytes);
	must(cubin);
	must_do(nvJitLinkGetLinkedCubin(linker, cubin));
	must_do(nvJitLinkDestroy(&linker));
	return cubin;
}

int main(void)
{
	CUmodule module;
	CUfunction function;
	float *list = numbers(N, 9);
	void *data = device_copy(list, sizeof(*list) * N);
	void *params[] = {&data};
	void *cubin = link_parts();
	must_ok(cuModuleLoadData(&module, cubin));
	must_ok(cuModuleGetFunction(&function, module, "every"));
	must_ok(cuLaunchKernel(function, N / 256, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
	print_device("scaled", data, sizeof(*list) * N);
	must_ok(cuModuleUnload(module));
	free(cubin);
	free(list);
	note_counts();
	return 0;
}
