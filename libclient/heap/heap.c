/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/heap.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/dispatch.h"
#include "libclient/heap/backing.h"
#include "libclient/space/chain.h"
#include "libclient/space/fill.h"
#include "libclient/space/held.h"
#include "libclient/stitch/pool.h"
#include "libclient/stitch/stitched.h"
#include "libclient/space/space.h"
#include "libclient/space/unsealed.h"

/* ---- the books: all of it with the lock held -------------------------------------------------- */

static void add_live(struct glake__backing *backing)
{
	struct glake__books *books = &backing->device->session->books;
	backing->is_live = true;
	backing->id = glake__next_id_locked();
	CHAIN_PUSH(books->live, backing, older, newer);
	glake__books_add_live(books, backing->n_bytes);
}

static void remove_live(struct glake__backing *backing)
{
	struct glake__books *books = &backing->device->session->books;
	CHAIN_REMOVE(books->live, backing, older, newer);
	if (backing->whole.is_parked) {
		backing->device->heap->parked_bytes -= backing->n_bytes;
	} else {
		books->live_bytes -= backing->n_bytes;
	}
	glake__unsealed_forget_locked(backing->range);
	backing->is_live = false;
	backing->whole.is_parked = false;
}

static struct glake__allocation *find_in(struct glake__backing *backing, glake_ptr address)
{
	if (backing->is_live && backing->slab) {
		struct glake__slab_block *block = glake__slab_find(backing->slab, address);
		return block->is_used ? &block->allocation : NULL;
	}
	return backing->is_live ? &backing->whole : NULL;
}

static bool is_of_pool(const struct glake__range *range)
{
	return range->use == &glake__use_pool || range->use == &glake__use_stitched;
}

static struct glake__allocation *find(glake_ptr address)
{
	const struct glake__piece *piece = glake__piece_at_locked(address);
	const struct glake__range *range = piece ? piece->range : NULL;
	struct glake__allocation *found = NULL;
	if (range && range->use == &glake__use_private) {
		found = find_in(range->user, address);
	} else if (range && is_of_pool(range)) {
		found = glake__pool_find_locked(range, address);
	}
	return found && !found->is_claimed && address - found->address < found->n_bytes ? found
	                                                                                : NULL;
}

static bool is_held(struct glake__allocation *allocation)
{
	return allocation->is_pooled ? glake__pool_is_held_locked(allocation)
	                             : allocation->backing->is_held;
}

/* Finds the allocation, once no thread holds it. */
static struct glake__allocation *find_free(glake_ptr address)
{
	struct glake__allocation *found;
	while ((found = find(address)) && is_held(found)) {
		glake__held_wait_locked();
	}
	return found;
}

static struct glake__device *device_of(const struct glake__allocation *allocation)
{
	return allocation->is_pooled ? glake__pool_device_of(allocation)
	                             : allocation->backing->device;
}

struct glake__allocation *glake__heap_at_locked(const struct glake_session *session, glake_ptr ptr)
{
	struct glake__allocation *found = find_free(ptr);
	return found && found->address == ptr && device_of(found)->session == session ? found
	                                                                              : NULL;
}

struct glake__backing *glake__heap_backing_locked(const struct glake_session *session,
                                                  glake_ptr ptr)
{
	struct glake__allocation *found = glake__heap_at_locked(session, ptr);
	return found && !found->is_pooled && !found->block ? found->backing : NULL;
}

int glake__heap_unknown(glake_ptr ptr)
{
	struct glake__facts facts;
	bool is_part = glake__heap_find(ptr, &facts) && facts.address == ptr;
	return glake__fail(-EINVAL, "0x%llx is not %smemory of glake_alloc()",
	                   (unsigned long long)ptr, is_part ? "a whole chunk of " : "");
}

struct glake__backing *glake__heap_take_live(struct glake_session *session, glake_ptr ptr)
{
	glake__lock();
	struct glake__backing *backing = glake__heap_backing_locked(session, ptr);
	if (backing) {
		remove_live(backing);
	}
	glake__unlock();
	if (!backing) {
		glake__heap_unknown(ptr);
	}
	return backing;
}

void glake__heap_put_back(struct glake_session *session, struct glake__backing *backing)
{
	glake__lock();
	add_live(backing);
	glake__unlock();
}

static void begin(struct glake__allocation *allocation, struct glake__backing *backing,
                  uint64_t n_bytes, const struct glake__tag *tag)
{
	*allocation = (struct glake__allocation){
		.address = backing->ptr,
		.n_bytes = n_bytes,
		.n_capacity = backing->n_bytes,
		.id = glake__next_id_locked(),
		.ordinal = backing->device->public.ordinal,
		.tag = *tag,
		.backing = backing,
	};
}

/* ---- freeing: all of it with the lock held ---------------------------------------------------- */

/*
 * Make @backing warm. Returns backings that must be given back, usually none: the oldest warm
 * ones, or @backing itself if there is a reclaim debt, if it alone exceeds the limit, or if it is
 * pinned.
 */
static struct glake__backing *make_warm(struct glake__backing *backing)
{
	struct glake__heap *heap = backing->device->heap;
	struct glake__warm *warm = &heap->warm;
	remove_live(backing);
	uint64_t *debt = &backing->device->reclaim_debt;
	if (*debt > 0) {
		*debt -= backing->n_bytes < *debt ? backing->n_bytes : *debt;
		return backing;
	}
	if (backing->n_bytes > warm->max_bytes || glake__backing_is_tied_locked(backing) ||
	    glake__warm_give(warm, backing) < 0) {
		return backing;
	}
	return glake__warm_evict(warm, warm->max_bytes);
}

static void uncut(struct glake__backing *backing)
{
	glake__slab_free(&backing->device->heap->bins, backing->slab);
	backing->slab = NULL;
}

/* A slab of which nothing is used. One stays, for a program that allocates and frees in turn. */
static struct glake__backing *keep_empty(struct glake__backing *backing)
{
	struct glake__heap *heap = backing->device->heap;
	if (!heap->empty_slab) {
		heap->empty_slab = backing;
		return NULL;
	}
	uncut(backing);
	return make_warm(backing);
}

static struct glake__backing *release(struct glake__allocation *allocation)
{
	struct glake__backing *backing = allocation->backing;
	if (allocation->is_pooled) {
		glake__pool_release_locked(allocation);
		return NULL;
	}
	if (allocation->block) {
		glake__slab_give(&backing->device->heap->bins, allocation->block);
		return backing->slab->n_used > 0 ? NULL : keep_empty(backing);
	}
	return make_warm(backing);
}

/* ---- trimming --------------------------------------------------------------------------------- */

/* Make all free memory of @device warm and return its bytes. The caller gives @list back. */
static uint64_t gather_locked(struct glake__device *device, struct glake__backing **list)
{
	struct glake__heap *heap = device->heap;
	struct glake__backing *empty = heap->empty_slab;
	*list = NULL;
	if (empty) {
		heap->empty_slab = NULL;
		uncut(empty);
		*list = make_warm(empty);
	}
	return heap->warm.n_bytes;
}

int glake__heap_trim(struct glake__device *device, uint64_t keep_bytes)
{
	struct glake__backing *first;
	glake__lock();
	gather_locked(device, &first);
	struct glake__pool *pool = device->heap->stitching;
	uint64_t n_free = pool ? glake__pool_free_bytes_locked(pool) : 0;
	uint64_t n_warm = device->heap->warm.n_bytes;
	struct glake__backing *list = glake__warm_evict(&device->heap->warm, keep_bytes);
	glake__unlock();
	int r = glake__backing_give_back(device->session, first);
	int second = glake__backing_give_back(device->session, list);
	uint64_t n_kept = n_warm < keep_bytes ? n_warm : keep_bytes;
	if (n_free > keep_bytes - n_kept) {
		glake__pool_reclaim(pool, n_free - (keep_bytes - n_kept), false);
	}
	if (pool) {
		glake__pool_await_reclaims(pool);
	}
	return r < 0 ? r : second;
}

void glake__heap_reclaim(struct glake__device *device, uint64_t n_bytes)
{
	struct glake__backing *list;
	struct glake__pool *pool = device->heap->stitching;
	glake__lock();
	uint64_t n_warm = gather_locked(device, &list);
	uint64_t n_missing = n_bytes > n_warm ? n_bytes - n_warm : 0;
	device->reclaim_debt = n_missing;
	struct glake__backing *old = glake__warm_evict(&device->heap->warm,
	                                               n_warm > n_bytes ? n_warm - n_bytes : 0);
	glake__unlock();
	glake__backing_give_back(device->session, list);
	glake__backing_give_back(device->session, old);
	if (pool) {
		/* Memory that the program's work still uses pays the rest, as soon as the work is done. */
		glake__pool_reclaim(pool, n_missing, true);
	}
}

uint64_t glake__heap_free_bytes_locked(const struct glake__heap *heap)
{
	return heap->warm.n_bytes +
	       (heap->stitching ? glake__pool_free_bytes_locked(heap->stitching) : 0);
}

bool glake__heap_is_warm(const struct glake__device *device)
{
	glake__lock();
	bool is_warm = glake__heap_free_bytes_locked(device->heap) > 0 || device->heap->empty_slab;
	glake__unlock();
	return is_warm;
}

/* ---- allocating ------------------------------------------------------------------------------- */

uint64_t glake__heap_round(uint64_t n_bytes)
{
	uint64_t step = n_bytes < SLAB_BYTES ? SLAB_UNIT_BYTES : SLAB_BYTES;
	uint64_t rounded = (n_bytes + step - 1) / step * step;
	return rounded < n_bytes ? n_bytes : rounded;
}

/* Called with the lock held. @backing, in the books, is a slab from now on. */
static bool cut(struct glake__backing *backing)
{
	backing->slab = glake__slab_new(&backing->device->heap->bins, backing->ptr);
	if (backing->slab) {
		backing->slab->backing = backing;
	}
	return backing->slab != NULL;
}

/* Called with the lock held. */
static struct glake__allocation *take_small(struct glake__heap *heap, uint64_t n_bytes,
                                            const struct glake__tag *tag)
{
	struct glake__slab_block *block = glake__slab_take(&heap->bins, n_bytes);
	if (!block) {
		struct glake__backing *warm = glake__warm_take(&heap->warm, SLAB_BYTES);
		bool is_slab = warm && warm->n_bytes == SLAB_BYTES && cut(warm);
		if (warm && !is_slab) {
			glake__warm_give(&heap->warm, warm);
		}
		if (!is_slab) {
			return NULL;
		}
		add_live(warm);
		block = glake__slab_take(&heap->bins, n_bytes);
		if (!block) {
			return NULL;
		}
	}
	struct glake__backing *backing = block->slab->backing;
	if (heap->empty_slab == backing) {
		heap->empty_slab = NULL;
	}
	begin(&block->allocation, backing, n_bytes, tag);
	block->allocation.block = block;
	block->allocation.address = glake__slab_block_address(block);
	block->allocation.n_capacity = (uint64_t)block->n_units * SLAB_UNIT_BYTES;
	return &block->allocation;
}

static struct glake__allocation *take_large(struct glake__heap *heap, uint64_t n_bytes,
                                            const struct glake__tag *tag)
{
	struct glake__backing *backing = glake__warm_take(&heap->warm, glake__heap_round(n_bytes));
	if (!backing) {
		return NULL;
	}
	add_live(backing);
	glake__fill_reset(backing->ptr, backing->n_bytes);
	begin(&backing->whole, backing, n_bytes, tag);
	return &backing->whole;
}

bool glake__heap_is_pooled(const struct glake__device *device, uint64_t n_bytes,
                           const struct glake__tag *tag)
{
	return device->heap->stitching && glake__pool_serves(tag, n_bytes);
}

struct glake__allocation *glake__heap_take_on(struct glake__device *device, uint64_t n_bytes,
                                              const struct glake__tag *tag)
{
	glake__lock();
	struct glake__heap *heap = device->heap;
	struct glake__allocation *taken;
	if (glake__heap_is_pooled(device, n_bytes, tag)) {
		taken = glake__pool_take_locked(heap->stitching, n_bytes, tag);
	} else {
		taken = n_bytes < SLAB_BYTES ? take_small(heap, n_bytes, tag)
		                             : take_large(heap, n_bytes, tag);
	}
	device->session->books.n_warm_allocs += taken != NULL;
	glake__unlock();
	return taken;
}

int glake__heap_make(struct glake__device *device, uint64_t n_bytes, bool is_small,
                     const struct glake__tag *tag, struct glake__wait *wait,
                     struct glake__allocation **allocation_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake_session *session = device->session;
	struct glake__backing *backing;
	if (glake__heap_is_pooled(device, n_bytes, tag)) {
		int made = glake__pool_make(device->heap->stitching, n_bytes, tag, wait,
		                            allocation_out);
		glake__lock();
		session->books.n_cold_allocs += made == 0;
		glake__unlock();
		return made;
	}
	int r = glake__backing_new(device, is_small ? SLAB_BYTES : glake_chunk_bytes(n_bytes), wait,
	                           &backing);
	if (r < 0) {
		return r;
	}
	struct glake__backing *unused = NULL;
	glake__lock();
	bool is_in = !is_small || cut(backing);
	if (is_in) {
		add_live(backing);
		*allocation_out = &backing->whole;
		if (is_small) {
			*allocation_out = take_small(device->heap, n_bytes, tag);
			/* The allocation may be served by memory that other threads have freed meanwhile. */
			unused = backing->slab->n_used > 0 ? NULL : keep_empty(backing);
		} else {
			glake__fill_reset(backing->ptr, backing->n_bytes);
			begin(&backing->whole, backing, n_bytes, tag);
		}
		session->books.n_cold_allocs++;
	}
	glake__unlock();
	glake__backing_give_back(session, unused);
	if (!is_in) {
		glake__backing_give_back(session, backing);
		return glake__fail(-ENOMEM, "out of memory");
	}
	return 0;
}

struct glake__allocation *glake__heap_add(struct glake__backing *backing, uint64_t n_bytes,
                                          const struct glake__tag *tag)
{
	glake__lock();
	add_live(backing);
	begin(&backing->whole, backing, n_bytes, tag);
	backing->device->session->books.n_cold_allocs++;
	glake__unlock();
	return &backing->whole;
}

struct glake__allocation *glake__heap_take(struct glake_session *session, int ordinal,
                                           uint64_t n_bytes, const struct glake__tag *tag)
{
	struct glake__device *device = glake__session_at_ordinal(session, ordinal);
	return device ? glake__heap_take_on(device, n_bytes, tag) : NULL;
}

int glake__heap_check(uint64_t bytes, unsigned flags, unsigned known_flags)
{
	if (glake_chunk_bytes(bytes) == 0 || (flags & ~known_flags)) {
		return glake__fail(-EINVAL, "cannot allocate %llu bytes with flags 0x%x",
		                   (unsigned long long)bytes, flags);
	}
	return 0;
}

/* ---- looking ---------------------------------------------------------------------------------- */

bool glake__heap_find(glake_ptr address, struct glake__facts *facts_out)
{
	glake__lock();
	const struct glake__allocation *found = find(address);
	if (found && facts_out) {
		const struct glake__device *device = found->is_pooled ? glake__pool_device_of(found)
		                                                      : found->backing->device;
		*facts_out = (struct glake__facts){
			.address = found->address,
			.n_bytes = found->n_bytes,
			.id = found->id,
			.ordinal = found->ordinal,
			.session = device->session,
			.tag = found->tag,
			.region_address = found->is_pooled ? found->address : found->backing->ptr,
			.region_bytes = found->is_pooled ? found->n_capacity
		                                         : found->backing->n_bytes,
			.region_id = found->is_pooled ? found->id : found->backing->id,
		};
	}
	glake__unlock();
	return found != NULL;
}

bool glake__heap_has(glake_ptr address)
{
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(address);
	bool has = piece && piece->range->use->is_private;
	glake__unlock();
	return has;
}

/* ---- holding ---------------------------------------------------------------------------------- */

/* A page of a slab also has other memory, so nothing in a slab can be sealed. */
static int hold_private(struct glake__range *range, glake_ptr address, struct glake__held *held_out)
{
	struct glake__backing *backing = range->user;
	const struct glake__allocation *found = find(address);
	if (!found || found->block) {
		return found ? -ENOTSUP : -ENOENT;
	}
	if (backing->is_held) {
		return -EBUSY;
	}
	backing->is_held = true;
	*held_out = (struct glake__held){
		.begin = backing->ptr,
		.end = backing->ptr + found->n_bytes,
		.tail = backing->ptr + backing->n_bytes,
		.device = backing->device,
		.user = backing,
	};
	return 0;
}

static void let_private(struct glake__held *held)
{
	struct glake__backing *backing = held->user;
	backing->is_held = false;
}

static struct glake_session *session_of(const struct glake__range *range)
{
	const struct glake__backing *backing = range->user;
	return backing ? backing->device->session : NULL;
}

const struct glake__use glake__use_private = {
	.name = "private",
	.kind = GLAKE__HEAP,
	.is_private = true,
	.hold = hold_private,
	.let = let_private,
	.session = session_of,
};

void glake__heap_hold_session_locked(struct glake_session *session)
{
	session->books.n_holds++;
}

int glake__heap_leave(struct glake_session *session, int result)
{
	int r = glake__leave(session, result);
	glake__lock();
	session->books.n_holds--;
	pthread_cond_broadcast(&glake__space.let);
	glake__unlock();
	return r;
}

void glake__heap_wait_left(struct glake_session *session)
{
	glake__lock();
	while (session->books.n_holds > 0) {
		glake__held_wait_locked();
	}
	glake__unlock();
}

/* ---- claiming and releasing ------------------------------------------------------------------- */

struct glake__allocation *glake__heap_claim(glake_ptr address)
{
	glake__lock();
	struct glake__allocation *found = find_free(address);
	found = found && found->address == address ? found : NULL;
	if (found) {
		found->is_claimed = true;
	}
	glake__unlock();
	return found;
}

bool glake__heap_join(const struct glake_session *session, glake_ptr address, uint64_t stream,
                      struct glake__allocation *was_out)
{
	glake__lock();
	struct glake__allocation *found = find(address);
	bool may_join = found && found->is_pooled && found->address == address &&
	                found->tag.stream <= GLAKE__GRAPH_STREAM && !is_held(found) &&
	                (!session || device_of(found)->session == session);
	if (may_join && was_out) {
		*was_out = *found;
	}
	if (may_join) {
		may_join = glake__pool_join_locked(found, stream);
	}
	glake__unlock();
	return may_join;
}

void glake__heap_marking(struct glake__allocation *allocation)
{
	if (allocation->is_pooled && allocation->is_parked) {
		glake__pool_close(allocation);
	}
}

void glake__heap_unclaim(struct glake__allocation *allocation)
{
	glake__lock();
	allocation->is_claimed = false;
	glake__unlock();
}

/* Called with the lock held. */
static void claim_if(struct glake__allocation *allocation, const void *ctx, uint64_t generation,
                     struct glake__allocation **list)
{
	if (!allocation->is_claimed && allocation->tag.ctx == ctx &&
	    allocation->tag.generation < generation) {
		allocation->is_claimed = true;
		allocation->next = *list;
		*list = allocation;
	}
}

static void claim_in(struct glake__backing *backing, const void *ctx, uint64_t generation,
                     struct glake__allocation **list)
{
	if (!backing->slab) {
		claim_if(&backing->whole, ctx, generation, list);
		return;
	}
	for (unsigned unit = 0; unit < SLAB_UNITS;) {
		struct glake__slab_block *block = backing->slab->blocks[unit];
		if (block->is_used) {
			claim_if(&block->allocation, ctx, generation, list);
		}
		unit += block->n_units;
	}
}

struct claim {
	const void *ctx;
	uint64_t generation;
	struct glake__allocation **list;
};

static void claim_pooled(struct glake__allocation *allocation, void *user)
{
	const struct claim *claim = user;
	claim_if(allocation, claim->ctx, claim->generation, claim->list);
}

struct glake__allocation *glake__heap_claim_of(const void *ctx, uint64_t generation)
{
	struct glake__allocation *list = NULL;
	struct claim claim = {ctx, generation, &list};
	glake__lock();
	struct glake__range *range = glake__space.ranges;
	while (range) {
		if (range->use == &glake__use_pool) {
			if (glake__pool_has_held_locked(range->user)) {
				glake__held_wait_locked();
				range = glake__space.ranges;
				continue;
			}
			glake__pool_visit_locked(range->user, claim_pooled, &claim);
			range = range->next;
			continue;
		}
		struct glake__backing *backing = range->user;
		bool is_live = range->use == &glake__use_private && backing->is_live;
		if (is_live && backing->is_held) {
			glake__held_wait_locked();
			range = glake__space.ranges;
			continue;
		}
		if (is_live) {
			claim_in(backing, ctx, generation, &list);
		}
		range = range->next;
	}
	glake__unlock();
	return list;
}

/* Called with the lock held. A slab is live with all that is in it. */
static void unpark(struct glake__allocation *allocation)
{
	struct glake__backing *backing = allocation->backing;
	allocation->is_parked = false;
	if (!allocation->block) {
		backing->device->heap->parked_bytes -= backing->n_bytes;
		glake__books_add_live(&backing->device->session->books, backing->n_bytes);
	}
}

/* Pinned memory must be given back. A slab stays with all its allocations, as the driver's does. */
bool glake__heap_park(struct glake__allocation *allocation, uint64_t stream,
                      struct glake__parking *parking_out)
{
	struct glake__backing *backing = allocation->backing;
	bool is_tied = false;
	*parking_out = (struct glake__parking){.n_reusable = 0};
	if (allocation->is_pooled) {
		glake__lock();
		bool is_parked = glake__pool_detach_locked(allocation, stream, parking_out);
		glake__unlock();
		return is_parked;
	}
	allocation->is_parked = true;
	if (!allocation->block) {
		glake__lock();
		backing->device->session->books.live_bytes -= backing->n_bytes;
		backing->device->heap->parked_bytes += backing->n_bytes;
		glake__unsealed_forget_locked(backing->range);
		is_tied = glake__backing_is_tied_locked(backing);
		glake__unlock();
	}
	parking_out->n_reusable = is_tied ? 0 : allocation->n_capacity;
	return true;
}

void glake__heap_parked(struct glake__parking *parking)
{
	if (parking->pool) {
		glake__lock();
		glake__pool_attach_free_locked(parking);
		glake__unlock();
	}
}

void glake__heap_unpark(struct glake__allocation *allocation, struct glake__parking *parking)
{
	glake__lock();
	if (parking->pool) {
		glake__pool_undo_locked(allocation, parking);
	} else {
		unpark(allocation);
	}
	glake__unlock();
}

void glake__heap_reuse(struct glake__allocation *allocation, uint64_t n_bytes,
                       const struct glake__tag *tag)
{
	glake__lock();
	void *connection = allocation->tag.connection;
	unpark(allocation);
	allocation->tag = *tag;
	allocation->tag.connection = connection;
	allocation->n_bytes = n_bytes;
	allocation->id = glake__next_id_locked();
	allocation->is_claimed = false;
	if (!allocation->block) {
		glake__fill_reset(allocation->address, allocation->n_capacity);
	}
	glake__unlock();
}

void glake__heap_release(struct glake_session *session, struct glake__allocation *allocation)
{
	struct glake__pool *pool = allocation->is_pooled ? glake__pool_of(allocation) : NULL;
	/* Other frees may have joined the one that was parked. */
	uint64_t n_freed = allocation->is_parked ? GLAKE__PAGE_BYTES : allocation->n_capacity;
	glake__lock();
	struct glake__backing *list = release(allocation);
	glake__unlock();
	glake__backing_give_back(session, list);
	if (pool && !session->is_closing) {
		glake__pool_settle(pool, n_freed);
	}
}

bool glake__heap_release_part(struct glake__allocation *allocation)
{
	struct glake__backing *backing = allocation->is_pooled ? NULL : allocation->backing;
	glake__lock();
	bool is_part = backing && allocation->block && backing->slab->n_used > 1;
	if (is_part) {
		glake__slab_give(&backing->device->heap->bins, allocation->block);
	}
	glake__unlock();
	return is_part;
}

struct glake__range *glake__heap_range_of(const struct glake__allocation *allocation)
{
	return allocation->is_pooled || allocation->block ? NULL : allocation->backing->range;
}

void glake__heap_release_gone(struct glake_session *session, struct glake__allocation *allocation,
                              struct glake__chunk *dead)
{
	struct glake__backing *backing = allocation->backing;
	glake__lock();
	remove_live(backing);
	glake__unlock();
	backing->next = NULL;
	glake__backing_give_back(session, backing);
	glake__grant_return(session, dead);
}

int glake__heap_free(struct glake_session *session, glake_ptr ptr)
{
	glake__lock();
	struct glake__allocation *found = glake__heap_at_locked(session, ptr);
	struct glake__pool *pool = found && found->is_pooled ? glake__pool_of(found) : NULL;
	uint64_t n_freed = found ? found->n_capacity : 0;
	struct glake__backing *list = found ? release(found) : NULL;
	glake__unlock();
	if (!found) {
		return glake__heap_unknown(ptr);
	}
	if (pool) {
		glake__pool_settle(pool, n_freed);
	}
	return list ? glake__leave(session, glake__backing_give_back(session, list)) : 0;
}

/* ---- beginning and end ------------------------------------------------------------------------ */

int glake__heap_init(struct glake_session *session)
{
	session->heaps = calloc(session->n_devices + 1, sizeof(*session->heaps));
	if (!session->heaps) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (uint32_t i = 0; i < session->n_devices; i++) {
		session->heaps[i].warm.max_bytes = session->warm_bytes;
		session->devices[i].heap = &session->heaps[i];
	}
	return 0;
}

/* Without addresses or memory of the host for one, the device has no pool. */
void glake__heap_open_pools(struct glake_session *session)
{
	for (uint32_t i = 0; session->stitches && i < session->n_devices; i++) {
		struct glake__device *device = &session->devices[i];
		struct glake__heap *heap = device->heap;
		if (device->public.ordinal >= 0 &&
		    glake__pool_new(device, &heap->pool, &heap->stitching) < 0) {
			heap->stitching = NULL;
		}
	}
}

static void drop_all(struct glake_session *session, struct glake__backing *list)
{
	while (list) {
		struct glake__backing *backing = list;
		list = backing->next;
		glake__backing_drop(session, backing);
	}
}

void glake__heap_deinit(struct glake_session *session)
{
	struct glake__books *books = &session->books;
	while (books->live) {
		struct glake__backing *backing = books->live;
		books->live = backing->newer;
		if (backing->slab) {
			uncut(backing);
		}
		glake__backing_drop(session, backing);
	}
	if (!session->is_forked) {
		glake__unsealed_end(session);
	}
	for (uint32_t i = 0; session->heaps && i < session->n_devices; i++) {
		struct glake__warm *warm = &session->heaps[i].warm;
		glake__pool_end(session->heaps[i].stitching);
		drop_all(session, glake__warm_evict(warm, 0));
		glake__warm_deinit(warm);
	}
	free(session->heaps);
	session->heaps = NULL;
}
