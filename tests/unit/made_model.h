/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors files made for tests, and their bytes to compare with. */
#ifndef GLAKE_TESTS_MADE_MODEL_H
#define GLAKE_TESTS_MADE_MODEL_H

#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check_glake.h"

#define MADE_MAX_TENSORS 512
#define MADE_UNUSED __attribute__((unused))

struct made_tensor {
	char name[64];
	uint64_t bytes;
	uint8_t *content; /* owned */
};

struct made_model {
	struct made_tensor tensors[MADE_MAX_TENSORS];
	size_t n_tensors;
	uint64_t data_begin; /* in the file, once written */
};

TEST_BYTE_LOOP MADE_UNUSED static uint64_t made_random(void)
{
	static uint64_t state = 88172645463325252ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Whole words: room for up to 7 bytes more. */
TEST_BYTE_LOOP MADE_UNUSED static void made_fill(uint8_t *bytes, uint64_t n_bytes)
{
	for (uint64_t i = 0; i < n_bytes; i += 8) {
		uint64_t word = made_random();
		memcpy(bytes + i, &word, 8);
	}
}

MADE_UNUSED static struct made_tensor *made_add(struct made_model *model, const char *name,
                                                uint64_t bytes)
{
	ck_assert_uint_lt(model->n_tensors, MADE_MAX_TENSORS);
	struct made_tensor *tensor = &model->tensors[model->n_tensors++];
	snprintf(tensor->name, sizeof(tensor->name), "%s", name);
	tensor->bytes = bytes;
	tensor->content = malloc(bytes + 8);
	ck_assert_ptr_nonnull(tensor->content);
	made_fill(tensor->content, bytes);
	return tensor;
}

MADE_UNUSED static const struct made_tensor *made_find(const struct made_model *model,
                                                       const char *name)
{
	for (size_t i = 0; i < model->n_tensors; i++) {
		if (strcmp(model->tensors[i].name, name) == 0) {
			return &model->tensors[i];
		}
	}
	return NULL;
}

/* In the order in which tensors were added, as bytes (U8). */
MADE_UNUSED static void made_write(struct made_model *model, const char *folder, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	char *header = malloc(200 * (model->n_tensors + 1));
	ck_assert_ptr_nonnull(header);
	size_t at = (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
	uint64_t offset = 0;
	for (size_t i = 0; i < model->n_tensors; i++) {
		const struct made_tensor *tensor = &model->tensors[i];
		at += (size_t)sprintf(header + at,
		                      ",\"%s\":{\"dtype\":\"U8\",\"shape\":[%llu],"
		                      "\"data_offsets\":[%llu,%llu]}",
		                      tensor->name, (unsigned long long)tensor->bytes,
		                      (unsigned long long)offset,
		                      (unsigned long long)(offset + tensor->bytes));
		offset += tensor->bytes;
	}
	at += (size_t)sprintf(header + at, "}");
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	uint64_t length = htole64(at);
	ck_assert_uint_eq(fwrite(&length, sizeof(length), 1, file), 1);
	ck_assert_uint_eq(fwrite(header, at, 1, file), 1);
	for (size_t i = 0; i < model->n_tensors; i++) {
		fwrite(model->tensors[i].content, 1, model->tensors[i].bytes, file);
	}
	ck_assert_int_eq(fclose(file), 0);
	model->data_begin = 8 + at;
	free(header);
}

MADE_UNUSED static void made_free(struct made_model *model)
{
	for (size_t i = 0; i < model->n_tensors; i++) {
		free(model->tensors[i].content);
	}
	model->n_tensors = 0;
}

#endif
