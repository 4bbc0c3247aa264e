/* SPDX-License-Identifier: Apache-2.0 */
/* cuFFT: two dimensions, a batch whose length is prime, and a transform there and back. */
#include <cufft.h>

#include "tests/shim/toolkit.h"

static void two_dimensions(void)
{
	enum { N = 1024 };
	const size_t n_bytes = sizeof(cufftComplex) * N * N;
	cufftHandle plan;
	float *host = numbers(2 * N * N, 1);
	void *data = device_copy(host, n_bytes);
	must_do(cufftPlan2d(&plan, N, N, CUFFT_C2C));
	must_do(cufftExecC2C(plan, data, data, CUFFT_FORWARD));
	must_do(cufftDestroy(plan));
	free(host);
	print_device("two dimensions", data, n_bytes);
}

static void a_batch(void)
{
	enum { N = 10007, BATCH = 64 };
	const size_t n_out = sizeof(cufftComplex) * (N / 2 + 1) * BATCH;
	cufftHandle plan;
	float *host = numbers((size_t)N * BATCH, 2);
	void *in = device_copy(host, sizeof(*host) * N * BATCH);
	void *out = device_bytes(n_out);
	must_do(cufftPlan1d(&plan, N, CUFFT_R2C, BATCH));
	must_do(cufftExecR2C(plan, in, out));
	must_do(cufftDestroy(plan));
	must_do(cudaFree(in));
	free(host);
	print_device("a batch", out, n_out);
}

/* The work area is the program's. */
static void there_and_back(void)
{
	enum { N = 1 << 20 };
	const size_t n_bytes = sizeof(cufftDoubleComplex) * N;
	size_t work_bytes;
	cufftHandle plan;
	float *host = numbers(n_bytes / sizeof(*host), 3);
	void *data = device_copy(host, n_bytes);
	must_do(cufftCreate(&plan));
	must_do(cufftSetAutoAllocation(plan, 0));
	must_do(cufftMakePlan1d(plan, N, CUFFT_Z2Z, 1, &work_bytes));
	void *work = device_bytes(work_bytes ? work_bytes : 1);
	must_do(cufftSetWorkArea(plan, work));
	must_do(cufftExecZ2Z(plan, data, data, CUFFT_FORWARD));
	must_do(cufftExecZ2Z(plan, data, data, CUFFT_INVERSE));
	must_do(cudaDeviceSynchronize());
	must_do(cufftDestroy(plan));
	must_do(cudaFree(work));
	free(host);
	print_device("there and back", data, n_bytes);
}

int main(void)
{
	two_dimensions();
	a_batch();
	there_and_back();
	note_counts();
	return 0;
}
