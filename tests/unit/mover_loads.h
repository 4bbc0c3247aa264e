/* SPDX-License-Identifier: Apache-2.0 */
/* Whole loads with a real glake-mover: what glaked would keep of a plan, and looks into chunks. */
#ifndef GLAKE_TESTS_MOVER_LOADS_H
#define GLAKE_TESTS_MOVER_LOADS_H

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

PEER_UNUSED static void keep_tensors(struct known_plan *plan, const Glake__Mover__PlanTensors *page)
{
	for (size_t i = 0; i < page->n_tensors; i++) {
		const Glake__Mover__PlanTensor *tensor = page->tensors[i];
		ck_assert_uint_lt(plan->n_tensors, MADE_MAX_TENSORS);
		snprintf(plan->tensors[plan->n_tensors].name, 64, "%s", tensor->name);
		plan->tensors[plan->n_tensors].offset = tensor->offset;
		plan->tensors[plan->n_tensors++].bytes = tensor->bytes;
	}
}

PEER_UNUSED static void keep_blocks(struct known_plan *plan, const Glake__Mover__PlanBlocks *page)
{
	for (size_t i = 0; i < page->n_content_bytes; i++) {
		ck_assert_uint_lt(plan->n_blocks, PEER_MAX_BLOCKS);
		plan->contents[plan->n_blocks] = page->content_bytes[i];
		plan->span_offsets[plan->n_blocks++] = plan->span_bytes;
		plan->span_bytes += (page->content_bytes[i] + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
	}
}

PEER_UNUSED static void take_plan(struct peer *peer, uint64_t job, struct known_plan *plan)
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

PEER_UNUSED static void make_chunks(struct peer *peer, struct known_plan *plan)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		uint64_t end = i + 1 < plan->n_blocks ? plan->span_offsets[i + 1]
		                                      : plan->span_bytes;
		plan->chunks[i] = peer_chunk(peer, 0, end - plan->span_offsets[i]);
	}
}

PEER_UNUSED static void grant(struct peer *peer, uint64_t job, const struct known_plan *plan,
                              size_t first, size_t n)
{
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n; i++) {
		fds[i] = plan->chunks[first + i].fd;
	}
	peer_grant(peer, job, first, fds, n);
}

PEER_UNUSED static void read_span(struct peer *peer, struct known_plan *plan)
{
	plan->span = malloc(plan->span_bytes + 1);
	ck_assert_ptr_nonnull(plan->span);
	for (size_t i = 0; i < plan->n_blocks; i++) {
		peer_move(peer, &plan->chunks[i], 0, plan->span + plan->span_offsets[i], false);
	}
}

PEER_UNUSED static void drop_plan(struct peer *peer, struct known_plan *plan)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		peer_drop_chunk(peer, &plan->chunks[i]);
	}
	free(plan->span);
}

/* Every tensor's bytes are at their place, and nothing else is in the span. */
TEST_BYTE_LOOP static uint64_t count_set(const uint8_t *bytes, uint64_t n)
{
	uint64_t n_set = 0;
	for (uint64_t i = 0; i < n; i++) {
		n_set += bytes[i] != 0;
	}
	return n_set;
}

PEER_UNUSED static void check_tensors(const struct known_plan *plan, const struct made_model *model)
{
	uint64_t n_wanted = 0;
	ck_assert_uint_eq(plan->n_tensors, model->n_tensors);
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const struct made_tensor *tensor = made_find(model, plan->tensors[i].name);
		ck_assert_ptr_nonnull(tensor);
		ck_assert_uint_eq(plan->tensors[i].bytes, tensor->bytes);
		ck_assert_msg(memcmp(plan->span + plan->tensors[i].offset, tensor->content,
		                     tensor->bytes) == 0,
		              "tensor %s", tensor->name);
		n_wanted += count_set(tensor->content, tensor->bytes);
	}
	ck_assert_uint_eq(count_set(plan->span, plan->span_bytes), n_wanted);
}

struct result {
	struct digest digests[PEER_MAX_BLOCKS];
	uint64_t read_bytes;
	uint64_t direct_bytes;
};

/* Grant with a window of @window blocks until LoadDone. */
PEER_UNUSED static void load_all(struct peer *peer, uint64_t job, struct known_plan *plan,
                                 size_t window, struct result *result)
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

PEER_UNUSED static void check_digests(const struct known_plan *plan, const struct result *result)
{
	for (size_t i = 0; i < plan->n_blocks; i++) {
		struct digest want = digest_of(plan->span + plan->span_offsets[i],
		                               plan->contents[i]);
		ck_assert(digest_equal(&want, &result->digests[i]));
	}
}

/* Load @names, which hold @model's tensors, and look at every byte. */
PEER_UNUSED static void load_and_check(struct peer *peer, const char *const *names, size_t n_names,
                                       const char *index, bool may_direct,
                                       const struct made_model *model, size_t window,
                                       struct result *result)
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

#endif
