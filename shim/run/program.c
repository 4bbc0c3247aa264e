/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "proto/cleanup.h"

#define HEAD_BYTES 4096u
#define MAX_SCRIPTS 4 /* an interpreter may be a script; the kernel follows this many */

static int check_file(const char *path)
{
	struct stat status;
	if (stat(path, &status) < 0) {
		return -errno;
	}
	return S_ISREG(status.st_mode) && access(path, X_OK) == 0 ? 0 : -EACCES;
}

int program_find(const char *name, char path_out[PATH_MAX])
{
	if (strlen(name) >= PATH_MAX) {
		return -ENAMETOOLONG;
	}
	if (strchr(name, '/')) {
		strcpy(path_out, name);
		return check_file(name);
	}
	const char *list = getenv("PATH");
	int error = -ENOENT;
	for (const char *at = list ? list : "/bin:/usr/bin"; at; at = strchr(at, ':')) {
		at += *at == ':';
		int n_bytes = (int)strcspn(at, ":");
		int n = snprintf(path_out, PATH_MAX, "%.*s/%s", n_bytes, n_bytes ? at : ".", name);
		int r = n < PATH_MAX ? check_file(path_out) : -ENOENT;
		if (r == 0) {
			return 0;
		}
		error = r == -EACCES ? r : error;
	}
	return error;
}

/* The driver's libraries exist for this machine only. Programs for others are not judged. */
static bool has_interpreter(int fd, const Elf64_Ehdr *header)
{
	for (unsigned i = 0; i < header->e_phnum; i++) {
		Elf64_Phdr segment;
		off_t at = (off_t)(header->e_phoff + (uint64_t)i * header->e_phentsize);
		if (pread(fd, &segment, sizeof(segment), at) != sizeof(segment)) {
			break;
		}
		if (segment.p_type == PT_INTERP) {
			return true;
		}
	}
	return false;
}

static bool judge_elf(int fd, const char *head, size_t n_bytes, const char **why_out)
{
	Elf64_Ehdr header;
	if (n_bytes < sizeof(header)) {
		*why_out = "not a program";
		return false;
	}
	memcpy(&header, head, sizeof(header));
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64) {
		*why_out = "not a 64-bit x86 program: CUDA has no driver for it";
		return false;
	}
	if (!has_interpreter(fd, &header)) {
		*why_out = "statically linked: nothing can be preloaded into it";
		return false;
	}
	return true;
}

static bool gains_privileges(int fd)
{
	struct stat status;
	return fstat(fd, &status) < 0 || (status.st_mode & (S_ISUID | S_ISGID)) ||
	       fgetxattr(fd, "security.capability", NULL, 0) > 0;
}

/* The first word of a line like "#!/usr/bin/env python3". */
static bool script_interpreter(const char *head, char path_out[PATH_MAX])
{
	const char *at = head + 2 + strspn(head + 2, " \t");
	size_t n_bytes = strcspn(at, " \t\n");
	if (n_bytes == 0 || n_bytes >= PATH_MAX) {
		return false;
	}
	memcpy(path_out, at, n_bytes);
	path_out[n_bytes] = '\0';
	return true;
}

bool program_takes_preload(const char *path, const char **why_out)
{
	char current[PATH_MAX];
	snprintf(current, sizeof(current), "%s", path);
	for (int depth = 0; depth <= MAX_SCRIPTS; depth++) {
		char head[HEAD_BYTES + 1];
		cleanup_fd int fd = open(current, O_RDONLY | O_CLOEXEC);
		ssize_t n_bytes = fd < 0 ? -1 : read(fd, head, HEAD_BYTES);
		if (n_bytes < 0) {
			/* A file that is executable but not readable is left to the loader. */
			return true;
		}
		head[n_bytes] = '\0';
		if (strncmp(head, "#!", 2) != 0) {
			if (gains_privileges(fd)) {
				*why_out = "gains privileges: the loader preloads nothing into it";
				return false;
			}
			/* execvp() runs a script without #! by the shell. */
			return strncmp(head, ELFMAG, SELFMAG) != 0 ||
			       judge_elf(fd, head, (size_t)n_bytes, why_out);
		}
		if (!script_interpreter(head, current)) {
			break;
		}
	}
	*why_out = "a script whose interpreter cannot be found";
	return false;
}

bool program_names(const char *path, const char *symbol)
{
	/* O_NONBLOCK, because opening a pipe would wait for its other end. */
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat status;
	if (fd < 0 || fstat(fd, &status) < 0 || status.st_size < SELFMAG) {
		return false;
	}
	size_t n_bytes = (size_t)status.st_size;
	void *file = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED) {
		return false;
	}
	bool is_found = memcmp(file, ELFMAG, SELFMAG) == 0 &&
	                memmem(file, n_bytes, symbol, strlen(symbol) + 1);
	munmap(file, n_bytes);
	return is_found;
}
