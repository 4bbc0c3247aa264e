/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page map: for each 2 MiB of the window one word, that says what is there.
 *
 * It is read without a lock: "is this word an address of ours, on which device, of what kind" is a
 * subtraction, a compare and one entry. What an entry points to is only for those that hold the lock of
 * the space (space.h).
 *
 * Owner: the process. Lifetime: from the window's reservation on. Threads: any read, writers hold the lock.
 */
#ifndef GLAKE_LIBCLIENT_PAGE_H
#define GLAKE_LIBCLIENT_PAGE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define GLAKE__PAGE_SHIFT 21
#define GLAKE__PAGE_BYTES (1ull << GLAKE__PAGE_SHIFT)

enum glake__page_kind {
	GLAKE__PAGE_NONE,  /* nobody's */
	GLAKE__PAGE_HOLE,  /* of a range, and without memory now */
	GLAKE__PAGE_CHUNK, /* private memory, read-write */
	GLAKE__PAGE_BLOCK, /* sealed and shared, read-only */
	GLAKE__PAGE_HOST,  /* a chunk of host memory */
};

/* An entry: the kind in 4 bits, and a pointer that is a multiple of 16. */
struct glake__pages {
	_Atomic uint64_t n_bytes; /* 0: no window; set last, read first */
	_Atomic uint64_t base;
	_Atomic uint64_t *_Atomic entries;
};
extern struct glake__pages glake__pages __attribute__((visibility("hidden")));

/* 0: not in the window, or nobody's. */
static inline uint64_t glake__page_of(uint64_t word)
{
	uint64_t n_bytes = atomic_load_explicit(&glake__pages.n_bytes, memory_order_acquire);
	uint64_t at = word - atomic_load_explicit(&glake__pages.base, memory_order_relaxed);
	if (at >= n_bytes) {
		return 0;
	}
	_Atomic uint64_t *entries = atomic_load_explicit(&glake__pages.entries,
	                                                 memory_order_relaxed);
	return atomic_load_explicit(&entries[at >> GLAKE__PAGE_SHIFT], memory_order_acquire);
}

static inline enum glake__page_kind glake__page_kind(uint64_t page)
{
	return (enum glake__page_kind)(page & 15);
}

/* Called with the lock of the space held. */
static inline void *glake__page_pointer(uint64_t page)
{
	return (void *)(uintptr_t)(page & ~15ull);
}

static inline uint64_t glake__page_entry(enum glake__page_kind kind, const void *pointer)
{
	return (uint64_t)(uintptr_t)pointer | (uint64_t)kind;
}

#endif
