/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/fork.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

static _Atomic uint64_t generation = 1;
static _Atomic uint64_t *wiped; /* the page; points to `generation` where the kernel has no such */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_up(void)
{
	atomic_fetch_add(&generation, 1);
}

static void set_up(void)
{
	size_t n_bytes = 4096;
	void *page = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
	                  0);
	if (page != MAP_FAILED && madvise(page, n_bytes, MADV_WIPEONFORK) == 0) {
		wiped = page;
		atomic_store(wiped, atomic_load(&generation));
		return;
	}
	if (page != MAP_FAILED) {
		munmap(page, n_bytes);
	}
	wiped = &generation;
	pthread_atfork(NULL, NULL, count_up);
}

uint64_t glake__fork_generation(void)
{
	pthread_once(&once, set_up);
	uint64_t seen = atomic_load_explicit(wiped, memory_order_acquire);
	if (__builtin_expect(seen != 0, 1)) {
		return seen;
	}
	/* Two threads of a fresh child may come here together: the first to store wins. */
	uint64_t next = atomic_fetch_add(&generation, 1) + 1;
	return atomic_compare_exchange_strong(wiped, &seen, next) ? next : seen;
}
