/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/vmm.h"

#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "shim/account.h"
#include "shim/owner.h"

struct vmm_chunk {
	uint64_t id; /* with glaked */
	uint64_t n_bytes;
	CUmemAllocationProp properties;
	struct owner *owner; /* a reference; NULL: the driver's own, only accounted */
};

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

static void chunk_free(void *user)
{
	struct vmm_chunk *chunk = user;
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

static bool enter(struct vmm_chunk *chunk, vmm_handle handle)
{
	CUmemLocation location = chunk->properties.location;
	int device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
	return glake__program_made(handle, chunk->n_bytes, device, chunk, chunk_free) != NULL;
}

int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *handle_out)
{
	struct vmm_chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk) {
		return OWNER_E_FULL;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties};
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
	if (!enter(chunk, handle)) {
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
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties};
	if (!enter(chunk, handle)) {
		free(chunk);
		return;
	}
	account_grow(properties->location.id, ACCOUNT_OTHER, (int64_t)n_bytes);
}

/* ---- answers ---------------------------------------------------------------------------------- */

const struct vmm_chunk *vmm_ours(const struct glake__chunk *chunk)
{
	const struct vmm_chunk *ours = chunk ? glake__program_user(chunk) : NULL;
	return ours && ours->owner ? ours : NULL;
}

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
