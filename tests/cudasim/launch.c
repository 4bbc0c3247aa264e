/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: their parameters are read when they are submitted. */
#include "kernel_image.h"
#include "work.h"

#include <string.h>

#define MAX_THREADS 1024U
#define MAX_GRID_YZ 65535U

/* Read parameters from CU_LAUNCH_PARAM_BUFFER_POINTER, as they lie there. */
static bool read_packed(uint8_t *packed, size_t bytes, void **extra)
{
	const uint8_t *buffer = NULL;
	size_t n_bytes = 0;

	for (; extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
			buffer = extra[1];
		} else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
			n_bytes = *(size_t *)extra[1];
		} else {
			return false;
		}
	}
	if (bytes > 0 && (!buffer || n_bytes < bytes)) {
		return false;
	}
	if (bytes > 0) {
		memcpy(packed, buffer, bytes);
	}
	return true;
}

static bool read_params(const struct kernel *kernel, uint8_t *packed, void *const *params,
                        void **extra)
{
	if (params && extra) {
		return false;
	}
	if (extra) {
		return read_packed(packed, kernel_params_bytes(kernel), extra);
	}
	for (unsigned i = 0; i < kernel->n_params; i++) {
		if (!params || !params[i]) {
			return false;
		}
		memcpy(packed + kernel_param_offset(kernel, i), params[i], kernel->param_bytes[i]);
	}
	return true;
}

static bool is_good_shape(const unsigned grid[3], const unsigned block[3])
{
	for (unsigned i = 0; i < 3; i++) {
		if (grid[i] == 0 || block[i] == 0 || grid[i] > (i ? MAX_GRID_YZ : INT32_MAX) ||
		    block[i] > (i == 2 ? 64 : MAX_THREADS)) {
			return false;
		}
	}
	return block[0] * block[1] * block[2] <= MAX_THREADS;
}

/* The offset of the pointers to the parameters, which lie behind them; a node's parameters are made of these. */
static size_t pointers_at(const struct kernel *kernel)
{
	return (kernel_params_bytes(kernel) + sizeof(void *) - 1) & ~(sizeof(void *) - 1);
}

static struct blob *new_params(const struct kernel *kernel)
{
	size_t at = pointers_at(kernel);
	struct blob *blob = blob_new(NULL, at + kernel->n_params * sizeof(void *));

	for (unsigned i = 0; blob && i < kernel->n_params; i++) {
		((void **)(blob->data + at))[i] = blob->data + kernel_param_offset(kernel, i);
	}
	return blob;
}

void **launch_pointers(const struct launch *launch)
{
	return (void **)(launch->params->data + pointers_at(launch->kernel));
}

CUresult launch_fill(struct launch *launch, CUfunction function, void *const *params, void **extra)
{
	launch->kernel = kernel_from_handle(function);
	if (!launch->kernel) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (!is_good_shape(launch->grid, launch->block)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	launch->params = new_params(launch->kernel);
	if (!launch->params) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!read_params(launch->kernel, launch->params->data, params, extra)) {
		blob_unref(launch->params);
		launch->params = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* ---- running ---- */

struct run {
	struct cudasim_run given; /* must be first */
	struct ctx *ctx;
};

static bool touch(const struct cudasim_run *given, uint64_t addr, void *value, size_t bytes,
                  bool is_store)
{
	struct ctx *ctx = ((const struct run *)given)->ctx;

	if (atomic_load(&ctx->poison) != CUDA_SUCCESS) {
		return false;
	}
	if (is_store ? kernel_store(ctx, addr, value, bytes)
	             : kernel_load(ctx, addr, value, bytes)) {
		return true;
	}
	ctx_poison(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
	return false;
}

static bool run_load(const struct cudasim_run *run, uint64_t addr, void *value_out, size_t bytes)
{
	return touch(run, addr, value_out, bytes, false);
}

static bool run_store(const struct cudasim_run *run, uint64_t addr, const void *value, size_t bytes)
{
	return touch(run, addr, (void *)value, bytes, true);
}

CUresult launch_run(struct ctx *ctx, const struct launch *launch)
{
	const struct kernel *kernel = launch->kernel;
	uint64_t words[CUDASIM_MAX_PARAMS] = {0};

	if (kernel->given) {
		struct run run = {
			.given = {.load = run_load, .store = run_store},
			.ctx = ctx,
		};
		memcpy(run.given.grid, launch->grid, sizeof(launch->grid));
		memcpy(run.given.block, launch->block, sizeof(launch->block));
		run.given.shared_bytes = launch->shared_bytes;
		kernel->given->run(&run.given, launch->params->data);
		return CUDA_SUCCESS;
	}
	for (unsigned i = 0; i < kernel->n_params; i++) {
		memcpy(&words[i], launch->params->data + kernel_param_offset(kernel, i),
		       kernel->param_bytes[i]);
	}
	return kernel->run(ctx, words);
}

static CUresult submit(struct launch launch, CUfunction function, CUstream handle, void **params,
                       void **extra)
{
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return kernel_from_handle(function) ? stream_missing(handle)
		                                    : CUDA_ERROR_INVALID_HANDLE;
	}
	CUresult err = launch_fill(&launch, function, params, extra);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	struct work work = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .of.launch = launch};
	return work_submit(s, &work);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz,
                        unsigned int shared_bytes, CUstream stream, void **params, void **extra)
{
	ENTER(cuLaunchKernel);
	struct launch launch = {
		.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared_bytes = shared_bytes};

	return submit(launch, function, stream, params, extra);
}

/* No block waits for another here, so nothing has to be resident at once. */
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy,
                                   unsigned int gz, unsigned int bx, unsigned int by,
                                   unsigned int bz, unsigned int shared_bytes, CUstream stream,
                                   void **params)
{
	ENTER(cuLaunchCooperativeKernel);
	struct launch launch = {
		.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared_bytes = shared_bytes};

	return submit(launch, function, stream, params, NULL);
}

/* All attributes are accepted, because they change only the speed. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **extra)
{
	ENTER(cuLaunchKernelEx);
	if (!config || (config->numAttrs > 0 && !config->attrs)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct launch launch = {
		.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
		.block = {config->blockDimX, config->blockDimY, config->blockDimZ},
		.shared_bytes = config->sharedMemBytes,
	};
	return submit(launch, function, config->hStream, params, extra);
}
