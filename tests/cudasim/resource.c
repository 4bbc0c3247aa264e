/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multiprocessors of a device, split for green contexts. The sizes are those of compute capability 9.0.
 * An H200 makes 15 of the smallest groups from 132, as its clusters are not all of one size; the numbers of larger
 * groups are not known. Green contexts may overlap: none is kept from multiprocessors of another.
 */
#include "sim.h"

#include <pthread.h>
#include <string.h>

#define MIN_SMS 8
#define SPLIT_FLAGS \
	(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | \
	 CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE)

/* The origin of a resource, in bytes of CUdevResource that the program must not read. */
struct origin {
	int device;
	uint64_t split; /* the number of the call that split it; 0: the whole device */
};

/* A descriptor made by cuDevResourceGenerateDesc(). No call frees one. */
struct CUdevResourceDesc_st {
	int device;
	struct CUdevResourceDesc_st *next; /* link: descs */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUdevResourceDesc_st *descs; /* owned */

_Static_assert(sizeof(struct origin) <= sizeof(((CUdevResource *)NULL)->_internal_padding),
               "an origin fits in a resource");

static CUdevResource resource_of(unsigned n_sms, struct origin origin)
{
	CUdevResource resource;

	memset(&resource, 0, sizeof(resource));
	resource.type = n_sms > 0 ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
	resource.sm.smCount = n_sms;
	resource.sm.minSmPartitionSize = MIN_SMS;
	resource.sm.smCoscheduledAlignment = MIN_SMS;
	memcpy(resource._internal_padding, &origin, sizeof(origin));
	return resource;
}

static struct origin origin_of(const CUdevResource *resource)
{
	struct origin origin;

	memcpy(&origin, resource->_internal_padding, sizeof(origin));
	return origin;
}

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *resource_out, CUdevResourceType type)
{
	ENTER(cuDeviceGetDevResource);
	int n_sms;

	if (!resource_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (type != CU_DEV_RESOURCE_TYPE_SM) {
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	}
	CUresult err = cuDeviceGetAttribute(&n_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev);
	if (err == CUDA_SUCCESS) {
		*resource_out = resource_of((unsigned)n_sms, (struct origin){.device = dev});
	}
	return err;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *groups_out, unsigned int *n_groups,
                                     const CUdevResource *input, CUdevResource *remaining_out,
                                     unsigned int flags, unsigned int min_sms)
{
	ENTER(cuDevSmResourceSplitByCount);
	static atomic_uint_fast64_t n_splits;

	if (!n_groups || !input || flags & ~(unsigned)SPLIT_FLAGS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (input->type != CU_DEV_RESOURCE_TYPE_SM) {
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	}
	struct origin origin = origin_of(input);
	if (origin.split != 0) {
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	}
	if (min_sms > input->sm.smCount) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	unsigned n_left = input->sm.smCount;
	unsigned n_each = min_sms < MIN_SMS ? MIN_SMS : (min_sms + MIN_SMS - 1) / MIN_SMS * MIN_SMS;
	unsigned n_most = n_left / n_each;
	if (n_each == MIN_SMS && n_most > 1) {
		n_most--;
	}
	if (!groups_out || n_most < *n_groups) {
		*n_groups = n_most;
	}
	if (!groups_out) {
		return CUDA_SUCCESS;
	}
	origin.split = atomic_fetch_add(&n_splits, 1) + 1;
	for (unsigned i = 0; i < *n_groups; i++) {
		groups_out[i] = resource_of(n_each, origin);
		n_left -= n_each;
	}
	if (remaining_out) {
		*remaining_out = resource_of(n_left, origin);
	}
	return CUDA_SUCCESS;
}

/* The resources must be of one split, and so of one device. */
static CUresult check(const CUdevResource *resources, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct origin first = origin_of(&resources[0]);
		struct origin this = origin_of(&resources[i]);
		if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) {
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		}
		if (i > 0 &&
		    (this.device != first.device || this.split != first.split || this.split == 0)) {
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc_out, CUdevResource *resources,
                                   unsigned int n)
{
	ENTER(cuDevResourceGenerateDesc);
	if (!desc_out || !resources || n == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = check(resources, n);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	struct CUdevResourceDesc_st *desc = calloc(1, sizeof(*desc));
	if (!desc) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	desc->device = origin_of(resources).device;
	pthread_mutex_lock(&lock);
	desc->next = descs;
	descs = desc;
	pthread_mutex_unlock(&lock);
	*desc_out = desc;
	return CUDA_SUCCESS;
}

int resource_device(CUdevResourceDesc desc)
{
	pthread_mutex_lock(&lock);
	const struct CUdevResourceDesc_st *known = descs;
	while (known && known != desc) {
		known = known->next;
	}
	pthread_mutex_unlock(&lock);
	return known ? known->device : -1;
}
