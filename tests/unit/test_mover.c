/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator: loads that go well. */
#include "tests/unit/mover_loads.h"

static void add_mixed(struct made_model *model)
{
	made_add(model, "z.large", 5 * MIB + 4096);
	made_add(model, "a.small", 1000);
	made_add(model, "m.exact", 2 * MIB);
	made_add(model, "b.odd", 1);
	made_add(model, "empty", 0);
	made_add(model, "c.huge", 70 * MIB + 123);
	made_add(model, "d.almost", 2 * MIB - 1);
	made_add(model, "e.small", 256);
	made_add(model, "f.small", 257);
}

static struct peer peer;
static struct made_model model;
static struct known_plan plan;
static struct result result;
static const char *const file_name = "model.safetensors";

static void end(void)
{
	made_free(&model);
	peer_end(&peer);
}

END_EACH(end)

/* Write the file of @of, and load it with a window of @window blocks. */
static void write_and_load(struct made_model *of, size_t window)
{
	made_write(of, peer.folder, file_name);
	load_and_check(&peer, &file_name, 1, NULL, false, of, window, &result);
}

START_TEST(a_file_is_loaded)
{
	peer_start(&peer, NULL);
	add_mixed(&model);
	write_and_load(&model, 4);
	ck_assert_uint_eq(result.direct_bytes, 0);
}
END_TEST

START_TEST(many_small_tensors_share_blocks)
{
	peer_start(&peer, NULL);
	for (unsigned i = 0; i < 400; i++) {
		char tensor[64];
		snprintf(tensor, sizeof(tensor), "layer.%03u", i * 7919 % 400);
		made_add(&model, tensor, made_random() % (400 * 1024));
	}
	write_and_load(&model, 2);
}
END_TEST

START_TEST(shards_with_an_index_are_loaded)
{
	struct made_model shards[2] = {0};
	struct made_model all = {0};
	const char *names[] = {"model-1.safetensors", "model-2.safetensors"};
	char path[512];
	peer_start(&peer, NULL);
	made_add(&shards[0], "a", 3 * MIB);
	made_add(&shards[0], "b", 100);
	made_add(&shards[1], "c", 200);
	made_add(&shards[1], "d", 4 * MIB + 17);
	for (unsigned i = 0; i < 2; i++) {
		made_write(&shards[i], peer.folder, names[i]);
		for (size_t k = 0; k < shards[i].n_tensors; k++) {
			all.tensors[all.n_tensors++] = shards[i].tensors[k];
		}
	}
	snprintf(path, sizeof(path), "%s/index.json", peer.folder);
	FILE *index = fopen(path, "we");
	ck_assert_ptr_nonnull(index);
	/* `b` is in its shard but not in the index: that is fine, and it is loaded. */
	fputs("{\"metadata\": {\"total_size\": 12}, \"weight_map\": {"
	      "\"a\": \"model-1.safetensors\", \"d\": \"model-2.safetensors\","
	      "\"c\": \"model-2.safetensors\"}}\n",
	      index);
	fclose(index);
	load_and_check(&peer, names, 2, "index.json", false, &all, 8, &result);
	made_free(&shards[0]);
	made_free(&shards[1]);
}
END_TEST

/* Cold files are read past the page cache, at whatever alignment their tensors have. */
START_TEST(a_cold_file_is_read_directly)
{
	char path[512];
	peer_start(&peer, NULL);
	add_mixed(&model);
	made_write(&model, peer.folder, file_name);
	snprintf(path, sizeof(path), "%s/%s", peer.folder, file_name);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	bool can_direct = fd >= 0;
	fd = fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(fsync(fd), 0);
	ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
	load_and_check(&peer, &file_name, 1, NULL, true, &model, 4, &result);
	if (!can_direct || result.direct_bytes == 0) {
		printf("SKIP: no direct reads in %s\n", peer.folder);
	} else {
		ck_assert_uint_eq(result.direct_bytes, result.read_bytes);
	}
}
END_TEST

START_TEST(empty_models_need_no_chunk)
{
	peer_start(&peer, NULL);
	made_add(&model, "nothing", 0);
	write_and_load(&model, 4);
}
END_TEST

/* Many windows a block and more readers than slots of work. */
START_TEST(small_slots_do)
{
	setenv("GLAKE_MOVER_SLOT_KIB", "68", 1);
	setenv("GLAKE_MOVER_READERS", "7", 1);
	peer_start(&peer, NULL);
	add_mixed(&model);
	write_and_load(&model, 1);
}
END_TEST

/* The slot would have no page, or end within one. */
START_TEST_WITH(a_slot_of_no_whole_pages_is_not_taken, .n = 3)
{
	const char *kib[] = {"1", "3", "65"};
	setenv("GLAKE_MOVER_SLOT_KIB", kib[_i], 1);
	peer_start(&peer, NULL);
	add_mixed(&model);
	write_and_load(&model, 1);
}
END_TEST

/* Another holder of the description may switch O_DIRECT on under our reads. */
START_TEST(a_shared_description_does_no_harm)
{
	Glake__Mover__LoadStart body = GLAKE__MOVER__LOAD_START__INIT;
	Glake__Mover__Order order = ORDER(5, LOAD_START);
	char path[512];
	char name[] = "m";
	char *names[] = {name};
	peer_start(&peer, NULL);
	made_add(&model, "w", 9 * MIB + 13);
	made_add(&model, "x", 9 * MIB);
	made_write(&model, peer.folder, name);
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	body.device_uuid = peer_uuid(&peer, 0);
	body.n_files = 1;
	body.files = names;
	order.load_start = &body;
	peer_send(&peer, &order, &fd, 1);
	take_plan(&peer, 5, &plan);
	fcntl(fd, F_SETFL, O_DIRECT);
	make_chunks(&peer, &plan);
	load_all(&peer, 5, &plan, 4, &result);
	read_span(&peer, &plan);
	check_tensors(&plan, &model);
	drop_plan(&peer, &plan);
	close(fd);
}
END_TEST

/* The plan depends on names and sizes alone: order in the file makes no difference. */
START_TEST(equal_tensors_are_equal_blocks)
{
	struct made_model first = {0};
	struct made_model second = {0};
	peer_start(&peer, NULL);
	made_add(&first, "a", 3 * MIB);
	made_add(&first, "b", 300);
	made_add(&first, "c", 2 * MIB + 1);
	for (size_t i = 3; i-- > 0;) {
		struct made_tensor *copy = made_add(&second, first.tensors[i].name,
		                                    first.tensors[i].bytes);
		memcpy(copy->content, first.tensors[i].content, copy->bytes);
	}
	write_and_load(&first, 4);
	const struct result result_of_first = result;
	write_and_load(&second, 4);
	for (size_t i = 0; i < 3; i++) {
		ck_assert(digest_equal(&result_of_first.digests[i], &result.digests[i]));
	}
	made_free(&first);
	made_free(&second);
}
END_TEST

START_TEST(two_loads_run_beside_each_other)
{
	struct made_model models[2] = {0};
	struct known_plan plans[2];
	size_t n_loaded[2] = {0, 0};
	unsigned n_done = 0;
	const char *names[] = {"one.safetensors", "two.safetensors"};
	peer_start(&peer, NULL);
	for (unsigned i = 0; i < 2; i++) {
		made_add(&models[i], "w", 40 * MIB + i);
		made_add(&models[i], "x", 30 * MIB);
		made_write(&models[i], peer.folder, names[i]);
		peer_load(&peer, i, names[i]);
		take_plan(&peer, i, &plans[i]);
		make_chunks(&peer, &plans[i]);
	}
	for (unsigned i = 0; i < 2; i++) {
		grant(&peer, i, &plans[i], 0, plans[i].n_blocks);
	}
	while (n_done < 2) {
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		ck_assert_uint_lt(report->job, 2);
		if (report->body_case == GLAKE__MOVER__REPORT__BODY_LOAD_DONE) {
			ck_assert_uint_eq(n_loaded[report->job], plans[report->job].n_blocks);
			n_done++;
		} else {
			ck_assert_int_eq(report->body_case,
			                 GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED);
			n_loaded[report->job]++;
		}
		peer_free_report(report);
	}
	for (unsigned i = 0; i < 2; i++) {
		read_span(&peer, &plans[i]);
		check_tensors(&plans[i], &models[i]);
		drop_plan(&peer, &plans[i]);
		made_free(&models[i]);
	}
}
END_TEST
