/* SPDX-License-Identifier: Apache-2.0 */
/* A real glake-mover on the simulator: loads. */
#include "tests/unit/made_model.h"
#include "tests/unit/mover_peer.h"

#define MIB (1024ull * 1024)

/* The plan as glaked would keep it. */
struct known_plan {
	size_t n_blocks;
	uint64_t contents[PEER_MAX_BLOCKS];
	uint64_t span_offsets[PEER_MAX_BLOCKS];
	struct chunk_in_test chunks[PEER_MAX_BLOCKS];
	uint8_t *span; /* owned: all chunks' bytes, once loaded */
	uint64_t span_bytes;
	size_t n_tensors;
	struct {
		char name[64];
		uint64_t offset;
		uint64_t bytes;
	} tensors[MADE_MAX_TENSORS];
};

static void keep_tensors(struct known_plan *plan, const Glake__Mover__PlanTensors *page)
{
	for (size_t i = 0; i < page->n_tensors; i++) {
		const Glake__Mover__PlanTensor *tensor = page->tensors[i];
		ck_assert_uint_lt(plan->n_tensors, MADE_MAX_TENSORS);
		snprintf(plan->tensors[plan->n_tensors].name, 64, "%s", tensor->name);
		plan->tensors[plan->n_tensors].offset = tensor->offset;
		plan->tensors[plan->n_tensors++].bytes = tensor->bytes;
	}
}

static void keep_blocks(struct known_plan *plan, const Glake__Mover__PlanBlocks *page)
{
	for (size_t i = 0; i < page->n_content_bytes; i++) {
		ck_assert_uint_lt(plan->n_blocks, PEER_MAX_BLOCKS);
		plan->contents[plan->n_blocks] = page->content_bytes[i];
		plan->span_offsets[plan->n_blocks++] = plan->span_bytes;
		plan->span_bytes += (page->content_bytes[i] + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
	}
}

static void take_plan(struct peer *peer, uint64_t job, struct known_plan *plan)
{
	*plan = (struct known_plan){0};
	for (;;) {
		Glake__Mover__Report *report = peer_next(peer);
		ck_assert_ptr_nonnull(report);
		ck_assert_uint_eq(report->job, job);
		bool is_end = report->body_case == GLAKE__MOVER__REPORT__BODY_PLAN_END;
		if (report->body_case == GLAKE__MOVER__REPORT__BODY_PLAN_TENSORS) {
			keep_tensors(plan, report->plan_tensors);
		} else if (report->body_case == GLAKE__MOVER__REPORT__BODY_PLAN_BLOCKS) {
			keep_blocks(plan, report->plan_blocks);
		} else {
			ck_assert_msg(is_end, "%s",
			              report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED
			                      ? report->failed->error
			                      : "not a plan");
			ck_assert_uint_eq(report->plan_end->n_tensors, plan->n_tensors);
			ck_assert_uint_eq(report->plan_end->n_blocks, plan->n_blocks);
		}
		peer_free_report(report);
		if (is_end) {
			return;
		}
	}
}

static void make_chunks(struct peer *peer, struct known_plan *plan)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		uint64_t end = i + 1 < plan->n_blocks ? plan->span_offsets[i + 1]
		                                      : plan->span_bytes;
		plan->chunks[i] = peer_chunk(peer, 0, end - plan->span_offsets[i]);
	}
}

static void grant(struct peer *peer, uint64_t job, const struct known_plan *plan, size_t first,
                  size_t n)
{
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n; i++) {
		fds[i] = plan->chunks[first + i].fd;
	}
	peer_grant(peer, job, first, fds, n);
}

static void read_span(struct peer *peer, struct known_plan *plan)
{
	plan->span = malloc(plan->span_bytes + 1);
	ck_assert_ptr_nonnull(plan->span);
	for (size_t i = 0; i < plan->n_blocks; i++) {
		peer_move(peer, &plan->chunks[i], 0, plan->span + plan->span_offsets[i], false);
	}
}

static void drop_plan(struct peer *peer, struct known_plan *plan)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		peer_drop_chunk(peer, &plan->chunks[i]);
	}
	free(plan->span);
}

/* Every tensor's bytes are at their place, and nothing else is in the span. */
static void check_tensors(const struct known_plan *plan, const struct made_model *model)
{
	uint64_t n_set = 0;
	uint64_t n_wanted = 0;
	ck_assert_uint_eq(plan->n_tensors, model->n_tensors);
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const struct made_tensor *tensor = made_find(model, plan->tensors[i].name);
		ck_assert_ptr_nonnull(tensor);
		ck_assert_uint_eq(plan->tensors[i].bytes, tensor->bytes);
		ck_assert_msg(memcmp(plan->span + plan->tensors[i].offset, tensor->content,
		                     tensor->bytes) == 0,
		              "tensor %s", tensor->name);
		for (uint64_t k = 0; k < tensor->bytes; k++) {
			n_wanted += tensor->content[k] != 0;
		}
	}
	for (uint64_t k = 0; k < plan->span_bytes; k++) {
		n_set += plan->span[k] != 0;
	}
	ck_assert_uint_eq(n_set, n_wanted);
}

struct result {
	struct digest digests[PEER_MAX_BLOCKS];
	uint64_t read_bytes;
	uint64_t direct_bytes;
};

/* Grant with a window of @window blocks until LoadDone. */
static void load_all(struct peer *peer, uint64_t job, struct known_plan *plan, size_t window,
                     struct result *result)
{
	size_t n_granted = 0;
	size_t n_loaded = 0;
	*result = (struct result){0};
	for (;;) {
		while (n_granted < plan->n_blocks && n_granted - n_loaded < window) {
			grant(peer, job, plan, n_granted++, 1);
		}
		Glake__Mover__Report *report = peer_expect(
			peer, job,
			n_loaded < plan->n_blocks ? GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED
						  : GLAKE__MOVER__REPORT__BODY_LOAD_DONE);
		bool is_end = report->body_case == GLAKE__MOVER__REPORT__BODY_LOAD_DONE;
		if (is_end) {
			result->read_bytes = report->load_done->read_bytes;
			result->direct_bytes = report->load_done->direct_bytes;
			ck_assert_uint_gt(report->load_done->ns, 0);
		} else {
			ck_assert_uint_lt(report->block_loaded->block, n_granted);
			ck_assert_uint_eq(report->block_loaded->digest.len, DIGEST_BYTES);
			result->digests[report->block_loaded->block] = digest_from_bytes(
				report->block_loaded->digest.data);
			n_loaded++;
		}
		peer_free_report(report);
		if (is_end) {
			return;
		}
	}
}

static void check_digests(const struct known_plan *plan, const struct result *result)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		struct digest want = digest_of(plan->span + plan->span_offsets[i],
		                               plan->contents[i]);
		ck_assert(digest_equal(&want, &result->digests[i]));
	}
}

/* Load @names, which hold @model's tensors, and look at every byte. */
static void load_and_check(struct peer *peer, const char *const *names, size_t n_names,
                           const char *index, bool may_direct, const struct made_model *model,
                           size_t window, struct result *result)
{
	struct known_plan plan;
	uint64_t total = 0;
	peer_load_files(peer, 5, names, n_names, index, may_direct);
	take_plan(peer, 5, &plan);
	make_chunks(peer, &plan);
	load_all(peer, 5, &plan, window, result);
	for (size_t i = 0; i < model->n_tensors; i++) {
		total += model->tensors[i].bytes;
	}
	ck_assert_uint_eq(result->read_bytes, total);
	read_span(peer, &plan);
	check_tensors(&plan, model);
	check_digests(&plan, result);
	drop_plan(peer, &plan);
}

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

START_TEST(a_file_is_loaded)
{
	struct peer peer;
	struct made_model model = {0};
	struct result result;
	const char *name = "model.safetensors";
	peer_start(&peer, NULL);
	add_mixed(&model);
	made_write(&model, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &model, 4, &result);
	ck_assert_uint_eq(result.direct_bytes, 0);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

START_TEST(many_small_tensors_share_blocks)
{
	struct peer peer;
	struct made_model model = {0};
	struct result result;
	const char *name = "model.safetensors";
	peer_start(&peer, NULL);
	for (unsigned i = 0; i < 400; i++) {
		char tensor[64];
		snprintf(tensor, sizeof(tensor), "layer.%03u", i * 7919 % 400);
		made_add(&model, tensor, made_random() % (400 * 1024));
	}
	made_write(&model, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &model, 2, &result);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

START_TEST(shards_with_an_index_are_loaded)
{
	struct peer peer;
	struct made_model shards[2] = {0};
	struct made_model all = {0};
	struct result result;
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
	peer_end(&peer);
}
END_TEST

/* Cold files are read past the page cache, at whatever alignment their tensors have. */
START_TEST(a_cold_file_is_read_directly)
{
	struct peer peer;
	struct made_model model = {0};
	struct result result;
	const char *name = "model.safetensors";
	char path[512];
	peer_start(&peer, NULL);
	add_mixed(&model);
	made_write(&model, peer.folder, name);
	snprintf(path, sizeof(path), "%s/%s", peer.folder, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
	bool can_direct = fd >= 0;
	fd = fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(fsync(fd), 0);
	ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
	load_and_check(&peer, &name, 1, NULL, true, &model, 4, &result);
	if (!can_direct || result.direct_bytes == 0) {
		printf("SKIP: no direct reads in %s\n", peer.folder);
	} else {
		ck_assert_uint_eq(result.direct_bytes, result.read_bytes);
	}
	made_free(&model);
	peer_end(&peer);
}
END_TEST

START_TEST(empty_models_need_no_chunk)
{
	struct peer peer;
	struct made_model model = {0};
	struct result result;
	const char *name = "model.safetensors";
	peer_start(&peer, NULL);
	made_add(&model, "nothing", 0);
	made_write(&model, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &model, 4, &result);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* Many windows a block and more readers than slots of work. */
START_TEST(small_slots_do)
{
	struct peer peer;
	struct made_model model = {0};
	struct result result;
	const char *name = "model.safetensors";
	setenv("GLAKE_MOVER_SLOT_KIB", "68", 1);
	setenv("GLAKE_MOVER_READERS", "7", 1);
	peer_start(&peer, NULL);
	add_mixed(&model);
	made_write(&model, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &model, 1, &result);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* Another holder of the description may switch O_DIRECT on under our reads. */
START_TEST(a_shared_description_does_no_harm)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	struct result result;
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
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* The plan depends on names and sizes alone: order in the file makes no difference. */
START_TEST(equal_tensors_are_equal_blocks)
{
	struct peer peer;
	struct made_model first = {0};
	struct made_model second = {0};
	struct result results[2];
	const char *name = "model.safetensors";
	peer_start(&peer, NULL);
	made_add(&first, "a", 3 * MIB);
	made_add(&first, "b", 300);
	made_add(&first, "c", 2 * MIB + 1);
	for (size_t i = 3; i-- > 0;) {
		struct made_tensor *copy = made_add(&second, first.tensors[i].name,
		                                    first.tensors[i].bytes);
		memcpy(copy->content, first.tensors[i].content, copy->bytes);
	}
	made_write(&first, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &first, 4, &results[0]);
	made_write(&second, peer.folder, name);
	load_and_check(&peer, &name, 1, NULL, false, &second, 4, &results[1]);
	for (size_t i = 0; i < 3; i++) {
		ck_assert(digest_equal(&results[0].digests[i], &results[1].digests[i]));
	}
	made_free(&first);
	made_free(&second);
	peer_end(&peer);
}
END_TEST

START_TEST(two_loads_run_beside_each_other)
{
	struct peer peer;
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
	peer_end(&peer);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------- */

/* A model of ten blocks whose load waits for grants after the first two. */
static void begin(struct peer *peer, struct made_model *model, struct known_plan *plan)
{
	for (unsigned i = 0; i < 10; i++) {
		char name[64];
		snprintf(name, sizeof(name), "t%u", i);
		made_add(model, name, 9 * MIB);
	}
	made_write(model, peer->folder, "m");
	peer_load(peer, 7, "m");
	take_plan(peer, 7, plan);
	ck_assert_uint_eq(plan->n_blocks, 10);
	make_chunks(peer, plan);
	grant(peer, 7, plan, 0, 2);
	for (unsigned i = 0; i < 2; i++) {
		peer_free_report(peer_expect(peer, 7, GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED));
	}
}

/* After a failure the mover holds nothing of the load and works on. */
static void still_works(struct peer *peer)
{
	struct made_model model = {0};
	struct result result;
	const char *name = "after";
	made_add(&model, "w", 5 * MIB);
	made_write(&model, peer->folder, name);
	load_and_check(peer, &name, 1, NULL, false, &model, 4, &result);
	made_free(&model);
}

static void end_failed(struct peer *peer, struct made_model *model, struct known_plan *plan)
{
	drop_plan(peer, plan);
	made_free(model);
	still_works(peer);
	peer_end(peer);
}

START_TEST(a_load_can_be_cancelled)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	unsigned n_fds = peer_mover_fds(&peer);
	grant(&peer, 7, &plan, 2, 8);
	peer_cancel(&peer, 7);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__BUSY, "cancelled");
	/* The file's is gone, and all of the chunks'. */
	ck_assert_uint_lt(peer_mover_fds(&peer), n_fds);
	/* Late orders for it are no bugs. */
	grant(&peer, 7, &plan, 0, 1);
	peer_cancel(&peer, 7);
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(a_waiting_load_can_be_cancelled)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	peer_cancel(&peer, 7);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__BUSY, "cancelled");
	end_failed(&peer, &model, &plan);
}
END_TEST

/* At any moment, with other loads beside it. */
START_TEST(cancelling_at_any_moment_is_fine)
{
	enum { N_LOADS = 40 };
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	unsigned n_ended = 0;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	for (unsigned i = 0; i < N_LOADS; i++) {
		peer_load(&peer, 100 + i, "m");
		usleep((useconds_t)(made_random() % 3000));
		if (i % 2) {
			/* Before its plan that is a mistake, after it right: both end the load. */
			grant(&peer, 100 + i, &plan, 0, 10);
		}
		usleep((useconds_t)(made_random() % 3000));
		peer_cancel(&peer, 100 + i);
	}
	peer_cancel(&peer, 7);
	while (n_ended < N_LOADS + 1) {
		Glake__Mover__Report *report = peer_next(&peer);
		ck_assert_ptr_nonnull(report);
		n_ended += report->body_case == GLAKE__MOVER__REPORT__BODY_FAILED ||
		           report->body_case == GLAKE__MOVER__REPORT__BODY_LOAD_DONE;
		peer_free_report(report);
	}
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(truncation_is_noticed)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	char path[512];
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	ck_assert_int_eq(truncate(path, (off_t)(model.data_begin + 30 * MIB)), 0);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__FILE_CHANGED, "'m': tensor 't");
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(a_change_is_noticed_at_the_end)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	char path[512];
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	snprintf(path, sizeof(path), "%s/m", peer.folder);
	FILE *file = fopen(path, "r+e");
	ck_assert_ptr_nonnull(file);
	fseek(file, 1000000, SEEK_SET);
	fputc('!', file);
	fclose(file);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__FILE_CHANGED,
	                   "'m': changed while it was loaded");
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(senseless_grants_fail_the_load)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	grant(&peer, 7, &plan, 4, 1);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "block 4");
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(too_many_grants_fail_the_load)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	int fds[9];
	for (unsigned i = 0; i < 9; i++) {
		fds[i] = plan.chunks[1].fd;
	}
	peer_grant(&peer, 7, 2, fds, 9);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "9 chunks from block 2");
	end_failed(&peer, &model, &plan);
}
END_TEST

/* A chunk that is none, or is too small, is glaked's bug and ends this load only. */
START_TEST(a_wrong_chunk_fails_the_load)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	peer_grant(&peer, 7, 2, &file, 1);
	close(file);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__INTERNAL, "cuMem");
	end_failed(&peer, &model, &plan);
}
END_TEST

START_TEST(files_that_are_none_are_refused)
{
	struct peer peer;
	char path[512];
	peer_start(&peer, NULL);
	snprintf(path, sizeof(path), "%s/pipe", peer.folder);
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	peer_load(&peer, 1, "pipe");
	peer_expect_failed(&peer, 1, GLAKE__WIRE__STATUS__BAD_REQUEST,
	                   "'pipe': is a FIFO, not a regular file");
	snprintf(path, sizeof(path), "%s/dir", peer.folder);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	peer_load(&peer, 2, "dir");
	peer_expect_failed(&peer, 2, GLAKE__WIRE__STATUS__BAD_REQUEST, "'dir': is a directory");
	snprintf(path, sizeof(path), "%s/short", peer.folder);
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	fputs("short", file);
	fclose(file);
	peer_load(&peer, 3, "short");
	peer_expect_failed(&peer, 3, GLAKE__WIRE__STATUS__BAD_FILE, "'short': only 5 bytes long");
	still_works(&peer);
	peer_end(&peer);
}
END_TEST

START_TEST(a_mover_that_is_killed_is_just_gone)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	grant(&peer, 7, &plan, 2, 8);
	kill(peer.pid, SIGKILL);
	ck_assert(WIFSIGNALED(peer_wait(&peer)));
	Glake__Mover__Report *report;
	while ((report = peer_next(&peer))) {
		ck_assert_int_eq(report->body_case, GLAKE__MOVER__REPORT__BODY_BLOCK_LOADED);
		peer_free_report(report);
	}
	/* What it was filling is still a chunk, and readable. */
	read_span(&peer, &plan);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_remove_folder(&peer);
}
END_TEST

START_TEST(the_end_of_the_socket_ends_a_load)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, NULL);
	begin(&peer, &model, &plan);
	grant(&peer, 7, &plan, 2, 5);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* ---- injected faults ------------------------------------------------------------------------ */

static const struct {
	const char *rule;
	uint32_t status;
	const char *text;
} faults[] = {
	{"glake-mover/cuMemImportFromShareableHandle:3:fail=2",
         GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY, "cuMemImportFromShareableHandle"},
	{"glake-mover/cuMemMap:4:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemMap"},
	{"glake-mover/cuMemSetAccess:5:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemSetAccess"},
	{"glake-mover/cuMemcpyHtoDAsync:12:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR"},
	{"glake-mover/cuLaunchKernel:7:fail=701", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
	{"glake-mover/cuMemUnmap:4:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "cuMemUnmap"},
	{"glake-mover/cuMemcpyDtoHAsync:3:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
	{"glake-mover/cuEventRecord:20:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "CUDA_ERROR"},
	{"glake-mover/cuStreamWaitEvent:3:fail=1", GLAKE__WIRE__STATUS__INTERNAL, "digesting"},
};

START_TEST(a_driver_fault_fails_one_load)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, faults[_i].rule);
	begin(&peer, &model, &plan);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, faults[_i].status, faults[_i].text);
	end_failed(&peer, &model, &plan);
}
END_TEST

static const char *const early_faults[] = {
	"glake-mover/cuDevicePrimaryCtxRetain:1:fail=2",
	"glake-mover/cuStreamCreate:1:fail=2",
	"glake-mover/cuModuleLoadData:1:fail=209",
	"glake-mover/cuMemAlloc:2:fail=2",
	"glake-mover/cuEventCreate:5:fail=2",
	"glake-mover/cuMemAddressReserve:1:fail=2",
};

START_TEST(a_fault_before_the_plan_fails_one_load)
{
	struct peer peer;
	struct made_model model = {0};
	peer_start(&peer, early_faults[_i]);
	made_add(&model, "w", 100);
	made_write(&model, peer.folder, "m");
	peer_load(&peer, 1, "m");
	peer_expect_failed(&peer, 1,
	                   strstr(early_faults[_i], "fail=2,") || strstr(early_faults[_i], "=209")
	                           ? GLAKE__WIRE__STATUS__INTERNAL
	                           : GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY,
	                   "CUDA_ERROR");
	still_works(&peer);
	made_free(&model);
	peer_end(&peer);
}
END_TEST

/* Pinning by registration is refused: the driver's own pinned memory does. */
START_TEST(pinned_memory_has_a_second_way)
{
	struct peer peer;
	peer_start(&peer, "glake-mover/cuMemHostRegister:*:fail=1");
	still_works(&peer);
	peer_end(&peer);
}
END_TEST

/* A lost context cannot be mended: the job's cause is told, then the process ends. */
START_TEST(a_lost_device_ends_the_mover)
{
	struct peer peer;
	struct made_model model = {0};
	struct known_plan plan;
	peer_start(&peer, "glake-mover/cuLaunchKernel:6:killctx");
	begin(&peer, &model, &plan);
	grant(&peer, 7, &plan, 2, 8);
	peer_expect_failed(&peer, 7, GLAKE__WIRE__STATUS__MOVER_FAILED,
	                   "CUDA_ERROR_ILLEGAL_ADDRESS");
	int status = peer_wait(&peer);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	drop_plan(&peer, &plan);
	made_free(&model);
	peer_remove_folder(&peer);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("mover");
	suite_add(suite, a_file_is_loaded);
	suite_add(suite, many_small_tensors_share_blocks);
	suite_add(suite, shards_with_an_index_are_loaded);
	suite_add(suite, a_cold_file_is_read_directly);
	suite_add(suite, small_slots_do);
	suite_add(suite, a_shared_description_does_no_harm);
	suite_add(suite, cancelling_at_any_moment_is_fine);
	suite_add(suite, empty_models_need_no_chunk);
	suite_add(suite, equal_tensors_are_equal_blocks);
	suite_add(suite, two_loads_run_beside_each_other);
	suite_add(suite, a_load_can_be_cancelled);
	suite_add(suite, a_waiting_load_can_be_cancelled);
	suite_add(suite, truncation_is_noticed);
	suite_add(suite, a_change_is_noticed_at_the_end);
	suite_add(suite, senseless_grants_fail_the_load);
	suite_add(suite, too_many_grants_fail_the_load);
	suite_add(suite, a_wrong_chunk_fails_the_load);
	suite_add(suite, files_that_are_none_are_refused);
	suite_add(suite, a_mover_that_is_killed_is_just_gone);
	suite_add(suite, the_end_of_the_socket_ends_a_load);
	suite_add(suite, pinned_memory_has_a_second_way);
	suite_add(suite, a_lost_device_ends_the_mover);
	TCase *tcase = tcase_create("faults");
	tcase_set_timeout(tcase, TEST_TIMEOUT_S);
	tcase_add_loop_test(tcase, a_driver_fault_fails_one_load, 0, n_elements(faults));
	tcase_add_loop_test(tcase, a_fault_before_the_plan_fails_one_load, 0,
	                    n_elements(early_faults));
	suite_add_tcase(suite, tcase);
	return suite_run(suite);
}
