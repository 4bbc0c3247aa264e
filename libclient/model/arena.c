/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/arena.h"

#include <stdint.h>
#include <stdlib.h>

#define PAGE_BYTES (64u * 1024 - 64)

struct glake__arena_page {
	struct glake__arena_page *next;
	size_t n_bytes;
	uint64_t bytes[];
};

void *glake__arena_take(struct glake__arena *arena, size_t n_bytes)
{
	n_bytes = (n_bytes + sizeof(uint64_t) - 1) & ~(sizeof(uint64_t) - 1);
	if (n_bytes > arena->n_left) {
		size_t capacity = n_bytes > PAGE_BYTES ? n_bytes : PAGE_BYTES;
		struct glake__arena_page *page = malloc(sizeof(*page) + capacity);
		if (!page) {
			return NULL;
		}
		page->next = arena->pages;
		page->n_bytes = capacity;
		arena->pages = page;
		arena->n_left = capacity;
	}
	char *end = (char *)arena->pages->bytes + arena->pages->n_bytes;
	void *taken = end - arena->n_left;
	arena->n_left -= n_bytes;
	return taken;
}

void glake__arena_deinit(struct glake__arena *arena)
{
	while (arena->pages) {
		struct glake__arena_page *page = arena->pages;
		arena->pages = page->next;
		free(page);
	}
	*arena = (struct glake__arena){0};
}
