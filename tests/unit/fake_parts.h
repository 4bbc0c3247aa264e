/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store and what it works with, in one thread: mover, workers and driver do what the test says. end()
 * proves that all charges are paid back, no chunk is in any book, and no fd is open.
 */
#ifndef GLAKE_TESTS_FAKE_PARTS_H
#define GLAKE_TESTS_FAKE_PARTS_H

#include <fcntl.h>
#include <unistd.h>

#include "daemon/store/admit.h"
#include "tests/unit/fake_mover.h"
#include "tests/unit/fake_worker.h"
#include "tests/unit/made_store.h"

#define CHUNK_BYTES (2 * MIB)

static struct allocator allocator;
FAKE_UNUSED static struct mover_link fake_link;
FAKE_UNUSED static struct admit_context context = {
	.store = &store,
	.allocator = &allocator,
	.mover = &fake_link,
};

/* ---- the driver, as far as exporting goes ----------------------------------------------------- */

static CUresult export_result;
static unsigned n_handles; /* that exist */

FAKE_UNUSED static CUresult fake_create(CUmemGenericAllocationHandle *handle_out, size_t n_bytes,
                                        const CUmemAllocationProp *properties,
                                        unsigned long long flags)
{
	*handle_out = 17;
	n_handles++;
	return CUDA_SUCCESS;
}

static CUresult fake_export(void *fd_out, CUmemGenericAllocationHandle handle,
                            CUmemAllocationHandleType type, unsigned long long flags)
{
	ck_assert_uint_ne(handle, 0);
	if (export_result == CUDA_SUCCESS) {
		*(int *)fd_out = open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	return export_result;
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
	n_handles--;
	return CUDA_SUCCESS;
}

static CUresult fake_error_name(CUresult result, const char **name_out)
{
	*name_out = "an error";
	return CUDA_SUCCESS;
}

static const struct cudrv drv = {.cuMemCreate = fake_create,
                                 .cuMemExportToShareableHandle = fake_export,
                                 .cuMemRelease = fake_release,
                                 .cuGetErrorName = fake_error_name};

/* ---- begin and end ---------------------------------------------------------------------------- */

static int first_free_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	close(fd);
	return fd;
}

static int free_fd_before;

static void begin(void)
{
	store_begin();
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i].at.drv = &drv;
		devices[i].at.usable_bytes = 1024 * MIB;
	}
	ck_assert_int_eq(
		allocator_init(&allocator, &loop, locations, N_DEVICES, 100, store.cache, &stats),
		0);
	free_fd_before = first_free_fd();
}

static void run_workers(void)
{
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		fake_worker_run(&devices[i].at.worker);
	}
}

static void end(void)
{
	ck_assert_uint_eq(fake_mover_n_jobs(), 0);
	store_evict_all(&store, NULL, NULL);
	run_workers();
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		ck_assert_uint_eq(location_physical_bytes(&devices[i].at), 0);
		ck_assert_uint_eq(devices[i].at.used_block_bytes, 0);
		ck_assert_uint_eq(devices[i].at.leaving_bytes, 0);
	}
	ck_assert_uint_eq(allocator.books.n_fds, 0);
	ck_assert_uint_eq(n_handles, 0);
	ck_assert_int_eq(first_free_fd(), free_fd_before);
	allocator_deinit(&allocator);
	store_end();
}

/* ---- chunks and blocks ------------------------------------------------------------------------- */

FAKE_UNUSED static struct chunk new_chunk_of(uint64_t bytes, enum chunk_use use, bool has_fd)
{
	struct charge charge;
	struct chunk chunk;
	int fd = has_fd ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
	ck_assert_int_eq(tenant_charge(payer, 0, bytes, 1, &charge), 0);
	n_handles += !has_fd;
	chunk_init(&chunk, &devices[0].at, &allocator.books, bytes, fd, has_fd ? 0 : 17, use,
	           &charge);
	return chunk;
}

FAKE_UNUSED static struct chunk new_chunk(void)
{
	return new_chunk_of(CHUNK_BYTES, CHUNK_PRIVATE, true);
}

/* A block that a program published; used once, at the cost of payer. */
FAKE_UNUSED static struct block *have_block(unsigned name)
{
	struct chunk chunk = new_chunk();
	struct digest of_name = digest(name);
	struct block *block = store_seal(&store, realm, NULL, &of_name, CHUNK_BYTES, &chunk, false);
	ck_assert_ptr_nonnull(block);
	block->is_published = true;
	return block;
}

FAKE_UNUSED static struct block *have_idle_block(unsigned name)
{
	struct block *block = have_block(name);
	store_unuse_block(&store, block, 0);
	return block;
}

FAKE_UNUSED static uint64_t used_bytes(const struct tenant *tenant)
{
	return tenant->at[0].used_bytes;
}

#endif
