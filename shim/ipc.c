/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/ipc.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim/owner.h"
#include "shim/quiesce.h"

#define MAGIC 0x314350494b4c4744ull /* "DGLKIPC1" as bytes */

struct ipc_name {
	uint64_t magic;
	struct glake_share share; /* of the whole region */
	uint64_t offset;          /* of the allocation in it */
	uint64_t n_bytes;
};
_Static_assert(sizeof(struct ipc_name) <= sizeof(CUipcMemHandle), "a name fits a handle");

/* A region of another process, mapped here. */
struct opened {
	struct opened *next; /* link: list */
	struct glake_share share;
	CUdeviceptr base;
	uint64_t id;
	unsigned n_opens;
	struct heap_place place; /* of the first who opened it */
	struct owner *owner;     /* a reference */
};

/* Held while glaked is asked, so that two threads that open one handle get one mapping. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct opened *list; /* owned */
static uint64_t next_id = 1ull << 61;

static struct ipc_name read_name(const CUipcMemHandle *handle)
{
	struct ipc_name name;
	memcpy(&name, handle->reserved, sizeof(name));
	return name;
}

bool ipc_is_ours(const CUipcMemHandle *handle)
{
	return read_name(handle).magic == MAGIC;
}

bool ipc_name(CUdeviceptr address, CUipcMemHandle *handle_out, CUresult *result_out)
{
	struct ipc_name name = {.magic = MAGIC};
	struct heap_facts facts;
	/* Memory of pools has no legacy handles. */
	if (!heap_find(address, &facts) || facts.place.pool) {
		return false;
	}
	*result_out = CUDA_ERROR_INVALID_VALUE;
	if (heap_share(&facts, &name.share)) {
		name.offset = facts.address - facts.region_address;
		name.n_bytes = facts.n_bytes;
		memset(handle_out, 0, sizeof(*handle_out));
		memcpy(handle_out->reserved, &name, sizeof(name));
		*result_out = CUDA_SUCCESS;
	}
	return true;
}

/* ---- opening ---------------------------------------------------------------------------------- */

static CUresult judge(int error)
{
	switch (error) {
	case 0:
		return CUDA_SUCCESS;
	case GLAKE_E_NOT_FOUND: /* freed, or its process is gone */
	case -EINVAL:
		return CUDA_ERROR_INVALID_HANDLE;
	default:
		return CUDA_ERROR_MAP_FAILED;
	}
}

/* All of it: a name may come from anybody, and only glaked says which one is true. */
static bool is_same(const struct glake_share *one, const struct glake_share *other)
{
	return one->session == other->session && one->first_chunk == other->first_chunk &&
	       one->last_chunk == other->last_chunk && one->bytes == other->bytes &&
	       one->n_chunks == other->n_chunks;
}

/* Called with the lock held. */
static struct opened *find_share(const struct glake_share *share)
{
	struct opened *opened = list;
	while (opened && !is_same(&opened->share, share)) {
		opened = opened->next;
	}
	return opened;
}

/* Called with the lock held. */
static int open_share(const struct ipc_name *name, const struct heap_place *place,
                      struct owner *owner)
{
	struct opened *opened = calloc(1, sizeof(*opened));
	if (!opened) {
		return -ENOMEM;
	}
	glake_ptr base = 0;
	int r = glake_share_open(owner->session, &name->share, place->device, &base);
	if (r < 0) {
		owner_is_gone(owner, r);
		free(opened);
		return r;
	}
	opened->share = name->share;
	opened->base = base;
	opened->id = next_id++;
	opened->place = *place;
	opened->owner = owner_ref(owner);
	opened->next = list;
	list = opened;
	return 0;
}

/* The driver does not let a process open what is its own. */
static bool is_own(struct owner *owner, const struct glake_share *share)
{
	struct glake_session_info info = {.size = sizeof(info)};
	return glake_session_info(owner->session, &info) == 0 && info.session == share->session;
}

CUresult ipc_open(const CUipcMemHandle *handle, const struct heap_place *place,
                  CUdeviceptr *address_out)
{
	struct ipc_name name = read_name(handle);
	bool is_refused;
	struct owner *owner = owner_get(&is_refused);
	if (!owner) {
		return CUDA_ERROR_MAP_FAILED;
	}
	if (name.offset >= name.share.bytes || is_own(owner, &name.share)) {
		owner_unref(owner);
		return name.offset >= name.share.bytes ? CUDA_ERROR_INVALID_HANDLE
		                                       : CUDA_ERROR_INVALID_CONTEXT;
	}
	pthread_mutex_lock(&lock);
	struct opened *opened = find_share(&name.share);
	int r = opened ? 0 : open_share(&name, place, owner);
	if (r == 0) {
		opened = find_share(&name.share);
		opened->n_opens++;
		*address_out = opened->base + name.offset;
	}
	pthread_mutex_unlock(&lock);
	owner_unref(owner);
	return judge(r);
}

/* ---- closing ---------------------------------------------------------------------------------- */

static void opened_free(struct opened *opened)
{
	glake_share_close(opened->owner->session, &opened->share, opened->base);
	owner_unref(opened->owner);
	free(opened);
}

/* Called with the lock held: the link to what holds @address. */
static struct opened **link_of(CUdeviceptr address)
{
	struct opened **at = &list;
	while (*at && address - (*at)->base >= (*at)->share.bytes) {
		at = &(*at)->next;
	}
	return at;
}

bool ipc_close(CUdeviceptr address, CUresult *result_out)
{
	pthread_mutex_lock(&lock);
	struct opened *opened = *link_of(address);
	CUcontext ctx = opened ? opened->place.ctx : NULL;
	pthread_mutex_unlock(&lock);
	if (!opened) {
		return false;
	}
	*result_out = quiesce_ctx(ctx);
	if (*result_out != CUDA_SUCCESS) {
		return true;
	}
	pthread_mutex_lock(&lock);
	struct opened **at = link_of(address);
	opened = *at;
	bool is_last = opened && --opened->n_opens == 0;
	if (is_last) {
		*at = opened->next;
	}
	pthread_mutex_unlock(&lock);
	if (is_last) {
		opened_free(opened);
	}
	*result_out = opened ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	return true;
}

void ipc_release_ctx(CUcontext ctx)
{
	struct opened *gone = NULL;
	pthread_mutex_lock(&lock);
	for (struct opened **at = &list; *at;) {
		struct opened *opened = *at;
		if (opened->place.ctx == ctx) {
			*at = opened->next;
			opened->next = gone;
			gone = opened;
		} else {
			at = &opened->next;
		}
	}
	pthread_mutex_unlock(&lock);
	while (gone) {
		struct opened *opened = gone;
		gone = opened->next;
		opened_free(opened);
	}
}

bool ipc_find(CUdeviceptr address, struct heap_facts *facts_out)
{
	pthread_mutex_lock(&lock);
	const struct opened *opened = *link_of(address);
	if (opened && facts_out) {
		*facts_out = (struct heap_facts){
			.address = opened->base,
			.n_bytes = opened->share.bytes,
			.region_address = opened->base,
			.region_bytes = opened->share.bytes,
			.id = opened->id,
			.region_id = opened->id,
			.place = opened->place,
		};
	}
	pthread_mutex_unlock(&lock);
	return opened != NULL;
}
