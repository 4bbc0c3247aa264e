/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

#include <string.h>

static const struct {
	const char *symbol;
	int version;
	void *address;
} procs[] = {
#define CALL(NAME, VERSION, NEED) {#NAME, VERSION, (void *)NAME},
#include "calls.def"
#undef CALL
};

/* Is `name` the symbol without its _vN? */
static bool is_base_name(const char *symbol, const char *name)
{
	size_t n = strlen(symbol);

	if (n > 3 && symbol[n - 3] == '_' && symbol[n - 2] == 'v') {
		n -= 3;
	}
	return strlen(name) == n && strncmp(symbol, name, n) == 0;
}

static CUdriverProcAddressQueryResult proc_find(const char *name, int version, void **pfn_out)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	int best = -1;

	*pfn_out = NULL;
	for (size_t i = 0; i < sizeof(procs) / sizeof(procs[0]); i++) {
		if (!is_base_name(procs[i].symbol, name)) {
			continue;
		}
		if (procs[i].version > version) {
			if (!*pfn_out) {
				status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
			}
		} else if (procs[i].version > best) {
			best = procs[i].version;
			*pfn_out = procs[i].address;
			status = CU_GET_PROC_ADDRESS_SUCCESS;
		}
	}
	return status;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn_out, int version, cuuint64_t flags)
{
	ENTER(cuGetProcAddress);
	(void)flags;
	if (!symbol || !pfn_out || version > SIM_DRIVER_VERSION) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return proc_find(symbol, version, pfn_out) == CU_GET_PROC_ADDRESS_SUCCESS
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_NOT_FOUND;
}

/* As driver 580: a name it does not have is CUDA_SUCCESS with a NULL address. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn_out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status_out)
{
	ENTER(cuGetProcAddress_v2);
	(void)flags;
	if (!symbol || !pfn_out || version > SIM_DRIVER_VERSION) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUdriverProcAddressQueryResult status = proc_find(symbol, version, pfn_out);
	if (status_out) {
		*status_out = status;
	}
	return CUDA_SUCCESS;
}
