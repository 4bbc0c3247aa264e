/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays. They only take memory: whole granules of the device, as an H200 was seen to give.
 * They have no content, and nobody can copy to them.
 */
#include "sim.h"

#include <pthread.h>

struct array {
	struct array *next;
	struct phys *phys; /* owned; NULL: the program maps memory later */
	struct ctx *ctx;
	bool is_mipmapped;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct array *arrays; /* owned list */

/* Bytes of an element; 0: there is no such format. */
static uint64_t format_bytes(CUarray_format format)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 1;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 2;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		return 4;
	default:
		return 0;
	}
}

static uint64_t at_least_one(uint64_t n)
{
	return n ? n : 1;
}

/* Bytes of all @n_levels levels; 0: there can be no such array. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned n_levels)
{
	bool has_layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t element = format_bytes(d->Format) * d->NumChannels;
	uint64_t total = 0;
	if (d->Width == 0 || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4)) {
		return 0;
	}
	for (unsigned i = 0; i < n_levels; i++) {
		uint64_t depth = has_layers ? d->Depth : d->Depth >> i;
		total += element * at_least_one(d->Width >> i) * at_least_one(d->Height >> i) *
		         at_least_one(depth);
	}
	return total;
}

static CUresult array_new(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels,
                          bool is_mipmapped, struct array **array_out)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)ctx_current()->device},
	};
	uint64_t bytes = array_bytes(descriptor, n_levels);
	if (bytes == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct array *array = calloc(1, sizeof(*array));
	if (!array) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	bool is_later = descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
	uint64_t whole = (bytes + SIM_GRANULARITY - 1) / SIM_GRANULARITY * SIM_GRANULARITY;
	CUresult err = is_later ? CUDA_SUCCESS : phys_new(&prop, whole, &array->phys);
	if (err != CUDA_SUCCESS) {
		free(array);
		return err;
	}
	array->ctx = ctx_current();
	array->is_mipmapped = is_mipmapped;
	pthread_mutex_lock(&lock);
	array->next = arrays;
	arrays = array;
	pthread_mutex_unlock(&lock);
	*array_out = array;
	return CUDA_SUCCESS;
}

static void array_free(struct array *array)
{
	if (array->phys) {
		phys_unref(array->phys);
	}
	free(array);
}

static CUresult array_destroy(const void *handle, bool is_mipmapped)
{
	struct array *found = NULL;
	pthread_mutex_lock(&lock);
	for (struct array **at = &arrays; *at; at = &(*at)->next) {
		if (*at == handle && (*at)->is_mipmapped == is_mipmapped) {
			found = *at;
			*at = found->next;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	if (!found) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	array_free(found);
	return CUDA_SUCCESS;
}

void array_free_all(const struct ctx *ctx)
{
	pthread_mutex_lock(&lock);
	for (struct array **at = &arrays; *at;) {
		struct array *array = *at;
		if (array->ctx != ctx) {
			at = &array->next;
			continue;
		}
		*at = array->next;
		array_free(array);
	}
	pthread_mutex_unlock(&lock);
}

CUresult cuArrayCreate_v2(CUarray *array_out, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	ENTER(cuArrayCreate_v2);
	if (!array_out || !descriptor) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUDA_ARRAY3D_DESCRIPTOR full = {
		.Width = descriptor->Width,
		.Height = descriptor->Height,
		.Format = descriptor->Format,
		.NumChannels = descriptor->NumChannels,
	};
	return array_new(&full, 1, false, (struct array **)array_out);
}

CUresult cuArray3DCreate_v2(CUarray *array_out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	ENTER(cuArray3DCreate_v2);
	return array_out && descriptor ? array_new(descriptor, 1, false, (struct array **)array_out)
	                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array_out,
                                const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int n_levels)
{
	ENTER(cuMipmappedArrayCreate);
	return array_out && descriptor && n_levels > 0 && n_levels <= 32
	               ? array_new(descriptor, n_levels, true, (struct array **)array_out)
	               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuArrayDestroy(CUarray array)
{
	ENTER(cuArrayDestroy);
	return array_destroy(array, false);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	ENTER(cuMipmappedArrayDestroy);
	return array_destroy(array, true);
}
