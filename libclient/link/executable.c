/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/process.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Longer ones are cut. */
#define MAX_ID_BYTES 64u

static size_t rounded(size_t n_bytes)
{
	return (n_bytes + 3) & ~(size_t)3;
}

/* False: there is none among these. */
static bool find_id(const char *notes, size_t n_bytes, char text_out[GLAKE_MAX_LABEL_BYTES])
{
	size_t at = 0;
	while (n_bytes - at >= sizeof(ElfW(Nhdr))) {
		const ElfW(Nhdr) *note = (const void *)(notes + at);
		size_t name_bytes = rounded(note->n_namesz);
		size_t id_bytes = note->n_descsz;
		if (name_bytes + rounded(id_bytes) > n_bytes - at - sizeof(*note)) {
			return false;
		}
		const uint8_t *id = (const uint8_t *)(note + 1) + name_bytes;
		if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
		    memcmp(note + 1, "GNU", 4) == 0) {
			int n = sprintf(text_out, "build-id ");
			for (size_t i = 0; i < id_bytes && i < MAX_ID_BYTES; i++) {
				n += sprintf(text_out + n, "%02x", id[i]);
			}
			return true;
		}
		at += sizeof(*note) + name_bytes + rounded(id_bytes);
	}
	return false;
}

/* The first object is the program. */
static int look(struct dl_phdr_info *info, size_t n_info, void *user)
{
	bool is_found = false;
	(void)n_info;
	for (unsigned i = 0; !is_found && i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		is_found = part->p_type == PT_NOTE &&
		           find_id((const char *)(info->dlpi_addr + part->p_vaddr), part->p_memsz,
		                   user);
	}
	return 1;
}

void glake__process_executable(char text_out[GLAKE_MAX_LABEL_BYTES])
{
	struct stat file;
	text_out[0] = '\0';
	dl_iterate_phdr(look, text_out);
	if (!text_out[0] && stat("/proc/self/exe", &file) == 0) {
		snprintf(text_out, GLAKE_MAX_LABEL_BYTES, "file %llx %llx %llu",
		         (unsigned long long)file.st_dev, (unsigned long long)file.st_ino,
		         (unsigned long long)file.st_size);
	}
}
