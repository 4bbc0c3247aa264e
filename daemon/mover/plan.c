/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/plan.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/array.h"
#include "proto/limits.h"

struct maker {
	struct plan *plan; /* borrowed */
	size_t capacity_blocks;
	size_t capacity_pieces;
};

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

/* A new, empty block at the end of the span. */
static int add_block(struct maker *maker)
{
	struct plan *plan = maker->plan;
	if (plan->n_blocks == GLAKE_MAX_BLOCKS) {
		return -E2BIG;
	}
	int error = array_grow(plan->blocks, plan->n_blocks, maker->capacity_blocks, 64);
	if (error) {
		return error;
	}
	plan->blocks[plan->n_blocks++] = (struct plan_block){
		.span_offset = plan->span_bytes,
		.first_piece = plan->n_pieces,
	};
	return 0;
}

/* The last block will get nothing more. */
static void end_block(struct plan *plan)
{
	const struct plan_block *block = &plan->blocks[plan->n_blocks - 1];
	plan->span_bytes += glake_chunk_bytes(block->content_bytes);
	plan->content_bytes += block->content_bytes;
}

/* Append to the last block; a piece that continues the one before it, in file and block, joins. */
static int add_piece(struct maker *maker, const struct plan_piece *piece)
{
	struct plan *plan = maker->plan;
	struct plan_block *block = &plan->blocks[plan->n_blocks - 1];
	block->content_bytes = piece->block_offset + piece->bytes;
	if (block->n_pieces > 0) {
		struct plan_piece *last = &plan->pieces[plan->n_pieces - 1];
		if (last->file == piece->file &&
		    last->file_offset + last->bytes == piece->file_offset &&
		    last->block_offset + last->bytes == piece->block_offset) {
			last->bytes += piece->bytes;
			return 0;
		}
	}
	int error = array_grow(plan->pieces, plan->n_pieces, maker->capacity_pieces, 64);
	if (error) {
		return error;
	}
	plan->pieces[plan->n_pieces++] = *piece;
	block->n_pieces++;
	return 0;
}

static int place_large(struct maker *maker, uint32_t index)
{
	struct plan *plan = maker->plan;
	const struct tensor *tensor = &plan->catalog->tensors[index];
	plan->offsets[index] = plan->span_bytes;
	for (uint64_t done = 0; done < tensor->bytes;) {
		uint64_t rest = tensor->bytes - done;
		struct plan_piece piece = {
			.file_offset = tensor->begin + done,
			.bytes = rest < GLAKE_MAX_BLOCK_BYTES ? rest : GLAKE_MAX_BLOCK_BYTES,
			.file = tensor->file,
		};
		int error = add_block(maker);
		if (!error) {
			error = add_piece(maker, &piece);
		}
		if (error) {
			return error;
		}
		end_block(plan);
		done += piece.bytes;
	}
	return 0;
}

/* *is_open says whether the last block is a shared one that is not ended yet. */
static int place_small(struct maker *maker, uint32_t index, bool *is_open)
{
	struct plan *plan = maker->plan;
	const struct tensor *tensor = &plan->catalog->tensors[index];
	uint64_t at = 0;
	if (*is_open) {
		at = round_up(plan->blocks[plan->n_blocks - 1].content_bytes, PLAN_ALIGN_BYTES);
		if (at + tensor->bytes > GLAKE_MAX_BLOCK_BYTES) {
			end_block(plan);
			*is_open = false;
			at = 0;
		}
	}
	if (!*is_open) {
		int error = add_block(maker);
		if (error) {
			return error;
		}
		*is_open = true;
	}
	struct plan_piece piece = {
		.file_offset = tensor->begin,
		.block_offset = at,
		.bytes = tensor->bytes,
		.file = tensor->file,
	};
	plan->offsets[index] = plan->blocks[plan->n_blocks - 1].span_offset + at;
	return add_piece(maker, &piece);
}

static int place_all(struct maker *maker)
{
	struct plan *plan = maker->plan;
	const struct catalog *catalog = plan->catalog;
	bool is_open = false;
	int error = 0;
	for (size_t i = 0; i < catalog->n_tensors && !error; i++) {
		if (catalog->tensors[i].bytes >= PLAN_LARGE_BYTES) {
			error = place_large(maker, (uint32_t)i);
		}
	}
	for (size_t i = 0; i < catalog->n_tensors && !error; i++) {
		uint64_t bytes = catalog->tensors[i].bytes;
		if (bytes > 0 && bytes < PLAN_LARGE_BYTES) {
			error = place_small(maker, (uint32_t)i, &is_open);
		}
	}
	if (is_open && !error) {
		end_block(plan);
	}
	return error;
}

int plan_make(struct plan *plan, const struct catalog *catalog, struct fault *fault)
{
	*plan = (struct plan){.catalog = catalog};
	plan->offsets = calloc(catalog->n_tensors ? catalog->n_tensors : 1, sizeof(*plan->offsets));
	struct maker maker = {.plan = plan};
	int error = plan->offsets ? place_all(&maker) : -ENOMEM;
	if (!error) {
		return 0;
	}
	plan_deinit(plan);
	if (error == -E2BIG) {
		return fault_set(fault, FAULT_BAD_FILE, "the model needs more than %u blocks",
		                 GLAKE_MAX_BLOCKS);
	}
	return fault_no_memory(fault);
}

void plan_deinit(struct plan *plan)
{
	free(plan->offsets);
	free(plan->blocks);
	free(plan->pieces);
	*plan = (struct plan){0};
}

/* The file's byte that the plan puts at @at of the span, or false. Linear: for tests. */
static bool source_of(const struct plan *plan, uint64_t at, uint32_t *file_out,
                      uint64_t *offset_out)
{
	for (size_t i = 0; i < plan->n_pieces; i++) {
		size_t b = 0;
		while (i >= plan->blocks[b].first_piece + plan->blocks[b].n_pieces) {
			b++;
		}
		const struct plan_piece *piece = &plan->pieces[i];
		uint64_t begin = plan->blocks[b].span_offset + piece->block_offset;
		if (at >= begin && at - begin < piece->bytes) {
			*file_out = piece->file;
			*offset_out = piece->file_offset + (at - begin);
			return true;
		}
	}
	return false;
}

static bool block_is_valid(const struct plan *plan, const struct plan_block *block)
{
	uint64_t end = 0;
	if (block->content_bytes == 0 || block->content_bytes > GLAKE_MAX_BLOCK_BYTES ||
	    block->n_pieces == 0 || block->first_piece + block->n_pieces > plan->n_pieces) {
		return false;
	}
	for (size_t i = 0; i < block->n_pieces; i++) {
		const struct plan_piece *piece = &plan->pieces[block->first_piece + i];
		if (piece->bytes == 0 || piece->block_offset < end ||
		    piece->block_offset % PLAN_ALIGN_BYTES != 0) {
			return false;
		}
		end = piece->block_offset + piece->bytes;
	}
	return end == block->content_bytes;
}

bool plan_is_valid(const struct plan *plan)
{
	uint64_t span_bytes = 0;
	uint64_t piece_bytes = 0;
	uint64_t tensor_bytes = 0;
	for (size_t i = 0; i < plan->n_blocks; i++) {
		const struct plan_block *block = &plan->blocks[i];
		if (block->span_offset != span_bytes || !block_is_valid(plan, block)) {
			return false;
		}
		span_bytes += glake_chunk_bytes(block->content_bytes);
	}
	for (size_t i = 0; i < plan->n_pieces; i++) {
		piece_bytes += plan->pieces[i].bytes;
	}
	for (size_t i = 0; i < plan->catalog->n_tensors; i++) {
		const struct tensor *tensor = &plan->catalog->tensors[i];
		uint64_t steps[] = {0, tensor->bytes / 2, tensor->bytes - 1};
		tensor_bytes += tensor->bytes;
		for (size_t k = 0; k < 3 && tensor->bytes > 0; k++) {
			uint32_t file;
			uint64_t offset;
			if (!source_of(plan, plan->offsets[i] + steps[k], &file, &offset) ||
			    file != tensor->file || offset != tensor->begin + steps[k]) {
				return false;
			}
		}
	}
	return span_bytes == plan->span_bytes && piece_bytes == tensor_bytes;
}
