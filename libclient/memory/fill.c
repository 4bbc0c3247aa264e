/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/fill.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libclient/memory/page.h"

/* A word: the copied bytes; then a bit for each cell. */
#define BYTES_MASK 0x3fffffffull
#define BOUND 0x40000000ull     /* of large copies */
#define REWRITTEN 0x80000000ull /* nothing counts any more */
#define CELLS_SHIFT 32
#define CELL_SHIFT 16 /* 64 KiB */
#define N_CELLS 32u

/* NULL: nothing is counted. */
static _Atomic(_Atomic uint64_t *) words;

/* PyTorch's allocator leaves gaps between tensors. */
static uint64_t least_bytes(uint64_t n_bytes)
{
	return n_bytes - n_bytes / 16;
}

/* The part of [ptr, ptr + n_bytes) that lies in one page. */
struct slice {
	_Atomic uint64_t *word;
	uint64_t begin; /* in the page */
	uint64_t end;
};

/* Takes the first slice off. False: there is none in the window. */
static bool next_slice(glake_ptr *ptr, uint64_t *n_bytes, struct slice *slice_out)
{
	_Atomic uint64_t *all = atomic_load_explicit(&words, memory_order_acquire);
	uint64_t at = *ptr - atomic_load_explicit(&glake__pages.base, memory_order_relaxed);
	if (!all || *n_bytes == 0 ||
	    at >= atomic_load_explicit(&glake__pages.n_bytes, memory_order_relaxed)) {
		return false;
	}
	uint64_t begin = at & (GLAKE__PAGE_BYTES - 1);
	uint64_t n_left = GLAKE__PAGE_BYTES - begin;
	uint64_t n = *n_bytes < n_left ? *n_bytes : n_left;
	*slice_out = (struct slice){&all[at >> GLAKE__PAGE_SHIFT], begin, begin + n};
	*ptr += n;
	*n_bytes -= n;
	return true;
}

static uint64_t cells_of(uint64_t begin, uint64_t end)
{
	unsigned first = (unsigned)(begin >> CELL_SHIFT);
	unsigned n = (unsigned)((end - 1) >> CELL_SHIFT) - first + 1;
	return (n == N_CELLS ? UINT32_MAX : ((1ull << n) - 1) << first) << CELLS_SHIFT;
}

static uint64_t look(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

/* A word that is full stays: its page is known to be rewritten, and it must not overflow. */
static bool is_open(uint64_t word)
{
	return !(word & REWRITTEN) && (word & BYTES_MASK) <= GLAKE__PAGE_BYTES;
}

/* The next page that begins at @ptr or behind it. */
static void bound(glake_ptr ptr)
{
	struct slice slice;
	uint64_t n_bytes = GLAKE__PAGE_BYTES;
	ptr = (ptr + GLAKE__PAGE_BYTES - 1) & ~(GLAKE__PAGE_BYTES - 1);
	if (next_slice(&ptr, &n_bytes, &slice)) {
		atomic_fetch_or_explicit(slice.word, BOUND, memory_order_relaxed);
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
		if (is_open(look(slice.word))) {
			atomic_fetch_add_explicit(slice.word, slice.end - slice.begin,
			                          memory_order_relaxed);
			atomic_fetch_or_explicit(slice.word, cells_of(slice.begin, slice.end),
			                         memory_order_relaxed);
		}
	}
}

void glake__fill_set(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		uint64_t word = look(slice.word);
		if (word & ~BOUND && !(word & REWRITTEN)) {
			atomic_fetch_or_explicit(slice.word, REWRITTEN, memory_order_relaxed);
		}
	}
}

void glake__fill_written(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (!(look(slice.word) & REWRITTEN)) {
			atomic_fetch_or_explicit(slice.word, REWRITTEN, memory_order_relaxed);
		}
	}
}

bool glake__fill_is_open(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (is_open(look(slice.word))) {
			return true;
		}
	}
	return false;
}

/* Pages of the array that nobody wrote to stay without memory. */
void glake__fill_reset(glake_ptr ptr, uint64_t n_bytes)
{
	struct slice slice;
	while (next_slice(&ptr, &n_bytes, &slice)) {
		if (look(slice.word) != 0) {
			atomic_store_explicit(slice.word, 0, memory_order_relaxed);
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
	uint64_t word = look(slice.word);
	uint64_t cells = cells_of(0, n_bytes);
	if (word & REWRITTEN || (word & BYTES_MASK) > n_bytes) {
		return GLAKE__FILL_REWRITTEN;
	}
	return (word & BYTES_MASK) >= least_bytes(n_bytes) && (word & cells) == cells
	               ? GLAKE__FILL_WHOLE
	               : GLAKE__FILL_PARTLY;
}

bool glake__fill_is_bound(glake_ptr ptr)
{
	struct slice slice;
	uint64_t n_bytes = 1;
	return next_slice(&ptr, &n_bytes, &slice) && look(slice.word) & BOUND;
}

static uint64_t array_bytes(void)
{
	return (glake__pages.n_bytes >> GLAKE__PAGE_SHIFT) * sizeof(uint64_t);
}

bool glake__dedup_is_off(void)
{
	const char *dedup = secure_getenv("GLAKE_DEDUP");
	return dedup && strcmp(dedup, "off") == 0;
}

void glake__fill_start(void)
{
	if (glake__pages.n_bytes > 0 && !words && !glake__dedup_is_off()) {
		void *array = mmap(NULL, array_bytes(), PROT_READ | PROT_WRITE,
		                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		words = array == MAP_FAILED ? NULL : array;
	}
}

void glake__fill_forget(void)
{
	void *array = atomic_exchange(&words, NULL);
	if (array) {
		munmap(array, array_bytes());
	}
}
