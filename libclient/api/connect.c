/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of a session: the only part that knows all the others. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "libclient/api/connect.h"
#include "libclient/link/call.h"
#include "libclient/link/fork.h"
#include "libclient/link/promise.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/link/sized.h"
#include "libclient/link/socket.h"
#include "libclient/heap/async.h"
#include "libclient/seal/block.h"
#include "libclient/heap/heap.h"
#include "libclient/api/placed.h"
#include "libclient/sleep/asked.h"
#include "libclient/sleep/party.h"
#include "libclient/sleep/slept_free.h"
#include "libclient/sleep/wake.h"
#include "libclient/space/space.h"
#include "libclient/heap/elastic_calls.h"
#include "libclient/heap/supply.h"
#include "libclient/heap/usage.h"

#define DEFAULT_SOCKET_PATH "/run/glake/glaked.sock"

static const char *socket_path(const struct glake_connect_options *options)
{
	const char *path = options->socket_path;
	if (!path) {
		path = secure_getenv("GLAKE_SOCKET");
	}
	return path && *path ? path : DEFAULT_SOCKET_PATH;
}

/* ---- the driver ------------------------------------------------------------------------------- */

/* Find each device of the daemon among those that the driver shows this process, by UUID. */
static int find_ordinals(struct glake_session *session)
{
	const struct cudrv *drv = &session->drv;
	int n_visible = 0;
	CUresult result = drv->cuDeviceGetCount(&n_visible);
	for (int ordinal = 0; result == CUDA_SUCCESS && ordinal < n_visible; ordinal++) {
		CUdevice handle;
		CUuuid uuid;
		result = drv->cuDeviceGet(&handle, ordinal);
		if (result == CUDA_SUCCESS) {
			result = drv->cuDeviceGetUuid(&uuid, handle);
		}
		for (uint32_t i = 0; result == CUDA_SUCCESS && i < session->n_devices; i++) {
			struct glake__device *device = &session->devices[i];
			if (handle < GLAKE__MAX_DEVICES &&
			    memcmp(device->public.uuid, uuid.bytes, sizeof(uuid.bytes)) == 0) {
				device->public.ordinal = ordinal;
				device->handle = handle;
			}
		}
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cannot list the CUDA devices: %s",
		                   cudrv_error(drv, result));
	}
	return 0;
}

static int open_driver(struct glake_session *session, const char *libcuda)
{
	char text[512] = "";
	if (cudrv_open(&session->drv, libcuda, text, sizeof(text)) < 0) {
		return glake__fail(GLAKE_E_NO_DRIVER, "%s", text);
	}
	CUresult result = session->drv.cuInit(0);
	if (result == CUDA_ERROR_NO_DEVICE) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the CUDA driver sees no device");
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuInit: %s", cudrv_error(&session->drv, result));
	}
	session->has_driver = true;
	return 0;
}

static bool wants_stitching(const struct glake_connect_options *options)
{
	const char *alloc = secure_getenv("GLAKE_ALLOC");
	return options->stitch || (alloc && strcmp(alloc, "stitch") == 0);
}

/* ---- connecting ------------------------------------------------------------------------------- */

/* glaked waits for the answer: another session may wait for this memory. */
static void reclaim(void *user, uint32_t device, uint64_t n_bytes, uint64_t id)
{
	struct glake_session *session = user;
	glake__supply_reclaim(session, device, n_bytes);
	glake__usage_answer(session, id);
}

static int session_new(const struct glake_connect_options *options, const uint8_t *key,
                       unsigned timeout_ms, struct glake_session **session_out)
{
	cleanup_free struct glake_session *session = calloc(1, sizeof(*session));
	if (!session) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__link_open(&session->link, socket_path(options), !options->no_cuda,
	                         timeout_ms);
	if (r < 0) {
		return r;
	}
	memcpy(session->link.key, key, sizeof(session->link.key));
	session->link.reclaim = reclaim;
	session->link.reclaim_user = session;
	session->report = glake__usage_report;
	session->stitches = wants_stitching(options);
	session->settle = session->stitches ? glake__supply_settle : NULL;
	session->wake = glake__wake_plainly;
	session->free_asleep = glake__sleep_free;
	session->n_refs = 1;
	glake__space_begin();
	pthread_mutex_init(&session->usage_lock, NULL);
	pthread_mutex_init(&session->promise_lock, NULL);
	pthread_mutex_init(&session->sleep_lock, NULL);
	*session_out = ptr_steal(session);
	return 0;
}

/* The driver last: it takes 100 ms and more to start, and the daemon waits for our Hello. */
static int greet(struct glake_session *session, const struct glake_connect_options *options)
{
	int r = glake__rpc_hello(session, options->program, options->only_looks != 0);
	if (r == 0) {
		r = glake__heap_init(session);
	}
	if (r == 0) {
		r = glake__promise_init(session, options->promise);
	}
	if (r < 0 || options->no_cuda) {
		return r;
	}
	r = open_driver(session, options->libcuda);
	if (r == 0) {
		r = find_ordinals(session);
	}
	if (r == 0) {
		glake__space_open(&session->drv);
		glake__heap_open_pools(session);
	}
	return r;
}

/* Asks for the promises of all devices that the process sees; without the driver, of all. */
static int ensure_promises(struct glake_session *session)
{
	int r = 0;
	for (uint32_t i = 0; r == 0 && i < session->n_devices; i++) {
		const struct glake_device *device = &session->devices[i].public;
		bool is_seen = !session->has_driver || device->ordinal >= 0;
		r = is_seen ? glake__promise_ensure(session, device->index) : 0;
	}
	return r;
}

/* Promises that the options ask for are made before anything else. */
static int begin(struct glake_session *session, const struct glake_connect_options *options)
{
	int r = greet(session, options);
	return r == 0 && options->promise ? ensure_promises(session) : r;
}

/* *is_lost_out: glaked may have made a session, whose answer was lost. */
static int connect_once(const struct glake_connect_options *options, const uint8_t *key,
                        unsigned timeout_ms, struct glake_session **session_out, bool *is_lost_out)
{
	struct glake_session *session = NULL;
	*is_lost_out = false;
	int r = session_new(options, key, timeout_ms, &session);
	if (r < 0) {
		return r;
	}
	r = begin(session, options);
	if (r < 0) {
		*is_lost_out = r == GLAKE_E_GONE && session->link.state != GLAKE__LINK_OPEN;
		glake__link_leave(&session->link);
		glake__heap_deinit(session);
		glake__session_unref(session);
		return r;
	}
	glake__party_join(session);
	*session_out = session;
	return 0;
}

/*
 * The key of a session that glaked may have made for nobody: the next to connect takes it. No lock, since a child of
 * fork() would inherit it locked: one that is being copied there is left alone.
 */
enum { NO_KEY, COPIED_KEY, HAS_KEY };
static _Atomic int spare_state;
static uint8_t spare_key[GLAKE_KEY_BYTES];

/* Whether it was @state, and is ours to copy. */
static bool claim_spare(int state)
{
	return atomic_compare_exchange_strong(&spare_state, &state, COPIED_KEY);
}

static int take_key(uint8_t *key)
{
	if (claim_spare(HAS_KEY)) {
		memcpy(key, spare_key, GLAKE_KEY_BYTES);
		spare_state = NO_KEY;
		return 0;
	}
	return getrandom(key, GLAKE_KEY_BYTES, 0) == GLAKE_KEY_BYTES
	               ? 0
	               : glake__fail(-errno, "no random numbers");
}

static void spare(const uint8_t *key)
{
	if (claim_spare(NO_KEY)) {
		memcpy(spare_key, key, GLAKE_KEY_BYTES);
		spare_state = HAS_KEY;
	}
}

int glake__connect(const struct glake_connect_options *options, unsigned timeout_ms,
                   struct glake_session **session_out)
{
	struct glake_connect_options full;
	uint8_t key[GLAKE_KEY_BYTES];
	int r = glake__sized_in(options, &full, sizeof(full));
	if (r == 0) {
		r = take_key(key);
	}
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	uint64_t end_ns = clock_now_ns() + timeout_ms * 1000000ull;
	bool is_lost;
	r = connect_once(&full, key, timeout_ms, session_out, &is_lost);
	if (is_lost && clock_now_ns() < end_ns) {
		/* glaked is being restarted, perhaps. */
		r = connect_once(&full, key, timeout_ms, session_out, &is_lost);
	}
	if (is_lost) {
		spare(key);
	}
	/* Under the shim that is its concern. */
	if (r == 0 && full.sleep_when_asked && !glake__party_is_all()) {
		glake__asked_begin(*session_out);
	}
	return r;
}

int glake__promise_device(struct glake_session *session, uint32_t index)
{
	int r = glake__session_check(session);
	return r < 0 ? r : glake__promise_ensure(session, index);
}

int glake_connect(const struct glake_connect_options *options, struct glake_session **session_out)
{
	return glake__connect(options, glake__patience.hello_ms, session_out);
}

void glake_disconnect(struct glake_session *session)
{
	if (!session) {
		return;
	}
	session->is_forked = session->link.fork_generation != glake__fork_generation();
	const struct glake__elastic_calls *elastic = session->elastic_calls;
	if (elastic) {
		elastic->stop(session);
	}
	/* First of what is here, as calls that have entered the session may wait for what is asleep. */
	glake__sleep_end(session);
	if (!session->is_forked) {
		glake__heap_wait_left(session);
	}
	session->is_closing = true;
	if (session->end_models) {
		session->end_models(session);
	}
	if (elastic) {
		elastic->end(session);
	}
	glake__blocks_deinit(session);
	glake__placed_deinit(session);
	glake__async_deinit(session);
	glake__heap_deinit(session);
	if (!session->is_forked) {
		/* A forked child may hold the socket as well: closing ours would not end it. */
		glake__link_leave(&session->link);
	}
	glake__session_unref(session);
}
