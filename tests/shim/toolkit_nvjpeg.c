/* SPDX-License-Identifier: Apache-2.0 */
/* nvJPEG: one image encoded, and decoded in one call, in a pipeline, and in a batch. */
#include <nvjpeg.h>

#include "tests/shim/toolkit.h"

#define WIDTH 1024
#define HEIGHT 768
#define IMAGE_BYTES (3ull * WIDTH * HEIGHT)

static nvjpegHandle_t handle;
static nvjpegJpegState_t state;

static nvjpegImage_t interleaved(void *pixels)
{
	nvjpegImage_t image = {.channel = {pixels}, .pitch = {3 * WIDTH}};
	return image;
}

static void *blank(void)
{
	void *pixels = device_bytes(IMAGE_BYTES);
	must_do(cudaMemset(pixels, 0, IMAGE_BYTES));
	return pixels;
}

static unsigned char *encode(size_t *n_bytes_out)
{
	nvjpegEncoderState_t encoder;
	nvjpegEncoderParams_t params;
	unsigned char *host = malloc(IMAGE_BYTES);
	must(host);
	for (size_t i = 0; i < IMAGE_BYTES; i++) {
		host[i] = (unsigned char)(i % (3 * WIDTH) / 16 + i / (3 * WIDTH) * (i % 3));
	}
	void *pixels = device_copy(host, IMAGE_BYTES);
	const nvjpegImage_t image = interleaved(pixels);
	must_do(nvjpegEncoderStateCreate(handle, &encoder, NULL));
	must_do(nvjpegEncoderParamsCreate(handle, &params, NULL));
	must_do(nvjpegEncoderParamsSetQuality(params, 90, NULL));
	must_do(nvjpegEncoderParamsSetSamplingFactors(params, NVJPEG_CSS_420, NULL));
	must_do(nvjpegEncodeImage(handle, encoder, params, &image, NVJPEG_INPUT_RGBI, WIDTH, HEIGHT,
	                          NULL));
	must_do(nvjpegEncodeRetrieveBitstream(handle, encoder, NULL, n_bytes_out, NULL));
	unsigned char *jpeg = malloc(*n_bytes_out);
	must(jpeg);
	must_do(nvjpegEncodeRetrieveBitstream(handle, encoder, jpeg, n_bytes_out, NULL));
	must_do(cudaDeviceSynchronize());
	must_do(nvjpegEncoderParamsDestroy(params));
	must_do(nvjpegEncoderStateDestroy(encoder));
	must_do(cudaFree(pixels));
	free(host);
	return jpeg;
}

static void decode(const unsigned char *jpeg, size_t n_bytes)
{
	void *pixels = blank();
	nvjpegImage_t image = interleaved(pixels);
	must_do(nvjpegDecode(handle, state, jpeg, n_bytes, NVJPEG_OUTPUT_RGBI, &image, NULL));
	print_device("decoded", pixels, IMAGE_BYTES);
}

static void decode_in_steps(const unsigned char *jpeg, size_t n_bytes, nvjpegBackend_t backend)
{
	nvjpegJpegDecoder_t decoder;
	nvjpegJpegState_t step_state;
	nvjpegBufferPinned_t pinned;
	nvjpegBufferDevice_t device;
	nvjpegJpegStream_t stream;
	nvjpegDecodeParams_t params;
	void *pixels = blank();
	nvjpegImage_t image = interleaved(pixels);
	must_do(nvjpegDecoderCreate(handle, backend, &decoder));
	must_do(nvjpegDecoderStateCreate(handle, decoder, &step_state));
	must_do(nvjpegBufferPinnedCreate(handle, NULL, &pinned));
	must_do(nvjpegBufferDeviceCreate(handle, NULL, &device));
	must_do(nvjpegJpegStreamCreate(handle, &stream));
	must_do(nvjpegDecodeParamsCreate(handle, &params));
	must_do(nvjpegDecodeParamsSetOutputFormat(params, NVJPEG_OUTPUT_RGBI));
	must_do(nvjpegStateAttachPinnedBuffer(step_state, pinned));
	must_do(nvjpegStateAttachDeviceBuffer(step_state, device));
	must_do(nvjpegJpegStreamParse(handle, jpeg, n_bytes, 0, 0, stream));
	must_do(nvjpegDecodeJpegHost(handle, decoder, step_state, params, stream));
	must_do(nvjpegDecodeJpegTransferToDevice(handle, decoder, step_state, stream, NULL));
	must_do(nvjpegDecodeJpegDevice(handle, decoder, step_state, &image, NULL));
	print_device("in steps", pixels, IMAGE_BYTES);
	must_do(nvjpegDecodeParamsDestroy(params));
	must_do(nvjpegJpegStreamDestroy(stream));
	must_do(nvjpegBufferPinnedDestroy(pinned));
	must_do(nvjpegBufferDeviceDestroy(device));
	must_do(nvjpegJpegStateDestroy(step_state));
	must_do(nvjpegDecoderDestroy(decoder));
}

static void decode_batch(const unsigned char *jpeg, size_t n_bytes)
{
	enum { N = 5 };
	const unsigned char *jpegs[N];
	size_t lengths[N];
	nvjpegImage_t images[N];
	void *pixels[N];
	for (int i = 0; i < N; i++) {
		jpegs[i] = jpeg;
		lengths[i] = n_bytes;
		pixels[i] = blank();
		images[i] = interleaved(pixels[i]);
	}
	must_do(nvjpegDecodeBatchedInitialize(handle, state, N, 1, NVJPEG_OUTPUT_RGBI));
	must_do(nvjpegDecodeBatched(handle, state, jpegs, lengths, images, NULL));
	for (int i = 0; i < N; i++) {
		print_device("of a batch", pixels[i], IMAGE_BYTES);
	}
}

int main(void)
{
	size_t n_bytes;
	must_do(nvjpegCreateEx(NVJPEG_BACKEND_DEFAULT, NULL, NULL, 0, &handle));
	must_do(nvjpegJpegStateCreate(handle, &state));
	unsigned char *jpeg = encode(&n_bytes);
	print("encoded", n_bytes);
	fwrite(jpeg, 1, n_bytes, stdout);
	decode(jpeg, n_bytes);
	decode_in_steps(jpeg, n_bytes, NVJPEG_BACKEND_HYBRID);
	decode_in_steps(jpeg, n_bytes, NVJPEG_BACKEND_GPU_HYBRID);
	decode_batch(jpeg, n_bytes);
	free(jpeg);
	must_do(nvjpegJpegStateDestroy(state));
	must_do(nvjpegDestroy(handle));
	note_counts();
	return 0;
}
