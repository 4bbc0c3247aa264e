/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where blocks are mapped, for those that must not write there.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SEALED_H
#define GLAKE_LIBCLIENT_SEALED_H

#include <stdatomic.h>
#include <stdint.h>

#include "glake.h"

/* Each launch looks at it: one line of the processor's cache. */
struct glake__sealed {
	/*
	 * Blocks that are mapped, each mapping counted. Private memory becomes one only while the gate is closed, so
	 * whoever is inside and reads 0 may write anywhere.
	 */
	_Alignas(64) _Atomic uint64_t n;
	_Atomic uint64_t n_sealings; /* the same, but it only grows */
	/* All blocks that are in the window lie in there. */
	_Atomic uint64_t base;
	_Atomic uint64_t n_bytes;
};

extern struct glake__sealed glake__sealed __attribute__((visibility("hidden")));

/*
 * The first address in [ptr, ptr + n_bytes) that is in a block, sealed here or opened; 0: there is none.
 * Calls no driver and waits for nobody.
 */
glake_ptr glake__find_sealed(glake_ptr ptr, uint64_t n_bytes);

/* The bytes of mapped blocks, each mapping counted. */
uint64_t glake__sealed_bytes(void);

#endif
