/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of the machine (CUDASIM_DEVICES) and those that this process sees (CUDA_VISIBLE_DEVICES). */
#include "sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_SPEC "1x8GiB"

/* Written once, by cuInit. */
static uint64_t sizes[SIM_MAX_DEVICES];
static unsigned n_physical;
static unsigned visible[SIM_MAX_DEVICES];
static int n_visible;
static enum device_fabric fabric;
static uint64_t context_bytes;

const char *device_spec(void)
{
	const char *spec = getenv("CUDASIM_DEVICES");

	return spec && *spec ? spec : DEFAULT_SPEC;
}

bool device_parse_size(const char *text, uint64_t *bytes_out)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	char *unit;

	if (*text < '0' || *text > '9') {
		return false;
	}
	errno = 0;
	uint64_t n = strtoull(text, &unit, 10);
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(unit, units[i]) == 0) {
			*bytes_out = n << (10 * i);
			return errno == 0 && *bytes_out >> (10 * i) == n && n > 0;
		}
	}
	return false;
}

/* One item of the list: SIZE or NxSIZE. */
static bool parse_item(const char *text)
{
	unsigned long n = 1;
	const char *x = strchr(text, 'x');
	uint64_t bytes;

	if (x) {
		char *end;
		n = strtoul(text, &end, 10);
		if (end != x || end == text) {
			return false;
		}
		text = x + 1;
	}
	if (!device_parse_size(text, &bytes) || n == 0 || n > SIM_MAX_DEVICES - n_physical) {
		return false;
	}
	while (n-- > 0) {
		sizes[n_physical++] = bytes & ~(SIM_GRANULARITY - 1);
	}
	return true;
}

static bool parse_spec(void)
{
	char copy[256];
	char *rest = NULL;

	n_physical = 0;
	if (snprintf(copy, sizeof(copy), "%s", device_spec()) >= (int)sizeof(copy)) {
		return false;
	}
	for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
		if (!parse_item(item)) {
			return false;
		}
	}
	return n_physical > 0;
}

static bool parse_fabric(void)
{
	const char *text = getenv("CUDASIM_FABRIC");

	if (!text || strcmp(text, "0") == 0 || !*text) {
		fabric = FABRIC_NONE;
	} else if (strcmp(text, "denied") == 0) {
		fabric = FABRIC_DENIED;
	} else if (strcmp(text, "1") == 0) {
		fabric = FABRIC_PERMITTED;
	} else {
		return false;
	}
	return true;
}

void device_uuid(unsigned physical, uint8_t uuid_out[16])
{
	memcpy(uuid_out, "cudasim-uuid-\0\0", 15);
	uuid_out[13] = 0x9a;
	uuid_out[14] = 0x5e;
	uuid_out[15] = (uint8_t)physical;
}

/* Find a device by "GPU-" and enough of the UUID to tell the devices apart. */
static int find_by_uuid(const char *text)
{
	int found = -1;

	for (unsigned i = 0; i < n_physical; i++) {
		uint8_t u[16];
		char full[48];

		device_uuid(i, u);
		snprintf(full, sizeof(full),
		         "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		         u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
		         u[12], u[13], u[14], u[15]);
		if (strncasecmp(full, text, strlen(text)) == 0) {
			if (found >= 0) {
				return -1;
			}
			found = (int)i;
		}
	}
	return found;
}

static int find_visible(const char *item)
{
	char *end;

	if (strncmp(item, "GPU-", 4) == 0) {
		return find_by_uuid(item);
	}
	unsigned long n = strtoul(item, &end, 10);
	return end != item && *end == '\0' && *item != '-' && n < n_physical ? (int)n : -1;
}

/* The list ends at the first item that means no device, and the same device twice is an error, as with a driver. */
static CUresult parse_visible(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	char copy[1024];
	char *rest = NULL;

	n_visible = 0;
	if (!list) {
		while (n_visible < (int)n_physical) {
			visible[n_visible] = (unsigned)n_visible;
			n_visible++;
		}
		return CUDA_SUCCESS;
	}
	snprintf(copy, sizeof(copy), "%s", list);
	for (char *item = strtok_r(copy, ", ", &rest); item; item = strtok_r(NULL, ", ", &rest)) {
		int found = find_visible(item);
		if (found < 0) {
			break;
		}
		for (int i = 0; i < n_visible; i++) {
			if (visible[i] == (unsigned)found) {
				n_visible = 0;
				return CUDA_ERROR_INVALID_DEVICE;
			}
		}
		visible[n_visible++] = (unsigned)found;
	}
	return n_visible > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult device_init(void)
{
	if (!parse_spec()) {
		fprintf(stderr, "cudasim: CUDASIM_DEVICES: cannot understand \"%s\"\n",
		        device_spec());
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!parse_fabric()) {
		fprintf(stderr, "cudasim: CUDASIM_FABRIC must be 0, 1 or denied\n");
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!hostnode_init()) {
		fprintf(stderr, "cudasim: CUDASIM_HOST: cannot understand \"%s\"\n",
		        hostnode_spec());
		return CUDA_ERROR_INVALID_VALUE;
	}
	const char *overhead = getenv("CUDASIM_CONTEXT");
	if (overhead && *overhead && !device_parse_size(overhead, &context_bytes)) {
		fprintf(stderr, "cudasim: CUDASIM_CONTEXT: cannot understand \"%s\"\n", overhead);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return parse_visible();
}

int device_count(void)
{
	return n_visible;
}

bool device_is_valid(CUdevice dev)
{
	return dev >= 0 && dev < n_visible;
}

unsigned device_physical(CUdevice dev)
{
	return visible[dev];
}

int device_from_physical(unsigned physical)
{
	for (int i = 0; i < n_visible; i++) {
		if (visible[i] == physical) {
			return i;
		}
	}
	return -1;
}

uint64_t device_total_bytes(CUdevice dev)
{
	return sizes[visible[dev]];
}

uint64_t device_physical_bytes(unsigned physical)
{
	return sizes[physical];
}

uint64_t device_context_bytes(void)
{
	return (context_bytes + SIM_GRANULARITY - 1) & ~(SIM_GRANULARITY - 1);
}

enum device_fabric device_fabric(void)
{
	return fabric;
}

CUresult cuDeviceGetCount(int *n_out)
{
	ENTER(cuDeviceGetCount);
	if (!n_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*n_out = n_visible;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *dev_out, int ordinal)
{
	ENTER(cuDeviceGet);
	if (!dev_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(ordinal)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*dev_out = ordinal;
	return CUDA_SUCCESS;
}
