/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "proto/dtype.h"
#include "tests/check_glake.h"

/* One step of splitmix64: a word for each place of a content. */
TEST_BYTE_LOOP static uint64_t word_at(uint64_t seed, uint64_t index)
{
	uint64_t z = seed * 0xd1342543de82ef95ull + (index + 1) * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

uint64_t model_tensor_bytes(const struct model_tensor *tensor)
{
	uint64_t n_elements = 1;
	for (unsigned i = 0; i < tensor->n_dims; i++) {
		n_elements *= tensor->shape[i];
	}
	unsigned bits = dtype_bits(dtype_from_name(tensor->dtype));
	ck_assert_msg(bits > 0, "no such dtype: %s", tensor->dtype);
	return n_elements * bits / 8;
}

TEST_BYTE_LOOP void model_tensor_fill(const struct model_tensor *tensor, uint64_t offset,
                                      void *bytes_out, size_t n_bytes)
{
	uint8_t *out = bytes_out;
	for (size_t i = 0; i < n_bytes;) {
		uint64_t word = word_at(tensor->seed, (offset + i) / 8);
		size_t skip = (offset + i) % 8;
		size_t n = 8 - skip < n_bytes - i ? 8 - skip : n_bytes - i;
		if (n == 8) {
			memcpy(out + i, &word, 8); /* a store, and not a call */
		} else {
			memcpy(out + i, (uint8_t *)&word + skip, n);
		}
		i += n;
	}
}

static void write_header(FILE *file, const struct model_tensor *tensors, size_t n_tensors)
{
	char *text = NULL;
	size_t n_bytes = 0;
	uint64_t offset = 0;
	FILE *header = open_memstream(&text, &n_bytes);
	ck_assert_ptr_nonnull(header);
	for (size_t i = 0; i < n_tensors; i++) {
		fprintf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{",
		        tensors[i].name, tensors[i].dtype);
		for (unsigned d = 0; d < tensors[i].n_dims; d++) {
			fprintf(header, "%s%llu", d ? "," : "",
			        (unsigned long long)tensors[i].shape[d]);
		}
		uint64_t end = offset + model_tensor_bytes(&tensors[i]);
		fprintf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)offset,
		        (unsigned long long)end);
		offset = end;
	}
	fprintf(header, n_tensors ? "}" : "{}");
	fclose(header);
	/* The content begins at a multiple of 8, as with the real writer. */
	uint64_t padded = (n_bytes + 7) / 8 * 8;
	ck_assert_uint_eq(fwrite(&padded, 1, sizeof(padded), file), sizeof(padded));
	ck_assert_uint_eq(fwrite(text, 1, n_bytes, file), n_bytes);
	fprintf(file, "%*s", (int)(padded - n_bytes), "");
	free(text);
}

static void write_content(FILE *file, const struct model_tensor *tensor)
{
	static uint8_t bytes[1024 * 1024];
	uint64_t n_bytes = model_tensor_bytes(tensor);
	for (uint64_t at = 0; at < n_bytes; at += sizeof(bytes)) {
		size_t n = n_bytes - at < sizeof(bytes) ? (size_t)(n_bytes - at) : sizeof(bytes);
		model_tensor_fill(tensor, at, bytes, n);
		ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
	}
}

void model_file_write(const char *path, const struct model_tensor *tensors, size_t n_tensors)
{
	FILE *file = fopen(path, "we");
	ck_assert_msg(file, "%s: %s", path, strerror(errno));
	write_header(file, tensors, n_tensors);
	for (size_t i = 0; i < n_tensors; i++) {
		write_content(file, &tensors[i]);
	}
	ck_assert_int_eq(fclose(file), 0);
}

void model_file_write_wordy(const char *path, unsigned n_tensors, unsigned seed)
{
	enum { NAME = 1000 };
	char name[NAME + 1];
	memset(name, 'n', NAME);
	name[NAME] = 0;
	FILE *file = fopen(path, "we");
	uint64_t n_header = 0;
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(&n_header, sizeof(n_header), 1, file), 1);
	for (unsigned i = 0; i < n_tensors; i++) {
		fprintf(file,
		        "%c\"%s%05u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
		        i == 0 ? '{' : ',', name, i, i, i + 1);
	}
	fputc('}', file);
	n_header = (uint64_t)ftell(file) - sizeof(n_header);
	for (unsigned i = 0; i < n_tensors; i++) {
		fputc((int)(seed + i) & 255, file);
	}
	rewind(file);
	ck_assert_uint_eq(fwrite(&n_header, sizeof(n_header), 1, file), 1);
	ck_assert_int_eq(fclose(file), 0);
}

int model_file_open(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}
