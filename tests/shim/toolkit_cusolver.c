/* SPDX-License-Identifier: Apache-2.0 */
/* cuSOLVER: a Cholesky and an LU factorisation, and eigenvalues. */
#include <cusolverDn.h>

#include "tests/shim/toolkit.h"

#define N 700
#define MATRIX_BYTES (sizeof(double) * N * N)

static cusolverDnHandle_t solver;
static int *info;

/* Symmetric, and positive definite by its diagonal. */
static double *matrix(void)
{
	float *list = numbers((size_t)N * N, 4);
	double *host = malloc(MATRIX_BYTES);
	must(host);
	for (size_t i = 0; i < N; i++) {
		for (size_t k = 0; k <= i; k++) {
			host[i * N + k] = host[k * N + i] = list[i * N + k] + (i == k ? N : 0);
		}
	}
	double *data = device_copy(host, MATRIX_BYTES);
	free(host);
	free(list);
	return data;
}

static void cholesky(void)
{
	int n_work;
	double *data = matrix();
	must_do(cusolverDnDpotrf_bufferSize(solver, CUBLAS_FILL_MODE_LOWER, N, data, N, &n_work));
	double *work = device_bytes(sizeof(*work) * (size_t)n_work);
	must_do(cusolverDnDpotrf(solver, CUBLAS_FILL_MODE_LOWER, N, data, N, work, n_work, info));
	print_device("cholesky", data, MATRIX_BYTES);
	must_do(cudaFree(work));
}

static void lu(void)
{
	int n_work;
	double *data = matrix();
	int *pivots = device_bytes(sizeof(*pivots) * N);
	must_do(cusolverDnDgetrf_bufferSize(solver, N, N, data, N, &n_work));
	double *work = device_bytes(sizeof(*work) * (size_t)n_work);
	must_do(cusolverDnDgetrf(solver, N, N, data, N, work, pivots, info));
	print_device("lu", data, MATRIX_BYTES);
	print_device("pivots", pivots, sizeof(*pivots) * N);
	must_do(cudaFree(work));
}

static void eigenvalues(void)
{
	int n_work;
	double *data = matrix();
	double *values = device_bytes(sizeof(*values) * N);
	must_do(cusolverDnDsyevd_bufferSize(solver, CUSOLVER_EIG_MODE_VECTOR,
	                                    CUBLAS_FILL_MODE_LOWER, N, data, N, values, &n_work));
	double *work = device_bytes(sizeof(*work) * (size_t)n_work);
	must_do(cusolverDnDsyevd(solver, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, N, data,
	                         N, values, work, n_work, info));
	print_device("eigenvalues", values, sizeof(*values) * N);
	print_device("eigenvectors", data, MATRIX_BYTES);
	must_do(cudaFree(work));
}

int main(void)
{
	must_do(cusolverDnCreate(&solver));
	info = device_bytes(sizeof(*info));
	cholesky();
	lu();
	eigenvalues();
	print_device("info", info, sizeof(*info));
	must_do(cusolverDnDestroy(solver));
	note_counts();
	return 0;
}
