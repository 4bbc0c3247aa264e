/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doctor's look at host memory as a tier: what glaked was promised and what the node has, and what makes programs that
 * sleep slow, or keeps them from sleeping.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/doctor.h"
#include "ctl/memory.h"
#include "ctl/text.h"
#include "glake_admin.h"

/* Below this the manifests of glaked and what glake-mover pins leave it no room to be sure of. */
#define LOW_MEMORY (2ull << 30)

struct size_text {
	char text[TEXT_NUMBER_BYTES];
};

static struct size_text size(uint64_t bytes)
{
	struct size_text size;
	text_size(bytes, size.text);
	return size;
}

/* ---- what a node has -------------------------------------------------------------------------- */

struct node_memory {
	uint64_t total_bytes;
	uint64_t available_bytes; /* free, or of the page cache */
};

/* False: this is no host that has the node. */
static bool read_node(const char *sysfs, uint32_t node, struct node_memory *memory_out)
{
	char path[512];
	char line[256];
	snprintf(path, sizeof(path), "%s/node%" PRIu32 "/meminfo", sysfs, node);
	FILE *file = fopen(path, "re");
	*memory_out = (struct node_memory){.total_bytes = 0};
	while (file && fgets(line, sizeof(line), file)) {
		char name[64];
		uint64_t n_kib;
		if (sscanf(line, "Node %*u %63[^:]: %" SCNu64 " kB", name, &n_kib) != 2) {
			continue;
		}
		if (strcmp(name, "MemTotal") == 0) {
			memory_out->total_bytes = n_kib * 1024;
		} else if (strcmp(name, "MemFree") == 0 || strcmp(name, "Active(file)") == 0 ||
		           strcmp(name, "Inactive(file)") == 0) {
			memory_out->available_bytes += n_kib * 1024;
		}
	}
	if (file) {
		fclose(file);
	}
	return memory_out->total_bytes > 0;
}

/* ---- what glaked may take of it --------------------------------------------------------------- */

static const char limit_remedy[] =
	"host_bytes: leave a part of the node to its programs and to the page cache, from which "
	"models are loaded; what glaked has is pinned";

static void check_host(struct findings *findings, const struct glake_host_status *host,
                       const char *sysfs)
{
	struct node_memory memory;
	uint64_t more_bytes = memory_without(host->limit_bytes, host->physical_bytes);
	/* In a container, or a simulation, these are somebody else's numbers. */
	bool is_known = read_node(sysfs, host->node, &memory) &&
	                memory.total_bytes == host->total_bytes;
	if (host->limit_bytes > host->total_bytes / 10 * 9) {
		finding_add(findings, "host", FINDING_WARNING, limit_remedy,
		            "node %" PRIu32 ": glaked may take %s of %s", host->node,
		            size(host->limit_bytes).text, size(host->total_bytes).text);
	} else if (is_known && more_bytes > memory.available_bytes) {
		finding_add(findings, "host", FINDING_WARNING, limit_remedy,
		            "node %" PRIu32 ": glaked may take %s more, and the node has %s",
		            host->node, size(more_bytes).text, size(memory.available_bytes).text);
	} else if (host->ready_bytes > host->limit_bytes) {
		finding_add(findings, "host", FINDING_WARNING,
		            "host_ready_bytes is a part of host_bytes: lower it, or raise that",
		            "node %" PRIu32 ": %s are to be kept ready, and glaked may take %s",
		            host->node, size(host->ready_bytes).text, size(host->limit_bytes).text);
	} else {
		finding_add(findings, "host", FINDING_OK, NULL,
		            "node %" PRIu32 ": glaked has %s, and may take %s of %s", host->node,
		            size(host->physical_bytes).text, size(host->limit_bytes).text,
		            size(host->total_bytes).text);
	}
}

void doctor_check_hosts(struct findings *findings, const struct glake_status *status,
                        const char *sysfs)
{
	bool is_wanted = status->sleeps_idle || status->sleeps_on_pressure;
	const char *why = status->hosts_lacking && *status->hosts_lacking ? status->hosts_lacking
	                                                                  : "no node has any";
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		check_host(findings, &status->hosts[i], sysfs);
	}
	if (status->n_hosts == 0) {
		finding_add(findings, "host", is_wanted ? FINDING_WARNING : FINDING_NOTE,
		            "host_bytes; a driver with chunks in host memory (CUDA 12.2 or newer)",
		            "programs cannot sleep, nor models leave the GPU: %s", why);
	}
}

/* ---- the policy ------------------------------------------------------------------------------- */

static bool has_ready(const struct glake_status *status)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < status->n_hosts; i++) {
		bytes |= status->hosts[i].ready_bytes;
	}
	return bytes > 0;
}

void doctor_check_sleep(struct findings *findings, const struct glake_status *status)
{
	if (!status->sleeps_idle && !status->sleeps_on_pressure) {
		finding_add(findings, "sleep", FINDING_OK, NULL,
		            "no program is put to sleep by itself");
		return;
	}
	uint32_t n_before = (uint32_t)findings->list.n;
	if (status->mover_idle_ms > 0) {
		finding_add(findings, "sleep", FINDING_NOTE,
		            "mover_idle_ms = 0: it then keeps some 500 MiB of the GPU",
		            "glake-mover ends when it has nothing to do for %" PRIu64
		            " ms: who sleeps or wakes next waits a second for it to start",
		            status->mover_idle_ms);
	}
	if (status->sleeps_on_pressure && !status->waits) {
		finding_add(findings, "sleep", FINDING_NOTE, "pressure = \"wait\", and wait_ms",
		            "on_pressure = \"sleep\" without pressure = \"wait\": a request for "
		            "which nobody can sleep in this moment is refused at once");
	}
	if (!has_ready(status) && status->n_hosts > 0) {
		finding_add(findings, "sleep", FINDING_NOTE,
		            "host_ready_bytes: as much as programs have that sleep together",
		            "no host memory is made ahead: each GiB that goes to sleep waits 0.3 s "
		            "for it");
	}
	if (findings->list.n == n_before) {
		finding_add(findings, "sleep", FINDING_OK, NULL, "programs are put to sleep %s",
		            !status->sleeps_on_pressure ? "when they are idle"
		            : !status->sleeps_idle      ? "when others need their memory"
		                                        : "when they are idle, or others need "
		                                          "their memory");
	}
}

/* ---- what glaked itself may use --------------------------------------------------------------- */

/* The limit of one group; UINT64_MAX: none. */
static uint64_t group_limit(const char *root, const char *group)
{
	char path[8192];
	char text[64];
	snprintf(path, sizeof(path), "%s%s/memory.max", root, group);
	doctor_read_line(path, "", text, sizeof(text));
	return *text >= '0' && *text <= '9' ? strtoull(text, NULL, 10) : UINT64_MAX;
}

void doctor_check_memory(struct findings *findings, const char *cgroup, const char *root)
{
	char line[4096];
	uint64_t limit = UINT64_MAX;
	doctor_read_line(cgroup, "0::/", line, sizeof(line));
	/* That of each group above holds as well. */
	for (char *end = line + strlen(line); end > line + 3; end = strrchr(line, '/')) {
		*end = '\0';
		uint64_t own = group_limit(root, line + 3);
		limit = own < limit ? own : limit;
	}
	if (limit < LOW_MEMORY) {
		finding_add(findings, "memory", FINDING_WARNING,
		            "MemoryMax= of glaked.service, or the container's: for manifests and "
		            "what glake-mover pins. Host memory that glaked gives out does not "
		            "count in it: that is host_bytes",
		            "the cgroup of glaked and glake-mover may use %s", size(limit).text);
	}
}
