/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "shim/connection.h"
#include "shim/quiesce.h"

/* The driver's handles begin with other bytes. */
static const char magic[7] = {'G', 'L', 'K', 'I', 'P', 'C', '2'};

/* The content of a handle: a region, and an allocation in it. It may be forged. */
struct ipc_name {
	char magic[sizeof(magic)];
	uint8_t n_chunks; /* at most GLAKE_MAX_PACKET_FDS */
	uint64_t session;
	uint64_t first_chunk;
	uint64_t last_chunk;
	uint64_t region_bytes;
	uint64_t ticket;
	uint64_t offset;
	uint64_t n_bytes;
};
_Static_assert(sizeof(struct ipc_name) == sizeof(CUipcMemHandle), "a name fills a handle");

/* An allocation of another process that the program has opened. */
struct opening {
	struct opening *next; /* link: opened.openings */
	uint64_t offset;
	uint64_t n_bytes;
	uint64_t id;
	unsigned n_opens;
};

/* A region of another process, mapped for one context and its device. Closing waits for it. */
struct opened {
	struct opened *next; /* link: list */
	struct glake_share share;
	CUdeviceptr base;
	uint64_t id;
	struct heap_target target;
	struct opening *openings;      /* owned; not empty */
	struct connection *connection; /* a reference */
};

/* Held while glaked is asked, so that two threads with one handle get one mapping. */
static pthread_mutex_t opening_lock = PTHREAD_MUTEX_INITIALIZER;

/* Held for a few instructions only, because questions about pointers take it. Inside opening_lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *list; /* owned */
static uint64_t next_id = 1ull << 61;

static struct ipc_name read_name(const CUipcMemHandle *handle)
{
	struct ipc_name name;
	memcpy(&name, handle->reserved, sizeof(name));
	return name;
}

static struct glake_share share_of(const struct ipc_name *name)
{
	return (struct glake_share){
		.session = name->session,
		.first_chunk = name->first_chunk,
		.last_chunk = name->last_chunk,
		.bytes = name->region_bytes,
		.ticket = name->ticket,
		.n_chunks = name->n_chunks,
	};
}

bool ipc_is_ours(const CUipcMemHandle *handle)
{
	return memcmp(handle->reserved, magic, sizeof(magic)) == 0;
}

bool ipc_name(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out)
{
	struct glake_share share;
	struct heap_facts facts;
	if (!heap_find(address, &facts) || !facts.has_ipc) {
		return false;
	}
	*result_out = CUDA_ERROR_INVALID_VALUE;
	if (heap_share(&facts, &share)) {
		struct ipc_name name = {
			.n_chunks = (uint8_t)share.n_chunks,
			.session = share.session,
			.first_chunk = share.first_chunk,
			.last_chunk = share.last_chunk,
			.region_bytes = share.bytes,
			.ticket = share.ticket,
			.offset = facts.address - facts.region_address,
			.n_bytes = facts.n_bytes,
		};
		memcpy(name.magic, magic, sizeof(magic));
		memcpy(handle_out->reserved, &name, sizeof(name));
		*result_out = CUDA_SUCCESS;
	}
	return true;
}

/* ---- the list: all of it with the lock held --------------------------------------------------- */

/* The whole name is compared: it may be forged, and only glaked can tell. */
static struct opened *find_share(const struct glake_share *share, CUcontext ctx)
{
	struct opened *opened = list;
	while (opened &&
	       (opened->target.ctx != ctx || memcmp(&opened->share, share, sizeof(*share)) != 0)) {
		opened = opened->next;
	}
	return opened;
}

/* The region with @address, or NULL. Valid while the lock is held. */
static struct opened *find_opened(CUdeviceptr address)
{
	return glake__space_look(address).user;
}

static void take_out(struct opened *opened)
{
	struct opened **at = &list;
	while (*at != opened) {
		at = &(*at)->next;
	}
	*at = opened->next;
	glake__opened_set_user(opened->base, NULL);
}

/* The link to the allocation that starts at @offset, or to the end of the list. */
static struct opening **opening_at(struct opened *opened, uint64_t offset)
{
	struct opening **at = &opened->openings;
	while (*at && (*at)->offset != offset) {
		at = &(*at)->next;
	}
	return at;
}

/* @n_bytes may differ from before: the process may have freed it and allocated there again. */
static int add_opening(struct opened *opened, uint64_t offset, uint64_t n_bytes)
{
	struct opening *opening = *opening_at(opened, offset);
	if (!opening) {
		opening = calloc(1, sizeof(*opening));
		if (!opening) {
			return -ENOMEM;
		}
		opening->offset = offset;
		opening->id = next_id++;
		opening->next = opened->openings;
		opened->openings = opening;
	}
	opening->n_bytes = n_bytes;
	opening->n_opens++;
	return 0;
}

/* ---- opening ---------------------------------------------------------------------------------- */

static CUresult judge(int error)
{
	switch (error) {
	case 0:
		return CUDA_SUCCESS;
	case GLAKE_E_NOT_FOUND: /* freed, its process has ended, or the name is forged */
	case -EINVAL:
		return CUDA_ERROR_INVALID_HANDLE;
	default:
		return CUDA_ERROR_MAP_FAILED;
	}
}

static void opened_free(struct opened *opened)
{
	glake_share_close(opened->connection->session, &opened->share, opened->base);
	connection_unref(opened->connection);
	while (opened->openings) {
		struct opening *opening = opened->openings;
		opened->openings = opening->next;
		free(opening);
	}
	free(opened);
}

static int open_share(const struct glake_share *share, const struct heap_target *target,
                      struct connection *connection, struct opened **opened_out)
{
	struct opened *opened = calloc(1, sizeof(*opened));
	if (!opened) {
		return -ENOMEM;
	}
	glake_ptr base = 0;
	int r = glake_share_open(connection->session, share, target->device, &base);
	if (r < 0) {
		connection_note(connection, r);
		free(opened);
		return r;
	}
	opened->share = *share;
	opened->base = base;
	opened->target = *target;
	opened->connection = connection_ref(connection);
	*opened_out = opened;
	return 0;
}

/* If the region is open already, open it once more; *error_out is the result. */
static bool open_again(const struct ipc_name *name, const struct heap_target *target,
                       CUdeviceptr *address_out, int *error_out)
{
	struct glake_share share = share_of(name);
	pthread_mutex_lock(&lock);
	struct opened *opened = find_share(&share, target->ctx);
	if (opened) {
		opened->target.generation = target->generation;
		*error_out = add_opening(opened, name->offset, name->n_bytes);
		*address_out = opened->base + name->offset;
	}
	pthread_mutex_unlock(&lock);
	return opened != NULL;
}

/* Called with the opening lock held. */
static int open_one(const struct ipc_name *name, const struct heap_target *target,
                    struct connection *connection, CUdeviceptr *address_out)
{
	struct glake_share share = share_of(name);
	struct opened *opened;
	int r;
	if (open_again(name, target, address_out, &r)) {
		return r;
	}
	r = open_share(&share, target, connection, &opened);
	if (r < 0) {
		return r;
	}
	pthread_mutex_lock(&lock);
	r = add_opening(opened, name->offset, name->n_bytes);
	if (r == 0) {
		opened->id = next_id++;
		opened->next = list;
		list = opened;
		glake__opened_set_user(opened->base, opened);
	}
	pthread_mutex_unlock(&lock);
	if (r < 0) {
		opened_free(opened);
		return r;
	}
	*address_out = opened->base + name->offset;
	return 0;
}

/* A process cannot open its own memory, as with the driver. */
static bool is_own(struct connection *connection, const struct ipc_name *name)
{
	struct glake_session_info info = {.size = sizeof(info)};
	return glake_session_info(connection->session, &info) == 0 && info.session == name->session;
}

CUresult ipc_open(const CUipcMemHandle *handle, const struct heap_target *target,
                  CUdeviceptr *address_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct ipc_name name = read_name(handle);
	if (name.offset >= name.region_bytes || name.n_bytes == 0 ||
	    name.n_bytes > name.region_bytes - name.offset) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	bool is_refused;
	struct connection *connection = connection_get(&is_refused);
	if (!connection) {
		return CUDA_ERROR_MAP_FAILED;
	}
	CUresult result = CUDA_ERROR_INVALID_CONTEXT;
	if (!is_own(connection, &name)) {
		pthread_mutex_lock(&opening_lock);
		result = judge(open_one(&name, target, connection, address_out));
		pthread_mutex_unlock(&opening_lock);
	}
	connection_unref(connection);
	return result;
}

/* ---- closing ---------------------------------------------------------------------------------- */

/*
 * Called with the lock held. Closes the allocation that starts at @address once, if there is one.
 * If it was the last of its region, returns the region, for opened_free().
 */
static struct opened *close_locked(CUdeviceptr address, bool *is_closed_out)
{
	struct opened *opened = find_opened(address);
	struct opening **opening_link = opened ? opening_at(opened, address - opened->base) : NULL;
	struct opening *opening = opening_link ? *opening_link : NULL;
	*is_closed_out = opening != NULL;
	if (!opening || --opening->n_opens > 0) {
		return NULL;
	}
	*opening_link = opening->next;
	free(opening);
	if (opened->openings) {
		return NULL;
	}
	take_out(opened);
	return opened;
}

bool ipc_close(CUdeviceptr address, CUresult *result_out)
{
	pthread_mutex_lock(&lock);
	struct opened *opened = find_opened(address);
	bool is_start = opened && *opening_at(opened, address - opened->base);
	CUcontext ctx = opened ? opened->target.ctx : NULL;
	pthread_mutex_unlock(&lock);
	if (!opened) {
		return false;
	}
	*result_out = is_start ? quiesce_ctx(ctx) : CUDA_ERROR_INVALID_VALUE;
	if (*result_out != CUDA_SUCCESS) {
		return true;
	}
	bool is_closed;
	pthread_mutex_lock(&lock);
	struct opened *gone = close_locked(address, &is_closed);
	pthread_mutex_unlock(&lock);
	if (gone) {
		opened_free(gone);
	}
	*result_out = is_closed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return true;
}

void ipc_release_ctx(CUcontext ctx, uint64_t generation)
{
	struct opened *gone = NULL;
	/* No opening for the old @ctx is under way now. Later ones have a later generation. */
	pthread_mutex_lock(&opening_lock);
	pthread_mutex_lock(&lock);
	for (struct opened **at = &list; *at;) {
		struct opened *opened = *at;
		if (opened->target.ctx == ctx && opened->target.generation < generation) {
			*at = opened->next;
			glake__opened_set_user(opened->base, NULL);
			opened->next = gone;
			gone = opened;
		} else {
			at = &opened->next;
		}
	}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&opening_lock);
	while (gone) {
		struct opened *opened = gone;
		gone = opened->next;
		opened_free(opened);
	}
}

bool ipc_find(CUdeviceptr address, struct heap_facts *facts_out)
{
	pthread_mutex_lock(&lock);
	const struct opened *opened = find_opened(address);
	const struct opening *opening = opened ? opened->openings : NULL;
	while (opening && address - opened->base - opening->offset >= opening->n_bytes) {
		opening = opening->next;
	}
	if (opening && facts_out) {
		*facts_out = (struct heap_facts){
			.address = opened->base + opening->offset,
			.n_bytes = opening->n_bytes,
			.region_address = opened->base,
			.region_bytes = opened->share.bytes,
			.id = opening->id,
			.region_id = opened->id,
			.target = opened->target,
		};
	}
	pthread_mutex_unlock(&lock);
	return opening != NULL;
}
