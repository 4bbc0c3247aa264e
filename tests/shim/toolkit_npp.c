/* SPDX-License-Identifier: Apache-2.0 */
/* NPP: an image resized, filtered, reduced to a histogram, and a signal summed up. */
#include <nppi.h>
#include <npps.h>
#include <string.h>

#include "tests/shim/toolkit.h"

#define WIDTH 1500
#define HEIGHT 1000
#define SMALL_WIDTH 640
#define SMALL_HEIGHT 480
#define LEVELS 257
#define SIGNAL (1 << 20)

static NppStreamContext context;

static void set_context(void)
{
	struct cudaDeviceProp properties;
	must_do(cudaGetDeviceProperties(&properties, 0));
	context.nMultiProcessorCount = properties.multiProcessorCount;
	context.nMaxThreadsPerMultiProcessor = properties.maxThreadsPerMultiProcessor;
	context.nMaxThreadsPerBlock = properties.maxThreadsPerBlock;
	context.nSharedMemPerBlock = properties.sharedMemPerBlock;
	context.nCudaDevAttrComputeCapabilityMajor = properties.major;
	context.nCudaDevAttrComputeCapabilityMinor = properties.minor;
}

static Npp8u *image(int *pitch_out)
{
	Npp8u *host = malloc(WIDTH * HEIGHT);
	Npp8u *pixels = nppiMalloc_8u_C1(WIDTH, HEIGHT, pitch_out);
	must(host && pixels);
	for (int i = 0; i < WIDTH * HEIGHT; i++) {
		host[i] = (Npp8u)(i * 2654435761u >> 24);
	}
	must_do(cudaMemcpy2D(pixels, (size_t)*pitch_out, host, WIDTH, WIDTH, HEIGHT,
	                     cudaMemcpyHostToDevice));
	free(host);
	return pixels;
}

static void print_image(const char *what, Npp8u *pixels, int pitch, int width, int height)
{
	void *packed = device_bytes((size_t)width * (size_t)height);
	must_do(cudaMemcpy2D(packed, (size_t)width, pixels, (size_t)pitch, (size_t)width,
	                     (size_t)height, cudaMemcpyDeviceToDevice));
	print_device(what, packed, (size_t)width * (size_t)height);
	nppiFree(pixels);
}

static void resize_and_filter(const Npp8u *pixels, int pitch)
{
	const NppiSize whole = {WIDTH, HEIGHT}, small = {SMALL_WIDTH, SMALL_HEIGHT};
	const NppiRect from = {0, 0, WIDTH, HEIGHT}, to = {0, 0, SMALL_WIDTH, SMALL_HEIGHT};
	const NppiPoint corner = {0, 0};
	int small_pitch, smooth_pitch;
	Npp8u *resized = nppiMalloc_8u_C1(SMALL_WIDTH, SMALL_HEIGHT, &small_pitch);
	Npp8u *smooth = nppiMalloc_8u_C1(WIDTH, HEIGHT, &smooth_pitch);
	must(resized && smooth);
	must_do(nppiResize_8u_C1R_Ctx(pixels, pitch, whole, from, resized, small_pitch, small, to,
	                              NPPI_INTER_LINEAR, context));
	must_do(nppiFilterGaussBorder_8u_C1R_Ctx(pixels, pitch, whole, corner, smooth, smooth_pitch,
	                                         whole, NPP_MASK_SIZE_5_X_5, NPP_BORDER_REPLICATE,
	                                         context));
	print_image("resized", resized, small_pitch, SMALL_WIDTH, SMALL_HEIGHT);
	print_image("smooth", smooth, smooth_pitch, WIDTH, HEIGHT);
}

static void histogram(const Npp8u *pixels, int pitch)
{
	const NppiSize whole = {WIDTH, HEIGHT};
	size_t n_work;
	Npp32s *counts = device_bytes(sizeof(*counts) * (LEVELS - 1));
	must_do(nppiHistogramEvenGetBufferSize_8u_C1R_Ctx(whole, LEVELS, &n_work, context));
	void *work = device_bytes(n_work);
	must_do(nppiHistogramEven_8u_C1R_Ctx(pixels, pitch, whole, counts, LEVELS, 0, 256, work,
	                                     context));
	print_device("histogram", counts, sizeof(*counts) * (LEVELS - 1));
	must_do(cudaFree(work));
}

static void sum(void)
{
	size_t n_work;
	float *list = numbers(SIGNAL, 8);
	Npp32f *signal = nppsMalloc_32f(SIGNAL);
	Npp32f *total = device_bytes(sizeof(*total));
	must(signal);
	must_do(cudaMemcpy(signal, list, sizeof(*list) * SIGNAL, cudaMemcpyHostToDevice));
	must_do(nppsSumGetBufferSize_32f_Ctx(SIGNAL, &n_work, context));
	void *work = device_bytes(n_work);
	must_do(nppsSum_32f_Ctx(signal, SIGNAL, total, work, context));
	print_device("sum", total, sizeof(*total));
	must_do(cudaFree(work));
	nppsFree(signal);
	free(list);
}

int main(void)
{
	int pitch;
	set_context();
	Npp8u *pixels = image(&pitch);
	resize_and_filter(pixels, pitch);
	histogram(pixels, pitch);
	sum();
	nppiFree(pixels);
	note_counts();
	return 0;
}
