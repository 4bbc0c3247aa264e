/* SPDX-License-Identifier: Apache-2.0 */
/* Published weights: what one process leaves under a key, others attach. */
#include "tests/harness/world.h"

static void begin(void)
{
	CUcontext context;
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x4GiB");
	world_open_driver();
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
}
BEGIN_EACH(begin)

/* Words that tell where they are, and of which content. */
static void write_words(glake_ptr ptr, uint64_t n_bytes, uint64_t content)
{
	uint64_t n = n_bytes / sizeof(uint64_t);
	uint64_t *words = malloc(n_bytes);
	for (uint64_t i = 0; i < n; i++) {
		words[i] = content << 48 | i;
	}
	ck_assert_int_eq(drv.cuMemcpyHtoD(ptr, words, n_bytes), CUDA_SUCCESS);
	free(words);
}

static void check_words(glake_ptr ptr, uint64_t n_bytes, uint64_t content)
{
	uint64_t n = n_bytes / sizeof(uint64_t);
	uint64_t *words = malloc(n_bytes);
	ck_assert_int_eq(drv.cuMemcpyDtoH(words, ptr, n_bytes), CUDA_SUCCESS);
	uint64_t i = 0;
	while (i < n && words[i] == (content << 48 | i)) {
		i++;
	}
	ck_assert_msg(i == n, "word %lu of 0x%lx is %lx, not of content %lu", i, ptr,
	              i < n ? words[i] : 0, content);
	free(words);
}

static glake_ptr alloc_words(struct glake_session *session, uint64_t n_bytes, uint64_t content)
{
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, n_bytes, 0, &ptr));
	write_words(ptr, n_bytes, content);
	return ptr;
}

static bool can_write(glake_ptr ptr)
{
	uint64_t word = 0;
	return drv.cuMemcpyHtoD(ptr, &word, sizeof(word)) == CUDA_SUCCESS;
}

/* One of 64-bit words in one dimension. */
#define WORDS(NAME, PTR, N_BYTES) \
	{ \
		.size = sizeof(struct glake_tensor), .name = (NAME), .dtype = GLAKE_U64, \
		.n_dims = 1, .shape = (const uint64_t[]){(N_BYTES) / sizeof(uint64_t)}, \
		.ptr = (PTR) \
	}

static struct glake_published publish(struct glake_session *session, const char *key,
                                      const struct glake_tensor *tensors, size_t n_tensors)
{
	struct glake_published published = {.size = sizeof(published)};
	assert_ok(glake_weights_publish(session, key, tensors, n_tensors, NULL, &published));
	return published;
}

static struct glake_model *attach(struct glake_session *session, const char *key)
{
	struct glake_model *model;
	assert_ok(glake_weights_attach(session, key, NULL, &model));
	return model;
}

static struct glake_tensor tensor_of(const struct glake_model *model, const char *name)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	assert_ok(glake_model_tensor(model, name, &tensor));
	return tensor;
}

static struct glake_model_info info_of(const struct glake_model *model)
{
	struct glake_model_info info = {.size = sizeof(info)};
	assert_ok(glake_model_info(model, &info));
	return info;
}

/* Private or sealed, each copy once. */
static uint64_t held_bytes(void)
{
	struct books books = world_books();
	return books.private_bytes + books.block_bytes;
}

START_TEST(what_one_publishes_others_attach)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr ptr = alloc_words(one, 300 * MIB, 7);
	const struct glake_tensor tensors[] = {
		WORDS("large", ptr, 200 * MIB),
		WORDS("end", ptr + 200 * MIB, 100 * MIB),
	};
	struct glake_published published = publish(one, "llama/fused", tensors, 2);
	ck_assert_uint_eq(published.in_place_bytes, 300 * MIB);
	ck_assert_uint_eq(published.copied_bytes, 0);
	ck_assert_ptr_null(published.copied_why);
	ck_assert(!published.was_published);
	ck_assert(!can_write(ptr));

	struct glake_model *model = attach(two, "llama/fused");
	ck_assert_str_eq(info_of(model).name, "llama/fused");
	ck_assert_uint_eq(info_of(model).mapped_bytes, 300 * MIB);
	ck_assert_uint_eq(info_of(model).content_bytes, 300 * MIB);
	ck_assert_uint_eq(held_bytes(), 300 * MIB);
	struct glake_tensor large = tensor_of(model, "large");
	ck_assert_uint_eq(large.bytes, 200 * MIB);
	ck_assert_uint_eq(large.n_dims, 1);
	ck_assert_uint_eq(large.shape[0], 25 * MIB);
	ck_assert_ptr_null(large.strides);
	check_words(large.ptr, 300 * MIB, 7);
	ck_assert_uint_eq(tensor_of(model, "end").ptr, large.ptr + 200 * MIB);
	ck_assert(!can_write(large.ptr));

	/* What the publisher does next is its own affair. */
	assert_ok(glake_unseal(ptr, 300 * MIB));
	write_words(ptr, 300 * MIB, 8);
	check_words(large.ptr, 300 * MIB, 7);
	world_disconnect(one);
	check_words(large.ptr, 300 * MIB, 7);
	glake_model_close(model);
	model = attach(two, "llama/fused");
	check_words(tensor_of(model, "large").ptr, 300 * MIB, 7);
	glake_model_close(model);
}
END_TEST

/* Strides, tied weights, views that overlap, and tensors of nothing. */
START_TEST(tensors_are_attached_as_they_were)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = alloc_words(session, 8 * MIB, 1);
	const uint64_t square[] = {1024, 1024};
	const uint64_t transposed[] = {1, 1024};
	const uint64_t row_major[] = {1024, 1};
	const uint64_t nothing[] = {3, 0, 5};
	const uint64_t odd[] = {7, 0, 9};
	const struct glake_tensor tensors[] = {
		{sizeof(tensors[0]), "plain", GLAKE_F32, 2, square, 0, ptr, row_major},
		{sizeof(tensors[0]), "tied", GLAKE_F32, 2, square, 0, ptr, NULL},
		{sizeof(tensors[0]), "transposed", GLAKE_F32, 2, square, 0, ptr + 4 * MIB,
	         transposed},
		{sizeof(tensors[0]), "inner", GLAKE_F16, 2, square, 0, ptr + 512,
	         (uint64_t[]){2048, 2}},
		{sizeof(tensors[0]), "scalar", GLAKE_U8, 0, NULL, 0, ptr + 4 * MIB + 3, NULL},
		{sizeof(tensors[0]), "empty", GLAKE_BF16, 3, nothing, 0, 0, odd},
		{sizeof(tensors[0]), "nibbles", GLAKE_F4, 1, (uint64_t[]){77}, 0, ptr + 64, NULL},
	};
	publish(session, "all", tensors, n_elements(tensors));
	struct glake_model *model = attach(session, "all");
	ck_assert_uint_eq(info_of(model).n_tensors, n_elements(tensors));
	ck_assert_uint_eq(info_of(model).mapped_bytes, 8 * MIB);
	glake_ptr base = info_of(model).base;
	for (size_t i = 0; i < n_elements(tensors); i++) {
		const struct glake_tensor *want = &tensors[i];
		struct glake_tensor got = tensor_of(model, want->name);
		ck_assert_int_eq(got.dtype, want->dtype);
		ck_assert_uint_eq(got.n_dims, want->n_dims);
		ck_assert_mem_eq(got.shape, want->shape, want->n_dims * sizeof(uint64_t));
		ck_assert_uint_eq(got.ptr, want->ptr ? base + (want->ptr - ptr) : 0);
		if (want->strides && want->strides != row_major) {
			ck_assert_mem_eq(got.strides, want->strides,
			                 want->n_dims * sizeof(uint64_t));
		} else {
			ck_assert_ptr_null(got.strides);
		}
	}
	ck_assert_uint_eq(tensor_of(model, "transposed").bytes, 4 * MIB);
	ck_assert_uint_eq(tensor_of(model, "inner").bytes, 1023 * 4096 + 1023 * 4 + 2);
	ck_assert_uint_eq(tensor_of(model, "scalar").bytes, 1);
	ck_assert_uint_eq(tensor_of(model, "empty").bytes, 0);
	ck_assert_uint_eq(tensor_of(model, "nibbles").bytes, 39);
	check_words(base, 8 * MIB, 1);
	glake_model_close(model);
}
END_TEST

/* What cannot be a block is copied, page by page, and only the tensors' bytes of it. */
START_TEST(what_cannot_be_sealed_is_copied)
{
	enum { N = 10 };
	struct glake_session *session = world_connect();
	glake_ptr ptr = alloc_words(session, N * MIB, 1);
	CUdeviceptr foreign;
	glake_ptr small;
	assert_ok(glake_alloc(session, 0, 64 * KIB, 0, &small));
	write_words(small, 64 * KIB, 2);
	ck_assert_int_eq(drv.cuMemAlloc(&foreign, 3 * MIB), CUDA_SUCCESS);
	write_words(foreign, 3 * MIB, 3);
	const struct glake_tensor tensors[] = {
		WORDS("inner", ptr + MIB, (N - 2) * MIB),
		WORDS("small", small, 64 * KIB),
		WORDS("foreign", foreign, 3 * MIB),
	};
	struct glake_published published = publish(session, "mixed", tensors, 3);
	ck_assert_uint_eq(published.in_place_bytes, (N - 4) * MIB);
	ck_assert_uint_ge(published.copied_bytes, 2 * 2 * MIB + 2 * MIB + 4 * MIB);
	ck_assert_ptr_nonnull(published.copied_why);
	/* What was copied is the program's own as before. */
	ck_assert(can_write(small) && can_write(foreign) && can_write(ptr + MIB));
	ck_assert(!can_write(ptr + 2 * MIB));
	write_words(small, 64 * KIB, 9);
	struct glake_model *model = attach(session, "mixed");
	glake_ptr inner = tensor_of(model, "inner").ptr;
	uint64_t words[2];
	ck_assert_int_eq(drv.cuMemcpyDtoH(words, inner - 8, 16), CUDA_SUCCESS);
	ck_assert_uint_eq(words[0], 0);
	ck_assert_uint_eq(words[1], 1ull << 48 | MIB / 8);
	uint64_t *all = malloc((N - 2) * MIB);
	ck_assert_int_eq(drv.cuMemcpyDtoH(all, inner, (N - 2) * MIB), CUDA_SUCCESS);
	size_t i = 8;
	while (i < (N - 2) * MIB / 8 && all[i] == (1ull << 48 | (i + MIB / 8))) {
		i++;
	}
	ck_assert_uint_eq(i, (N - 2) * MIB / 8);
	free(all);
	check_words(tensor_of(model, "small").ptr, 64 * KIB, 2);
	check_words(tensor_of(model, "foreign").ptr, 3 * MIB, 3);
	glake_model_close(model);
	ck_assert_int_eq(drv.cuMemFree(foreign), CUDA_SUCCESS);
}
END_TEST
