/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/model.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

/* Each tensor also costs the allocator's header and a pointer. */
#define ENTRY_BYTES 16
/* MANY_TENSORS tensors are freed in a tenth of a millisecond. */
#define MANY_TENSORS 4096

#define BIT(state) (1u << (state))

bool model_may_become(enum model_state from, enum model_state to)
{
	static const unsigned legal[MODEL_N_STATES] = {
		[MODEL_DRAFT] = BIT(MODEL_LOADING) | BIT(MODEL_READY) | BIT(MODEL_HIDDEN) |
	                        BIT(MODEL_REPLACED),
		[MODEL_LOADING] = BIT(MODEL_ASIDE) | BIT(MODEL_READY) | BIT(MODEL_DEMOTED),
		[MODEL_ASIDE] = BIT(MODEL_HIDDEN),
		[MODEL_DEMOTED] = BIT(MODEL_LOADING),
		[MODEL_READY] = BIT(MODEL_HIDDEN) | BIT(MODEL_REPLACED) | BIT(MODEL_DEMOTED),
		[MODEL_REPLACED] = BIT(MODEL_HIDDEN),
	};
	return legal[from] & BIT(to);
}

void model_set_state(struct model *model, enum model_state state)
{
	assert(model_may_become(model->state, state));
	model->state = state;
}

uint64_t model_chunk_bytes(const struct model *model, size_t i)
{
	return glake_chunk_bytes(model->blocks[i].content_bytes);
}

int model_add_tensor(struct model *model, const char *name, uint32_t dtype, const uint64_t *shape,
                     const uint64_t *strides, size_t n_dims, uint64_t offset, uint64_t bytes)
{
	size_t name_bytes = strlen(name) + 1;
	if (name_bytes > GLAKE_MAX_NAME_BYTES + 1 || n_dims > GLAKE_MAX_DIMS ||
	    model->n_tensors == GLAKE_MAX_TENSORS || bytes > UINT64_MAX - offset) {
		return -EINVAL;
	}
	if (array_grow_counted(model->tensors, model->n_tensors) < 0) {
		return -ENOMEM;
	}
	size_t n_numbers = strides ? 2 * n_dims : n_dims;
	size_t tensor_bytes = sizeof(struct tensor) + n_numbers * sizeof(shape[0]) + name_bytes;
	struct tensor *tensor = malloc(tensor_bytes);
	if (!tensor) {
		return -ENOMEM;
	}
	*tensor = (struct tensor){
		.offset = offset, .bytes = bytes, .dtype = dtype, .n_dims = (uint32_t)n_dims};
	if (n_dims > 0) {
		memcpy(tensor->shape, shape, n_dims * sizeof(shape[0]));
	}
	if (strides) {
		tensor->strides = &tensor->shape[n_dims];
		memcpy(tensor->strides, strides, n_dims * sizeof(strides[0]));
	}
	tensor->name = (char *)&tensor->shape[n_numbers];
	memcpy(tensor->name, name, name_bytes);
	model->tensors[model->n_tensors++] = tensor;
	/* The tensors of a published model may overlap, so their sum has no bound. */
	if (__builtin_add_overflow(model->content_bytes, bytes, &model->content_bytes)) {
		model->content_bytes = UINT64_MAX;
	}
	model->end_bytes = offset + bytes > model->end_bytes ? offset + bytes : model->end_bytes;
	model->manifest_bytes += tensor_bytes + ENTRY_BYTES;
	return 0;
}

int model_add_block(struct model *model, uint64_t content_bytes)
{
	if (content_bytes == 0 || content_bytes > GLAKE_MAX_BLOCK_BYTES ||
	    model->n_blocks == GLAKE_MAX_BLOCKS) {
		return -EINVAL;
	}
	if (array_grow_counted(model->blocks, model->n_blocks) < 0) {
		return -ENOMEM;
	}
	model->blocks[model->n_blocks++] = (struct model_block){.content_bytes = content_bytes};
	model->manifest_bytes += sizeof(model->blocks[0]);
	model->span_bytes += glake_chunk_bytes(content_bytes);
	return 0;
}

int model_check_plan(const struct model *model)
{
	return model->end_bytes <= model->span_bytes ? 0 : -EINVAL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static bool is_equal_tensor(const struct tensor *tensor, const struct tensor *other)
{
	size_t n_bytes = tensor->n_dims * sizeof(tensor->shape[0]);
	return tensor->offset == other->offset && tensor->bytes == other->bytes &&
	       tensor->dtype == other->dtype && tensor->n_dims == other->n_dims &&
	       !tensor->strides == !other->strides &&
	       memcmp(tensor->shape, other->shape, n_bytes) == 0 &&
	       (!tensor->strides || memcmp(tensor->strides, other->strides, n_bytes) == 0) &&
	       strcmp(tensor->name, other->name) == 0;
}

bool model_is_equal(const struct model *model, const struct model *other)
{
	bool is_equal = model->n_blocks == other->n_blocks && model->n_tensors == other->n_tensors;
	for (size_t i = 0; is_equal && i < model->n_blocks; i++) {
		is_equal = model->blocks[i].block == other->blocks[i].block;
	}
	for (size_t i = 0; is_equal && i < model->n_tensors; i++) {
		is_equal = is_equal_tensor(model->tensors[i], other->tensors[i]);
	}
	return is_equal;
}

/* ---- the end --------------------------------------------------------------------------------- */

struct tensors {
	uv_work_t work;
	struct tensor **tensors; /* owned */
	size_t n;
};

static void free_tensors(struct tensor **tensors, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		free(tensors[i]);
	}
	free(tensors);
}

static void run_free(uv_work_t *work)
{
	struct tensors *all = container_of(work, struct tensors, work);
	free_tensors(all->tensors, all->n);
}

static void on_freed(uv_work_t *work, int status)
{
	free(container_of(work, struct tensors, work));
}

void model_free_tensors(struct model *model, uv_loop_t *loop)
{
	struct tensors *all = model->n_tensors > MANY_TENSORS ? malloc(sizeof(*all)) : NULL;
	if (all) {
		*all = (struct tensors){.tensors = model->tensors, .n = model->n_tensors};
		uv_queue_work(loop, &all->work, run_free, on_freed);
	} else {
		free_tensors(model->tensors, model->n_tensors);
	}
	model->tensors = NULL;
	model->n_tensors = 0;
}
