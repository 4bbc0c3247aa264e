/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/fill.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/space/page.h"

/* The flags of a page. */
#define BOUND 1u     /* of large copies */
#define REWRITTEN 2u /* nothing counts any more */
#define WHOLE 4u     /* one copy has filled it */
#define PARTS 8u     /* copies have filled parts of it: its bits say which */

#define BLOCK_BYTES 512u
#define N_WORDS (GLAKE__PAGE_BYTES / BLOCK_BYTES / 64)

/* A bit for each block of a page. */
struct blocks {
	_Atomic uint64_t words[N_WORDS];
};

/* The blocks of 1 GiB, made when a copy first fills a part of a page there. */
#define GROUP_PAGES 512u
#define GROUP_BYTES (GROUP_PAGES * sizeof(struct blocks))

struct map {
	uint64_t n_pages;
	uint64_t n_map_bytes;
	_Atomic(struct blocks *) *groups; /* each owned; behind the flags */
	_Atomic uint8_t flags[];
};

/* NULL: nothing is counted. */
static _Atomic(struct map *) map;

/* The part of [ptr, ptr + n_bytes) that lies in one page. */
struct slice {
	struct map *map;
	uint64_t page;
	uint64_t begin; /* in the page */
	uint64_t end;
};

/* Takes the first slice off. False: there is none in the window. */
static bool next_slice(glake_ptr *ptr, uint64_t *n_bytes, struct slice *slice_out)
{
	struct map *all = atomic_load_explicit(&map, memory_order_acquire);
	uint64_t at = *ptr - atomic_load_explicit(&glake__pages.base, memory_order_relaxed);
	if (!all || *n_bytes == 0 || at >> GLAKE__PAGE_SHIFT >= all->n_pages) {
		return false;
	}
	uint64_t begin = at & (GLAKE__PAGE_BYTES - 1);
	uint64_t n_left = GLAKE__PAGE_BYTES - begin;
	uint64_t n = *n_bytes < n_left ? *n_bytes : n_left;
	*slice_out = (struct slice){all, at >> GLAKE__PAGE_SHIFT, begin, begin + n};
	*ptr += n;
	*n_bytes -= n;
	return true;
}

static unsigned flags_of(const struct slice *slice)
{
	return atomic_load_explicit(&slice->map->flags[slice->page], memory_order_relaxed);
}

/* Returns those that it had. */
static unsigned add_flag(const struct slice *slice, unsigned flag)
{
	return atomic_fetch_or_explicit(&slice->map->flags[slice->page], (uint8_t)flag,
	                                memory_order_relaxed);
}

static void note_rewritten(const struct slice *slice)
{
	if (!(flags_of(slice) & REWRITTEN)) {
		add_flag(slice, REWRITTEN);
	}
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* NULL: no bit is set. */
static struct blocks *find_blocks(const struct slice *slice)
{
	struct blocks *group = atomic_load_explicit(&slice->map->groups[slice->page / GROUP_PAGES],
	                                            memory_order_acquire);
	return group ? &group[slice->page % GROUP_PAGES] : NULL;
}

static void *map_zeroes(uint64_t n_bytes)
{
	void *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
	                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static struct blocks *make_blocks(const struct slice *slice)
{
	struct blocks *none = NULL;
	if (!find_blocks(slice)) {
		struct blocks *group = map_zeroes(GROUP_BYTES);
		if (group &&
		    !atomic_compare_exchange_strong(&slice->map->groups[slice->page / GROUP_PAGES],
		                                    &none, group)) {
			munmap(group, GROUP_BYTES);
		}
	}
	return find_blocks(slice);
}

/* The bits from @bit on, up to the end of their word or to @end. */
static uint64_t mask_of(uint64_t bit, uint64_t end)
{
	uint64_t first = bit % 64;
	uint64_t n = end - bit < 64 - first ? end - bit : 64 - first;
	return (n == 64 ? UINT64_MAX : (1ull << n) - 1) << first;
}

static uint64_t next_word(uint64_t bit)
{
	return (bit / 64 + 1) * 64;
}

/* The first block that begins at @at or behind it. */
static uint64_t block_from(uint64_t at)
{
	return (at + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

/* Blocks [@first, @end) are copied. False: one of them was already. */
static bool add_blocks(struct blocks *blocks, uint64_t first, uint64_t end)
{
	bool is_new = true;
	for (uint64_t bit = first; bit < end; bit = next_word(bit)) {
		uint64_t mask = mask_of(bit, end);
		is_new &= !(atomic_fetch_or_explicit(&blocks->words[bit / 64], mask,
		                                     memory_order_relaxed) &
		            mask);
	}
	return is_new;
}

static bool has_blocks(const struct blocks *blocks, uint64_t end)
{
	for (uint64_t bit = 0; blocks && bit < end; bit = next_word(bit)) {
		uint64_t mask = mask_of(bit, end);
		uint64_t word = atomic_load_explicit(&blocks->words[bit / 64],
		                                     memory_order_relaxed);
		if ((word & mask) != mask) {
			return false;
		}
	}
	return blocks != NULL;
}

static void drop_blocks(struct blocks *blocks)
{
	for (uint64_t i = 0; blocks && i < N_WORDS; i++) {
		atomic_store_explicit(&blocks->words[i], 0, memory_order_relaxed);
	}
}

/* ---- counting --------------------------------------------------------------------------------- */

/* Returns whether nothing of that was copied before. */
static bool add_copy(const struct slice *slice)
{
	uint64_t first = block_from(slice->begin);
	uint64_t end = block_from(slice->end);
	if (slice->end - slice->begin == GLAKE__PAGE_BYTES) {
		return !(add_flag(slice, WHOLE) & (WHOLE | PARTS));
	}
	if (first == end) {
		return !(flags_of(slice) & WHOLE);
	}
	struct blocks *blocks = make_blocks(slice);
	return !(add_flag(slice, PARTS) & WHOLE) && blocks && add_blocks(blocks, first, end);
}

/* The next page that begins at @ptr or behind it. */
static void bound(glake_ptr ptr)
{
	struct slice slice;
	uint64_t n_bytes = GLAKE__PAGE_BYTES;
	ptr = (ptr + GLAKE__PAGE_BYTES - 1) & ~(GLAKE__PAGE_BYTES - 1);
	if (next_slice(&ptr, &n_bytes, &slice)) {
		add_flag(&slice, BOUND);
	}
}

void glake__fill_copied(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	if (n_bytes >= GLAKE__FILL_LARGE_BYTES) {
		bound(ptr);
		bound((ptr + n_bytes) & ~(GLAKE__PAGE_BYTES - 1));
	}
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (!(flags_of(&slice) & REWRITTEN) && !add_copy(&slice)) {
			note_rewritten(&slice);
		}
	}
}

void glake__fill_set(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (flags_of(&slice) & (WHOLE | PARTS)) {
			note_rewritten(&slice);
		}
	}
}

void glake__fill_written(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		note_rewritten(&slice);
	}
}

bool glake__fill_is_open(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (!(flags_of(&slice) & REWRITTEN)) {
			return true;
		}
	}
	return false;
}

/* Pages of the map that nobody wrote to stay without memory. */
void glake__fill_reset(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		unsigned flags = flags_of(&slice);
		if (flags & PARTS) {
			drop_blocks(find_blocks(&slice));
		}
		if (flags) {
			atomic_store_explicit(&slice.map->flags[slice.page], 0,
			                      memory_order_relaxed);
		}
	}
}

enum glake__fill glake__fill_at(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	uint64_t n_left = n_bytes;
	if (!next_slice(&ptr, &n_left, &slice)) {
		return GLAKE__FILL_PARTLY;
	}
	unsigned flags = flags_of(&slice);
	if (flags & REWRITTEN) {
		return GLAKE__FILL_REWRITTEN;
	}
	return flags & WHOLE || has_blocks(find_blocks(&slice), block_from(slice.end))
	               ? GLAKE__FILL_WHOLE
	               : GLAKE__FILL_PARTLY;
}

bool glake__fill_is_bound(glake_ptr ptr)
{
	struct slice slice;
	uint64_t n_bytes = 1;
	return next_slice(&ptr, &n_bytes, &slice) && flags_of(&slice) & BOUND;
}

/* ---- the map ---------------------------------------------------------------------------------- */

bool glake__dedup_is_off(void)
{
	const char *dedup = secure_getenv("GLAKE_DEDUP");
	return dedup && strcmp(dedup, "off") == 0;
}

static uint64_t n_groups(uint64_t n_pages)
{
	return (n_pages + GROUP_PAGES - 1) / GROUP_PAGES;
}

void glake__fill_start(void)
{
	const uint64_t n_pages = glake__pages.n_bytes >> GLAKE__PAGE_SHIFT;
	const uint64_t groups_at = (sizeof(struct map) + n_pages + 63) & ~63ull;
	const uint64_t n_bytes = groups_at + n_groups(n_pages) * sizeof(struct blocks *);
	if (n_pages == 0 || map || glake__dedup_is_off()) {
		return;
	}
	struct map *made = map_zeroes(n_bytes);
	if (made) {
		made->n_pages = n_pages;
		made->n_map_bytes = n_bytes;
		made->groups = (void *)((char *)made + groups_at);
		map = made;
	}
}

void glake__fill_forget(void)
{
	struct map *old = atomic_exchange(&map, NULL);
	for (uint64_t i = 0; old && i < n_groups(old->n_pages); i++) {
		if (old->groups[i]) {
			munmap(old->groups[i], GROUP_BYTES);
		}
	}
	if (old) {
		munmap(old, old->n_map_bytes);
	}
}
