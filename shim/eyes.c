/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can go wrong, and why it does no harm. Notes only name suspects, so a note that is lost costs a name. A note that is
 * half overwritten would name the wrong kernel: each note has a number, which is 0 while it is written, and a reader drops a
 * note whose number has changed. Kernels are never freed (kernels.h), so a note's kernel stays valid. A launch must stay cheap:
 * each word costs one comparison with the area where anything is sealed, and a word is noted once per sealing.
 */
#include "shim/eyes.h"

#include <stdatomic.h>
#include <string.h>

#include "shim/doubts.h"
#include "shim/heap.h"
#include "shim/kernels.h"

#define N_NOTES 64u

/* ---- notes ------------------------------------------------------------------------------------ */

/* The notes are a ring. A note is whole if its number is the same before and after it is read. */
static struct note {
	_Atomic uint64_t number; /* from 1 on; 0: it is being written */
	_Atomic(struct kernel *) kernel;
	_Atomic uint64_t ptr;
	atomic_size_t word; /* its number among the kernel's words */
} notes[N_NOTES];
static _Atomic uint64_t n_notes;

static void add_note(struct kernel *kernel, uint64_t ptr, size_t word)
{
	uint64_t number = atomic_fetch_add(&n_notes, 1) + 1;
	struct note *note = &notes[number % N_NOTES];
	note->number = 0;
	note->kernel = kernel;
	note->ptr = ptr;
	note->word = word;
	note->number = number;
}

static bool is_sealed(uint64_t word)
{
	return glake__page_kind(glake__page_of(word)) == GLAKE__PAGE_BLOCK;
}

/* All sealed memory lies in this area; all words of a launch are compared with it. */
struct sealed_area {
	uint64_t base;
	uint64_t n_bytes;
	uint32_t now; /* glake__sealed.n_sealings */
};

/* @words need no alignment; @first is the number of the first one. Some kernels have hundreds. */
static inline void look_at_words(struct kernel *kernel, const struct sealed_area *area,
                                 const char *words, size_t first, size_t n)
{
	_Atomic uint32_t *all = kernel_seen(kernel);
	for (size_t i = 0; i < n; i++) {
		uint64_t word;
		memcpy(&word, words + 8 * i, 8);
		if (__builtin_expect(word - area->base >= area->n_bytes, 1)) {
			continue;
		}
		_Atomic uint32_t *seen = &all[first + i];
		if (atomic_load_explicit(seen, memory_order_relaxed) != area->now &&
		    is_sealed(word)) {
			atomic_store_explicit(seen, area->now, memory_order_relaxed);
			add_note(kernel, word, first + i);
		}
	}
}

/* Look at @extra, which has all parameters side by side. */
static void look_at_buffer(struct kernel *kernel, const struct sealed_area *area,
                           void *const *extra)
{
	const char *buffer;
	size_t n_bytes;
	kernels_buffer_of(extra, &buffer, &n_bytes);
	size_t n_words = n_bytes / 8 < kernel->n_words ? n_bytes / 8 : kernel->n_words;
	look_at_words(kernel, area, buffer, 0, buffer ? n_words : 0);
}

void eyes_look(CUfunction function, void *const *params, void *const *extra)
{
	struct kernel *kernel = kernels_find(function);
	const struct sealed_area area = {
		.n_bytes = atomic_load_explicit(&glake__sealed.n_bytes, memory_order_relaxed),
		.base = atomic_load_explicit(&glake__sealed.base, memory_order_relaxed),
		.now = (uint32_t)atomic_load_explicit(&glake__sealed.n_sealings,
	                                              memory_order_relaxed),
	};
	if (kernel && extra) {
		look_at_buffer(kernel, &area, extra);
	}
	for (uint32_t i = 0; kernel && params && i < kernel->n_spans; i++) {
		struct kernel_span span = kernel->spans[i];
		const char *param = params[span.param];
		if (param) {
			look_at_words(kernel, &area, param + span.at, span.first, span.n);
		}
	}
}

/* The suspect that stands for all kernels of a graph. */
static struct kernel any_of_graph = {.name = (char *)"a CUDA graph"};

void eyes_look_at_graph(uint64_t *seen)
{
	uint64_t now = glake__sealed.n_sealings;
	if (*seen != now) {
		*seen = now;
		add_note(&any_of_graph, 0, 0);
	}
}

bool eyes_can_see(void)
{
	return kernels_are_told();
}

/* ---- suspects --------------------------------------------------------------------------------- */

static struct glake__suspect suspect_of(const struct kernel *kernel, uint64_t ptr, size_t word)
{
	struct glake__suspect suspect = {.kernel = kernel->name, .ptr = ptr};
	suspect.word = ptr ? doubts_word(kernel, word) : 0;
	struct heap_facts facts;
	if (!ptr) {
		return suspect;
	}
	if (heap_find(ptr, &facts)) {
		suspect.range = facts.address;
		suspect.range_bytes = facts.n_bytes;
	} else {
		struct glake__address_info info = glake__space_look(ptr);
		suspect.range = info.address;
		suspect.range_bytes = info.n_bytes;
	}
	return suspect;
}

/* A kernel with the same pointer twice is one suspect. */
static bool has_suspect(const struct glake__suspect *suspects, size_t n,
                        const struct kernel *kernel, uint64_t ptr)
{
	size_t i = 0;
	while (i < n && (suspects[i].kernel != kernel->name || suspects[i].ptr != ptr)) {
		i++;
	}
	return i < n;
}

size_t eyes_suspects(struct glake__suspect *suspects_out, size_t max)
{
	size_t n = 0;
	uint64_t last = n_notes;
	uint64_t first = last > N_NOTES ? last - N_NOTES : 0;
	for (uint64_t number = last; number > first && n < max; number--) {
		struct note *note = &notes[number % N_NOTES];
		uint64_t before = note->number;
		const struct kernel *kernel = note->kernel;
		uint64_t ptr = note->ptr;
		size_t word = note->word;
		if (before == number && note->number == number && (!ptr || is_sealed(ptr)) &&
		    !has_suspect(suspects_out, n, kernel, ptr)) {
			suspects_out[n++] = suspect_of(kernel, ptr, word);
		}
	}
	return n;
}
