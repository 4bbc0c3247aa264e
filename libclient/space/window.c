/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/window.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "libclient/space/chain.h"
#include "libclient/space/fill.h"
#include "libclient/space/fit.h"
#include "libclient/space/page.h"

#define TIMES_MEMORY 16
/*
 * Kernels get integers beside pointers, and two of them, or one and what lay on the stack beside it, are a word of 8 bytes as
 * well. A window where such words point to would make readers of memory out of dimensions. Their upper halves are small numbers
 * (the driver's own choice begins at 3 << 32), multiples of 256, and those of host pointers, from 0x5500 and from 0x7e00 on. So the
 * window is wished between all of these (decision 091).
 */
#define WISHED_BASE 0x2d0100000000ull
#define N_BINS 128u

struct glake__pages glake__pages;

struct extent {
	_Alignas(16) uint64_t first; /* page of the window */
	uint64_t n_pages;
	struct extent *next; /* link: a bin */
	struct extent *previous;
};

static struct {
	bool is_open; /* or was tried */
	uint64_t filled[N_BINS / 64];
	struct extent *bins[N_BINS];
	/* Addresses come back without asking for memory: there is a spare for each that were taken. */
	struct extent *spares;
	uint64_t n_spares;
	uint64_t n_taken;
} window;

/* ---- extents ---------------------------------------------------------------------------------- */

static void set_entry(uint64_t page, uint64_t entry)
{
	atomic_store_explicit(&glake__pages.entries[page], entry, memory_order_release);
}

static void tag(const struct extent *extent, const struct extent *value)
{
	uint64_t entry = value ? glake__page_entry(GLAKE__PAGE_NONE, value) : 0;
	set_entry(extent->first, entry);
	set_entry(extent->first + extent->n_pages - 1, entry);
}

static void hang(struct extent *extent)
{
	unsigned bin = glake__fit_bin_of(extent->n_pages);
	CHAIN_PUSH(window.bins[bin], extent, previous, next);
	window.filled[bin / 64] |= 1ull << (bin % 64);
	tag(extent, extent);
}

static void unhang(struct extent *extent)
{
	unsigned bin = glake__fit_bin_of(extent->n_pages);
	CHAIN_REMOVE(window.bins[bin], extent, previous, next);
	if (!window.bins[bin]) {
		window.filled[bin / 64] &= ~(1ull << (bin % 64));
	}
	tag(extent, NULL);
}

static void spare(struct extent *extent)
{
	extent->next = window.spares;
	window.spares = extent;
	window.n_spares++;
}

static struct extent *from_spares(uint64_t first, uint64_t n_pages)
{
	struct extent *extent = window.spares;
	window.spares = extent->next;
	window.n_spares--;
	extent->first = first;
	extent->n_pages = n_pages;
	return extent;
}

/* For what was taken, what is about to be, and what is left on both sides of it. */
static bool have_spares(void)
{
	while (window.n_spares < window.n_taken + 3) {
		struct extent *extent = calloc(1, sizeof(*extent));
		if (!extent) {
			return false;
		}
		spare(extent);
	}
	return true;
}

/* The free extent that has @page as its first or last; NULL if there is none. */
static struct extent *extent_at(uint64_t page)
{
	if (page >= glake__pages.n_bytes >> GLAKE__PAGE_SHIFT) {
		return NULL;
	}
	uint64_t entry = glake__pages.entries[page];
	return glake__page_kind(entry) == GLAKE__PAGE_NONE ? glake__page_pointer(entry) : NULL;
}

static struct extent *find_fit(uint64_t n_pages)
{
	unsigned bin = glake__fit_bin_for(n_pages);
	while (bin < N_BINS) {
		uint64_t filled = window.filled[bin / 64] & (~0ull << (bin % 64));
		if (filled) {
			return window.bins[bin / 64 * 64 + (unsigned)__builtin_ctzll(filled)];
		}
		bin = (bin / 64 + 1) * 64;
	}
	return NULL;
}

/* The free extent that has all of these pages. Rare: a program asks for a place. */
static struct extent *find_around(uint64_t first, uint64_t n_pages)
{
	for (unsigned bin = glake__fit_bin_of(n_pages); bin < N_BINS; bin++) {
		for (struct extent *extent = window.bins[bin]; extent; extent = extent->next) {
			if (extent->first <= first &&
			    first + n_pages <= extent->first + extent->n_pages) {
				return extent;
			}
		}
	}
	return NULL;
}

/* ---- the window ------------------------------------------------------------------------------- */

static uint64_t wanted_bytes(const struct cudrv *drv)
{
	uint64_t total = 0;
	int n_devices = 0;
	drv->cuDeviceGetCount(&n_devices);
	for (int i = 0; i < n_devices; i++) {
		CUdevice device;
		size_t n_bytes = 0;
		if (drv->cuDeviceGet(&device, i) == CUDA_SUCCESS &&
		    drv->cuDeviceTotalMem(&n_bytes, device) == CUDA_SUCCESS) {
			total += n_bytes;
		}
	}
	return total * TIMES_MEMORY & ~(GLAKE__PAGE_BYTES - 1);
}

void glake__window_open(const struct cudrv *drv)
{
	if (window.is_open) {
		return;
	}
	window.is_open = true;
	uint64_t n_bytes = wanted_bytes(drv);
	CUdeviceptr base = 0;
	while (n_bytes >= GLAKE__PAGE_BYTES &&
	       drv->cuMemAddressReserve(&base, n_bytes, 0, WISHED_BASE, 0) != CUDA_SUCCESS) {
		n_bytes = n_bytes / 2 & ~(GLAKE__PAGE_BYTES - 1);
	}
	if (n_bytes < GLAKE__PAGE_BYTES) {
		return;
	}
	uint64_t n_pages = n_bytes >> GLAKE__PAGE_SHIFT;
	void *entries = mmap(NULL, n_pages * sizeof(uint64_t), PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (entries == MAP_FAILED || !have_spares()) {
		drv->cuMemAddressFree(base, n_bytes);
		return;
	}
	glake__pages.base = base;
	glake__pages.entries = entries;
	hang(from_spares(0, n_pages));
	atomic_store_explicit(&glake__pages.n_bytes, n_bytes, memory_order_release);
}

static void free_list(struct extent *list)
{
	while (list) {
		struct extent *next = list->next;
		free(list);
		list = next;
	}
}

void glake__window_forget(void)
{
	glake__fill_forget();
	uint64_t n_bytes = atomic_exchange(&glake__pages.n_bytes, 0);
	if (n_bytes) {
		munmap(glake__pages.entries, (n_bytes >> GLAKE__PAGE_SHIFT) * sizeof(uint64_t));
	}
	for (unsigned bin = 0; bin < N_BINS; bin++) {
		free_list(window.bins[bin]);
	}
	free_list(window.spares);
	window = (__typeof__(window)){.is_open = false};
}

bool glake__window_has(glake_ptr ptr)
{
	return ptr - glake__pages.base < glake__pages.n_bytes;
}

/* ---- addresses -------------------------------------------------------------------------------- */

glake_ptr glake__window_take(uint64_t n_bytes, uint64_t alignment, glake_ptr hint)
{
	uint64_t n_pages = n_bytes >> GLAKE__PAGE_SHIFT;
	if (glake__pages.n_bytes == 0 || n_bytes > glake__pages.n_bytes ||
	    alignment > glake__pages.n_bytes || !have_spares()) {
		return 0;
	}
	struct extent *extent;
	/* The alignment is a must, the hint is not. */
	glake_ptr ptr = alignment && hint % alignment ? 0 : hint;
	if (ptr) {
		extent = glake__window_has(ptr)
		                 ? find_around((ptr - glake__pages.base) >> GLAKE__PAGE_SHIFT,
		                               n_pages)
		                 : NULL;
	} else {
		uint64_t slack = alignment > GLAKE__PAGE_BYTES ? alignment - GLAKE__PAGE_BYTES : 0;
		extent = find_fit(n_pages + (slack >> GLAKE__PAGE_SHIFT));
		if (extent) {
			ptr = glake__pages.base + (extent->first << GLAKE__PAGE_SHIFT);
			ptr = alignment ? (ptr + alignment - 1) & -alignment : ptr;
		}
	}
	if (!extent) {
		return 0;
	}
	uint64_t first = (ptr - glake__pages.base) >> GLAKE__PAGE_SHIFT;
	uint64_t end = extent->first + extent->n_pages;
	unhang(extent);
	if (first > extent->first) {
		hang(from_spares(extent->first, first - extent->first));
	}
	if (end > first + n_pages) {
		hang(from_spares(first + n_pages, end - first - n_pages));
	}
	spare(extent);
	window.n_taken++;
	return ptr;
}

void glake__window_give(glake_ptr ptr, uint64_t n_bytes)
{
	uint64_t first = (ptr - glake__pages.base) >> GLAKE__PAGE_SHIFT;
	uint64_t end = first + (n_bytes >> GLAKE__PAGE_SHIFT);
	for (uint64_t page = first; page < end; page++) {
		set_entry(page, 0);
	}
	struct extent *before = first > 0 ? extent_at(first - 1) : NULL;
	struct extent *behind = extent_at(end);
	if (before) {
		first = before->first;
		unhang(before);
		spare(before);
	}
	if (behind) {
		end = behind->first + behind->n_pages;
		unhang(behind);
		spare(behind);
	}
	hang(from_spares(first, end - first));
	window.n_taken--;
}

bool glake__window_is_valid(void)
{
	for (unsigned bin = 0; bin < N_BINS; bin++) {
		bool is_filled = window.filled[bin / 64] >> (bin % 64) & 1;
		if (is_filled != (window.bins[bin] != NULL)) {
			return false;
		}
		for (struct extent *extent = window.bins[bin]; extent; extent = extent->next) {
			uint64_t end = extent->first + extent->n_pages;
			if (glake__fit_bin_of(extent->n_pages) != bin ||
			    extent_at(extent->first) != extent || extent_at(end - 1) != extent ||
			    extent_at(end) || (extent->first > 0 && extent_at(extent->first - 1))) {
				return false;
			}
		}
	}
	return true;
}
