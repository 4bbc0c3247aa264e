/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/vmm.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "shim/connection.h"
#include "shim/driver_usage.h"
#include "shim/writes.h"

struct vmm_chunk {
	uint64_t id; /* glaked's id of the chunk */
	uint64_t n_bytes;
	CUmemAllocationProp properties;
	struct connection *connection; /* a reference; NULL: the driver's own, only counted */
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

/* Called when no handle or mapping is left. The library has given a chunk of glaked back. */
static void chunk_free(void *user)
{
	struct vmm_chunk *chunk = user;
	if (chunk->connection) {
		connection_unref(chunk->connection);
	} else {
		driver_usage_grow(chunk->properties.location.id, DRIVER_USAGE_OTHER,
		                  -(int64_t)chunk->n_bytes);
	}
	free(chunk);
}

/* Give back a chunk for which no number could be made. */
static void chunk_give_back(struct vmm_chunk *chunk)
{
	glake_chunk_free(chunk->connection->session, chunk->id, chunk->n_bytes);
	chunk_free(chunk);
}

struct chunk_request {
	struct vmm_chunk *chunk;
	uint32_t index;  /* glaked's number of the device */
	bool is_unknown; /* an older glaked: it has no chunks so large */
	int *fd_out;
};

static int request_chunk(struct connection *connection, void *user)
{
	struct chunk_request *request = user;
	int r = glake_chunk_new(connection->session, request->index, request->chunk->n_bytes,
	                        &request->chunk->id, request->fd_out);
	request->is_unknown = r == GLAKE_E_BAD_REQUEST;
	return r;
}

/* Sets id and connection of the chunk. */
static int ask(struct connection *connection, void *user)
{
	struct chunk_request *request = user;
	struct vmm_chunk *chunk = request->chunk;
	int index = glake_device_index(connection->session, chunk->properties.location.id);
	if (index < 0) {
		return CONNECTION_E_FOREIGN;
	}
	request->index = (uint32_t)index;
	int r = connection_ask(connection, request_chunk, request);
	chunk->connection = r == 0 ? connection : NULL;
	return r != 0 && request->is_unknown ? CONNECTION_E_FOREIGN : r;
}

static bool enter(struct vmm_chunk *chunk, vmm_handle handle)
{
	CUmemLocation location = chunk->properties.location;
	int device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1;
	return glake__program_made(handle, chunk->n_bytes, device, chunk, chunk_free) != NULL;
}

int vmm_create(size_t n_bytes, const CUmemAllocationProp *properties, vmm_handle *number_out)
{
	struct vmm_chunk *chunk = calloc(1, sizeof(*chunk));
	if (!chunk) {
		return CONNECTION_E_REFUSED;
	}
	*chunk = (struct vmm_chunk){.n_bytes = n_bytes, .properties = *properties};
	cleanup_fd int fd = -1;
	struct chunk_request request = {.chunk = chunk, .fd_out = &fd};
	int r = connection_use(ask, &request);
	if (r != 0) {
		free(chunk);
		return r;
	}
	vmm_handle handle;
	if (real(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
	                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) !=
	    CUDA_SUCCESS) {
		chunk_give_back(chunk);
		return CONNECTION_E_ABSENT;
	}
	if (glake__number_make(chunk->connection->session, properties->location.id, chunk->id,
	                       n_bytes, handle, chunk, chunk_free, number_out) < 0) {
		real(cuMemRelease)(handle);
		chunk_give_back(chunk);
		return CONNECTION_E_REFUSED;
	}
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
	driver_usage_grow(properties->location.id, DRIVER_USAGE_OTHER, (int64_t)n_bytes);
}

/* ---- answers ---------------------------------------------------------------------------------- */

const CUmemAllocationProp *vmm_properties(const struct glake__number *number)
{
	const struct vmm_chunk *chunk = glake__number_user(number);
	return &chunk->properties;
}

CUresult vmm_result(int r)
{
	return r == 0             ? CUDA_SUCCESS
	       : r == -EINVAL     ? CUDA_ERROR_INVALID_VALUE
	       : r == -EOPNOTSUPP ? CUDA_ERROR_NOT_SUPPORTED
	                          : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Make the number's memory private if it is sealed and mapped anywhere. */
static bool unseal(const struct glake__number *number)
{
	uint64_t n_bytes;
	glake_ptr address = glake__number_address(number, &n_bytes);
	return address && writes_unseal_to_name(address, n_bytes) == CUDA_SUCCESS;
}

int vmm_pin(struct glake__number *number, enum glake__pin pin, uint64_t *id_out,
            unsigned long long *handle_out)
{
	int r = glake__number_pin(number, pin, id_out, handle_out);
	/* Another thread may seal the memory between the two calls. */
	for (int i = 0; r == -EROFS && i < UNSEAL_TRIES && unseal(number); i++) {
		r = glake__number_pin(number, pin, id_out, handle_out);
	}
	return r;
}

CUresult vmm_admit(vmm_handle handle)
{
	if (!glake__is_number(handle)) {
		return CUDA_SUCCESS;
	}
	real(cuMemRelease)(handle);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult vmm_export(struct glake__number *number, int *fd_out)
{
	const struct vmm_chunk *chunk = glake__number_user(number);
	unsigned long long handle;
	uint64_t id;
	int fd = -1;
	int r = vmm_pin(number, GLAKE__PIN_EXPORTED, &id, &handle);
	r = r < 0 ? r : glake_chunk_fd(chunk->connection->session, id, &fd);
	if (r < 0) {
		connection_note(chunk->connection, r);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*fd_out = fd;
	return CUDA_SUCCESS;
}
