/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/chunk_export.h"

#include <assert.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* The fd alone holds the memory afterwards. */
static bool run_export(struct work *work)
{
	struct chunk_export *export = container_of(work, struct chunk_export, work);
	const struct location *at = export->chunk->at;
	export->result = location_export_chunk(at, export->chunk->handle, &export->fd);
	if (export->result == CUDA_SUCCESS) {
		at->drv->cuMemRelease(export->chunk->handle);
	}
	return true;
}

static void on_exported(struct work *work)
{
	struct chunk_export *export = container_of(work, struct chunk_export, work);
	struct chunk *chunk = export->chunk;
	if (export->result != CUDA_SUCCESS) {
		char name[LOCATION_NAME_BYTES];
		log_limited(&chunk->at->log_limit, LOG_LEVEL_ERROR, "%s: cannot export a chunk: %s",
		            location_name(chunk->at, name),
		            cudrv_error(chunk->at->drv, export->result));
		pressure_give_fd(export->pressure);
		export->done(export, STATUS_INTERNAL);
		return;
	}
	chunk->fd = fd_steal(&export->fd);
	chunk->handle = 0;
	export->done(export, STATUS_OK);
}

enum status chunk_export_start(struct chunk_export *export, struct pressure *pressure,
                               struct chunk *chunk, chunk_export_fn done)
{
	assert(chunk->handle && chunk->fd < 0);
	/* All exports of a tenant take one turn. */
	uint64_t worker_user = chunk->charge.tenant->id << 32 | UINT32_MAX;
	enum status status = pressure_take_fd(pressure);
	if (status != STATUS_OK) {
		return status;
	}
	*export = (struct chunk_export){
		.pressure = pressure, .chunk = chunk, .done = done, .fd = -1};
	worker_submit(&chunk->at->worker, &export->work, worker_user, run_export, on_exported);
	return STATUS_OK;
}
