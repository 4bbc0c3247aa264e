/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/heap.h"

#include <errno.h>

#include "shim/context.h"
#include "shim/record.h"

bool heap_target_here(struct heap_target *target_out)
{
	CUcontext current = NULL;
	target_out->pool = NULL;
	target_out->stream = 0;
	if (real(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current ||
	    real(cuCtxGetDevice)(&target_out->device) != CUDA_SUCCESS ||
	    context_has_ended(current)) {
		return false;
	}
	target_out->ctx = context_primary(current);
	target_out->generation = context_generation();
	return true;
}

static struct glake__tag tag_of(const struct heap_target *target, struct connection *connection)
{
	return (struct glake__tag){
		.ctx = target->ctx,
		.generation = target->generation,
		.pool = target->pool,
		.connection = connection,
		.stream = target->stream,
	};
}

/* ---- allocating ------------------------------------------------------------------------------- */

struct request {
	const struct heap_target *target;
	uint64_t n_bytes;
	struct glake__tag tag;
	struct glake__wait *wait;
	struct glake__allocation *allocation;
	bool is_foreign;
};

static int request_memory(struct connection *connection, void *user)
{
	struct request *request = user;
	int r = glake__supply_get(connection->session, request->target->device, request->n_bytes,
	                          &request->tag, request->wait, &request->allocation);
	request->is_foreign = r == -ENODEV;
	return r;
}

static int alloc_of(struct connection *connection, void *user)
{
	struct request *request = user;
	request->tag = tag_of(request->target, connection);
	request->allocation = glake__heap_take(connection->session, request->target->device,
	                                       request->n_bytes, &request->tag);
	if (request->allocation) {
		return 0;
	}
	int r = connection_ask(connection, request_memory, request);
	return r != 0 && request->is_foreign ? CONNECTION_E_FOREIGN : r;
}

static CUdeviceptr begin(const struct request *request)
{
	int64_t n_taken = (int64_t)request->allocation->n_capacity;
	shim_count_add(SHIM_COUNT_live_bytes, (int64_t)request->n_bytes);
	cuda_pool_note(request->target->pool, n_taken, n_taken);
	return request->allocation->address;
}

int heap_alloc(const struct heap_target *target, uint64_t n_bytes, struct glake__wait *wait,
               CUdeviceptr *address_out)
{
	struct request request = {.target = target, .n_bytes = n_bytes, .wait = wait};
	int r = CONNECTION_E_FOREIGN;
	if (target->device >= 0 && target->device < SHIM_MAX_DEVICES) {
		r = connection_use(alloc_of, &request);
	}
	if (r == 0) {
		*address_out = begin(&request);
	}
	return r;
}

bool heap_alloc_warm(const struct heap_target *target, uint64_t n_bytes, CUdeviceptr *address_out)
{
	struct request request = {.target = target, .n_bytes = n_bytes};
	struct connection *connection = connection_peek();
	if (connection && !connection->is_dead) {
		request.tag = tag_of(target, connection);
		request.allocation = glake__heap_take(connection->session, target->device, n_bytes,
		                                      &request.tag);
	}
	if (!request.allocation) {
		connection_unref(connection);
		return false;
	}
	*address_out = begin(&request);
	return true;
}

/* ---- looking ---------------------------------------------------------------------------------- */

bool heap_find(CUdeviceptr address, struct heap_facts *facts_out)
{
	struct glake__facts facts;
	if (!glake__heap_find(address, &facts)) {
		return false;
	}
	if (facts_out) {
		*facts_out = (struct heap_facts){
			.address = facts.address,
			.n_bytes = facts.n_bytes,
			.region_address = facts.region_address,
			.region_bytes = facts.region_bytes,
			.id = facts.id,
			.region_id = facts.region_id,
			.target = {.device = facts.ordinal,
		                   .ctx = facts.tag.ctx,
		                   .generation = facts.tag.generation,
		                   .pool = facts.tag.pool},
			.has_ipc = !facts.tag.pool, /* memory of pools has no IPC handle */
			.connection = facts.tag.connection,
		};
	}
	return true;
}

/* Only the current connection has a glaked that knows the region. */
bool heap_share(const struct heap_facts *facts, struct glake_share *share_out)
{
	struct connection *connection = connection_peek();
	int r = -EINVAL;
	if (connection && connection == facts->connection && !connection->is_dead) {
		r = glake__share_region(connection->session, facts->region_address, share_out);
		connection_note(connection, r);
	}
	connection_unref(connection);
	return r == 0;
}

/* ---- freeing ---------------------------------------------------------------------------------- */

static void note_released(const struct glake__allocation *was)
{
	int64_t n_taken = (int64_t)was->n_capacity;
	if (!was->is_parked) {
		shim_count_add(SHIM_COUNT_live_bytes, -(int64_t)was->n_bytes);
	}
	cuda_pool_note(was->tag.pool, was->is_parked ? 0 : -n_taken,
	               was->is_parked && was->is_pooled ? 0 : -n_taken);
}

bool heap_release_asleep(struct glake__allocation *allocation)
{
	const struct glake__allocation was = *allocation;
	struct connection *connection = was.tag.connection;
	if (!glake__sleep_free(connection->session, allocation)) {
		return false;
	}
	note_released(&was);
	connection_unref(connection);
	return true;
}

void heap_release(struct glake__allocation *allocation)
{
	const struct glake__allocation was = *allocation;
	struct connection *connection = was.tag.connection;
	glake__heap_release(connection->session, allocation);
	note_released(&was);
	if (connection->is_dead) {
		/* Allocations use the current connection only: warm memory here is of no use. */
		int index = glake_device_index(connection->session, was.ordinal);
		glake_trim(connection->session, (uint32_t)index, 0);
	}
	connection_unref(connection);
}

/* ---- in stream order -------------------------------------------------------------------------- */

/* Pooled memory that is parked is the pool's, and no allocation's. */
static void note_parked(const struct glake__allocation *allocation, int sign)
{
	int64_t n_taken = sign * (int64_t)allocation->n_capacity;
	shim_count_add(SHIM_COUNT_live_bytes, sign * (int64_t)allocation->n_bytes);
	cuda_pool_note(allocation->tag.pool, n_taken, allocation->is_pooled ? n_taken : 0);
}

bool heap_park(struct glake__allocation *allocation, const struct glake_stream *stream,
               struct glake__parking *parking_out)
{
	bool is_parked = glake__heap_park(allocation, stream->id, parking_out);
	if (is_parked) {
		note_parked(allocation, -1);
	}
	return is_parked;
}

bool heap_join(CUdeviceptr address, const struct glake_stream *stream)
{
	struct glake__allocation was;
	if (!glake__heap_join(NULL, address, stream->id, &was)) {
		return false;
	}
	note_parked(&was, -1);
	connection_unref(was.tag.connection);
	return true;
}

void heap_parked(struct glake__parking *parking)
{
	glake__heap_parked(parking);
}

void heap_unpark(struct glake__allocation *allocation, struct glake__parking *parking)
{
	glake__heap_unpark(allocation, parking);
	note_parked(allocation, 1);
}

CUdeviceptr heap_reuse(struct glake__allocation *allocation, const struct heap_target *target,
                       uint64_t n_bytes)
{
	int64_t n_taken = (int64_t)allocation->n_capacity;
	CUdeviceptr address = allocation->address;
	const struct glake__tag tag = tag_of(target, NULL);
	cuda_pool_note(allocation->tag.pool, 0, -n_taken);
	cuda_pool_note(target->pool, n_taken, n_taken);
	shim_count_add(SHIM_COUNT_live_bytes, (int64_t)n_bytes);
	glake__heap_reuse(allocation, n_bytes, &tag);
	return address;
}

void heap_trim(CUdevice device, uint64_t keep_bytes)
{
	struct connection *connection = connection_peek();
	int index = connection ? glake_device_index(connection->session, device) : -1;
	if (index >= 0) {
		connection_note(connection,
		                glake_trim(connection->session, (uint32_t)index, keep_bytes));
	}
	connection_unref(connection);
}

struct glake_pool_stats heap_pool_stats(CUdevice device)
{
	struct glake_pool_stats stats = {.size = sizeof(stats)};
	struct connection *connection = connection_peek();
	int index = connection ? glake_device_index(connection->session, device) : -1;
	if (index < 0 || glake_pool_stats(connection->session, (uint32_t)index, &stats) < 0) {
		stats = (struct glake_pool_stats){0};
	}
	connection_unref(connection);
	return stats;
}

void heap_reset_pool_peaks(CUdevice device)
{
	struct connection *connection = connection_peek();
	int index = connection ? glake_device_index(connection->session, device) : -1;
	if (index >= 0) {
		glake_pool_reset_peaks(connection->session, (uint32_t)index);
	}
	connection_unref(connection);
}

void heap_release_ctx(CUcontext ctx, uint64_t generation)
{
	struct glake__allocation *list = glake__heap_claim_of(ctx, generation);
	while (list) {
		struct glake__allocation *allocation = list;
		list = allocation->next;
		record_free(allocation->ordinal, allocation->address, 0);
		heap_release(allocation);
	}
}

/* ---- peers ------------------------------------------------------------------------------------ */

CUresult heap_add_peer(CUdevice device, CUdevice reader)
{
	if (device < 0 || device >= SHIM_MAX_DEVICES || reader < 0 || reader >= SHIM_MAX_DEVICES) {
		return CUDA_SUCCESS;
	}
	return glake__space_add_reader(device, reader) == 0 ? CUDA_SUCCESS
	                                                    : CUDA_ERROR_OUT_OF_MEMORY;
}

bool heap_is_closed_to(CUdevice device, CUdevice reader)
{
	return device >= 0 && device < SHIM_MAX_DEVICES && reader >= 0 &&
	       reader < SHIM_MAX_DEVICES && glake__space_is_closed_to(device, reader);
}
