/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/node.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/limits.h"

/* The highest number that is looked for: that of the largest kernels. */
#define MAX_NUMBER 1023u

/* Without a limit in the configuration, 1 / DEFAULT_PART of a node's memory may be given out. */
#define DEFAULT_PART 4u

static FILE *open_file(const char *sysfs, uint32_t number, const char *name)
{
	char path[512];
	snprintf(path, sizeof(path), "%s/node%u/%s", sysfs, number, name);
	return fopen(path, "re");
}

/* "Node 0 MemTotal:       16869592 kB"; 0: it has none, or there is no such node. */
static uint64_t read_total(const char *sysfs, uint32_t number)
{
	char line[128];
	uint64_t kib = 0;
	FILE *file = open_file(sysfs, number, "meminfo");
	if (!file) {
		return 0;
	}
	while (fgets(line, sizeof(line), file) &&
	       sscanf(line, "Node %*u MemTotal: %" SCNu64 " kB", &kib) != 1) {
	}
	fclose(file);
	return kib * 1024;
}

static bool has_processors(const char *sysfs, uint32_t number)
{
	char list[16] = "";
	FILE *file = open_file(sysfs, number, "cpulist");
	if (!file) {
		return false;
	}
	bool has = fgets(list, sizeof(list), file) && list[0] >= '0' && list[0] <= '9';
	fclose(file);
	return has;
}

static uint64_t machine_bytes(void)
{
	struct sysinfo info;
	return sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : 0;
}

/*
 * The only node has all memory of the machine. A virtual machine that gets its memory when it is used says less of the node
 * than of itself.
 */
static void correct_only_node(struct node *node)
{
	uint64_t bytes = machine_bytes();
	node->total_bytes = bytes > node->total_bytes ? bytes : node->total_bytes;
}

/* The nodes that count, by number. @sysfs NULL: NODE_SYSFS. Returns how many. */
static size_t node_list(const char *sysfs, struct node nodes_out[NODE_MAX])
{
	const bool is_this_machine = !sysfs;
	size_t n = 0;
	sysfs = sysfs ? sysfs : NODE_SYSFS;
	for (uint32_t number = 0; number <= MAX_NUMBER && n < NODE_MAX; number++) {
		uint64_t bytes = read_total(sysfs, number);
		if (bytes > 0 && has_processors(sysfs, number)) {
			nodes_out[n++] = (struct node){.number = number, .total_bytes = bytes};
		}
	}
	if (n == 1 && is_this_machine) {
		correct_only_node(&nodes_out[0]);
	}
	if (n == 0 && access(sysfs, F_OK) != 0 && machine_bytes() > 0) {
		nodes_out[n++] = (struct node){.total_bytes = machine_bytes()};
	}
	return n;
}

static CUresult try_node(struct location *at, const struct cudrv *drv, const struct node *node,
                         uint64_t usable_bytes)
{
	int fd = -1;
	*at = (struct location){
		.kind = LOCATION_HOST,
		.number = node->number,
		.drv = drv,
		.total_bytes = node->total_bytes,
		.usable_bytes = usable_bytes < node->total_bytes ? usable_bytes : node->total_bytes,
		.properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                       .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                       .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA,
	                                    .id = (int)node->number}},
	};
	CUresult result = location_make_chunk(at, GLAKE_CHUNK_GRANULARITY, &fd, NULL);
	fd_close(&fd);
	return result;
}

static void open_node(struct nodes *nodes, const struct cudrv *drv, const struct node *node,
                      uint64_t usable_bytes)
{
	struct location *at = &nodes->at[nodes->n];
	if (usable_bytes < GLAKE_CHUNK_GRANULARITY) {
		snprintf(nodes->lacking, sizeof(nodes->lacking), "node %u: host_bytes allows none",
		         node->number);
		return;
	}
	CUresult result = try_node(at, drv, node, usable_bytes);
	if (result != CUDA_SUCCESS) {
		snprintf(nodes->lacking, sizeof(nodes->lacking), "node %u: %s", node->number,
		         cudrv_error(drv, result));
		return;
	}
	nodes->n++;
	log_info("host node %u: %.1f GiB, of which %.1f GiB may be given out", node->number,
	         (double)at->total_bytes / (1 << 30), (double)at->usable_bytes / (1 << 30));
}

static bool has_host_chunks(const struct cudrv *drv, CUdevice device)
{
	int value = 0;
	CUresult result = drv->cuDeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
	return result == CUDA_SUCCESS && value != 0;
}

void nodes_open(struct nodes *nodes, const struct cudrv *drv, CUdevice device,
                const struct config_sizes *host_bytes, const char *sysfs)
{
	struct node list[NODE_MAX];
	*nodes = (struct nodes){0};
	if (has_host_chunks(drv, device)) {
		size_t n = node_list(sysfs, list);
		for (uint32_t i = 0; i < n; i++) {
			open_node(nodes, drv, &list[i],
			          host_bytes->n > 0 ? config_sizes_at(host_bytes, i)
			                            : list[i].total_bytes / DEFAULT_PART);
		}
	} else {
		snprintf(nodes->lacking, sizeof(nodes->lacking),
		         "the driver has no chunks in host memory");
	}
	if (nodes->lacking[0]) {
		log_info("not all host memory can be given out: %s", nodes->lacking);
	}
}

void nodes_close(struct nodes *nodes)
{
	for (uint32_t i = 0; i < nodes->n; i++) {
		location_close(&nodes->at[i]);
	}
	nodes->n = 0;
}
