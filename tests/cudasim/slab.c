/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuMemAlloc below one granule: pieces of shared chunks, first fit in units of 512 bytes, as an
 * H200 packs them.
 */
#include "sim.h"

#include <stdlib.h>

#define UNIT_BYTES 512
#define N_UNITS (unsigned)(SIM_GRANULARITY / UNIT_BYTES)
#define N_WORDS (N_UNITS / 64)

struct slab {
	struct slab *next; /* link: with_room[device], while n_free > 0 */
	struct slab *prev;
	struct alloc_chunk chunk; /* owned */
	unsigned device;
	unsigned n_free;
	uint64_t used[N_WORDS]; /* one bit per unit */
};

/* Slabs with at least one free unit; under the lock of the space. */
static struct slab *with_room[SIM_MAX_DEVICES];

static unsigned units_of(uint64_t bytes)
{
	return (unsigned)((bytes + UNIT_BYTES - 1) / UNIT_BYTES);
}

static void list_add(struct slab *slab)
{
	slab->prev = NULL;
	slab->next = with_room[slab->device];
	if (slab->next) {
		slab->next->prev = slab;
	}
	with_room[slab->device] = slab;
}

static void list_remove(struct slab *slab)
{
	if (slab->next) {
		slab->next->prev = slab->prev;
	}
	if (slab->prev) {
		slab->prev->next = slab->next;
	} else {
		with_room[slab->device] = slab->next;
	}
}

static bool is_used(const struct slab *slab, unsigned unit)
{
	return slab->used[unit / 64] >> (unit % 64) & 1;
}

/* The first run of n free units, or -1. */
static int find_run(const struct slab *slab, unsigned n)
{
	unsigned n_run = 0;

	for (unsigned unit = 0; unit < N_UNITS; unit++) {
		if (unit % 64 == 0 && slab->used[unit / 64] == UINT64_MAX) {
			n_run = 0;
			unit += 63;
			continue;
		}
		n_run = is_used(slab, unit) ? 0 : n_run + 1;
		if (n_run == n) {
			return (int)(unit + 1 - n);
		}
	}
	return -1;
}

static void flip(struct slab *slab, unsigned first, unsigned n)
{
	for (unsigned unit = first; unit < first + n; unit++) {
		slab->used[unit / 64] ^= 1ULL << (unit % 64);
	}
}

static struct slab *find_with_run(unsigned device, unsigned n, int *first_out)
{
	for (struct slab *slab = with_room[device]; slab; slab = slab->next) {
		int first = slab->n_free >= n ? find_run(slab, n) : -1;
		if (first >= 0) {
			*first_out = first;
			return slab;
		}
	}
	return NULL;
}

static CUresult slab_new(unsigned device, struct slab **slab_out)
{
	struct slab *slab = calloc(1, sizeof(*slab));

	if (!slab) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = alloc_chunk_new(device, SIM_GRANULARITY, false, &slab->chunk);
	if (err != CUDA_SUCCESS) {
		free(slab);
		return err;
	}
	slab->device = device;
	slab->n_free = N_UNITS;
	list_add(slab);
	*slab_out = slab;
	return CUDA_SUCCESS;
}

CUresult slab_take(unsigned device, uint64_t bytes, struct mapping *m)
{
	unsigned n = units_of(bytes);
	int first = 0;
	struct slab *slab = find_with_run(device, n, &first);

	if (!slab) {
		CUresult err = slab_new(device, &slab);
		if (err != CUDA_SUCCESS) {
			return err;
		}
	}
	flip(slab, (unsigned)first, n);
	slab->n_free -= n;
	if (slab->n_free == 0) {
		list_remove(slab);
	}
	uint64_t offset = (uint64_t)first * UNIT_BYTES;
	m->range = (struct range){.start = slab->chunk.res->range.start + offset, .bytes = bytes};
	m->host = slab->chunk.host + offset;
	m->slab = slab;
	return CUDA_SUCCESS;
}

void slab_give(const struct mapping *m)
{
	struct slab *slab = m->slab;
	unsigned n = units_of(m->range.bytes);

	if (slab->n_free == 0) {
		list_add(slab);
	}
	flip(slab, (unsigned)((m->range.start - slab->chunk.res->range.start) / UNIT_BYTES), n);
	slab->n_free += n;
	if (slab->n_free == N_UNITS) {
		list_remove(slab);
		alloc_chunk_free(&slab->chunk);
		free(slab);
	}
}

struct reservation *slab_reservation(const struct slab *slab)
{
	return slab->chunk.res;
}
