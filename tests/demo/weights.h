/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file of weights as the programs of the demo read it: by the format's description, not with glake's
 * parser. What is wrong ends the program, with a line on stderr.
 */
#ifndef GLAKE_TESTS_DEMO_WEIGHTS_H
#define GLAKE_TESTS_DEMO_WEIGHTS_H

#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/demo/fail.h"

struct file {
	const uint8_t *bytes; /* mapped */
	uint64_t n_bytes;
	const uint8_t *data; /* behind the header */
	json_t *header;      /* owned */
};

static inline void open_file(struct file *file, const char *path)
{
	struct stat stat;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &stat) < 0 || stat.st_size < 8) {
		fail("%s: cannot be read", path);
	}
	file->n_bytes = (uint64_t)stat.st_size;
	file->bytes = mmap(NULL, file->n_bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (file->bytes == MAP_FAILED) {
		fail("%s: cannot be mapped", path);
	}
	uint64_t header_bytes = 0;
	for (int i = 7; i >= 0; i--) {
		header_bytes = header_bytes << 8 | file->bytes[i];
	}
	if (header_bytes > file->n_bytes - 8) {
		fail("%s: not a safetensors file", path);
	}
	file->header = json_loadb((const char *)file->bytes + 8, header_bytes, 0, NULL);
	file->data = file->bytes + 8 + header_bytes;
	if (!file->header) {
		fail("%s: the header is not JSON", path);
	}
}

static inline const uint8_t *find_tensor(const struct file *file, const char *name,
                                         uint64_t *n_bytes_out)
{
	json_t *offsets = json_object_get(json_object_get(file->header, name), "data_offsets");
	uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
	uint64_t end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
	if (!offsets || end < begin || end > file->n_bytes) {
		fail("the file has no tensor %s", name);
	}
	*n_bytes_out = end - begin;
	return file->data + begin;
}

#endif
