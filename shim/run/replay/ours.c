/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/ours.h"

#include <inttypes.h>

#include "glake.h"
#include "proto/clock.h"
#include "proto/cudrv.h"
#include "shim/run/replay/must.h"
#include "shim/run/replay/progress.h"

#define MIB (UINT64_C(1) << 20)

struct player {
	const struct ours *ours;
	const struct trace *trace;
	struct result *result;
	struct cudrv drv;
	struct glake_session *session;
	CUdevice device;
	CUcontext context; /* the device's primary one */
	CUstream *streams; /* owned, by the trace's index; NULL: not made */
	glake_ptr *ptrs;   /* owned, by allocation */
};

static int refuse(const struct player *player, const char *reason)
{
	progress_end();
	fprintf(stderr, "glake: %s: %s\n", player->ours->name, reason);
	return -1;
}

static int check(const struct player *player, CUresult result)
{
	return result == CUDA_SUCCESS ? 0 : refuse(player, cudrv_error(&player->drv, result));
}

static int open_device(struct player *player)
{
	const struct cudrv *drv = &player->drv;
	char error[256];
	if (cudrv_open(&player->drv, NULL, error, sizeof(error)) < 0) {
		return refuse(player, error);
	}
	if (check(player, drv->cuInit(0)) < 0 ||
	    check(player, drv->cuDeviceGet(&player->device, player->ours->ordinal)) < 0 ||
	    check(player, drv->cuDevicePrimaryCtxRetain(&player->context, player->device)) < 0 ||
	    check(player, drv->cuCtxSetCurrent(player->context)) < 0) {
		return -1;
	}
	for (uint32_t i = 0; i < player->trace->n_streams; i++) {
		CUstream *stream = &player->streams[i];
		if (check(player, drv->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING)) < 0) {
			return -1;
		}
	}
	return 0;
}

static int connect_to_daemon(struct player *player)
{
	const struct glake_connect_options options = {
		.size = sizeof(options),
		.socket_path = player->ours->socket_path,
		.program = "glake replay",
		.stitch = player->ours->stitch,
	};
	return glake_connect(&options, &player->session) < 0 ? refuse(player, glake_error()) : 0;
}

static int play_event(struct player *player, const struct trace_event *event)
{
	CUstream stream = player->streams[event->stream];
	glake_ptr *ptr = &player->ptrs[event->allocation];
	uint64_t begin_ns = clock_now_ns();
	int r = event->n_bytes ? glake_alloc_async(player->session, stream, event->n_bytes, 0, ptr)
	                       : glake_free_async(player->session, stream, *ptr, 0);
	player->result->time_ns += clock_now_ns() - begin_ns;
	if (r < 0) {
		char reason[512];
		snprintf(reason, sizeof(reason), "line %" PRIu64 " of the trace: %s", event->line,
		         glake_error());
		return refuse(player, reason);
	}
	return 0;
}

static int play_events(struct player *player)
{
	const struct trace *trace = player->trace;
	struct result *result = player->result;
	struct glake_usage usage = {.size = sizeof(usage)};
	for (size_t i = 0; i < trace->n_events; i++) {
		progress_show(player->ours->name, i, trace->n_events);
		if (play_event(player, &trace->events[i]) < 0) {
			return -1;
		}
		glake_usage(player->session, &usage);
		if (usage.reserved_bytes > result->peak_reserved_bytes) {
			result->peak_reserved_bytes = usage.reserved_bytes;
		}
	}
	return 0;
}

/* A session that does not stitch counts no driver calls. */
static void read_counts(struct player *player)
{
	struct glake_pool_stats stats = {.size = sizeof(stats)};
	struct result *result = player->result;
	int index = glake_device_index(player->session, player->ours->ordinal);
	if (index >= 0 && glake_pool_stats(player->session, (uint32_t)index, &stats) == 0) {
		result->n_made = stats.n_mapped;
		result->n_freed = stats.n_unmapped;
	}
	result->smallest_bytes = (result->peak_reserved_bytes + MIB - 1) / MIB * MIB;
}

/* The session unmaps what still lives; its streams' context must outlive it. */
static void end(struct player *player)
{
	if (player->session) {
		player->drv.cuCtxSynchronize();
		glake_disconnect(player->session);
	}
	for (uint32_t i = 0; i < player->trace->n_streams && player->streams[i]; i++) {
		player->drv.cuStreamDestroy(player->streams[i]);
	}
	if (player->context) {
		player->drv.cuDevicePrimaryCtxRelease(player->device);
	}
	free(player->streams);
	free(player->ptrs);
}

int ours_play(const struct ours *ours, const struct trace *trace, struct result *result_out)
{
	struct player player = {
		.ours = ours,
		.trace = trace,
		.result = result_out,
		.streams = must_calloc(trace->n_streams, sizeof(CUstream)),
		.ptrs = must_calloc(trace->n_allocations, sizeof(glake_ptr)),
	};
	*result_out = (struct result){.name = ours->name};
	int r = open_device(&player);
	if (r == 0) {
		r = connect_to_daemon(&player);
	}
	if (r == 0) {
		r = play_events(&player);
	}
	if (r == 0) {
		read_counts(&player);
	}
	end(&player);
	return r;
}
