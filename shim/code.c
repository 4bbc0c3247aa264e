/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/code.h"

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/digest.h"
#include "shim/shim.h"

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
/* Larger images are not hashed: the program would wait for it. */
#define MAX_IMAGE_BYTES (256ull << 20)

/* ---- images ----------------------------------------------------------------------------------- */

/* The wrapper that nvcc puts before its images. In version 1 the data is one container. */
struct wrapper {
	uint32_t magic;
	uint32_t version;
	const void *data;
	const void *other;
};

struct fatbin {
	uint32_t magic;
	uint16_t version;
	uint16_t header_bytes;
	uint64_t content_bytes;
};

static uint32_t magic_of(const void *image)
{
	uint32_t magic;
	memcpy(&magic, image, sizeof(magic));
	return magic;
}

/* NULL: the image has several containers, or its kind is not known. */
static const void *container_at(const void *image)
{
	struct wrapper wrapper;
	if (magic_of(image) != WRAPPER_MAGIC) {
		return image;
	}
	memcpy(&wrapper, image, sizeof(wrapper));
	return wrapper.version == 1 ? wrapper.data : NULL;
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t elf_bytes(const void *image)
{
	Elf64_Ehdr header;
	memcpy(&header, image, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shoff > MAX_IMAGE_BYTES ||
	    header.e_phoff > MAX_IMAGE_BYTES || header.e_shentsize != sizeof(Elf64_Shdr)) {
		return 0;
	}
	uint64_t end = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
	end = max_of(end, header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize);
	for (unsigned i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section;
		memcpy(&section, (const char *)image + header.e_shoff + i * sizeof(section),
		       sizeof(section));
		if (section.sh_type == SHT_NOBITS) {
			continue;
		}
		if (section.sh_offset > MAX_IMAGE_BYTES || section.sh_size > MAX_IMAGE_BYTES) {
			return 0;
		}
		end = max_of(end, section.sh_offset + section.sh_size);
	}
	return end;
}

/* 0: the length is not known. The driver has loaded the image, so its headers can be read. */
static uint64_t bytes_of(const void *image)
{
	struct fatbin fatbin;
	if (magic_of(image) == FATBIN_MAGIC) {
		memcpy(&fatbin, image, sizeof(fatbin));
		return fatbin.content_bytes > MAX_IMAGE_BYTES
		               ? 0
		               : fatbin.header_bytes + fatbin.content_bytes;
	}
	if (memcmp(image, ELFMAG, SELFMAG) == 0) {
		return elf_bytes(image);
	}
	/* PTX is text. */
	const char *text = image;
	return text[0] == '.' || text[0] == '/' || text[0] == '\n' ? strlen(text) : 0;
}

static struct image_id hash(const void *image)
{
	struct image_id id = {.kind = IMAGE_UNKNOWN};
	uint64_t n_bytes = bytes_of(image);
	if (n_bytes > 0 && n_bytes <= MAX_IMAGE_BYTES) {
		struct digest digest = digest_of(image, n_bytes);
		char text[DIGEST_TEXT_BYTES];
		digest_to_text(&digest, text);
		id.kind = IMAGE_IN_MEMORY;
		id.at = n_bytes;
		id.n_bytes = DIGEST_BYTES;
		for (unsigned i = 0; i < DIGEST_BYTES; i++) {
			/* The bytes have the order of the digest's text. */
			uint64_t half = i < 8 ? digest.high : digest.low;
			id.bytes[i] = (uint8_t)(half >> (56 - 8 * (i % 8)));
		}
	}
	return id;
}

/* ---- files ------------------------------------------------------------------------------------ */

struct search {
	uint64_t address;
	struct image_id id; /* unknown: the address is in no loaded file's read-only memory */
};

static void read_notes(const char *notes, size_t n_bytes, struct image_id *id)
{
	size_t at = 0;
	while (at + sizeof(ElfW(Nhdr)) <= n_bytes) {
		ElfW(Nhdr) note;
		memcpy(&note, notes + at, sizeof(note));
		size_t name_at = at + sizeof(note);
		size_t content_at = name_at + ((note.n_namesz + 3u) & ~3u);
		if (content_at + note.n_descsz > n_bytes) {
			return;
		}
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
		    memcmp(notes + name_at, "GNU", 4) == 0 && note.n_descsz > 0 &&
		    note.n_descsz <= READERS_MAX_ID_BYTES) {
			memcpy(id->bytes, notes + content_at, note.n_descsz);
			id->n_bytes = note.n_descsz;
			return;
		}
		at = content_at + ((note.n_descsz + 3u) & ~3u);
	}
}

static bool has(const ElfW(Phdr) * part, uint64_t at)
{
	return at - part->p_vaddr < part->p_memsz;
}

/* The offset of @at in the file. False: it is not in the file, or the program may write there. */
static bool find_offset(const struct dl_phdr_info *info, uint64_t at, uint64_t *offset_out)
{
	bool is_kept = false;
	bool is_there = false;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_LOAD && at - part->p_vaddr < part->p_filesz) {
			is_there = true;
			is_kept |= !(part->p_flags & PF_W);
			*offset_out = at - part->p_vaddr + part->p_offset;
		}
		is_kept |= part->p_type == PT_GNU_RELRO && has(part, at);
	}
	return is_there && is_kept;
}

static int look_at_file(struct dl_phdr_info *info, size_t n_info, void *user)
{
	struct search *search = user;
	const uint64_t at = search->address - info->dlpi_addr;
	struct image_id id = {.kind = IMAGE_IN_FILE};
	(void)n_info;
	if (!find_offset(info, at, &id.at)) {
		return 0;
	}
	for (unsigned i = 0; i < info->dlpi_phnum && id.n_bytes == 0; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		if (part->p_type == PT_NOTE) {
			read_notes((const char *)(uintptr_t)(info->dlpi_addr + part->p_vaddr),
			           part->p_memsz, &id);
		}
	}
	if (id.n_bytes > 0) {
		search->id = id;
	}
	return 1;
}

static struct image_id identify(const void *image)
{
	const void *container = image ? container_at(image) : NULL;
	struct search search = {.address = (uint64_t)(uintptr_t)container};
	if (!container) {
		return search.id;
	}
	dl_iterate_phdr(look_at_file, &search);
	return search.id.kind == IMAGE_UNKNOWN ? hash(container) : search.id;
}

/* ---- what is loaded --------------------------------------------------------------------------- */

struct container {
	const void *handle;
	const void *library; /* the module's; NULL: none */
	bool is_module;
	struct image_id id;
	struct container *next; /* link: containers */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct container *containers; /* owned; the newest first */

static void remove_locked(const void *handle, bool is_all_modules)
{
	struct container **link = &containers;
	while (*link) {
		struct container *one = *link;
		if ((handle && (one->handle == handle || one->library == handle)) ||
		    (is_all_modules && one->is_module)) {
			*link = one->next;
			free(one);
		} else {
			link = &one->next;
		}
	}
}

static const struct container *find_locked(const void *handle)
{
	const struct container *one = containers;
	while (one && one->handle != handle) {
		one = one->next;
	}
	return one;
}

/* Without host memory the container stays unknown. */
static void add_locked(const struct container *what)
{
	struct container *made = malloc(sizeof(*made));
	remove_locked(what->handle, false);
	if (made) {
		*made = *what;
		made->next = containers;
		containers = made;
	}
}

static void add(const struct container *what)
{
	pthread_mutex_lock(&lock);
	add_locked(what);
	pthread_mutex_unlock(&lock);
}

static bool is_wanted(void)
{
	return shim_dedup() != SHIM_DEDUP_ASKED && !shim_is_forked();
}

void code_loaded_module(CUmodule module, const void *image)
{
	if (is_wanted()) {
		const struct container what = {
			.handle = module,
			.is_module = true,
			.id = identify(image),
		};
		add(&what);
	}
}

void code_loaded_library(CUlibrary library, const void *image)
{
	if (is_wanted()) {
		const struct container what = {.handle = library, .id = identify(image)};
		add(&what);
	}
}

void code_is_module_of(CUmodule module, CUlibrary library)
{
	if (!is_wanted() || (const void *)module == (const void *)library) {
		return;
	}
	pthread_mutex_lock(&lock);
	const struct container *found = find_locked(library);
	const struct container what = {
		.handle = module,
		.library = library,
		.is_module = true,
		.id = found ? found->id : (struct image_id){.kind = IMAGE_UNKNOWN},
	};
	if (found) {
		add_locked(&what);
	}
	pthread_mutex_unlock(&lock);
}

void code_is_function_of(CUfunction function, CUkernel kernel)
{
	CUmodule module;
	CUlibrary library;
	if (is_wanted() && real(cuFuncGetModule) && real(cuKernelGetLibrary) &&
	    real(cuFuncGetModule)(&module, function) == CUDA_SUCCESS &&
	    real(cuKernelGetLibrary)(&library, kernel) == CUDA_SUCCESS) {
		code_is_module_of(module, library);
	}
}

void code_unloads(const void *handle)
{
	if (is_wanted()) {
		pthread_mutex_lock(&lock);
		remove_locked(handle, !find_locked(handle));
		pthread_mutex_unlock(&lock);
	}
}

void code_ctx_ends(void)
{
	if (is_wanted()) {
		pthread_mutex_lock(&lock);
		remove_locked(NULL, true);
		pthread_mutex_unlock(&lock);
	}
}

/*
 * A library has a module in each context that its kernels are used in. The program need not know it, but functions of a graph's
 * nodes are of such modules. NULL: no library has @module. The lock is held across the driver's calls, so that no library is
 * unloaded meanwhile.
 */
static const struct container *find_library_locked(CUmodule module)
{
	const struct container *one = containers;
	CUmodule other;
	while (one && (one->is_module || !real(cuLibraryGetModule) ||
	               real(cuLibraryGetModule)(&other, (CUlibrary)one->handle) != CUDA_SUCCESS ||
	               other != module)) {
		one = one->next;
	}
	return one;
}

static struct image_id find_id(const void *handle, CUmodule module)
{
	struct container what = {.handle = handle, .is_module = true};
	pthread_mutex_lock(&lock);
	const struct container *found = handle ? find_locked(handle) : NULL;
	const struct container *library = !found && module ? find_library_locked(module) : NULL;
	if (found) {
		what.id = found->id;
	} else if (library) {
		what.library = library->handle;
		what.id = library->id;
		add_locked(&what);
	}
	pthread_mutex_unlock(&lock);
	return what.id;
}

struct image_id code_of(CUfunction function, bool is_kernel)
{
	const void *handle = NULL;
	CUmodule module = NULL;
	CUlibrary library = NULL;
	if (is_kernel && real(cuKernelGetLibrary) &&
	    real(cuKernelGetLibrary)(&library, (CUkernel)function) == CUDA_SUCCESS) {
		handle = library;
	} else if (!is_kernel && real(cuFuncGetModule) &&
	           real(cuFuncGetModule)(&module, function) == CUDA_SUCCESS) {
		handle = module;
	}
	return find_id(handle, module);
}
