/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

struct error_text {
	CUresult code;
	const char *name;
	const char *text;
};

static const struct error_text error_texts[] = {
#define ERR(CODE, NAME, TEXT) {CODE, #NAME, TEXT},
#include "errors.def"
#undef ERR
};

static const struct error_text *error_find(CUresult code)
{
	for (size_t i = 0; i < sizeof(error_texts) / sizeof(error_texts[0]); i++) {
		if (error_texts[i].code == code) {
			return &error_texts[i];
		}
	}
	return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **name_out)
{
	ENTER(cuGetErrorName);
	if (!name_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	const struct error_text *found = error_find(error);
	*name_out = found ? found->name : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text_out)
{
	ENTER(cuGetErrorString);
	if (!text_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	const struct error_text *found = error_find(error);
	*text_out = found ? found->text : NULL;
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
