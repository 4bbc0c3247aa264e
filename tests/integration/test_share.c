/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharing: equal tensors of different files are one memory, which nobody can write to; blocks that
 * programs publish; files that change under a loaded model; and several devices.
 */
#include <dirent.h>

#include "tests/harness/models.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

static const struct harness_options defaults = {.config = WORLD_CONFIG, .devices = "1x512MiB"};

static void fill(glake_ptr ptr, uint8_t value, uint64_t n_bytes)
{
	ck_assert_int_eq(drv.cuMemsetD8(ptr, value, n_bytes), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
}

/* Write there by a kernel. Returns what that ends with. */
static CUresult write_by_kernel(glake_ptr ptr, uint64_t n_bytes)
{
	CUmodule module;
	CUfunction function;
	uint32_t value = 0xee;
	void *arguments[] = {&ptr, &n_bytes, &value};
	CUresult result = drv.cuModuleLoadData(&module, ".version 8.0");
	if (result == CUDA_SUCCESS) {
		result = drv.cuModuleGetFunction(&function, module, "cudasim_fill");
	}
	if (result == CUDA_SUCCESS) {
		result = drv.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
	}
	return result == CUDA_SUCCESS ? drv.cuCtxSynchronize() : result;
}

/* ---- a base model and its fine-tune ---------------------------------------------------------- */

/* Tensors from 2 MiB on are blocks of their own; the rest is packed. */
static const struct model_tensor base[] = {
	{"embed", "U8", 1, {8 * MIB}, 1},
	{"layer0", "U8", 1, {6 * MIB}, 2},
	{"layer1", "U8", 1, {6 * MIB}, 3},
	{"norm", "U8", 1, {5000}, 4},
};

/* In another order, one tensor is other, one more is there. */
static const struct model_tensor tuned[] = {
	{"layer1", "U8", 1, {6 * MIB}, 30}, {"lora", "U8", 1, {3 * MIB}, 31},
	{"embed", "U8", 1, {8 * MIB}, 1},   {"layer0", "U8", 1, {6 * MIB}, 2},
	{"norm", "U8", 1, {5000}, 4},
};

static void check_content(struct glake_session *session, const struct glake_model *model,
                          const struct model_tensor *tensors, size_t n_tensors)
{
	for (size_t i = 0; i < n_tensors; i++) {
		struct glake_tensor tensor = world_tensor(model, tensors[i].name);
		ck_assert_uint_eq(tensor.bytes, tensors[i].shape[0]);
		ck_assert(world_is_content(session, tensor.ptr, tensor.bytes, tensors[i].seed, 0));
	}
}

static struct glake_model *open_base(struct glake_session *session)
{
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("base.safetensors"), NULL, &model));
	check_content(session, model, base, n_elements(base));
	return model;
}

static struct glake_model *open_tuned(struct glake_session *session)
{
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("tuned.safetensors"), NULL, &model));
	check_content(session, model, tuned, n_elements(tuned));
	return model;
}

static void begin_with_both(void)
{
	world_begin_as(&defaults);
	model_file_write(world_path("base.safetensors"), base, n_elements(base));
	model_file_write(world_path("tuned.safetensors"), tuned, n_elements(tuned));
}

START_TEST(a_fine_tune_costs_what_differs)
{
	begin_with_both();
	struct glake_session *session = world_connect();
	struct glake_model *one = open_base(session);
	ck_assert_uint_eq(world_books().block_bytes, (8 + 6 + 6 + 2) * MIB);
	struct glake_model *two = open_tuned(session);
	/* New: its layer1, and lora. */
	ck_assert_uint_eq(world_books().block_bytes, (8 + 6 + 6 + 2 + 6 + 4) * MIB);
	ck_assert_uint_eq(world_books().physical_bytes - books_before.physical_bytes, 32 * MIB);
	ck_assert_uint_eq(world_info(two).deduplicated_bytes, (8 + 6 + 2) * MIB);
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 3);
	ck_assert_uint_eq(world_books().logical_bytes, (22 + 26) * MIB);
	/* One of them goes; the other still has all. */
	glake_model_close(one);
	assert_ok(glake_evict(eye, world_path("base.safetensors"), NULL, NULL));
	ck_assert_uint_eq(world_books().block_bytes, 26 * MIB);
	check_content(session, two, tuned, n_elements(tuned));
	glake_model_close(two);
}
END_TEST

/* Equal tensors of one file are one memory as well. */
START_TEST(equal_tensors_of_one_file_are_one)
{
	static const struct model_tensor tied[] = {
		{"in", "U8", 1, {4 * MIB}, 1},
		{"out", "U8", 1, {4 * MIB}, 1},
	};
	struct glake_model *model;
	world_begin_as(&defaults);
	model_file_write(world_path("tied.safetensors"), tied, 2);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, world_path("tied.safetensors"), NULL, &model));
	check_content(session, model, tied, 2);
	ck_assert_uint_eq(world_books().block_bytes, 4 * MIB);
	ck_assert_uint_eq(world_info(model).mapped_bytes, 8 * MIB);
}
END_TEST

/* ---- one memory ------------------------------------------------------------------------------ */

static int compare_inodes(const void *left, const void *right)
{
	ino_t a = *(const ino_t *)left;
	ino_t b = *(const ino_t *)right;
	return a < b ? -1 : a > b;
}

/* The simulated memory that a process has open, by inode: sorted. */
static size_t memory_of(pid_t pid, ino_t *inodes_out, size_t most)
{
	char path[300];
	char target[512];
	size_t n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *folder = opendir(path);
	ck_assert_ptr_nonnull(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		struct stat status;
		snprintf(path, sizeof(path), "/proc/%d/fd/%.20s", (int)pid, entry->d_name);
		ssize_t length = readlink(path, target, sizeof(target) - 1);
		target[length > 0 ? length : 0] = '\0';
		if (strstr(target, "cudasim:") && stat(path, &status) == 0) {
			ck_assert_uint_lt(n, most);
			inodes_out[n++] = status.st_ino;
		}
	}
	closedir(folder);
	qsort(inodes_out, n, sizeof(inodes_out[0]), compare_inodes);
	return n;
}

static void hold_base(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_model *model = open_base(session);
	atomic_fetch_add(world_stage, 1);
	world_await(10);
	check_content(session, model, base, n_elements(base));
}

START_TEST(two_processes_map_the_same_memory)
{
	ino_t first[64];
	ino_t second[64];
	begin_with_both();
	pid_t one = world_client(hold_base, NULL);
	pid_t two = world_client(hold_base, NULL);
	world_await(2);
	size_t n_first = memory_of(one, first, n_elements(first));
	size_t n_second = memory_of(two, second, n_elements(second));
	ck_assert_uint_ge(n_first, 4);
	ck_assert_uint_eq(n_first, n_second);
	ck_assert_mem_eq(first, second, n_first * sizeof(first[0]));
	ck_assert_uint_eq(world_books().block_bytes, 22 * MIB);
	ck_assert_uint_eq(world_books().logical_bytes, 44 * MIB);
	world_reach(10);
	world_join(one);
	world_join(two);
}
END_TEST

/* ---- writing to what is shared --------------------------------------------------------------- */

static void write_and_fall(void *user)
{
	char bytes[16] = "overwritten";
	struct glake_session *session = world_connect();
	struct glake_model *model = open_base(session);
	words_open_driver();
	for (size_t i = 0; i < n_elements(base); i++) {
		glake_ptr ptr = world_tensor(model, base[i].name).ptr;
		/* Refused, and the process goes on. */
		ck_assert_int_eq(drv.cuMemsetD8(ptr, 0, 16), CUDA_ERROR_INVALID_VALUE);
		ck_assert_int_eq(drv.cuMemcpyHtoD(ptr, bytes, sizeof(bytes)),
		                 CUDA_ERROR_INVALID_VALUE);
		ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
	}
	check_content(session, model, base, n_elements(base));
	/* By a kernel: this context is lost, for good. */
	glake_ptr ptr = world_tensor(model, "layer0").ptr;
	ck_assert_int_eq(write_by_kernel(ptr, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

START_TEST(a_write_hurts_the_writer_alone)
{
	begin_with_both();
	pid_t reader = world_client(hold_base, NULL);
	world_await(1);
	world_join(world_client(write_and_fall, NULL));
	world_reach(10);
	world_join(reader);
	/* The store has the right bytes for whoever comes next. */
	world_reach(10);
	world_join(world_client(hold_base, NULL));
	ck_assert_uint_eq(world_metric("mover_deaths"), 0);
}
END_TEST

/* ---- blocks of programs ---------------------------------------------------------------------- */

static struct glake_block_info block_info(const struct glake_block *block)
{
	struct glake_block_info info = {.size = sizeof(info)};
	assert_ok(glake_block_info(block, &info));
	return info;
}

static void publish_and_hold(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_block *block;
	glake_ptr ptr = 0;
	words_open_driver();
	assert_ok(glake_alloc(session, 0, 6 * MIB, GLAKE_ZERO, &ptr));
	fill(ptr, 7, 5 * MIB);
	assert_ok(glake_block_publish(session, ptr, 5 * MIB, &block));
	ck_assert_uint_eq(block_info(block).ptr, ptr);
	ck_assert(world_is_all(session, ptr, 7, 5 * MIB));
	ck_assert_int_eq(drv.cuMemsetD8(ptr, 1, 1), CUDA_ERROR_INVALID_VALUE);
	atomic_fetch_add(world_stage, 1);
	world_await(10);
	ck_assert(world_is_all(session, ptr, 7, 5 * MIB));
	glake_block_release(block);
}

static void look_it_up(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_block *block;
	struct glake_digest digest;
	uint8_t *bytes = malloc(5 * MIB);
	memset(bytes, 7, 5 * MIB);
	glake_digest_bytes(bytes, 5 * MIB, &digest);
	assert_ok(glake_block_lookup(session, 0, &digest, &block));
	ck_assert(world_is_all(session, block_info(block).ptr, 7, 5 * MIB));
	ck_assert_uint_eq(block_info(block).content_bytes, 5 * MIB);
	glake_block_release(block);
	/* A block that could not be mapped is not paid for. */
	world_set_own_faults("cuMemMap:1:fail=1");
	ck_assert_int_eq(glake_block_lookup(session, 0, &digest, &block), GLAKE_E_CUDA);
	world_set_own_faults("");
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	ck_assert_uint_eq(world_row(session).shared_bytes, 0);
	/* One byte less is another content, though the chunk's bytes begin alike. */
	glake_digest_bytes(bytes, 5 * MIB - 1, &digest);
	assert_fails(GLAKE_E_NOT_FOUND, "", glake_block_lookup(session, 0, &digest, &block));
	free(bytes);
}

START_TEST(equal_blocks_of_two_processes_become_one)
{
	world_begin_as(&defaults);
	pid_t one = world_client(publish_and_hold, NULL);
	pid_t two = world_client(publish_and_hold, NULL);
	world_await(2);
	struct books books = world_books();
	ck_assert_uint_eq(books.block_bytes, 6 * MIB);
	ck_assert_uint_eq(books.private_bytes, 0);
	ck_assert_uint_eq(books.logical_bytes, 12 * MIB);
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 1);
	world_reach(10);
	world_join(one);
	world_join(two);
	/* As cache it can be found. */
	ck_assert_uint_eq(world_books().block_bytes, 6 * MIB);
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	world_join(world_client(look_it_up, NULL));
}
END_TEST

START_TEST(bytes_behind_the_content_are_refused)
{
	struct glake_block *block;
	glake_ptr ptr = 0;
	world_begin_as(&defaults);
	struct glake_session *session = world_connect();
	words_open_driver();
	assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
	fill(ptr, 7, 1000);
	struct books before = world_books();
	assert_fails(GLAKE_E_BAD_REQUEST, "zero", glake_block_publish(session, ptr, 999, &block));
	world_wait_books(&before);
	/* The memory is as before. */
	fill(ptr, 8, 1001);
	ck_assert(world_is_all(session, ptr, 8, 1001));
	assert_ok(glake_block_publish(session, ptr, 1001, &block));
}
END_TEST

/* The mover dies at some call of a publication, or of the comparison: the memory stays private. */
START_TEST(a_publication_without_mover_leaves_the_memory)
{
	static const char *const calls[] = {"cuMemMap", "cuLaunchKernel", "cuMemSetAccess"};
	char faults[64];
	world_begin_as(&defaults);
	struct glake_session *session = world_connect();
	struct glake_block *known;
	struct glake_block *block;
	glake_ptr ptr = 0;
	words_open_driver();
	/* A block of the same content, so that a comparison comes after the digest. */
	assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
	fill(ptr, 5, 3000);
	assert_ok(glake_block_publish(session, ptr, 3000, &known));
	unsigned n_deaths = 0;
	for (unsigned i = 0; i < 3 * n_elements(calls); i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
		fill(ptr, 5, 3000);
		struct books before = world_books();
		pid_t mover = world_mover();
		snprintf(faults, sizeof(faults), "glake-mover/%s:%u:die", calls[i / 3], i % 3 + 1);
		world_set_faults(faults);
		int r = glake_block_publish(session, ptr, 3000, &block);
		world_set_faults(NULL);
		if (r == 0) {
			ck_assert_int_ne(block_info(block).was_known, 0);
			glake_block_release(block);
			kill(mover, SIGKILL);
			continue;
		}
		n_deaths++;
		ck_assert_int_eq(r, GLAKE_E_MOVER);
		world_wait_books(&before);
		ck_assert(world_is_all(session, ptr, 5, 3000));
		fill(ptr, 6, 100);
		fill(ptr, 5, 100);
		assert_ok(glake_block_publish(session, ptr, 3000, &block));
		ck_assert_int_ne(block_info(block).was_known, 0);
		glake_block_release(block);
		harness_sleep_ms(5);
	}
	ck_assert_uint_ge(n_deaths, 3);
}
END_TEST

/* ---- files that change ----------------------------------------------------------------------- */

static void write_in_place(const char *path, uint64_t seed)
{
	struct model_tensor tensor = {"w", "U8", 1, {10 * MIB}, seed};
	static uint8_t bytes[10 * MIB];
	struct stat status;
	model_tensor_fill(&tensor, 0, bytes, sizeof(bytes));
	cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
	ck_assert_int_eq(fstat(fd, &status), 0);
	ck_assert_int_eq(pwrite(fd, bytes, sizeof(bytes), status.st_size - (off_t)sizeof(bytes)),
	                 sizeof(bytes));
}

START_TEST(a_changed_file_is_loaded_anew)
{
	struct glake_model *old;
	struct glake_model *new;
	world_begin_as(&defaults);
	const char *path = world_write_model("m.safetensors", 10 * MIB, 1);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &old));
	write_in_place(path, 2);
	assert_ok(glake_model_open(session, path, NULL, &new));
	ck_assert_int_eq(world_info(new).was_loaded, 0);
	ck_assert(world_is_content(session, world_tensor(old, "w").ptr, 10 * MIB, 1, 0));
	ck_assert(world_is_content(session, world_tensor(new, "w").ptr, 10 * MIB, 2, 0));
	ck_assert_uint_eq(world_books().block_bytes, 20 * MIB);
	glake_model_close(old);
	glake_model_close(new);
	/* Written again with what it had: loaded again, and found to be there. */
	write_in_place(path, 2);
	assert_ok(glake_model_open(session, path, NULL, &new));
	ck_assert_int_eq(world_info(new).was_loaded, 0);
	ck_assert_uint_eq(world_info(new).deduplicated_bytes, 10 * MIB);
	ck_assert_uint_eq(world_books().block_bytes, 20 * MIB);
}
END_TEST

/* ---- devices --------------------------------------------------------------------------------- */

static int note_fabric(void *user, const struct glake_status *status)
{
	ck_assert_uint_eq(status->n_devices, 2);
	snprintf(user, 200, "%s", status->devices[1].fabric);
	return 0;
}

START_TEST(a_model_is_loaded_once_per_device)
{
	struct glake_model *models[2];
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG, .devices = "2x1GiB");
	const char *path = world_write_model("m.safetensors", 10 * MIB, 1);
	struct glake_session *session = world_connect();
	for (uint32_t i = 0; i < 2; i++) {
		struct glake_model_options options = {.size = sizeof(options), .device = i};
		uint8_t byte;
		assert_ok(glake_model_open(session, path, &options, &models[i]));
		ck_assert_int_eq(world_info(models[i]).was_loaded, 0);
		ck_assert_uint_eq(world_info(models[i]).device, i);
		assert_ok(glake_read(session, i, &byte, world_tensor(models[i], "w").ptr, 1));
	}
	ck_assert_uint_eq(world_books().block_bytes, 20 * MIB);
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 0);
	/* Each has its own memory, and its own end. */
	assert_ok(glake_alloc(session, 1, 900 * MIB, 0, &ptr));
	assert_ok(glake_alloc(session, 0, 900 * MIB, 0, &ptr));
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 1",
	             glake_alloc(session, 1, 200 * MIB, 0, &ptr));
}
END_TEST

START_TEST(what_is_not_visible_is_not_used)
{
	struct glake_model *model;
	struct glake_device device;
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG, .devices = "2x256MiB");
	const char *path = world_write_model("m.safetensors", 10 * MIB, 1);
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	struct glake_session *session = world_connect();
	ck_assert_int_eq(glake_device_index(session, 0), 1);
	assert_ok(glake_device_at(session, 0, &device));
	ck_assert_int_eq(device.ordinal, -1);
	struct glake_model_options options = {.size = sizeof(options), .device = 1};
	assert_ok(glake_model_open(session, path, &options, &model));
	uint8_t got[64];
	uint8_t want[64];
	struct model_tensor tensor = {.seed = 1};
	model_tensor_fill(&tensor, 0, want, sizeof(want));
	assert_ok(glake_read(session, 1, got, world_tensor(model, "w").ptr, sizeof(got)));
	ck_assert_mem_eq(got, want, sizeof(got));
	assert_ok(glake_alloc(session, 1, 4 * MIB, 0, &ptr));
	assert_fails(-ENODEV, "", glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	options.device = 0;
	assert_fails(-ENODEV, "", glake_model_open(session, path, &options, &model));
	options.device = 7;
	ck_assert_int_ne(glake_model_open(session, path, &options, &model), 0);
}
END_TEST

START_TEST_WITH(why_there_is_no_fabric_is_told, .n = 3)
{
	static const struct {
		const char *env;
		const char *words;
	} fabrics[] = {
		{"CUDASIM_FABRIC=denied", "NOT_PERMITTED"},
		{"CUDASIM_FABRIC=0", "not supported"},
		{"CUDASIM_FABRIC=1", "yes"},
	};
	char fabric[200] = "";
	const char *env[] = {fabrics[_i].env, NULL};
	glake_ptr ptr = 0;
	/* Clients see the same driver. */
	putenv((char *)fabrics[_i].env);
	world_begin(.config = WORLD_CONFIG, .devices = "2x256MiB", .env = env);
	assert_ok(glake_get_status(eye, note_fabric, fabric));
	ck_assert_msg(strstr(fabric, fabrics[_i].words), "%s", fabric);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
}
END_TEST
