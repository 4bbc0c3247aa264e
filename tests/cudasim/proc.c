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

/* How many characters the symbol has before _ptsz or _ptds. */
static size_t unsuffixed(const char *symbol)
{
	size_t n = strlen(symbol);

	return n > 5 && (!strcmp(symbol + n - 5, "_ptsz") || !strcmp(symbol + n - 5, "_ptds"))
	               ? n - 5
	               : n;
}

/* Is `name` the symbol without its _vN and suffix? */
static bool is_base_name(const char *symbol, const char *name)
{
	size_t n = unsuffixed(symbol);

	if (n > 3 && symbol[n - 3] == '_' && symbol[n - 2] == 'v') {
		n -= 3;
	}
	return strlen(name) == n && strncmp(symbol, name, n) == 0;
}

/* The best version among those with a suffix, or those without one. */
static CUdriverProcAddressQueryResult find_best(const char *name, int version, bool has_suffix,
                                                void **pfn_out)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	int best = -1;

	*pfn_out = NULL;
	for (size_t i = 0; i < sizeof(procs) / sizeof(procs[0]); i++) {
		const char *symbol = procs[i].symbol;
		if (!is_base_name(symbol, name) ||
		    (symbol[unsuffixed(symbol)] != 0) != has_suffix) {
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

static CUdriverProcAddressQueryResult proc_find(const char *name, int version, cuuint64_t flags,
                                                void **pfn_out)
{
	if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM &&
	    find_best(name, version, true, pfn_out) == CU_GET_PROC_ADDRESS_SUCCESS) {
		return CU_GET_PROC_ADDRESS_SUCCESS;
	}
	return find_best(name, version, false, pfn_out);
}

CUresult cuGetProcAddress(const char *symbol, void **pfn_out, int version, cuuint64_t flags)
{
	ENTER(cuGetProcAddress);
	if (!symbol || !pfn_out || version > SIM_DRIVER_VERSION) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return proc_find(symbol, version, flags, pfn_out) == CU_GET_PROC_ADDRESS_SUCCESS
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_NOT_FOUND;
}

/* An unknown name gives CUDA_SUCCESS and a NULL address, as with driver 580. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn_out, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status_out)
{
	ENTER(cuGetProcAddress_v2);
	if (!symbol || !pfn_out || version > SIM_DRIVER_VERSION) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUdriverProcAddressQueryResult status = proc_find(symbol, version, flags, pfn_out);
	if (status_out) {
		*status_out = status;
	}
	return CUDA_SUCCESS;
}
