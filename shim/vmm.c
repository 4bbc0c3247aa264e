/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/vmm.h"

#include <pthread.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "shim/account.h"
#include "shim/index.h"
#include "shim/owner.h"

struct vmm_chunk {
	uint64_t id; /* with glaked */
	uint64_t n_bytes;
	CUmemAllocationProp properties;
	struct owner *owner; /* a reference; NULL: the driver's own, only accounted */
	unsigned n_uses;     /* handles, mappings, calls under way; under the lock */
};

/* A number the driver gave; usually the only one of its chunk. */
struct name {
	struct vmm_chunk *chunk; /* one use for each reference */
	unsigned n_refs;
};

struct mapping {
	struct vmm_chunk *chunk; /* one use */
	CUdeviceptr address;
	uint64_t n_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct index names;    /* by handle */
static struct index mappings; /* by address */

/* ---- chunks ----------------------------------------------------------------------------------- */

bool vmm_is_plain(size_t n_bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
	return flags == 0 && properties && n_bytes > 0 && n_bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       n_bytes <= GLAKE_MAX_CHUNK_BYTES &&
	       properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	               0 &&
	       !properties->win32HandleMetaData && properties->allocFlags.compressionType == 0 &&
	       properties->allocFlags.usage == 0;
}

static void chunk_free(struct vmm_chunk *chunk)
{
	if (!chunk->owner) {
		account_grow(chunk->properties.location.id, ACCOUNT_OTHER,
		             -(int64_t)chunk->n_bytes);
		free(chunk);
		return;
	}
	glake_chunk_free(chunk->owner->session, chunk->id, chunk->n_bytes);
	owner_unref(chunk->owner);
	free(chunk);
}

/* Called with the lock held: @n uses less. The chunk if that was all, for chunk_free(). */
static struct vmm_chunk *drop_locked(struct vmm_chunk *chunk, unsigned n)
{
	chunk->n_uses -= n;
	return chunk->n_uses == 0 ? chunk : NULL;
}

struct chunk_request {
	struct vmm_chunk *chunk;
	uint32_t device; /* glaked's number of it */
	int *fd_out;
};

static int request_chunk(struct owner *owner, void *user)
{
	struct chunk_request *request = user;
	return glake_chunk_new(owner->session, request->device, request->chunk->n_bytes,
	                       &request->chunk->id, request->fd_out);
}

/* Fills in id and owner. */
static int ask(struct vmm_chunk *chunk, int *fd_out)
{
	int r = OWNER_E_ABSENT;
	/* Twice: a session may turn out to be dead, and a new one be had. */
	for (int attempt = 0; attempt < 2 && r == OWNER_E_ABSENT; attempt++) {
		bool is_refused;
		struct owner *owner = owner_get(&is_refused);
		if (!owner) {
			return is_refused ? OWNER_E_FULL : OWNER_E_ABSENT;
		}
		struct glake_device device;
		if (!owner_device(owner, chunk->properties.location.id, &device)) {
			owner_unref(owner);
			return OWNER_E_FOREIGN;
		}
		struct chunk_request request = {chunk, device.index, fd_out};
		r = owner_ask(owner, request_chunk, &request);
		if (r == 0) {
			chunk->owner = owner;
		} else {
			owner_unref(owner);
		}
	}
	return r;
}

static bool add_name(vmm_handle handle, struct vmm_chunk *chunk)
{
	struct name *name = calloc(1, sizeof(*name));
	if (!name) {
		return false;
	}
	*name = (struct name){.chunk = chunk, .n_refs = 1};
	pthread_mutex_lock(&lock);
	bool is_in = index_add(&names, handle, name);
	pthread_mutex_unlock(&lock);
	if (!is_in) {
		free(name);
	}
	return is_in;
}

int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out)
{
	struct vmm_chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk) {
		return OWNER_E_FULL;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties, .n_uses = 1};
	cleanup_fd int fd = -1;
	int r = ask(chunk, &fd);
	if (r != 0) {
		free(chunk);
		return r;
	}
	vmm_handle handle;
	if (real(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
	                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
	    CUDA_SUCCESS) {
		chunk_free(chunk);
		return OWNER_E_ABSENT;
	}
	if (!add_name(handle, chunk)) {
		real(cuMemRelease)(handle);
		chunk_free(chunk);
		return OWNER_E_FULL;
	}
	*handle_out = handle;
	return 0;
}

void vmm_made_by_driver(vmm_handle handle, size_t n_bytes, const CUmemAllocationProp *properties)
{
	struct vmm_chunk *chunk = NULL;
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		chunk = calloc(1, sizeof(*chunk));
	}
	if (!chunk) {
		return;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties, .n_uses = 1};
	if (!add_name(handle, chunk)) {
		free(chunk);
		return;
	}
	account_grow(properties->location.id, ACCOUNT_OTHER, (int64_t)n_bytes);
}

/* ---- handles ---------------------------------------------------------------------------------- */

struct vmm_chunk *vmm_take(vmm_handle handle)
{
	pthread_mutex_lock(&lock);
	const struct name *name = index_get(&names, handle);
	struct vmm_chunk *chunk = name ? name->chunk : NULL;
	if (chunk) {
		chunk->n_uses++;
	}
	pthread_mutex_unlock(&lock);
	return chunk;
}

struct vmm_chunk *vmm_take_ours(vmm_handle handle)
{
	struct vmm_chunk *chunk = vmm_take(handle);
	if (chunk && !chunk->owner) {
		vmm_give(chunk);
		return NULL;
	}
	return chunk;
}

void vmm_give(struct vmm_chunk *chunk)
{
	pthread_mutex_lock(&lock);
	struct vmm_chunk *done = drop_locked(chunk, 1);
	pthread_mutex_unlock(&lock);
	if (done) {
		chunk_free(done);
	}
}

void vmm_released(vmm_handle handle)
{
	struct vmm_chunk *done = NULL;
	struct name *gone = NULL;
	pthread_mutex_lock(&lock);
	struct name *name = index_get(&names, handle);
	if (name) {
		done = drop_locked(name->chunk, 1);
		if (--name->n_refs == 0) {
			index_remove(&names, handle);
			gone = name;
		}
	}
	pthread_mutex_unlock(&lock);
	free(gone);
	if (done) {
		chunk_free(done);
	}
}

/* Called with the lock held. */
static const struct mapping *find_mapping(CUdeviceptr address)
{
	const struct mapping *mapping = index_below(&mappings, address);
	return mapping && address - mapping->address < mapping->n_bytes ? mapping : NULL;
}

void vmm_retained(vmm_handle handle, CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	const struct mapping *mapping = find_mapping(address);
	struct name *name = index_get(&names, handle);
	if (name) {
		name->n_refs++;
		name->chunk->n_uses++;
	} else if (mapping) {
		/* All handles had been released: the driver gives a new number. */
		name = calloc(1, sizeof(*name));
		if (name && index_add(&names, handle, name)) {
			*name = (struct name){.chunk = mapping->chunk, .n_refs = 1};
			mapping->chunk->n_uses++;
		} else {
			free(name);
		}
	}
	pthread_mutex_unlock(&lock);
}

/* ---- mappings --------------------------------------------------------------------------------- */

void vmm_mapped(struct vmm_chunk *chunk, CUdeviceptr address, size_t n_bytes)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	if (mapping) {
		*mapping = (struct mapping){.chunk = chunk, .address = address, .n_bytes = n_bytes};
	}
	pthread_mutex_lock(&lock);
	/* Without memory it stays in use, and its charge with us, until the process ends. */
	chunk->n_uses++;
	bool is_in = mapping && index_add(&mappings, address, mapping);
	pthread_mutex_unlock(&lock);
	if (!is_in) {
		free(mapping);
	}
}

/* Called with the lock held: the last mapping that starts in the range, out of the index. */
static struct mapping *take_mapping(CUdeviceptr address, size_t n_bytes)
{
	struct mapping *mapping = index_below(&mappings, address + n_bytes - 1);
	if (!mapping || mapping->address < address) {
		return NULL;
	}
	index_remove(&mappings, mapping->address);
	return mapping;
}

void vmm_unmapped(CUdeviceptr address, size_t n_bytes)
{
	struct mapping *mapping;
	do {
		struct vmm_chunk *done = NULL;
		pthread_mutex_lock(&lock);
		mapping = n_bytes ? take_mapping(address, n_bytes) : NULL;
		if (mapping) {
			done = drop_locked(mapping->chunk, 1);
		}
		pthread_mutex_unlock(&lock);
		free(mapping);
		if (done) {
			chunk_free(done);
		}
	} while (mapping);
}

/* ---- answers ---------------------------------------------------------------------------------- */

const CUmemAllocationProp *vmm_properties(const struct vmm_chunk *chunk)
{
	return &chunk->properties;
}

CUresult vmm_export(const struct vmm_chunk *chunk, int *fd_out)
{
	int fd = -1;
	int r = glake_chunk_fd(chunk->owner->session, chunk->id, &fd);
	if (r < 0) {
		owner_note_error(chunk->owner, r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*fd_out = fd;
	return CUDA_SUCCESS;
}
