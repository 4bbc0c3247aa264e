/* SPDX-License-Identifier: Apache-2.0 */
/* The host's NUMA nodes (CUDASIM_HOST), and the time that calls about their chunks take (CUDASIM_HOST_COST). */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Milliseconds for each GiB, as on an H200 with driver 580. */
static const double cost_ms[] = {
	[HOST_COST_CREATE] = 290, [HOST_COST_RELEASE] = 28,    [HOST_COST_GPU_ACCESS] = 8.5,
	[HOST_COST_UNMAP] = 2,    [HOST_COST_CPU_ACCESS] = 17,
};

/* Written once, by cuInit. */
static uint64_t sizes[SIM_MAX_NODES]; /* 0: without a limit */
static unsigned n_nodes;
static bool is_slow;

const char *hostnode_spec(void)
{
	const char *spec = getenv("CUDASIM_HOST");

	return spec && *spec ? spec : "1xany";
}

static bool parse_item(const char *text)
{
	unsigned n = 1;
	int n_read = 0;
	uint64_t bytes = 0;

	if (sscanf(text, "%ux%n", &n, &n_read) != 1 || n_read == 0) {
		n = 1;
	}
	text += n_read;
	if (strcmp(text, "any") != 0 && !device_parse_size(text, &bytes)) {
		return false;
	}
	if (n == 0 || n > SIM_MAX_NODES - n_nodes) {
		return false;
	}
	while (n-- > 0) {
		sizes[n_nodes++] = bytes & ~(SIM_GRANULARITY - 1);
	}
	return true;
}

static bool parse_spec(void)
{
	char copy[256];
	char *rest = NULL;

	n_nodes = 0;
	if (strcmp(hostnode_spec(), "none") == 0) {
		return true;
	}
	if (snprintf(copy, sizeof(copy), "%s", hostnode_spec()) >= (int)sizeof(copy)) {
		return false;
	}
	for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
		if (!parse_item(item)) {
			return false;
		}
	}
	return n_nodes > 0;
}

bool hostnode_init(void)
{
	const char *cost = getenv("CUDASIM_HOST_COST");

	is_slow = cost && *cost && strcmp(cost, "0") != 0;
	return parse_spec();
}

bool hostnode_is_supported(void)
{
	return n_nodes > 0;
}

bool hostnode_is_valid(int node)
{
	return node >= 0 && node < (int)n_nodes;
}

uint64_t hostnode_bytes(unsigned node)
{
	return sizes[node];
}

void hostnode_pay(enum host_cost cost, uint64_t bytes)
{
	if (!is_slow) {
		return;
	}
	uint64_t ns = (uint64_t)(cost_ms[cost] * 1e6 * (double)bytes / (double)(1ull << 30));
	struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u),
	                        .tv_nsec = (long)(ns % 1000000000u)};
	while (nanosleep(&left, &left) != 0) {
	}
}
