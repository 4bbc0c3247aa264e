/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a table of readers (glake-readers(5)) names an image that is part of the program that runs: by the build-id of its file,
 * and the place there. Who has written a program's kernels can write its table so.
 *
 * Threads: any.
 */
#ifndef GLAKE_TESTS_OWN_IMAGE_H
#define GLAKE_TESTS_OWN_IMAGE_H

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>

struct own_image {
	const void *image;
	FILE *to;
};

static inline void own_image_print_build_id(const struct dl_phdr_info *info, FILE *to)
{
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		const ElfW(Nhdr) *note = (const void *)(info->dlpi_addr + part->p_vaddr);
		const char *end = (const char *)note + part->p_memsz;
		while (part->p_type == PT_NOTE && (const char *)note < end) {
			const uint8_t *content = (const uint8_t *)(note + 1) +
			                         ((note->n_namesz + 3) & ~3u);
			for (unsigned j = 0; note->n_type == NT_GNU_BUILD_ID && j < note->n_descsz;
			     j++) {
				fprintf(to, "%02x", content[j]);
			}
			note = (const void *)(content + ((note->n_descsz + 3) & ~3u));
		}
	}
}

static inline int own_image_print_of(struct dl_phdr_info *info, size_t n_info, void *user)
{
	const struct own_image *own = user;
	const uint64_t at = (uint64_t)(uintptr_t)own->image - info->dlpi_addr;
	(void)n_info;
	/* The first one is the program. */
	fputs("image build-id ", own->to);
	own_image_print_build_id(info, own->to);
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && at - part->p_vaddr < part->p_filesz) {
			fprintf(own->to, " offset 0x%llx\n",
			        (unsigned long long)(at - part->p_vaddr + part->p_offset));
		}
	}
	return 1;
}

/* Print "image build-id HEX offset 0xHEX" and a line's end. */
static inline void own_image_print(const void *image, FILE *to)
{
	struct own_image own = {image, to};
	dl_iterate_phdr(own_image_print_of, &own);
}

#endif
