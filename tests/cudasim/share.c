/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks on their way to other processes: export and import. */
#include "sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FABRIC_MAGIC 0x6362616663647563ULL

/* The 64 bytes of a fabric handle: they tell where the exporter keeps its fd. */
struct fabric_handle {
	uint64_t magic;
	uint64_t registry_id;
	uint64_t inode;
	int32_t pid;
	int32_t fd;
};

_Static_assert(sizeof(struct fabric_handle) <= sizeof(CUmemFabricHandle), "fits");

static CUresult export_fd(struct phys *phys, void *fd_out)
{
	int fd = fcntl(phys->fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	phys_mark_shared(phys);
	*(int *)fd_out = fd;
	return CUDA_SUCCESS;
}

static CUresult export_fabric(struct phys *phys, void *handle_out)
{
	struct fabric_handle handle = {
		.magic = FABRIC_MAGIC,
		.registry_id = registry_id(),
		.pid = getpid(),
		.fd = phys->fd,
		.inode = chunkfd_inode_of(phys->fd),
	};

	if (handle.inode == 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	phys_mark_shared(phys);
	memset(handle_out, 0, sizeof(CUmemFabricHandle));
	memcpy(handle_out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable_out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
	ENTER(cuMemExportToShareableHandle);
	CUresult err = CUDA_ERROR_INVALID_VALUE;
	struct phys *phys = shareable_out && flags == 0 ? phys_ref_handle(handle) : NULL;

	if (!phys) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* The properties of an imported handle name no type, so it cannot be exported again. */
	if (phys->prop.requestedHandleTypes & type) {
		if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
			err = export_fd(phys, shareable_out);
		} else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
			err = export_fabric(phys, shareable_out);
		}
	}
	phys_unref(phys);
	return err;
}

/* Takes the fd over. Returns the chunk that the process has imported of the file already, or a new one. */
static struct phys *import_file(int fd, const CUmemAllocationProp *prop, uint64_t bytes)
{
	static pthread_mutex_t importing = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&importing);
	struct phys *phys = phys_ref_import(fd);
	struct phys *fresh = phys ? NULL : phys_from_fd(fd, prop, bytes);
	if (fresh) {
		phys_enter_import(fresh);
	} else {
		close(fd);
	}
	pthread_mutex_unlock(&importing);
	return fresh ? fresh : phys;
}

/* Takes the fd over. */
static CUresult import(int fd, unsigned needed_type, CUmemGenericAllocationHandle *handle_out)
{
	struct chunk_label label;
	uint64_t bytes;

	if (!chunkfd_read(fd, &label, &bytes) || !(label.handle_types & needed_type)) {
		close(fd);
		return CUDA_ERROR_UNKNOWN;
	}
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = label.location_type, .id = label.location_id},
	};
	if (!label.on_host) {
		prop.location.id = device_from_physical(label.device);
		if (prop.location.id < 0) {
			close(fd);
			return CUDA_ERROR_INVALID_DEVICE;
		}
	}
	struct phys *phys = import_file(fd, &prop, bytes);
	if (!phys) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	phys_mark_shared(phys);
	phys->rdma = label.rdma;
	CUresult err = phys_add_handle(phys, handle_out);
	phys_unref(phys);
	return err;
}

static CUresult import_fabric(const struct fabric_handle *shareable,
                              CUmemGenericAllocationHandle *handle_out)
{
	if (device_fabric() == FABRIC_DENIED) {
		return CUDA_ERROR_NOT_PERMITTED;
	}
	if (device_fabric() == FABRIC_NONE || shareable->magic != FABRIC_MAGIC ||
	    shareable->registry_id != registry_id()) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	int fd = chunkfd_reopen(shareable->pid, shareable->fd, shareable->inode);
	if (fd < 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return import(fd, CU_MEM_HANDLE_TYPE_FABRIC, handle_out);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle_out, void *shareable,
                                        CUmemAllocationHandleType type)
{
	ENTER(cuMemImportFromShareableHandle);
	if (!handle_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (type == CU_MEM_HANDLE_TYPE_FABRIC && shareable) {
		return import_fabric(shareable, handle_out);
	}
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	/* The error for an fd that is invalid or no chunk is UNKNOWN, as with a driver. */
	int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
	if (fd < 0) {
		bool is_open = fcntl((int)(intptr_t)shareable, F_GETFD) >= 0;
		return is_open ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_UNKNOWN;
	}
	return import(fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, handle_out);
}
