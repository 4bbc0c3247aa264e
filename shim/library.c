/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define CACHE_PATH "/etc/ld.so.cache"

const struct shim_library shim_library_cuda = {
	.soname = "libcuda.so.1",
	.variable = "GLAKE_LIBCUDA",
	.symbol = "cuInit",
	.ours = "glake_shim_count",
};

const struct shim_library shim_library_nvml = {
	.soname = "libnvidia-ml.so.1",
	.variable = "GLAKE_LIBNVML",
	.symbol = "nvmlInit_v2",
	.ours = "glake_nvml_connects",
};

static const char *const standard_folders[] = {
	"/lib/x86_64-linux-gnu",
	"/usr/lib/x86_64-linux-gnu",
	"/lib64",
	"/usr/lib64",
	"/lib",
	"/usr/lib",
	"/usr/lib/wsl/lib",
};

struct search {
	const struct shim_library *library;
	shim_library_fn accept;
	void *user;
};

static bool offer(const struct search *search, const char *path)
{
	return access(path, R_OK) == 0 && search->accept(search->user, path);
}

static bool offer_in(const struct search *search, const char *folder, size_t n_bytes)
{
	char path[PATH_MAX];
	/* For the loader an empty element means the working folder. */
	int n = snprintf(path, sizeof(path), "%.*s%s%s", (int)n_bytes, folder, n_bytes ? "/" : "./",
	                 search->library->soname);
	return n > 0 && (size_t)n < sizeof(path) && offer(search, path);
}

static bool search_list(const struct search *search, const char *list)
{
	while (list && *list) {
		size_t n_bytes = strcspn(list, ":;");
		if (offer_in(search, list, n_bytes)) {
			return true;
		}
		list += n_bytes;
		list += *list != '\0';
	}
	return false;
}

/* ---- the loader's cache: glibc's elf/cache.c and dl-cache.h --------------------------------- */

#define CACHE_MAGIC "glibc-ld.so.cache1.1"
#define CACHE_FLAGS_X86_64 0x0303 /* FLAG_X8664_LIB64 | FLAG_ELF_LIBC6 */

struct cache_header {
	char magic[sizeof(CACHE_MAGIC) - 1];
	uint32_t n_entries;
	uint32_t n_string_bytes;
	uint8_t rest[20];
};

struct cache_entry {
	int32_t flags;
	uint32_t key; /* key and value: offsets of strings from the start of the header */
	uint32_t value;
	uint32_t os_version;
	uint64_t hwcap;
};

/* The string at @offset, or "" if it does not end inside the cache. */
static const char *cache_string(const char *cache, size_t n_bytes, uint32_t offset)
{
	bool is_whole = offset < n_bytes && memchr(cache + offset, '\0', n_bytes - offset);
	return is_whole ? cache + offset : "";
}

static bool search_entries(const struct search *search, const char *cache, size_t n_bytes)
{
	struct cache_header header;
	if (n_bytes < sizeof(header)) {
		return false;
	}
	memcpy(&header, cache, sizeof(header));
	size_t n_entries = (n_bytes - sizeof(header)) / sizeof(struct cache_entry);
	if (header.n_entries < n_entries) {
		n_entries = header.n_entries;
	}
	for (size_t i = 0; i < n_entries; i++) {
		struct cache_entry entry;
		memcpy(&entry, cache + sizeof(header) + i * sizeof(entry), sizeof(entry));
		if (entry.flags == CACHE_FLAGS_X86_64 &&
		    strcmp(cache_string(cache, n_bytes, entry.key), search->library->soname) == 0 &&
		    offer(search, cache_string(cache, n_bytes, entry.value))) {
			return true;
		}
	}
	return false;
}

static bool search_cache(const struct search *search)
{
	cleanup_fd int fd = open(CACHE_PATH, O_RDONLY | O_CLOEXEC);
	struct stat status;
	if (fd < 0 || fstat(fd, &status) < 0 || status.st_size <= 0) {
		return false;
	}
	size_t n_bytes = (size_t)status.st_size;
	void *cache = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (cache == MAP_FAILED) {
		return false;
	}
	/* The file may begin with a cache in the older format. */
	const char *start = memmem(cache, n_bytes, CACHE_MAGIC, sizeof(CACHE_MAGIC) - 1);
	bool is_found = false;
	if (start) {
		is_found = search_entries(search, start,
		                          n_bytes - (size_t)(start - (const char *)cache));
	}
	munmap(cache, n_bytes);
	return is_found;
}

bool shim_library_find(const struct shim_library *library, shim_library_fn accept, void *user)
{
	struct search search = {.library = library, .accept = accept, .user = user};
	const char *given = secure_getenv(library->variable);
	if (given && strchr(given, '/')) {
		return offer(&search, given);
	}
	if (search_list(&search, secure_getenv("LD_LIBRARY_PATH")) || search_cache(&search)) {
		return true;
	}
	for (size_t i = 0; i < n_elements(standard_folders); i++) {
		if (offer_in(&search, standard_folders[i], strlen(standard_folders[i]))) {
			return true;
		}
	}
	return false;
}

/* ---- opening it ------------------------------------------------------------------------------- */

struct opening {
	const struct shim_library *library;
	const void *self;
	char *path_out;
	void *handle;
};

static bool is_same_file(const char *left, const char *right)
{
	struct stat a;
	struct stat b;
	return stat(left, &a) == 0 && stat(right, &b) == 0 && a.st_dev == b.st_dev &&
	       a.st_ino == b.st_ino;
}

static bool open_library(void *user, const char *path)
{
	struct opening *opening = user;
	Dl_info self;
	if (dladdr(opening->self, &self) && self.dli_fname && is_same_file(self.dli_fname, path)) {
		return false;
	}
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		return false;
	}
	/* Another copy of the preload library would search for the real one as well. */
	if (dlsym(handle, opening->library->ours) || !dlsym(handle, opening->library->symbol)) {
		dlclose(handle);
		return false;
	}
	opening->handle = handle;
	snprintf(opening->path_out, PATH_MAX, "%s", path);
	return true;
}

void *shim_library_open(const struct shim_library *library, const void *self,
                        char path_out[PATH_MAX])
{
	struct opening opening = {.library = library, .self = self, .path_out = path_out};
	path_out[0] = '\0';
	shim_library_find(library, open_library, &opening);
	return opening.handle;
}
