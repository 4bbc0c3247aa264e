/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/driver_usage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "glake_shim.h"
#include "shim/context.h"

struct driver_usage_entry {
	enum driver_usage_space space;
	uint64_t number;
	enum driver_usage_kind kind;
	uint64_t n_bytes;
	CUdevice device;
	CUcontext ctx;
	uint64_t generation; /* of ctx */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct glake__ptr_table
	entries[DRIVER_USAGE_N_SPACES]; /* owned struct driver_usage_entry, by number */
static _Atomic int64_t totals[SHIM_MAX_DEVICES][DRIVER_USAGE_N_KINDS];

void driver_usage_grow(CUdevice device, enum driver_usage_kind kind, int64_t n_bytes)
{
	if (device >= 0 && device < SHIM_MAX_DEVICES) {
		totals[device][kind] += n_bytes;
	}
}

uint64_t driver_usage_bytes(CUdevice device, enum driver_usage_kind kind)
{
	return (uint64_t)totals[device][kind];
}

static void drop(struct driver_usage_entry *entry)
{
	if (entry) {
		driver_usage_grow(entry->device, entry->kind, -(int64_t)entry->n_bytes);
		free(entry);
	}
}

/* Called with the lock held. */
static struct driver_usage_entry *take_locked(enum driver_usage_space space, uint64_t number)
{
	return glake__ptr_table_remove(&entries[space], number);
}

/* An entry with the same number is of memory that went unnoticed, so it is dropped. */
static void put(struct driver_usage_entry *entry)
{
	pthread_mutex_lock(&lock);
	struct driver_usage_entry *before = take_locked(entry->space, entry->number);
	bool is_in = glake__ptr_table_add(&entries[entry->space], entry->number, entry) == 0;
	pthread_mutex_unlock(&lock);
	drop(before);
	if (!is_in) {
		drop(entry);
	}
}

void driver_usage_add(enum driver_usage_space space, uint64_t number, enum driver_usage_kind kind,
                      uint64_t n_bytes)
{
	struct driver_usage_entry *entry = n_bytes ? calloc(1, sizeof(*entry)) : NULL;
	if (!entry) {
		return;
	}
	*entry = (struct driver_usage_entry){
		.space = space,
		.number = number,
		.kind = kind,
		.n_bytes = n_bytes,
	};
	if (real(cuCtxGetCurrent)(&entry->ctx) != CUDA_SUCCESS ||
	    real(cuCtxGetDevice)(&entry->device) != CUDA_SUCCESS) {
		free(entry);
		return;
	}
	entry->ctx = context_primary(entry->ctx);
	entry->generation = context_generation();
	driver_usage_grow(entry->device, kind, (int64_t)n_bytes);
	put(entry);
}

struct driver_usage_entry *driver_usage_take(enum driver_usage_space space, uint64_t number)
{
	pthread_mutex_lock(&lock);
	struct driver_usage_entry *entry = take_locked(space, number);
	pthread_mutex_unlock(&lock);
	return entry;
}

void driver_usage_settle(struct driver_usage_entry *entry, bool is_gone)
{
	if (is_gone) {
		drop(entry);
	} else if (entry) {
		put(entry);
	}
}

/* Called with the lock held. A removal may refill the slot, so the slot is checked again. */
static void release_locked(struct glake__ptr_table *table, CUcontext ctx, uint64_t generation)
{
	for (size_t i = 0; i < table->n_slots;) {
		struct driver_usage_entry *entry = table->slots[i].value;
		if (entry && entry->ctx == ctx && entry->generation < generation) {
			glake__ptr_table_remove(table, entry->number);
			drop(entry);
		} else {
			i++;
		}
	}
}

void driver_usage_release_ctx(CUcontext ctx, uint64_t generation)
{
	pthread_mutex_lock(&lock);
	for (enum driver_usage_space space = 0; space < DRIVER_USAGE_N_SPACES; space++) {
		release_locked(&entries[space], ctx, generation);
	}
	pthread_mutex_unlock(&lock);
}
