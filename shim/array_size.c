/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/array_size.h"

#include <stdbool.h>

/* A texel, or a block of @side x @side texels. */
struct texel {
	unsigned n_bytes;
	unsigned side;
};

static struct texel texel_of(const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	unsigned n_channels = descriptor->NumChannels;
	switch (descriptor->Format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return (struct texel){n_channels, 1};
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return (struct texel){2 * n_channels, 1};
	case CU_AD_FORMAT_BC1_UNORM:
	case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM:
	case CU_AD_FORMAT_BC4_SNORM:
		return (struct texel){8, 4};
	case CU_AD_FORMAT_BC2_UNORM:
	case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM:
	case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM:
	case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16:
	case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM:
	case CU_AD_FORMAT_BC7_UNORM_SRGB:
		return (struct texel){16, 4};
	case CU_AD_FORMAT_NV12: /* 1.5 bytes per texel */
		return (struct texel){6, 2};
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X1:
		return (struct texel){1, 1};
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X1:
		return (struct texel){2, 1};
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X4:
		return (struct texel){8, 1};
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X2:
		return (struct texel){4, 1};
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
	default: /* formats of later drivers: a guess */
		return (struct texel){4 * n_channels, 1};
	}
}

/* The extent of a mip level, in texels or blocks. A missing dimension is 0 in the descriptor. */
static uint64_t extent(uint64_t n, unsigned level, unsigned side)
{
	n = level < 64 ? n >> level : 0;
	n = n ? n : 1;
	return n / side + (n % side != 0);
}

static uint64_t times(uint64_t one, uint64_t two)
{
	uint64_t product;
	return __builtin_mul_overflow(one, two, &product) ? UINT64_MAX : product;
}

uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels)
{
	const unsigned backed_later = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
	const unsigned layered = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP;
	bool has_layers = descriptor->Flags & layered;
	struct texel texel = texel_of(descriptor);
	uint64_t total = 0;
	if (descriptor->Flags & backed_later) {
		return 0;
	}
	for (unsigned i = 0; i < n_levels; i++) {
		uint64_t n = times(extent(descriptor->Width, i, texel.side),
		                   extent(descriptor->Height, i, texel.side));
		n = times(n, extent(descriptor->Depth, has_layers ? 0 : i, 1));
		n = times(n, texel.n_bytes);
		total = total + n < total ? UINT64_MAX : total + n;
	}
	return total;
}
