/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/heap.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "shim/context.h"
#include "shim/index.h"
#include "shim/slab.h"

/* Ids that the driver does not give to its own buffers: registration caches key on them. */
#define FIRST_ID (1ull << 62)

struct allocation {
	CUdeviceptr address;
	uint64_t n_bytes;
	uint64_t id;
	CUcontext ctx;
	uint64_t era;             /* of ctx */
	struct pool *pool;        /* borrowed; NULL: of cuMemAlloc() */
	struct region *region;    /* borrowed */
	struct slab_block *block; /* borrowed; NULL: the whole region */
	bool is_claimed;
	bool is_parked;          /* and claimed */
	struct allocation *next; /* link: a list of claimed ones */
};

struct region {
	CUdeviceptr base;
	uint64_t n_bytes;
	uint64_t id;
	CUdevice device;
	uint64_t readers;      /* bit per device that it has been opened to */
	uint32_t index;        /* the device's number with glaked */
	atomic_bool is_named;  /* another process may have it mapped */
	struct owner *owner;   /* a reference */
	struct slab *slab;     /* owned; NULL: one allocation */
	struct allocation *of; /* borrowed; NULL: a slab */
};

struct heap_device {
	struct slab_bins bins;
	unsigned n_empty_slabs;
	uint64_t readers; /* bit per device that may access this one's memory */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct index regions; /* by base */
static uint64_t next_id = FIRST_ID;
static struct heap_device devices[SHIM_MAX_DEVICES];

/* Let other devices read and write @region. */
static CUresult open_to(const struct region *region, uint64_t readers)
{
	CUresult result = CUDA_SUCCESS;
	for (int reader = 0; readers && result == CUDA_SUCCESS; reader++, readers >>= 1) {
		if (readers & 1) {
			CUmemAccessDesc access = {
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = reader},
				.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
			};
			result = real(cuMemSetAccess)(region->base, region->n_bytes, &access, 1);
		}
	}
	return result;
}

/* ---- the index: all of it with the lock held -------------------------------------------------- */

static struct region *find_region(CUdeviceptr address)
{
	struct region *region = index_below(&regions, address);
	return region && address - region->base < region->n_bytes ? region : NULL;
}

/* With the readers that were added since the region was made. */
static bool add_region(struct region *region)
{
	uint64_t missing = devices[region->device].readers & ~region->readers;
	region->id = next_id++;
	return open_to(region, missing) == CUDA_SUCCESS &&
	       index_add(&regions, region->base, region);
}

static struct allocation *find_allocation(CUdeviceptr address)
{
	struct region *region = find_region(address);
	if (!region) {
		return NULL;
	}
	struct allocation *found = region->slab ? slab_find(region->slab, address)->user
	                                        : region->of;
	return found && !found->is_claimed && address - found->address < found->n_bytes ? found
	                                                                                : NULL;
}

/* ---- regions ---------------------------------------------------------------------------------- */

static int request_region(struct owner *owner, void *user)
{
	struct region *region = user;
	glake_ptr base = 0;
	int r = glake_alloc(owner->session, region->index, region->n_bytes, 0, &base);
	region->base = base;
	return r;
}

/* Ask @owner; region->owner stays to be set. */
static int fill_region(struct owner *owner, struct region *region)
{
	struct glake_device device;
	if (!owner_device(owner, region->device, &device)) {
		return OWNER_E_FOREIGN;
	}
	if (region->n_bytes > device.total_bytes) {
		/* There may not even be an address range of this size to be reserved. */
		return OWNER_E_FULL;
	}
	region->index = device.index;
	return owner_ask(owner, request_region, region);
}

static uint64_t readers_of(CUdevice device)
{
	pthread_mutex_lock(&lock);
	uint64_t readers = devices[device].readers;
	pthread_mutex_unlock(&lock);
	return readers;
}

/* Give @region's memory back, and forget it. It is in no index. */
static void region_free(struct region *region)
{
	struct owner *owner = region->owner;
	if (owner) {
		glake_free(owner->session, region->base);
		if (owner->is_dead) {
			/* Nobody would take it from its warm memory again. */
			glake_trim(owner->session, region->index, 0);
		}
		owner_unref(owner);
	}
	free(region);
}

static int region_new(CUdevice device, uint64_t n_bytes, struct region **region_out)
{
	struct region *region = calloc(1, sizeof(*region));
	if (!region) {
		return OWNER_E_FULL;
	}
	region->device = device;
	region->n_bytes = (n_bytes + SLAB_BYTES - 1) & ~(SLAB_BYTES - 1);
	int r = region->n_bytes < n_bytes ? OWNER_E_FULL : OWNER_E_ABSENT;
	/* Twice: a session may turn out to be dead, and a new one be had. */
	for (int attempt = 0; attempt < 2 && r == OWNER_E_ABSENT; attempt++) {
		bool is_refused;
		struct owner *owner = owner_get(&is_refused);
		if (!owner) {
			r = is_refused ? OWNER_E_FULL : OWNER_E_ABSENT;
			break;
		}
		r = fill_region(owner, region);
		if (r == 0) {
			region->owner = owner;
		} else {
			owner_unref(owner);
		}
	}
	region->readers = readers_of(device);
	if (r == 0 && open_to(region, region->readers) != CUDA_SUCCESS) {
		r = OWNER_E_FULL;
	}
	if (r != 0) {
		region_free(region);
		return r;
	}
	*region_out = region;
	return 0;
}

bool heap_place_here(struct heap_place *place_out)
{
	CUcontext current = NULL;
	place_out->pool = NULL;
	if (real(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current ||
	    real(cuCtxGetDevice)(&place_out->device) != CUDA_SUCCESS ||
	    context_has_ended(current)) {
		return false;
	}
	place_out->ctx = context_primary(current);
	place_out->era = context_era();
	return true;
}

/* ---- allocating ------------------------------------------------------------------------------- */

static int add_slab(CUdevice device)
{
	struct region *region;
	int r = region_new(device, SLAB_BYTES, &region);
	if (r != 0) {
		return r;
	}
	struct heap_device *on = &devices[device];
	pthread_mutex_lock(&lock);
	region->slab = slab_new(&on->bins, region->base, region);
	bool is_in = region->slab && add_region(region);
	on->n_empty_slabs += is_in;
	if (!is_in && region->slab) {
		slab_free(&on->bins, region->slab);
	}
	pthread_mutex_unlock(&lock);
	if (!is_in) {
		region_free(region);
		return OWNER_E_FULL;
	}
	return 0;
}

static bool take_small(struct allocation *allocation, CUdevice device)
{
	struct heap_device *on = &devices[device];
	pthread_mutex_lock(&lock);
	struct slab_block *block = slab_take(&on->bins, allocation->n_bytes);
	if (block) {
		block->user = allocation;
		allocation->block = block;
		allocation->region = block->slab->user;
		allocation->address = slab_block_address(block);
		allocation->id = next_id++;
		on->n_empty_slabs -= block->slab->n_used == 1;
	}
	pthread_mutex_unlock(&lock);
	return block != NULL;
}

static int alloc_small(struct allocation *allocation, CUdevice device)
{
	int r = 0;
	while (r == 0 && !take_small(allocation, device)) {
		/* Another thread may be faster than we and fill the slab that we add. */
		r = add_slab(device);
	}
	return r;
}

static int alloc_large(struct allocation *allocation, CUdevice device)
{
	struct region *region;
	int r = region_new(device, allocation->n_bytes, &region);
	if (r != 0) {
		return r;
	}
	region->of = allocation;
	allocation->region = region;
	allocation->address = region->base;
	pthread_mutex_lock(&lock);
	bool is_in = add_region(region);
	allocation->id = next_id++;
	pthread_mutex_unlock(&lock);
	if (!is_in) {
		region_free(region);
		return OWNER_E_FULL;
	}
	return 0;
}

int heap_alloc(const struct heap_place *place, uint64_t n_bytes, CUdeviceptr *address_out)
{
	if (place->device < 0 || place->device >= SHIM_MAX_DEVICES) {
		return OWNER_E_FOREIGN;
	}
	struct allocation *allocation = calloc(1, sizeof(*allocation));
	if (!allocation) {
		return OWNER_E_FULL;
	}
	allocation->n_bytes = n_bytes;
	allocation->ctx = place->ctx;
	allocation->era = place->era;
	allocation->pool = place->pool;
	int r = n_bytes < SLAB_BYTES ? alloc_small(allocation, place->device)
	                             : alloc_large(allocation, place->device);
	if (r != 0) {
		free(allocation);
		return r;
	}
	shim_count_add(SHIM_COUNT_live_bytes, (int64_t)n_bytes);
	int64_t n_taken = (int64_t)heap_capacity(allocation);
	pool_note(allocation->pool, n_taken, n_taken);
	*address_out = allocation->address;
	return 0;
}

/* ---- looking ---------------------------------------------------------------------------------- */

bool heap_find(CUdeviceptr address, struct heap_facts *facts_out)
{
	pthread_mutex_lock(&lock);
	const struct allocation *found = find_allocation(address);
	if (found && facts_out) {
		*facts_out = (struct heap_facts){
			.address = found->address,
			.n_bytes = found->n_bytes,
			.region_address = found->region->base,
			.region_bytes = found->region->n_bytes,
			.id = found->id,
			.region_id = found->region->id,
			.place = {.device = found->region->device,
		                  .ctx = found->ctx,
		                  .era = found->era,
		                  .pool = found->pool},
			.has_ipc = !found->pool, /* memory of pools has none */
		};
	}
	pthread_mutex_unlock(&lock);
	return found != NULL;
}

bool heap_has(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	bool has = find_region(address) != NULL;
	pthread_mutex_unlock(&lock);
	if (!has) {
		struct owner *owner = owner_peek();
		has = owner && glake_is_warm(owner->session, address);
		owner_unref(owner);
	}
	return has;
}

bool heap_share(const struct heap_facts *facts, struct glake_share *share_out)
{
	struct owner *owner = NULL;
	pthread_mutex_lock(&lock);
	struct region *region = find_region(facts->region_address);
	if (region && region->id == facts->region_id && !region->owner->is_dead) {
		owner = owner_ref(region->owner);
		region->is_named = true;
	}
	pthread_mutex_unlock(&lock);
	if (!owner) {
		return false;
	}
	int r = glake_share(owner->session, facts->region_address, share_out);
	owner_note_error(owner, r);
	owner_unref(owner);
	return r == 0;
}

/* ---- freeing ---------------------------------------------------------------------------------- */

struct allocation *heap_claim(CUdeviceptr address)
{
	pthread_mutex_lock(&lock);
	struct allocation *found = find_allocation(address);
	if (found && found->address == address) {
		found->is_claimed = true;
	} else {
		found = NULL;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

CUcontext heap_ctx_of(const struct allocation *allocation)
{
	return allocation->ctx;
}

CUdevice heap_device_of(const struct allocation *allocation)
{
	return allocation->region->device;
}

void heap_unclaim(struct allocation *allocation)
{
	pthread_mutex_lock(&lock);
	allocation->is_claimed = false;
	pthread_mutex_unlock(&lock);
}

/* Called with the lock held. The region, if it is of no more use, out of the index. */
static struct region *release_locked(struct allocation *allocation)
{
	struct region *region = allocation->region;
	if (region->slab) {
		struct heap_device *on = &devices[region->device];
		slab_give(&on->bins, allocation->block);
		/* One empty slab stays, for a program that allocates and frees in turn. */
		if (region->slab->n_used > 0 || on->n_empty_slabs++ == 0) {
			return NULL;
		}
		on->n_empty_slabs--;
		slab_free(&on->bins, region->slab);
	}
	index_remove(&regions, region->base);
	return region;
}

void heap_release(struct allocation *allocation)
{
	int64_t n_taken = (int64_t)heap_capacity(allocation);
	pthread_mutex_lock(&lock);
	struct region *region = release_locked(allocation);
	pthread_mutex_unlock(&lock);
	if (!allocation->is_parked) {
		shim_count_add(SHIM_COUNT_live_bytes, -(int64_t)allocation->n_bytes);
	}
	pool_note(allocation->pool, allocation->is_parked ? 0 : -n_taken, -n_taken);
	free(allocation);
	if (region) {
		region_free(region);
	}
}

/* ---- in stream order -------------------------------------------------------------------------- */

uint64_t heap_capacity(const struct allocation *allocation)
{
	return allocation->block ? (uint64_t)allocation->block->n_units * SLAB_UNIT_BYTES
	                         : allocation->region->n_bytes;
}

/* What is named is given back. A slab lives on with all that is in it, as the driver's does. */
uint64_t heap_reusable(const struct allocation *allocation)
{
	return !allocation->block && allocation->region->is_named ? 0 : heap_capacity(allocation);
}

uint64_t heap_round(uint64_t n_bytes)
{
	uint64_t step = n_bytes < SLAB_BYTES ? SLAB_UNIT_BYTES : SLAB_BYTES;
	uint64_t rounded = (n_bytes + step - 1) / step * step;
	return rounded < n_bytes ? n_bytes : rounded;
}

static void set_parked(struct allocation *allocation, bool is_parked)
{
	int sign = is_parked ? -1 : 1;
	allocation->is_parked = is_parked;
	shim_count_add(SHIM_COUNT_live_bytes, sign * (int64_t)allocation->n_bytes);
	pool_note(allocation->pool, sign * (int64_t)heap_capacity(allocation), 0);
}

void heap_park(struct allocation *allocation)
{
	set_parked(allocation, true);
}

void heap_unpark(struct allocation *allocation)
{
	set_parked(allocation, false);
}

CUdeviceptr heap_reuse(struct allocation *allocation, const struct heap_place *place,
                       uint64_t n_bytes)
{
	int64_t n_taken = (int64_t)heap_capacity(allocation);
	CUdeviceptr address = allocation->address;
	pool_note(allocation->pool, 0, -n_taken);
	pool_note(place->pool, n_taken, n_taken);
	shim_count_add(SHIM_COUNT_live_bytes, (int64_t)n_bytes);
	pthread_mutex_lock(&lock);
	allocation->n_bytes = n_bytes;
	allocation->ctx = place->ctx;
	allocation->era = place->era;
	allocation->pool = place->pool;
	allocation->id = next_id++;
	allocation->is_parked = false;
	allocation->is_claimed = false;
	pthread_mutex_unlock(&lock);
	return address;
}

void heap_trim(CUdevice device, uint64_t keep_bytes)
{
	struct glake_device found;
	struct owner *owner = owner_peek();
	if (owner && owner_device(owner, device, &found)) {
		owner_note_error(owner, glake_trim(owner->session, found.index, keep_bytes));
	}
	owner_unref(owner);
}

/* Called with the lock held: claim what @ctx had of @region before @era, onto @list. */
static void claim_of(struct region *region, CUcontext ctx, uint64_t era, struct allocation **list)
{
	CUdeviceptr address = region->base;
	while (address < region->base + region->n_bytes) {
		struct allocation *found = region->of;
		CUdeviceptr end = region->base + region->n_bytes;
		if (region->slab) {
			const struct slab_block *block = slab_find(region->slab, address);
			found = block->user;
			end = address + (uint64_t)block->n_units * SLAB_UNIT_BYTES;
		}
		if (found && !found->is_claimed && found->ctx == ctx && found->era < era) {
			found->is_claimed = true;
			found->next = *list;
			*list = found;
		}
		address = end;
	}
}

void heap_release_ctx(CUcontext ctx, uint64_t era)
{
	struct allocation *list = NULL;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < regions.n; i++) {
		claim_of(regions.entries[i].value, ctx, era, &list);
	}
	pthread_mutex_unlock(&lock);
	while (list) {
		struct allocation *allocation = list;
		list = allocation->next;
		heap_release(allocation);
	}
}

/* ---- peers ------------------------------------------------------------------------------------ */

CUresult heap_add_peer(CUdevice device, CUdevice reader)
{
	if (device < 0 || device >= SHIM_MAX_DEVICES || reader < 0 || reader >= SHIM_MAX_DEVICES) {
		return CUDA_SUCCESS;
	}
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	uint64_t readers = devices[device].readers;
	devices[device].readers |= 1ull << reader;
	/* Under the lock after all: a region that goes away meanwhile must not be touched. */
	for (size_t i = 0; result == CUDA_SUCCESS && i < regions.n; i++) {
		const struct region *region = regions.entries[i].value;
		if (region->device == device) {
			result = open_to(region, 1ull << reader);
		}
	}
	if (result != CUDA_SUCCESS) {
		devices[device].readers = readers;
	}
	pthread_mutex_unlock(&lock);
	return result;
}
