/* SPDX-License-Identifier: Apache-2.0 */
/* Published weights: what one process leaves under a key, others attach. */
#include <pthread.h>
#include <sys/socket.h>

#include "proto/limits.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

/* For tests with processes. */
static void begin_blind(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x4GiB");
}

static void begin(void)
{
	begin_blind();
	words_open_driver();
}
BEGIN_EACH(begin)

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

static int add_charged(void *user, const struct glake_tenant_row *row)
{
	if (strcmp(row->name, "default") == 0) {
		*(uint64_t *)user += row->devices[0].used_bytes;
	}
	return 0;
}

/* To the clients' tenant; the cache pays for the rest. */
static uint64_t charged_bytes(void)
{
	uint64_t bytes = 0;
	assert_ok(glake_list_tenants(eye, add_charged, &bytes));
	return bytes;
}

START_TEST(what_one_publishes_others_attach)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr ptr = words_alloc(one, 300 * MIB, 7);
	const struct glake_tensor tensors[] = {
		WORDS("large", ptr, 200 * MIB),
		WORDS("tail", ptr + 200 * MIB, 100 * MIB),
	};
	struct glake_published published = publish(one, "llama/fused", tensors, 2);
	ck_assert_uint_eq(published.in_place_bytes, 300 * MIB);
	ck_assert_uint_eq(published.copied_bytes, 0);
	ck_assert_ptr_null(published.copied_why);
	ck_assert(!published.was_published);
	ck_assert(!words_can_write(ptr));

	struct glake_model *model = attach(two, "llama/fused");
	ck_assert_str_eq(world_info(model).name, "llama/fused");
	ck_assert_uint_eq(world_info(model).mapped_bytes, 300 * MIB);
	ck_assert_uint_eq(world_info(model).content_bytes, 300 * MIB);
	ck_assert_uint_eq(words_device_bytes(), 300 * MIB);
	struct glake_tensor large = world_tensor(model, "large");
	ck_assert_uint_eq(large.bytes, 200 * MIB);
	ck_assert_uint_eq(large.n_dims, 1);
	ck_assert_uint_eq(large.shape[0], 25 * MIB);
	ck_assert_ptr_null(large.strides);
	words_check(large.ptr, 300 * MIB, 7);
	ck_assert_uint_eq(world_tensor(model, "tail").ptr, large.ptr + 200 * MIB);
	ck_assert(!words_can_write(large.ptr));

	/* The publisher's next writes are its own affair. */
	assert_ok(glake_unseal(ptr, 300 * MIB));
	words_write(ptr, 300 * MIB, 8);
	words_check(large.ptr, 300 * MIB, 7);
	world_disconnect(one);
	words_check(large.ptr, 300 * MIB, 7);
	glake_model_close(model);
	model = attach(two, "llama/fused");
	words_check(world_tensor(model, "large").ptr, 300 * MIB, 7);
	glake_model_close(model);
}
END_TEST

/* Strides, tied weights, views that overlap, and tensors of nothing. */
START_TEST(tensors_are_attached_as_they_were)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 8 * MIB, 1);
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
	ck_assert_uint_eq(world_info(model).n_tensors, n_elements(tensors));
	ck_assert_uint_eq(world_info(model).mapped_bytes, 8 * MIB);
	glake_ptr base = world_info(model).base;
	for (size_t i = 0; i < n_elements(tensors); i++) {
		const struct glake_tensor *want = &tensors[i];
		struct glake_tensor got = world_tensor(model, want->name);
		ck_assert_int_eq(got.dtype, want->dtype);
		ck_assert_uint_eq(got.n_dims, want->n_dims);
		if (want->n_dims > 0) {
			ck_assert_mem_eq(got.shape, want->shape, want->n_dims * sizeof(uint64_t));
		}
		ck_assert_uint_eq(got.ptr, want->ptr ? base + (want->ptr - ptr) : 0);
		if (want->strides && want->strides != row_major) {
			ck_assert_mem_eq(got.strides, want->strides,
			                 want->n_dims * sizeof(uint64_t));
		} else {
			ck_assert_ptr_null(got.strides);
		}
	}
	ck_assert_uint_eq(world_tensor(model, "transposed").bytes, 4 * MIB);
	ck_assert_uint_eq(world_tensor(model, "inner").bytes, 1023 * 4096 + 1023 * 4 + 2);
	ck_assert_uint_eq(world_tensor(model, "scalar").bytes, 1);
	ck_assert_uint_eq(world_tensor(model, "empty").bytes, 0);
	ck_assert_uint_eq(world_tensor(model, "nibbles").bytes, 39);
	words_check(base, 8 * MIB, 1);
	glake_model_close(model);
}
END_TEST

/* A structure of dlpack.h, as consumers see it. */
struct DLManagedTensor {
	void *data;
	int32_t device[2];
	int32_t n_dims;
	uint8_t type[4];
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
	void *context;
	void (*deleter)(struct DLManagedTensor *self);
};

START_TEST(dlpack_has_the_strides)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	const struct glake_tensor tensors[] = {
		{sizeof(tensors[0]), "a", GLAKE_F32, 2, (uint64_t[]){3, 5}, 0, ptr,
	         (uint64_t[]){1, 3}},
		{sizeof(tensors[0]), "b", GLAKE_F32, 2, (uint64_t[]){3, 5}, 0, ptr, NULL},
	};
	publish(session, "key", tensors, 2);
	struct glake_model *model = attach(session, "key");
	struct DLManagedTensor *managed;
	assert_ok(glake_model_dlpack(model, 0, &managed));
	ck_assert_int_eq(managed->n_dims, 2);
	ck_assert(managed->shape[0] == 3 && managed->shape[1] == 5);
	ck_assert(managed->strides[0] == 1 && managed->strides[1] == 3);
	managed->deleter(managed);
	assert_ok(glake_model_dlpack(model, 1, &managed));
	ck_assert_ptr_null(managed->strides);
	managed->deleter(managed);
	glake_model_close(model);
}
END_TEST

/* Memory that cannot be a block is copied, page by page, and only the tensors' bytes of it. */
START_TEST(what_cannot_be_sealed_is_copied)
{
	enum { N = 10 };
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, N * MIB, 1);
	CUdeviceptr foreign;
	glake_ptr small;
	assert_ok(glake_alloc(session, 0, 64 * KIB, 0, &small));
	words_write(small, 64 * KIB, 2);
	ck_assert_int_eq(drv.cuMemAlloc(&foreign, 3 * MIB), CUDA_SUCCESS);
	words_write(foreign, 3 * MIB, 3);
	const struct glake_tensor tensors[] = {
		WORDS("inner", ptr + MIB, (N - 2) * MIB),
		WORDS("small", small, 64 * KIB),
		WORDS("foreign", foreign, 3 * MIB),
	};
	struct glake_published published = publish(session, "mixed", tensors, 3);
	ck_assert_uint_eq(published.in_place_bytes, (N - 4) * MIB);
	ck_assert_uint_ge(published.copied_bytes, 2 * 2 * MIB + 2 * MIB + 4 * MIB);
	ck_assert_ptr_nonnull(published.copied_why);
	/* Memory that was copied is the program's own as before. */
	ck_assert(words_can_write(small) && words_can_write(foreign) && words_can_write(ptr + MIB));
	ck_assert(!words_can_write(ptr + 2 * MIB));
	words_write(small, 64 * KIB, 9);
	struct glake_model *model = attach(session, "mixed");
	glake_ptr inner = world_tensor(model, "inner").ptr;
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
	words_check(world_tensor(model, "small").ptr, 64 * KIB, 2);
	words_check(world_tensor(model, "foreign").ptr, 3 * MIB, 3);
	glake_model_close(model);
	ck_assert_int_eq(drv.cuMemFree(foreign), CUDA_SUCCESS);
}
END_TEST

/* Whose the memory is does not matter, if it is the process's: other sessions', models', blocks'. */
START_TEST(blocks_of_all_kinds_are_shared_as_they_are)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_session *third = world_connect();
	struct glake_model *file;
	struct glake_block *block;
	struct glake_block_info block_info = {.size = sizeof(block_info)};
	const char *path = world_write_model("m.safetensors", 300 * MIB, 5);
	assert_ok(glake_model_open(two, path, NULL, &file));
	glake_ptr first = words_alloc(one, 8 * MIB, 1);
	glake_ptr second = words_alloc(two, 6 * MIB, 2);
	glake_ptr published = words_alloc(two, 4 * MIB, 3);
	assert_ok(glake_block_publish(two, published, 4 * MIB, &block));
	uint64_t before = words_device_bytes();
	const struct glake_tensor tensors[] = {
		WORDS("a", first, 8 * MIB),
		WORDS("b", second, 6 * MIB),
		WORDS("c", published, 4 * MIB),
		WORDS("w", world_tensor(file, "w").ptr, 300 * MIB),
		/* The second block of it alone. */
		WORDS("part", world_tensor(file, "w").ptr + 130 * MIB, 2 * MIB),
	};
	struct glake_published result = publish(third, "all", tensors, 4);
	ck_assert_uint_eq(result.in_place_bytes, 318 * MIB);
	ck_assert_uint_eq(result.copied_bytes, 0);
	result = publish(third, "part", &tensors[4], 1);
	ck_assert_uint_eq(result.in_place_bytes, 128 * MIB);
	ck_assert_uint_eq(words_device_bytes(), before);
	glake_model_close(file);
	world_disconnect(one);
	world_disconnect(two);

	struct glake_model *all = attach(third, "all");
	struct glake_model *part = attach(third, "part");
	words_check(world_tensor(all, "a").ptr, 8 * MIB, 1);
	words_check(world_tensor(all, "b").ptr, 6 * MIB, 2);
	words_check(world_tensor(all, "c").ptr, 4 * MIB, 3);
	ck_assert(world_is_content(third, world_tensor(all, "w").ptr, 300 * MIB, 5, 0));
	ck_assert(world_is_content(third, world_tensor(part, "part").ptr, 2 * MIB, 5, 130 * MIB));
	glake_model_close(all);
	glake_model_close(part);
}
END_TEST

/* Who gets which addresses does not matter, nor in which order tensors are named. */
START_TEST(equal_weights_at_other_addresses_are_the_same)
{
	enum { N = 8, EACH = 4 };
	static const char *const names[N] = {"a", "b", "c", "d", "e", "f", "g", "h"};
	struct glake_model *model = NULL;
	for (unsigned round = 0; round < 3; round++) {
		struct glake_session *session = world_connect();
		struct glake_tensor tensors[N + 1];
		const struct glake_tensor whole = WORDS("", 0, EACH * MIB);
		glake_ptr ptrs[N];
		for (unsigned i = 0; i < N; i++) {
			/* Forwards, backwards, and in between. */
			unsigned at = round == 0 ? i : round == 1 ? N - 1 - i : (i * 3) % N;
			ptrs[at] = words_alloc(session, EACH * MIB, at);
		}
		for (unsigned i = 0; i < N; i++) {
			tensors[i] = whole;
			tensors[i].name = names[(i + round) % N];
			tensors[i].ptr = ptrs[(i + round) % N];
		}
		tensors[N] = tensors[0];
		tensors[N].name = "tied";
		tensors[N].ptr = ptrs[3];
		struct glake_published published = publish(session, "key", tensors, N + 1);
		ck_assert_int_eq(published.was_published, round > 0);
		model = model ? model : attach(world_connect(), "key");
	}
	for (unsigned i = 0; i < N; i++) {
		words_check(world_tensor(model, names[i]).ptr, EACH * MIB, i);
	}
	words_check(world_tensor(model, "tied").ptr, EACH * MIB, 3);
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(words_device_bytes(), N * EACH * MIB);
}
END_TEST

/* ---- keys ------------------------------------------------------------------------------------- */

START_TEST(equal_bytes_under_two_keys_are_one_copy)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	const struct glake_tensor first = WORDS("a", words_alloc(one, 200 * MIB, 1), 200 * MIB);
	const struct glake_tensor second = WORDS("b", words_alloc(two, 200 * MIB, 1), 200 * MIB);
	publish(one, "one", &first, 1);
	publish(two, "two", &second, 1);
	ck_assert_uint_eq(words_device_bytes(), 200 * MIB);
	ck_assert_uint_eq(world_books().n_models, 2);
	world_disconnect(one);
	world_disconnect(two);
	ck_assert_uint_eq(words_device_bytes(), 200 * MIB);
	assert_ok(glake_evict(eye, "one", NULL, NULL));
	ck_assert_uint_eq(words_device_bytes(), 200 * MIB);
}
END_TEST

static void begin_two(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "2x256MiB");
	words_open_driver();
}

/* A key is of one device. What lies on another one is copied. */
START_TEST_WITH(each_device_has_its_own_keys, .begin = begin_two)
{
	struct glake_publish_options to = {.size = sizeof(to), .device = 1};
	struct glake_attach_options from = {.size = sizeof(from), .device = 1};
	struct glake_published published = {.size = sizeof(published)};
	struct glake_session *session = world_connect();
	struct glake_model *model;
	glake_ptr first = words_alloc(session, 4 * MIB, 1);
	glake_ptr second;
	assert_ok(glake_alloc(session, 1, 4 * MIB, 0, &second));
	words_use_device(1);
	words_write(second, 4 * MIB, 2);
	const struct glake_tensor tensors[] = {
		WORDS("a", first, 4 * MIB),
		WORDS("b", second, 4 * MIB),
	};
	assert_ok(glake_weights_publish(session, "key", tensors, 2, &to, &published));
	ck_assert_uint_eq(published.in_place_bytes, 4 * MIB);
	ck_assert_uint_eq(published.copied_bytes, 4 * MIB);
	ck_assert_str_eq(published.copied_why, "memory of another device");
	assert_fails(GLAKE_E_NOT_FOUND, "device 0",
	             glake_weights_attach(session, "key", NULL, &model));
	assert_ok(glake_weights_attach(session, "key", &from, &model));
	ck_assert_uint_eq(world_info(model).device, 1);
	words_check(world_tensor(model, "a").ptr, 4 * MIB, 1);
	words_check(world_tensor(model, "b").ptr, 4 * MIB, 2);
	/* Nobody asked for it to be sealed. */
	ck_assert(!words_can_write(second));
	words_use_device(0);
	ck_assert(words_can_write(first));
	glake_model_close(model);
}
END_TEST

static int find_row(void *user, const struct glake_model_row *row)
{
	struct glake_model_row *found = user;
	if (strcmp(row->name, found->name) != 0 || strcmp(row->state, found->state) != 0) {
		return 0;
	}
	*found = *row;
	return 1;
}

static bool is_listed(const char *key, const char *state)
{
	struct glake_model_row row = {.name = key, .state = state};
	bool is_there = glake_list_models(eye, find_row, &row) == 1;
	ck_assert(!is_there || row.is_published);
	return is_there;
}

/* Equal weights, published again, change nothing. Of other ones others get the new model, and who has the old one keeps it. */
START_TEST(a_key_is_of_what_was_published_last)
{
	struct glake_session *session = world_connect();
	glake_ptr first = words_alloc(session, 6 * MIB, 1);
	glake_ptr second = words_alloc(session, 6 * MIB, 2);
	const struct glake_tensor old = WORDS("w", first, 6 * MIB);
	const struct glake_tensor new = WORDS("w", second, 6 * MIB);
	ck_assert(!publish(session, "step", &old, 1).was_published);
	struct glake_model *model = attach(session, "step");
	ck_assert(publish(session, "step", &old, 1).was_published);
	ck_assert_uint_eq(world_books().n_models, 1);

	ck_assert(!publish(session, "step", &new, 1).was_published);
	ck_assert_uint_eq(world_books().n_models, 2);
	ck_assert(is_listed("step", "ready") && is_listed("step", "replaced"));
	struct glake_model *next = attach(session, "step");
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 1);
	words_check(world_tensor(next, "w").ptr, 6 * MIB, 2);
	assert_ok(glake_free(session, first));
	assert_ok(glake_free(session, second));
	glake_model_close(next);
	ck_assert_uint_eq(words_device_bytes(), 12 * MIB);
	/* Its name is the new one's. */
	assert_ok(glake_evict(eye, "step", NULL, NULL));
	ck_assert(!is_listed("step", "ready") && is_listed("step", "replaced"));
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 1);
	glake_model_close(model);
	ck_assert_uint_eq(world_books().n_models, 0);
}
END_TEST

START_TEST(a_pin_is_the_keys)
{
	struct glake_publish_options options = {.size = sizeof(options), .pin = 1};
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 1);
	const struct glake_tensor old = WORDS("w", ptr, 6 * MIB);
	assert_ok(glake_weights_publish(session, "key", &old, 1, &options, NULL));
	assert_ok(glake_unseal(ptr, 6 * MIB));
	words_write(ptr, 6 * MIB, 2);
	assert_ok(glake_weights_publish(session, "key", &old, 1, NULL, NULL));
	world_disconnect(session);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(charged_bytes(), 6 * MIB);
	assert_fails(GLAKE_E_BUSY, "pinned", glake_evict(eye, "key", NULL, NULL));

	struct glake_session *other = world_connect();
	struct glake_model *model = attach(other, "key");
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 2);
	glake_model_close(model);
	assert_ok(glake_pin(eye, "key", 0));
	assert_ok(glake_evict(eye, "key", NULL, NULL));
	ck_assert_uint_eq(words_device_bytes(), 0);

	struct glake_attach_options pin = {.size = sizeof(pin), .pin = 1};
	const struct glake_tensor new = WORDS("w", words_alloc(other, 2 * MIB, 3), 2 * MIB);
	publish(other, "key", &new, 1);
	assert_ok(glake_weights_attach(other, "key", &pin, &model));
	glake_model_close(model);
	assert_fails(GLAKE_E_BUSY, "pinned", glake_evict(eye, "key", NULL, NULL));
	assert_ok(glake_pin(eye, "key", 0));
}
END_TEST

START_TEST(attached_weights_stay)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	glake_ptr ptr = words_alloc(session, 6 * MIB, 1);
	const struct glake_tensor tensor = WORDS("w", ptr, 6 * MIB);
	publish(session, "key", &tensor, 1);
	model = attach(session, "key");
	assert_ok(glake_free(session, ptr));
	assert_fails(GLAKE_E_BUSY, "in use", glake_evict(eye, "key", NULL, NULL));
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 1);
	glake_model_close(model);
	assert_ok(glake_evict(eye, "key", NULL, NULL));
	assert_fails(GLAKE_E_NOT_FOUND, "'key'",
	             glake_weights_attach(session, "key", NULL, &model));
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

START_TEST(bad_keys_and_tensors_are_refused)
{
	static char long_key[GLAKE_MAX_KEY_BYTES + 2];
	struct glake_session *session = world_connect();
	struct glake_model *model;
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	const struct glake_tensor good = WORDS("w", ptr, 2 * MIB);
	memset(long_key, 'k', sizeof(long_key) - 1);
	const struct {
		const char *key;
		int error;
	} keys[] = {
		{NULL, -EINVAL},
		{"", -EINVAL},
		{long_key, -EINVAL},
		{"4711", GLAKE_E_BAD_REQUEST},
		{"a\nb", GLAKE_E_BAD_REQUEST},
		{"\xff", GLAKE_E_BAD_REQUEST},
	};
	for (size_t i = 0; i < n_elements(keys); i++) {
		assert_fails(keys[i].error, "a key has 1 to 255 bytes",
		             glake_weights_publish(session, keys[i].key, &good, 1, NULL, NULL));
	}
	struct glake_tensor bad[9];
	for (size_t i = 0; i < n_elements(bad); i++) {
		bad[i] = good;
	}
	bad[0].name = NULL;
	bad[1].name = "";
	bad[2].shape = NULL;
	bad[3].n_dims = GLAKE_MAX_DIMS + 1;
	bad[4].dtype = (enum glake_dtype)99;
	bad[5].shape = (const uint64_t[]){UINT64_MAX / 4};
	bad[6].ptr = 0;
	bad[7].strides = (const uint64_t[]){UINT64_MAX / 8};
	bad[8].shape = (const uint64_t[]){1ull << 40};
	for (size_t i = 0; i < n_elements(bad); i++) {
		assert_fails(-EINVAL, "tensor",
		             glake_weights_publish(session, "key", &bad[i], 1, NULL, NULL));
	}
	const struct glake_tensor twins[] = {good, good};
	assert_fails(-EINVAL, "two tensors are named w",
	             glake_weights_publish(session, "key", twins, 2, NULL, NULL));
	assert_fails(-EINVAL, "NULL", glake_weights_publish(session, "key", NULL, 1, NULL, NULL));
	setenv("GLAKE_DEDUP", "off", 1);
	assert_fails(-EPERM, "GLAKE_DEDUP",
	             glake_weights_publish(session, "key", &good, 1, NULL, NULL));
	unsetenv("GLAKE_DEDUP");
	ck_assert(words_can_write(ptr));
	ck_assert_uint_eq(world_books().n_models, 0);
	/* The longest; and no tensors at all. */
	long_key[GLAKE_MAX_KEY_BYTES] = '\0';
	publish(session, long_key, &good, 1);
	publish(session, "none", NULL, 0);
	model = attach(session, "none");
	ck_assert_uint_eq(world_info(model).n_tensors, 0);
	glake_model_close(model);
}
END_TEST

/* ---- limits ----------------------------------------------------------------------------------- */

/* To read where nothing is mapped would cost the program its context. */
START_TEST(freed_memory_is_refused)
{
	struct glake_session *session = world_connect();
	glake_ptr kept = words_alloc(session, 4 * MIB, 1);
	for (unsigned is_trimmed = 0; is_trimmed < 2; is_trimmed++) {
		glake_ptr freed = words_alloc(session, 4 * MIB, 2);
		const struct glake_tensor both[] = {WORDS("a", kept, 4 * MIB),
		                                    WORDS("b", freed, 4 * MIB)};
		assert_ok(glake_free(session, freed));
		if (is_trimmed) {
			assert_ok(glake_trim(session, 0, 0));
		}
		assert_fails(-EINVAL, "not allocated",
		             glake_weights_publish(session, "key", both, 2, NULL, NULL));
		words_check(kept, 4 * MIB, 1);
	}
	const struct glake_tensor one[] = {WORDS("a", kept, 4 * MIB)};
	publish(session, "key", one, 1);
	world_disconnect(session);
}
END_TEST

/* Behind what has the address now, nothing is mapped. */
START_TEST_WITH(freed_memory_that_others_have_is_refused, .n = 3)
{
	struct glake_session *session = world_connect();
	glake_ptr freed = words_alloc(session, 8 * MIB, 2);
	const struct glake_tensor tensors[] = {WORDS("a", freed, 8 * MIB)};
	assert_ok(glake_free(session, freed));
	assert_ok(glake_trim(session, 0, 0));
	glake_ptr now = words_alloc(session, _i == 0 ? 64 * 1024 : 4 * MIB, 1);
	if (_i == 1) {
		struct glake_block *block;
		assert_ok(glake_block_publish(session, now, 4 * MIB, &block));
	} else if (_i == 2) {
		const struct glake_tensor small[] = {WORDS("b", now, 4 * MIB)};
		publish(session, "small", small, 1);
		assert_ok(glake_free(session, now));
		assert_ok(glake_trim(session, 0, 0));
		now = world_tensor(attach(session, "small"), "b").ptr;
	}
	ck_assert_uint_eq(now, freed);
	assert_fails(-EINVAL, "not allocated",
	             glake_weights_publish(session, "key", tensors, 1, NULL, NULL));
	words_check(now, 64 * 1024, 1);
	world_disconnect(session);
}
END_TEST

START_TEST(many_tensors)
{
	enum { N = 10000, BYTES = 2048 };
	static char names[N][200];
	static struct glake_tensor tensors[N];
	static const uint64_t shape[] = {2, 4, BYTES / 64};
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, N * BYTES, 1);
	for (unsigned i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "model.layers.%u.%0*u", (i * 7919u) % N,
		         (int)(i % 150), i);
		tensors[i] = (struct glake_tensor){
			.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = GLAKE_U64,
			.n_dims = 3,
			.shape = shape,
			.ptr = ptr + i * BYTES,
		};
	}
	struct glake_published result = publish(session, "many", tensors, N);
	ck_assert_uint_eq(result.copied_bytes, 0);
	struct glake_model *model = attach(session, "many");
	ck_assert_uint_eq(world_info(model).n_tensors, N);
	words_check(world_info(model).base, N * BYTES, 1);
	for (unsigned i = 0; i < N; i++) {
		struct glake_tensor tensor = world_tensor(model, names[i]);
		ck_assert_uint_eq(tensor.ptr - world_info(model).base, i * BYTES);
	}
	glake_model_close(model);
	assert_ok(glake_set_manifest_quota(eye, "default", MIB));
	assert_fails(GLAKE_E_OVER_QUOTA, "manifest",
	             glake_weights_publish(session, "more", tensors, N, NULL, NULL));
	assert_fails(GLAKE_E_OVER_QUOTA, "manifest",
	             glake_weights_attach(session, "many", NULL, &model));
	assert_ok(glake_set_manifest_quota(eye, "default", 0));
	ck_assert_uint_eq(world_books().n_models, 1);
	assert_ok(glake_evict(eye, "many", NULL, NULL));
	/* The session has the one block open. */
	ck_assert_uint_eq(world_books().charged_manifest_bytes,
	                  books_before.charged_manifest_bytes + 256);
}
END_TEST

/* Who uses them pays. What cannot be copied is not published. */
START_TEST(weights_beyond_the_quota_are_refused)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	CUdeviceptr foreign;
	glake_ptr ptr = words_alloc(session, 8 * MIB, 1);
	const struct glake_tensor tensor = WORDS("w", ptr, 8 * MIB);
	publish(session, "key", &tensor, 1);
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(charged_bytes(), 0);
	assert_ok(glake_set_quota(eye, "default", 0, 6 * MIB));
	assert_fails(GLAKE_E_OVER_QUOTA, "of 6.0 MiB",
	             glake_weights_attach(session, "key", NULL, &model));

	ck_assert_int_eq(drv.cuMemAlloc(&foreign, 8 * MIB), CUDA_SUCCESS);
	words_write(foreign, 8 * MIB, 2);
	const struct glake_tensor too_large = WORDS("w", foreign, 8 * MIB);
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default",
	             glake_weights_publish(session, "new", &too_large, 1, NULL, NULL));
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(charged_bytes(), 0);
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	publish(session, "new", &too_large, 1);
	struct glake_model *copy = attach(session, "new");
	ck_assert_uint_eq(charged_bytes(), 8 * MIB);
	words_check(world_tensor(copy, "w").ptr, 8 * MIB, 2);
	glake_model_close(copy);
	ck_assert_int_eq(drv.cuMemFree(foreign), CUDA_SUCCESS);
}
END_TEST

static void begin_small(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x128MiB");
	words_open_driver();
}

/* While the publisher has its memory, nothing would become free with the model. */
START_TEST_WITH(a_full_device_does_not_evict_what_frees_nothing, .begin = begin_small)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	glake_ptr ptr = words_alloc(session, 40 * MIB, 1);
	glake_ptr cached = words_alloc(session, 40 * MIB, 2);
	const struct glake_tensor kept = WORDS("w", ptr, 40 * MIB);
	const struct glake_tensor other = WORDS("w", cached, 40 * MIB);
	publish(session, "kept", &kept, 1);
	publish(session, "other", &other, 1);
	assert_ok(glake_free(session, cached));
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &cached));
	assert_fails(GLAKE_E_NOT_FOUND, "other",
	             glake_weights_attach(session, "other", NULL, &model));
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_alloc(session, 0, 60 * MIB, 0, &cached));
	model = attach(session, "kept");
	words_check(world_tensor(model, "w").ptr, 40 * MIB, 1);
	glake_model_close(model);
}
END_TEST

/* ---- processes -------------------------------------------------------------------------------- */

static void publish_and_stay(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	const struct glake_tensor tensor = WORDS("w", words_alloc(session, 20 * MIB, 1), 20 * MIB);
	publish(session, "key", &tensor, 1);
	world_reach(1);
	for (;;) {
		pause();
	}
}

static void attach_and_check(void *user)
{
	struct glake_attach_options options = {
		.size = sizeof(options),
		.wait_ms = HARNESS_TIMEOUT_MS,
	};
	struct glake_model *model;
	words_open_driver();
	struct glake_session *session = world_connect();
	world_reach(2);
	assert_ok(glake_weights_attach(session, "key", &options, &model));
	words_check(world_tensor(model, "w").ptr, 20 * MIB, 1);
	glake_model_close(model);
	world_disconnect(session);
}

START_TEST_WITH(a_killed_publisher_leaves_its_weights, .begin = begin_blind)
{
	pid_t publisher = world_client(publish_and_stay, NULL);
	world_await(1);
	world_kill(publisher);
	struct books books = world_books();
	ck_assert_uint_eq(books.block_bytes, 20 * MIB);
	ck_assert_uint_eq(books.used_block_bytes, 0);
	ck_assert_uint_eq(charged_bytes(), 0);
	world_join(world_client(attach_and_check, NULL));
}
END_TEST

START_TEST_WITH(who_comes_first_waits, .begin = begin_blind)
{
	pid_t reader = world_client(attach_and_check, NULL);
	world_await(2);
	pid_t publisher = world_client(publish_and_stay, NULL);
	world_join(reader);
	world_kill(publisher);
}
END_TEST

START_TEST(waiting_ends)
{
	struct glake_attach_options options = {.size = sizeof(options), .wait_ms = 120};
	struct glake_session *session = world_connect();
	struct glake_model *model;
	uint64_t since_ms = harness_now_ms();
	assert_fails(GLAKE_E_NOT_FOUND, "'none'",
	             glake_weights_attach(session, "none", &options, &model));
	ck_assert_uint_ge(harness_now_ms(), since_ms + 120);
}
END_TEST

/* Whoever attaches has all of one, or all of the other. */
static void publish_again_and_again(void *user)
{
	uint64_t content = (uintptr_t)user;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, content);
	const struct glake_tensor tensors[] = {
		WORDS("a", ptr, 3 * MIB),
		WORDS("b", ptr + 3 * MIB, 3 * MIB),
	};
	assert_ok(glake_weights_publish(session, "key", tensors, 2, NULL, NULL));
	atomic_fetch_add(world_stage, 1);
	while (*world_stage < 3) {
		assert_ok(glake_weights_publish(session, "key", tensors, 2, NULL, NULL));
	}
	world_disconnect(session);
}

static void attach_again_and_again(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 200; i++) {
		struct glake_model *model = attach(session, "key");
		uint64_t word;
		glake_ptr ptr = world_tensor(model, "a").ptr;
		ck_assert_int_eq(drv.cuMemcpyDtoH(&word, ptr, sizeof(word)), CUDA_SUCCESS);
		words_check(ptr, 6 * MIB, word >> 48);
		glake_model_close(model);
	}
	world_disconnect(session);
	world_reach(3);
}

START_TEST_WITH(two_publish_under_one_key, .begin = begin_blind)
{
	pid_t one = world_client(publish_again_and_again, (void *)(uintptr_t)1);
	pid_t two = world_client(publish_again_and_again, (void *)(uintptr_t)2);
	world_await(2);
	world_join(world_client(attach_again_and_again, NULL));
	world_join(one);
	world_join(two);
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_gt(world_metric("models_published"), 2);
}
END_TEST

/* ---- what dies on the way --------------------------------------------------------------------- */

/* In whatever call of the driver: nothing, or all of it. */
static void publish_mixed(void *user)
{
	CUdeviceptr foreign;
	words_open_driver();
	struct glake_session *session = world_connect();
	const char *faults = user;
	glake_ptr ptr = words_alloc(session, 20 * MIB, 1);
	ck_assert_int_eq(drv.cuMemAlloc(&foreign, 4 * MIB), CUDA_SUCCESS);
	words_write(foreign, 4 * MIB, 2);
	const struct glake_tensor tensors[] = {
		WORDS("w", ptr, 20 * MIB),
		WORDS("f", foreign, 4 * MIB),
	};
	world_set_own_faults(faults);
	glake_weights_publish(session, "key", tensors, 2, NULL, NULL);
	world_set_own_faults(NULL);
	for (;;) {
		world_reach(1);
		pause();
	}
}

static void check_mixed(void *user)
{
	struct glake_model *model;
	words_open_driver();
	struct glake_session *session = world_connect();
	int r = glake_weights_attach(session, "key", NULL, &model);
	ck_assert_msg(r == 0 || r == GLAKE_E_NOT_FOUND, "%d %s", r, glake_error());
	if (r == 0) {
		words_check(world_tensor(model, "w").ptr, 20 * MIB, 1);
		words_check(world_tensor(model, "f").ptr, 4 * MIB, 2);
		glake_model_close(model);
	}
	world_disconnect(session);
}

START_TEST_WITH(a_publisher_dies_anywhere, .begin = begin_blind)
{
	static const char *const calls[] = {
		"cuMemSetAccess:1",      "cuMemSetAccess:2",
		"cuMemSetAccess:3",      "cuMemMap:1",
		"cuMemUnmap:1",          "cuMemcpyDtoDAsync_v2:1",
		"cuStreamSynchronize:1", "cuMemImportFromShareableHandle:1",
		"cuMemAddressFree:1",    "cuMemRelease:1",
		"cuStreamCreate:1",
	};
	char faults[128];
	for (size_t i = 0; i < n_elements(calls); i++) {
		int status;
		pid_t parent;
		*world_stage = 0;
		snprintf(faults, sizeof(faults), "*/%s:die", calls[i]);
		pid_t publisher = world_client(publish_mixed, faults);
		uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
		while (*world_stage == 0 && world_state_of(publisher, &parent) != 'Z') {
			ck_assert(harness_now_ms() < end_ms);
			harness_sleep_ms(5);
		}
		kill(publisher, SIGKILL);
		waitpid(publisher, &status, 0);
		world_join(world_client(check_mixed, NULL));
		world_assert_level();
	}
}
END_TEST

START_TEST(the_mover_dies_while_weights_are_published)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	CUdeviceptr foreign;
	glake_ptr ptr = words_alloc(session, 20 * MIB, 1);
	ck_assert_int_eq(drv.cuMemAlloc(&foreign, 4 * MIB), CUDA_SUCCESS);
	words_write(foreign, 4 * MIB, 2);
	const struct glake_tensor tensors[] = {
		WORDS("w", ptr, 20 * MIB),
		WORDS("f", foreign, 4 * MIB),
	};
	for (unsigned i = 1; i <= 2; i++) {
		char faults[64];
		snprintf(faults, sizeof(faults), "glake-mover/cuLaunchKernel:%u:die", i);
		world_set_faults(faults);
		int r = when_let(glake_weights_publish(session, "key", tensors, 2, NULL, NULL));
		ck_assert_msg(r == GLAKE_E_MOVER, "%d %s", r, glake_error());
		world_set_faults(NULL);
		words_write(foreign, 4 * MIB, 2);
		words_check(ptr, 20 * MIB, 1);
		assert_fails(GLAKE_E_NOT_FOUND, "key",
		             glake_weights_attach(session, "key", NULL, &model));
	}
	assert_ok(when_let(glake_weights_publish(session, "key", tensors, 2, NULL, NULL)));
	model = attach(session, "key");
	words_check(world_tensor(model, "f").ptr, 4 * MIB, 2);
	glake_model_close(model);
	ck_assert_int_eq(drv.cuMemFree(foreign), CUDA_SUCCESS);
}
END_TEST

/* The connection is lost again and again, in the middle of a long manifest. */
static atomic_bool is_over;

static void *cut(void *user)
{
	while (!is_over) {
		int socket = glake_fd(user);
		if (socket >= 0) {
			shutdown(socket, SHUT_RDWR);
		}
		harness_sleep_ms(2);
	}
	return NULL;
}

START_TEST(a_lost_connection_leaves_no_half_of_a_manifest)
{
	enum { N = 20000 };
	static char names[N][16];
	static struct glake_tensor tensors[N];
	static const uint64_t shape[] = {1};
	struct glake_session *session = world_connect();
	pthread_t thread;
	unsigned n_done = 0;
	glake_ptr ptr = words_alloc(session, 2 * MIB, 1);
	for (unsigned i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "%u", i);
		tensors[i] = (struct glake_tensor){
			.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = GLAKE_U64,
			.n_dims = 1,
			.shape = shape,
			.ptr = ptr + 8 * i,
		};
	}
	struct glake_span span = {ptr, 2 * MIB};
	assert_ok(glake_seal(&span, 1, NULL));
	ck_assert_int_eq(pthread_create(&thread, NULL, cut, session), 0);
	for (unsigned i = 0; i < 30; i++) {
		char key[16];
		snprintf(key, sizeof(key), "key%u", i);
		int r = glake_weights_publish(session, key, tensors, N, NULL, NULL);
		ck_assert_msg(r == 0 || r == GLAKE_E_GONE, "%d %s", r, glake_error());
		n_done += r == 0;
	}
	is_over = true;
	pthread_join(thread, NULL);
	ck_assert_uint_ge(world_books().n_models, n_done);
	assert_ok(glake_ping(session));
	/* No draft is left that somebody pays for, but the block that the session has open. */
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_books().charged_manifest_bytes,
	                  books_before.charged_manifest_bytes + 256);
	publish(session, "last", tensors, N);
	struct glake_model *model = attach(session, "last");
	ck_assert_uint_eq(world_info(model).n_tensors, N);
	glake_model_close(model);
}
END_TEST

static void *kill_glaked(void *user)
{
	harness_sleep_ms(*(unsigned *)user);
	harness_kill(&harness);
	return NULL;
}

START_TEST_WITH(glaked_is_killed_while_weights_are_published, .n = 4)
{
	enum { N = 300 };
	static char names[N][16];
	static struct glake_tensor tensors[N];
	const struct glake_tensor whole = WORDS("", 0, MIB);
	unsigned after_ms = 5 * (unsigned)_i;
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, N * MIB, 1);
	pthread_t thread;
	for (unsigned i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "%u", i);
		tensors[i] = whole;
		tensors[i].name = names[i];
		tensors[i].ptr = ptr + i * MIB;
	}
	ck_assert_int_eq(pthread_create(&thread, NULL, kill_glaked, &after_ms), 0);
	int r = glake_weights_publish(session, "key", tensors, N, NULL, NULL);
	pthread_join(thread, NULL);
	ck_assert_msg(r == 0 || r == GLAKE_E_GONE, "%d %s", r, glake_error());
	words_check(ptr, N * MIB, 1);
}
END_TEST

START_TEST(glaked_is_killed_and_comes_again)
{
	struct glake_session *session = world_connect();
	struct glake_model *other;
	glake_ptr ptr = words_alloc(session, 6 * MIB, 1);
	const struct glake_tensor tensor = WORDS("w", ptr, 6 * MIB);
	publish(session, "key", &tensor, 1);
	struct glake_model *model = attach(session, "key");
	harness_kill(&harness);
	assert_fails(GLAKE_E_GONE, "", glake_weights_attach(session, "key", NULL, &other));
	assert_fails(GLAKE_E_GONE, "",
	             glake_weights_publish(session, "new", &tensor, 1, NULL, NULL));
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 1);
	words_check(ptr, 6 * MIB, 1);
	world_restart();
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 1);
	/* The next glaked knows nothing of the blocks of before; their bytes are copied. */
	struct glake_session *next = world_connect();
	assert_fails(GLAKE_E_NOT_FOUND, "key", glake_weights_attach(next, "key", NULL, &other));
	struct glake_published published = publish(next, "key", &tensor, 1);
	ck_assert_uint_eq(published.copied_bytes, 6 * MIB);
	ck_assert_str_eq(published.copied_why, "memory of another glaked");
	world_disconnect(session);
	other = attach(next, "key");
	words_check(world_tensor(other, "w").ptr, 6 * MIB, 1);
	glake_model_close(other);
}
END_TEST
