/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as DLPack objects. The deleter is plain C on purpose: a consumer may call it
 * from a thread that the program's interpreter does not know, or while the interpreter shuts down.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/space/space.h"
#include "libclient/model/dlpack.h"
#include "libclient/model/model.h"

enum {
	DL_CUDA = 2,
	DL_INT = 0,
	DL_UINT = 1,
	DL_FLOAT = 2,
	DL_BFLOAT = 4,
	DL_COMPLEX = 5,
	DL_BOOL = 6,
};

struct exported {
	struct DLManagedTensor managed; /* first: the deleter gets its address */
	struct glake_model *model;      /* one reference */
	int64_t shape[];                /* and the strides, if there are some */
};

/* Code 0 with 0 bits: as bytes. */
static struct dl_type type_of(enum glake_dtype dtype)
{
	static const struct dl_type types[] = {
		[GLAKE_BOOL] = {DL_BOOL, 8, 1},    [GLAKE_U8] = {DL_UINT, 8, 1},
		[GLAKE_I8] = {DL_INT, 8, 1},       [GLAKE_I16] = {DL_INT, 16, 1},
		[GLAKE_U16] = {DL_UINT, 16, 1},    [GLAKE_F16] = {DL_FLOAT, 16, 1},
		[GLAKE_BF16] = {DL_BFLOAT, 16, 1}, [GLAKE_I32] = {DL_INT, 32, 1},
		[GLAKE_U32] = {DL_UINT, 32, 1},    [GLAKE_F32] = {DL_FLOAT, 32, 1},
		[GLAKE_C64] = {DL_COMPLEX, 64, 1}, [GLAKE_F64] = {DL_FLOAT, 64, 1},
		[GLAKE_I64] = {DL_INT, 64, 1},     [GLAKE_U64] = {DL_UINT, 64, 1},
	};
	size_t number = (size_t)dtype;
	return number < sizeof(types) / sizeof(types[0]) ? types[number] : (struct dl_type){0};
}

static void drop(struct DLManagedTensor *managed)
{
	struct exported *exported = (struct exported *)managed;
	glake__model_unref(exported->model);
	free(exported);
}

/* The first export makes the model hold its session: a tensor may outlive glake_disconnect(). */
static void mark_exported(struct glake_model *model)
{
	glake__lock();
	if (!model->is_exported) {
		model->is_exported = true;
		glake__session_ref(model->session);
	}
	glake__unlock();
	glake__model_ref(model);
}

static void describe(struct exported *exported, const struct glake_tensor *tensor)
{
	struct DLManagedTensor *managed = &exported->managed;
	managed->type = type_of(tensor->dtype);
	if (managed->type.bits == 0) {
		managed->type = (struct dl_type){DL_UINT, 8, 1};
	}
	managed->shape = exported->shape;
	if (glake_dtype_bits(tensor->dtype) % 8 != 0) {
		managed->n_dims = 1;
		exported->shape[0] = (int64_t)tensor->bytes;
		return;
	}
	managed->n_dims = (int32_t)tensor->n_dims;
	for (uint32_t i = 0; i < tensor->n_dims; i++) {
		exported->shape[i] = (int64_t)tensor->shape[i];
	}
	if (tensor->strides) {
		managed->strides = &exported->shape[tensor->n_dims];
		memcpy(managed->strides, tensor->strides, tensor->n_dims * sizeof(int64_t));
	}
}

int glake_model_dlpack(struct glake_model *model, uint64_t position,
                       struct DLManagedTensor **managed_out)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	int r = glake_model_tensor_at(model, position, &tensor);
	if (r == 0) {
		r = glake__session_check(model->session);
	}
	if (r < 0) {
		return r;
	}
	if (model->no_map) {
		return glake__fail(-EINVAL, "%s was opened without mapping it", model->name);
	}
	struct exported *exported = calloc(1, sizeof(*exported) +
	                                              (2 * tensor.n_dims + 1) * sizeof(int64_t));
	if (!exported) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	describe(exported, &tensor);
	exported->managed.data = (void *)(uintptr_t)tensor.ptr;
	exported->managed.device_type = DL_CUDA;
	exported->managed.device_id = model->device->public.ordinal;
	exported->managed.deleter = drop;
	exported->model = model;
	mark_exported(model);
	*managed_out = &exported->managed;
	return 0;
}
