/* SPDX-License-Identifier: Apache-2.0 */
/* cuSPARSE: a sparse matrix times a vector, times a dense matrix, and times itself. */
#include <cusparse.h>

#include "tests/shim/toolkit.h"

#define N 20000
#define PER_ROW 8
#define N_VALUES (N * PER_ROW)
#define COLUMNS 32

static cusparseHandle_t sparse;
static const float one = 1, zero = 0;
static int *offsets, *columns;
static float *values;

static cusparseSpMatDescr_t matrix(void)
{
	cusparseSpMatDescr_t descriptor;
	must_do(cusparseCreateCsr(&descriptor, N, N, N_VALUES, offsets, columns, values,
	                          CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
	                          CUDA_R_32F));
	return descriptor;
}

static void fill(void)
{
	int *host = malloc(sizeof(*host) * (N_VALUES + N + 1));
	float *list = numbers(N_VALUES, 5);
	must(host);
	for (int i = 0; i < N_VALUES; i++) {
		host[i] = i % PER_ROW * (N / PER_ROW) + i / PER_ROW * 7919 % (N / PER_ROW);
	}
	for (int i = 0; i <= N; i++) {
		host[N_VALUES + i] = i * PER_ROW;
	}
	columns = device_copy(host, sizeof(*host) * N_VALUES);
	offsets = device_copy(host + N_VALUES, sizeof(*host) * (N + 1));
	values = device_copy(list, sizeof(*list) * N_VALUES);
	free(list);
	free(host);
}

static void times_vector(cusparseSpMatDescr_t a)
{
	size_t n_work;
	cusparseDnVecDescr_t x, y;
	float *list = numbers(N, 6);
	void *in = device_copy(list, sizeof(*list) * N);
	void *out = device_bytes(sizeof(*list) * N);
	must_do(cusparseCreateDnVec(&x, N, in, CUDA_R_32F));
	must_do(cusparseCreateDnVec(&y, N, out, CUDA_R_32F));
	must_do(cusparseSpMV_bufferSize(sparse, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, x, &zero,
	                                y, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, &n_work));
	void *work = device_bytes(n_work + 1);
	must_do(cusparseSpMV(sparse, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, x, &zero, y,
	                     CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, work));
	print_device("times vector", out, sizeof(*list) * N);
	must_do(cusparseDestroyDnVec(x));
	must_do(cusparseDestroyDnVec(y));
	must_do(cudaFree(work));
	must_do(cudaFree(in));
	free(list);
}

static void times_dense(cusparseSpMatDescr_t a)
{
	size_t n_work;
	cusparseDnMatDescr_t b, c;
	float *list = numbers((size_t)N * COLUMNS, 7);
	void *in = device_copy(list, sizeof(*list) * N * COLUMNS);
	void *out = device_bytes(sizeof(*list) * N * COLUMNS);
	must_do(cusparseCreateDnMat(&b, N, COLUMNS, COLUMNS, in, CUDA_R_32F, CUSPARSE_ORDER_ROW));
	must_do(cusparseCreateDnMat(&c, N, COLUMNS, COLUMNS, out, CUDA_R_32F, CUSPARSE_ORDER_ROW));
	must_do(cusparseSpMM_bufferSize(sparse, CUSPARSE_OPERATION_NON_TRANSPOSE,
	                                CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, b, &zero, c,
	                                CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG2, &n_work));
	void *work = device_bytes(n_work + 1);
	must_do(cusparseSpMM(sparse, CUSPARSE_OPERATION_NON_TRANSPOSE,
	                     CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, b, &zero, c, CUDA_R_32F,
	                     CUSPARSE_SPMM_CSR_ALG2, work));
	print_device("times dense", out, sizeof(*list) * N * COLUMNS);
	must_do(cusparseDestroyDnMat(b));
	must_do(cusparseDestroyDnMat(c));
	must_do(cudaFree(work));
	must_do(cudaFree(in));
	free(list);
}

/* The result's size is known in the middle. */
static void times_itself(cusparseSpMatDescr_t a)
{
	const cusparseOperation_t plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
	const cusparseSpGEMMAlg_t algorithm = CUSPARSE_SPGEMM_DEFAULT;
	size_t n_first = 0, n_second = 0;
	int64_t n_rows, n_columns, n_values;
	void *first, *second;
	cusparseSpMatDescr_t c;
	cusparseSpGEMMDescr_t job;
	void *c_offsets = device_bytes(sizeof(int) * (N + 1));
	must_do(cusparseCreateCsr(&c, N, N, 0, c_offsets, NULL, NULL, CUSPARSE_INDEX_32I,
	                          CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
	must_do(cusparseSpGEMM_createDescr(&job));
	must_do(cusparseSpGEMM_workEstimation(sparse, plain, plain, &one, a, a, &zero, c,
	                                      CUDA_R_32F, algorithm, job, &n_first, NULL));
	first = device_bytes(n_first + 1);
	must_do(cusparseSpGEMM_workEstimation(sparse, plain, plain, &one, a, a, &zero, c,
	                                      CUDA_R_32F, algorithm, job, &n_first, first));
	must_do(cusparseSpGEMM_compute(sparse, plain, plain, &one, a, a, &zero, c, CUDA_R_32F,
	                               algorithm, job, &n_second, NULL));
	second = device_bytes(n_second + 1);
	must_do(cusparseSpGEMM_compute(sparse, plain, plain, &one, a, a, &zero, c, CUDA_R_32F,
	                               algorithm, job, &n_second, second));
	must_do(cusparseSpMatGetSize(c, &n_rows, &n_columns, &n_values));
	void *c_columns = device_bytes(sizeof(int) * (size_t)n_values);
	void *c_values = device_bytes(sizeof(float) * (size_t)n_values);
	must_do(cusparseCsrSetPointers(c, c_offsets, c_columns, c_values));
	must_do(cusparseSpGEMM_copy(sparse, plain, plain, &one, a, a, &zero, c, CUDA_R_32F,
	                            algorithm, job));
	print_device("offsets", c_offsets, sizeof(int) * (N + 1));
	print_device("columns", c_columns, sizeof(int) * (size_t)n_values);
	print_device("values", c_values, sizeof(float) * (size_t)n_values);
	must_do(cusparseSpGEMM_destroyDescr(job));
	must_do(cusparseDestroySpMat(c));
	must_do(cudaFree(first));
	must_do(cudaFree(second));
}

int main(void)
{
	must_do(cusparseCreate(&sparse));
	fill();
	cusparseSpMatDescr_t a = matrix();
	times_vector(a);
	times_dense(a);
	times_itself(a);
	must_do(cusparseDestroySpMat(a));
	must_do(cusparseDestroy(sparse));
	note_counts();
	return 0;
}
