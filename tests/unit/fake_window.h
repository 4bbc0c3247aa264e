/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of who looks into the page map: a window of a few pages, without memory.
 *
 * Owner: the test that includes it. Lifetime: one test; Check forks for each.
 */
#ifndef GLAKE_TESTS_UNIT_FAKE_WINDOW_H
#define GLAKE_TESTS_UNIT_FAKE_WINDOW_H

#include "libclient/space/page.h"

#define PAGE GLAKE__PAGE_BYTES
#define BASE (1000 * PAGE)
#define N_PAGES 16u
#define SEALED (BASE + 8 * PAGE) /* the one page that is */

static _Atomic uint64_t fake_entries[N_PAGES];

static void make_window(void)
{
	for (unsigned i = 0; i < N_PAGES; i++) {
		enum glake__page_kind kind = BASE + i * PAGE == SEALED ? GLAKE__PAGE_BLOCK
		                                                       : GLAKE__PAGE_CHUNK;
		fake_entries[i] = glake__page_entry(kind, NULL);
	}
	glake__pages.base = BASE;
	glake__pages.entries = fake_entries;
	glake__pages.n_bytes = N_PAGES * PAGE;
}

#endif
