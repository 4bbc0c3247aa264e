/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/rpc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "libclient/link/call.h"
#include "libclient/link/process.h"
#include "libclient/link/resume.h"
#include "libclient/link/socket.h"

/* The time between two looks whether an answer is still wanted. */
#define UNWANTED_MS 1u
#define STOPPED_MS 50u

/* ---- hello ------------------------------------------------------------------------------------ */

static void copy_text(char *to, size_t capacity, const char *from)
{
	size_t n_bytes = strnlen(from ? from : "", capacity - 1);
	memcpy(to, from ? from : "", n_bytes);
	to[n_bytes] = '\0';
}

static int take_devices(struct glake_session *session, const Glake__Wire__HelloAnswer *hello)
{
	struct glake__device *devices = calloc(hello->n_devices + 1, sizeof(*devices));
	if (!devices) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < hello->n_devices; i++) {
		const Glake__Wire__Device *from = hello->devices[i];
		struct glake_device *to = &devices[i].public;
		to->index = from->index;
		to->ordinal = -1;
		to->total_bytes = from->total_bytes;
		to->quota_bytes = from->quota_bytes;
		copy_text(to->name, sizeof(to->name), from->name);
		if (from->uuid.len == sizeof(to->uuid)) {
			memcpy(to->uuid, from->uuid.data, sizeof(to->uuid));
		}
		devices[i].session = session;
	}
	session->devices = devices;
	session->n_devices = (uint32_t)hello->n_devices;
	return 0;
}

static int take_hosts(struct glake_session *session, const Glake__Wire__HelloAnswer *hello)
{
	struct glake__host *hosts = calloc(hello->n_hosts + 1, sizeof(*hosts));
	if (!hosts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < hello->n_hosts; i++) {
		hosts[i] = (struct glake__host){.node = hello->hosts[i]->node,
		                                .total_bytes = hello->hosts[i]->total_bytes,
		                                .limit_bytes = hello->hosts[i]->limit_bytes,
		                                .quota_bytes = hello->hosts[i]->quota_bytes};
	}
	session->hosts = hosts;
	session->n_hosts = (uint32_t)hello->n_hosts;
	session->link.has_hosts = hello->n_hosts > 0;
	session->link.knows_spare = hello->knows_spare;
	return 0;
}

/* Without memory for the words the program is not to be sealed by itself. */
static void take_doubts(struct glake_session *session, const Glake__Wire__HelloAnswer *hello)
{
	copy_text(session->doubt, sizeof(session->doubt), hello->doubt);
	session->doubted = calloc(hello->n_doubted + 1, sizeof(*session->doubted));
	if (!session->doubted) {
		copy_text(session->doubt, sizeof(session->doubt), "out of memory");
		return;
	}
	/* An empty list is NULL. */
	for (; session->n_doubted < hello->n_doubted; session->n_doubted++) {
		session->doubted[session->n_doubted] = hello->doubted[session->n_doubted];
	}
}

static int take_hello(struct glake_session *session, const Glake__Wire__HelloAnswer *hello)
{
	if (hello->version != GLAKE_WIRE_VERSION) {
		return glake__fail(GLAKE_E_VERSION,
		                   "the daemon speaks protocol %u, this library speaks %u",
		                   hello->version, GLAKE_WIRE_VERSION);
	}
	session->id = hello->session;
	if (hello->key.len == sizeof(session->link.key)) {
		memcpy(session->link.key, hello->key.data, sizeof(session->link.key));
		session->link.has_key = true;
	}
	session->is_admin = hello->admin;
	session->warm_bytes = hello->warm_bytes;
	/* Words of a later glaked are not followed. */
	session->dedup = hello->dedup == GLAKE__WIRE__DEDUP__DEDUP_AUTO ? GLAKE__DEDUP_AUTO
	                 : hello->dedup == GLAKE__WIRE__DEDUP__DEDUP_OBSERVED
	                         ? GLAKE__DEDUP_OBSERVED
	                         : GLAKE__DEDUP_OFF;
	copy_text(session->tenant, sizeof(session->tenant), hello->tenant);
	copy_text(session->realm, sizeof(session->realm), hello->realm);
	copy_text(session->daemon_version, sizeof(session->daemon_version), hello->daemon_version);
	take_doubts(session, hello);
	int r = take_hosts(session, hello);
	return r < 0 ? r : take_devices(session, hello);
}

/* A number of the program that this process runs: it differs after exec(). Not 0. */
static uint64_t image(void)
{
	uint64_t random[2];
	const void *bytes = (const void *)getauxval(AT_RANDOM);
	if (!bytes) {
		return 1;
	}
	memcpy(random, bytes, sizeof(random));
	/* They also guard stacks, so they are not sent as they are. */
	return ((random[0] ^ random[1]) * 0x9e3779b97f4a7c15u) | 1;
}

int glake__rpc_hello(struct glake_session *session, const char *program, bool only_looks)
{
	char label[GLAKE_MAX_NAME_BYTES];
	char name[GLAKE_MAX_LABEL_BYTES];
	char executable[GLAKE_MAX_LABEL_BYTES];
	struct glake__process process;
	copy_text(label, sizeof(label), program ? program : program_invocation_short_name);
	copy_text(name, sizeof(name), secure_getenv("GLAKE_NAME"));
	glake__process_describe(&process);
	glake__process_executable(executable);
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = GLAKE_WIRE_VERSION;
	hello.program = label;
	hello.name = name;
	/* A process that has given itself a label is not called after its file. */
	hello.script = program ? (char *)"" : process.script;
	hello.arguments = process.arguments;
	hello.executable = executable;
	hello.image = image();
	hello.only_looks = only_looks;
	hello.new_key.data = session->link.key;
	hello.new_key.len = sizeof(session->link.key);
	Glake__Wire__Request *request = REQUEST_OF(HELLO, hello, &hello);
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_HELLO, NULL,
	                    0);
	if (r < 0) {
		return r;
	}
	glake__state_move(&session->link.state, GLAKE__LINK_OPEN);
	r = take_hello(session, call.answer->hello);
	glake__call_end(&session->link, &call);
	return r;
}

/* ---- fds of an answer ------------------------------------------------------------------------- */

/* Did the answer bring @n fds, or lose some to this process's own limit? */
static bool has_fds(const struct glake__call *call, size_t n)
{
	return call->fds.n_fds == n || call->fds.is_cut;
}

/* Hand them over, all or none. */
static int take_fds(struct glake__call *call, struct fdlist *fds)
{
	if (call->fds.is_cut) {
		return glake__call_cut();
	}
	*fds = call->fds;
	fdlist_init(&call->fds);
	return 0;
}

/* A request whose answer is only its status. */
static int call_plain(struct glake_session *session, Glake__Wire__Request *request)
{
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY__NOT_SET,
	                    NULL, 0);
	if (r == 0) {
		glake__call_end(&session->link, &call);
	}
	return r;
}

/* ---- a promise -------------------------------------------------------------------------------- */

static int promise(struct glake_session *session, const struct glake__device *device)
{
	return call_plain(session,
	                  REQUEST(PROMISE, Promise, promise, .device = device->public.index,
	                          .bytes = device->promise_bytes));
}

int glake__promise_ensure(struct glake_session *session, uint32_t index)
{
	struct glake__device *device = glake__session_device(session, index);
	int r = 0;
	if (!device || device->promise_bytes == 0 || device->is_promised) {
		return device ? 0 : -ENODEV;
	}
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&session->promise_lock);
	if (!device->is_promised) {
		r = promise(session, device);
		device->is_promised = r == 0;
	}
	pthread_mutex_unlock(&session->promise_lock);
	return r;
}

/* ---- chunks ----------------------------------------------------------------------------------- */

bool glake__rpc_knows_spare(struct glake_session *session)
{
	return session->link.knows_spare;
}

static Glake__Wire__ChunkAlloc wanted_chunks(uint32_t device, uint64_t chunk_bytes,
                                             uint32_t n_chunks, uint64_t last_bytes,
                                             struct glake__wait *wait)
{
	uint64_t now_ns = clock_now_ns();
	wait->since_ns = wait->since_ns ? wait->since_ns : now_ns;
	Glake__Wire__ChunkAlloc alloc = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	alloc.device = device;
	alloc.chunk_bytes = chunk_bytes;
	alloc.n_chunks = n_chunks;
	alloc.last_bytes = last_bytes;
	alloc.waited_ms = (now_ns - wait->since_ns) / 1000000;
	alloc.is_spare = wait->is_spare;
	alloc.no_wait = wait->no_wait;
	alloc.is_again = wait->is_room_made;
	alloc.unseals = wait->unseals;
	return alloc;
}

/* Ends @call, which was answered. */
static int take_chunks(struct glake_session *session, struct glake__call *call, uint32_t n_chunks,
                       uint64_t *ids_out, struct fdlist *fds)
{
	int r;
	const Glake__Wire__ChunkAllocAnswer *answer = call->answer->chunk_alloc;
	if (answer->n_ids != n_chunks || !has_fds(call, n_chunks)) {
		r = glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
		                     "the daemon gave another number of chunks than asked for");
	} else {
		memcpy(ids_out, answer->ids, n_chunks * sizeof(*ids_out));
		if (call->fds.is_cut) {
			glake__rpc_chunk_free(session, answer->ids, n_chunks);
		}
		r = take_fds(call, fds);
	}
	glake__call_end(&session->link, call);
	return r;
}

int glake__rpc_chunk_alloc(struct glake_session *session, uint32_t device, uint64_t chunk_bytes,
                           uint32_t n_chunks, uint64_t last_bytes, struct glake__wait *wait,
                           uint64_t *ids_out, struct fdlist *fds)
{
	struct glake__call call;
	int r = glake__promise_ensure(session, device);
	if (r < 0) {
		return r;
	}
	Glake__Wire__ChunkAlloc alloc = wanted_chunks(device, chunk_bytes, n_chunks, last_bytes,
	                                              wait);
	r = glake__call(&session->link, &call, REQUEST_OF(CHUNK_ALLOC, chunk_alloc, &alloc),
	                GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC, NULL, 0);
	return r < 0 ? r : take_chunks(session, &call, n_chunks, ids_out, fds);
}

static Glake__Wire__LocationKind kind_of(const struct glake__chunks_at *part)
{
	return part->is_host ? GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST
	                     : GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
}

/* How many chunks that are in sum; < 0 after glake__fail(). */
static int check_parts(const struct glake_session *session, const struct glake__chunks_at *parts,
                       size_t n_parts)
{
	uint64_t n_chunks = 0;
	if (n_parts == 0 || n_parts > GLAKE_MAX_ALSO + 1) {
		return glake__fail(-EINVAL, "%zu locations in one request", n_parts);
	}
	for (size_t i = 0; i < n_parts; i++) {
		if (parts[i].is_host && !glake__session_host(session, parts[i].number)) {
			return -ENOTSUP;
		}
		n_chunks += parts[i].n_chunks;
	}
	if (n_chunks == 0 || n_chunks > GLAKE_MAX_PACKET_FDS) {
		return glake__fail(-EINVAL, "%llu chunks in one request",
		                   (unsigned long long)n_chunks);
	}
	return (int)n_chunks;
}

static void want_also(Glake__Wire__ChunkAlloc *alloc, const struct glake__chunks_at *parts,
                      size_t n, Glake__Wire__ChunkPart *rows, Glake__Wire__ChunkPart **list)
{
	for (size_t i = 0; i < n; i++) {
		glake__wire__chunk_part__init(&rows[i]);
		rows[i].at = kind_of(&parts[i]);
		rows[i].number = parts[i].number;
		rows[i].chunk_bytes = parts[i].chunk_bytes;
		rows[i].n_chunks = parts[i].n_chunks;
		rows[i].last_bytes = parts[i].last_bytes;
		list[i] = &rows[i];
	}
	alloc->also = list;
	alloc->n_also = n;
}

int glake__rpc_chunk_alloc_at(struct glake_session *session, const struct glake__chunks_at *parts,
                              size_t n_parts, struct glake__wait *wait, uint64_t *ids_out,
                              struct fdlist *fds)
{
	Glake__Wire__ChunkPart rows[GLAKE_MAX_ALSO];
	Glake__Wire__ChunkPart *list[GLAKE_MAX_ALSO];
	struct glake__call call;
	int n_chunks = check_parts(session, parts, n_parts);
	for (size_t i = 0; i < n_parts && n_chunks >= 0; i++) {
		int r = parts[i].is_host ? 0 : glake__promise_ensure(session, parts[i].number);
		n_chunks = r < 0 ? r : n_chunks;
	}
	if (n_chunks < 0) {
		return n_chunks;
	}
	Glake__Wire__ChunkAlloc alloc = wanted_chunks(parts[0].number, parts[0].chunk_bytes,
	                                              parts[0].n_chunks, parts[0].last_bytes, wait);
	alloc.at = kind_of(&parts[0]);
	want_also(&alloc, &parts[1], n_parts - 1, rows, list);
	int r = glake__call(&session->link, &call, REQUEST_OF(CHUNK_ALLOC, chunk_alloc, &alloc),
	                    GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC, NULL, 0);
	if (r < 0) {
		return r;
	}
	if (call.answer->chunk_alloc->at != alloc.at ||
	    (n_parts > 1 && call.answer->chunk_alloc->n_ids == parts[0].n_chunks)) {
		/* A glaked that knows of no other location than a GPU, and of one in each request. */
		glake__rpc_chunk_free(session, call.answer->chunk_alloc->ids,
		                      call.answer->chunk_alloc->n_ids);
		glake__call_end(&session->link, &call);
		return glake__fail(
			-ENOTSUP,
			"the daemon is older: it gives memory at one location in a request");
	}
	return take_chunks(session, &call, (uint32_t)n_chunks, ids_out, fds);
}

int glake__rpc_chunk_alloc_start(struct glake_session *session, struct glake__call *call,
                                 uint32_t device, uint64_t chunk_bytes, uint32_t n_chunks,
                                 uint64_t last_bytes, struct glake__wait *wait)
{
	int r = glake__promise_ensure(session, device);
	if (r < 0) {
		return r;
	}
	Glake__Wire__ChunkAlloc alloc = wanted_chunks(device, chunk_bytes, n_chunks, last_bytes,
	                                              wait);
	return glake__call_start(&session->link, call, REQUEST_OF(CHUNK_ALLOC, chunk_alloc, &alloc),
	                         GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC, NULL, 0);
}

int glake__rpc_chunk_alloc_wait(struct glake_session *session, struct glake__call *call,
                                uint32_t n_chunks, uint64_t *ids_out, struct fdlist *fds)
{
	int r = glake__call_wait(&session->link, call, NULL, NULL);
	if (r < 0) {
		glake__call_end(&session->link, call);
		return r;
	}
	return take_chunks(session, call, n_chunks, ids_out, fds);
}

int glake__rpc_chunk_share(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                           uint64_t *ticket_out)
{
	Glake__Wire__Request *request = REQUEST(CHUNK_SHARE, ChunkShare, chunk_share,
	                                        .ids = (uint64_t *)ids, .n_ids = n_ids);
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_CHUNK_SHARE,
	                    NULL, 0);
	if (r < 0) {
		return r;
	}
	*ticket_out = call.answer->chunk_share->ticket;
	if (*ticket_out == 0) {
		r = glake__link_kill(&session->link, GLAKE_E_PROTOCOL, "the daemon gave no ticket");
	}
	glake__call_end(&session->link, &call);
	return r;
}

int glake__rpc_chunk_keep(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                          const void *key, size_t n_key, const void *record, size_t n_record,
                          bool may_be_read)
{
	return call_plain(
		session,
		REQUEST(CHUNK_KEEP, ChunkKeep, chunk_keep, .ids = (uint64_t *)ids, .n_ids = n_ids,
	                .key = (ProtobufCBinaryData){.len = n_key, .data = (uint8_t *)key},
	                .may_be_read = may_be_read,
	                .record = (ProtobufCBinaryData){.len = n_record,
	                                                .data = (uint8_t *)record}));
}

int glake__rpc_chunk_unkeep(struct glake_session *session, const uint64_t *ids, size_t n_ids)
{
	return call_plain(session, REQUEST(CHUNK_UNKEEP, ChunkUnkeep, chunk_unkeep,
	                                   .ids = (uint64_t *)ids, .n_ids = n_ids));
}

/* The answer of a call that has not ended. */
static int take_adopted(struct glake_session *session, struct glake__call *call, uint32_t n_chunks,
                        struct glake__adopted *adopted, uint64_t *ids_out, struct fdlist *fds)
{
	const bool is_read = call->answer->body_case == GLAKE__WIRE__ANSWER__BODY_CHUNK_READ;
	const Glake__Wire__ChunkAdoptAnswer *answer = call->answer->chunk_adopt;
	adopted->n_living = answer->n_living;
	if (answer->n_ids == 0) {
		return glake__fail(-ENOENT, is_read ? "nobody else has sealed such a step"
		                                    : "no process has left a step of that key");
	}
	if (answer->n_ids != n_chunks || !has_fds(call, n_chunks) ||
	    answer->record.len > GLAKE_MAX_RECORD_BYTES) {
		return glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
		                        "the daemon's answer about kept chunks is invalid");
	}
	memcpy(ids_out, answer->ids, n_chunks * sizeof(*ids_out));
	if (answer->record.len > 0) {
		memcpy(adopted->record, answer->record.data, answer->record.len);
	}
	adopted->n_record = answer->record.len;
	if (call->fds.is_cut) {
		glake__rpc_chunk_free(session, answer->ids, n_chunks);
	}
	return take_fds(call, fds);
}

int glake__rpc_chunk_adopt(struct glake_session *session, uint32_t device, uint64_t chunk_bytes,
                           uint32_t n_chunks, bool is_read, struct glake__adopted *adopted,
                           uint64_t *ids_out, struct fdlist *fds)
{
	struct glake__call call;
	int r = glake__promise_ensure(session, device);
	if (r < 0) {
		return r;
	}
	const ProtobufCBinaryData key = {.len = adopted->n_key, .data = (uint8_t *)adopted->key};
	const ProtobufCBinaryData name = {.len = adopted->n_name, .data = (uint8_t *)adopted->name};
	Glake__Wire__Request *request =
		is_read ? REQUEST(CHUNK_READ, ChunkRead, chunk_read, .device = device, .key = key,
	                          .name = name, .chunk_bytes = chunk_bytes, .n_chunks = n_chunks)
			: REQUEST(CHUNK_ADOPT, ChunkAdopt, chunk_adopt, .device = device,
	                          .key = key, .chunk_bytes = chunk_bytes, .n_chunks = n_chunks);
	Glake__Wire__Answer__BodyCase expected = is_read ? GLAKE__WIRE__ANSWER__BODY_CHUNK_READ
	                                                 : GLAKE__WIRE__ANSWER__BODY_CHUNK_ADOPT;
	r = glake__call(&session->link, &call, request, expected, NULL, 0);
	if (r == 0) {
		r = take_adopted(session, &call, n_chunks, adopted, ids_out, fds);
		glake__call_end(&session->link, &call);
	}
	return r;
}

/* Is there a size for each fd, and is each a valid size of a chunk? */
static bool is_open_answer(const struct glake__call *call, size_t n_ids)
{
	const Glake__Wire__ChunkOpenAnswer *answer = call->answer->chunk_open;
	bool is_sound = answer->n_chunk_bytes == n_ids && has_fds(call, n_ids);
	for (size_t i = 0; is_sound && i < n_ids; i++) {
		uint64_t n_bytes = answer->chunk_bytes[i];
		is_sound = n_bytes > 0 && n_bytes <= GLAKE_MAX_CHUNK_BYTES &&
		           n_bytes % GLAKE_CHUNK_GRANULARITY == 0;
	}
	return is_sound;
}

int glake__rpc_chunk_open(struct glake_session *session, const struct glake__chunk_names *names,
                          uint64_t *sizes_out, uint32_t *device_out, struct fdlist *fds)
{
	size_t n_ids = names->n_ids;
	Glake__Wire__Request *request = REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
	                                        .session = names->session, .ticket = names->ticket,
	                                        .ids = (uint64_t *)names->ids, .n_ids = n_ids);
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_CHUNK_OPEN,
	                    NULL, 0);
	if (r < 0) {
		return r;
	}
	if (is_open_answer(&call, n_ids)) {
		const Glake__Wire__ChunkOpenAnswer *answer = call.answer->chunk_open;
		memcpy(sizes_out, answer->chunk_bytes, n_ids * sizeof(*sizes_out));
		*device_out = answer->device;
		r = take_fds(&call, fds);
	} else {
		r = glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
		                     "the daemon's answer about chunks is invalid");
	}
	glake__call_end(&session->link, &call);
	return r;
}

static bool is_blocks_answer(const struct glake__call *call)
{
	const Glake__Wire__ModelBlocksAnswer *answer = call->answer->model_blocks;
	return call->fds.is_cut ||
	       (answer->n_chunk_bytes > 0 && answer->n_chunk_bytes <= GLAKE_MAX_PACKET_FDS &&
	        call->fds.n_fds == answer->n_chunk_bytes);
}

int glake__rpc_model_blocks(struct glake_session *session, uint64_t model, uint64_t first,
                            uint64_t *sizes_out, struct fdlist *fds)
{
	Glake__Wire__ModelBlocks blocks = GLAKE__WIRE__MODEL_BLOCKS__INIT;
	blocks.model = model;
	blocks.first = first;
	Glake__Wire__Request *request = REQUEST_OF(MODEL_BLOCKS, model_blocks, &blocks);
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_MODEL_BLOCKS,
	                    NULL, 0);
	if (r < 0) {
		return r;
	}
	if (is_blocks_answer(&call)) {
		const Glake__Wire__ModelBlocksAnswer *answer = call.answer->model_blocks;
		r = take_fds(&call, fds);
		if (r == 0) {
			memcpy(sizes_out, answer->chunk_bytes,
			       answer->n_chunk_bytes * sizeof(*sizes_out));
		}
	} else {
		r = glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
		                     "the daemon's answer about blocks is invalid");
	}
	glake__call_end(&session->link, &call);
	return r;
}

int glake__rpc_chunk_free(struct glake_session *session, const uint64_t *ids, size_t n_ids)
{
	return call_plain(session, REQUEST(CHUNK_FREE, ChunkFree, chunk_free,
	                                   .ids = (uint64_t *)ids, .n_ids = n_ids));
}

/* Until when an answer is wanted. */
struct wanted {
	bool (*is_over)(void); /* asked every @look_ms */
	unsigned look_ms;
	Glake__Wire__SleepLeave end; /* ends it at glaked */
};

/* A glaked that is stopped is found by its silence, as in any call: it is asked for a sign of life. */
static void await_wanted(struct glake_session *session, const struct glake__call *call,
                         const struct wanted *wanted)
{
	uint64_t asked_ns = clock_now_ns();
	while (!wanted->is_over() && !glake__call_await(&session->link, call, wanted->look_ms)) {
		if (clock_now_ns() - asked_ns >= glake__patience.silence_ms * 1000000ull) {
			glake__rpc_ping(session);
			asked_ns = clock_now_ns();
		}
	}
	if (!glake__call_is_done(&session->link, call)) {
		Glake__Wire__SleepLeave end = wanted->end;
		glake__call_forget(&session->link, REQUEST_OF(SLEEP_LEAVE, sleep_leave, &end));
	}
}

static int call_once(struct glake_session *session, Glake__Wire__Request *request,
                     const struct wanted *wanted)
{
	struct glake__call call;
	int r = glake__call_start(&session->link, &call, request,
	                          GLAKE__WIRE__ANSWER__BODY__NOT_SET, NULL, 0);
	if (r == 0) {
		await_wanted(session, &call, wanted);
		r = glake__call_wait(&session->link, &call, NULL, NULL);
		glake__call_end(&session->link, &call);
	}
	return r;
}

static int call_while(struct glake_session *session, Glake__Wire__Request *request,
                      const struct wanted *wanted)
{
	cleanup_cancel int cancel = cancel_disable();
	int r = call_once(session, request, wanted);
	return r == GLAKE_E_GONE && !wanted->is_over() && glake__resume(&session->link, true) == 0
	               ? call_once(session, request, wanted)
	               : r;
}

int glake__rpc_sleep_copy(struct glake_session *session, const uint64_t *ids, size_t n_ids,
                          bool (*is_unwanted)(void))
{
	const struct wanted wanted = {.is_over = is_unwanted,
	                              .look_ms = UNWANTED_MS,
	                              .end = GLAKE__WIRE__SLEEP_LEAVE__INIT};
	return call_while(
		session,
		REQUEST(SLEEP_COPY, SleepCopy, sleep_copy, .ids = (uint64_t *)ids, .n_ids = n_ids),
		&wanted);
}

int glake__rpc_sleep_enter(struct glake_session *session, uint32_t why,
                           const struct glake_stay *stays, size_t n_stays)
{
	Glake__Wire__SleepEnter enter = GLAKE__WIRE__SLEEP_ENTER__INIT;
	Glake__Wire__SleepStay rows[GLAKE_MAX_STAYS];
	Glake__Wire__SleepStay *list[GLAKE_MAX_STAYS];
	for (size_t i = 0; i < n_stays; i++) {
		glake__wire__sleep_stay__init(&rows[i]);
		rows[i].why = (char *)stays[i].why;
		rows[i].bytes = stays[i].bytes;
		list[i] = &rows[i];
	}
	enter.why = (Glake__Wire__SleepWhy)why;
	enter.stays = list;
	enter.n_stays = n_stays;
	return call_plain(session, REQUEST_OF(SLEEP_ENTER, sleep_enter, &enter));
}

int glake__rpc_sleep_forget(struct glake_session *session)
{
	return call_plain(session, REQUEST(SLEEP_LEAVE, SleepLeave, sleep_leave));
}

int glake__rpc_sleep_wake(struct glake_session *session, uint64_t patience_ms,
                          bool (*is_stopped)(void))
{
	struct wanted wanted = {.is_over = is_stopped,
	                        .look_ms = STOPPED_MS,
	                        .end = GLAKE__WIRE__SLEEP_LEAVE__INIT};
	/* An earlier glaked takes it for one that drops no copies. */
	wanted.end.keeps_copies = true;
	wanted.end.stops = true;
	return call_while(session,
	                  REQUEST(SLEEP_LEAVE, SleepLeave, sleep_leave, .keeps_copies = true,
	                          .patience_ms = patience_ms),
	                  &wanted);
}

int glake__rpc_ping(struct glake_session *session)
{
	return call_plain(session, REQUEST(PING, Ping, ping));
}

int glake__rpc_device_get(struct glake_session *session, uint32_t index,
                          struct glake_device_view *view_out)
{
	Glake__Wire__Request *request = REQUEST(DEVICE_GET, DeviceGet, device_get, .device = index);
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_DEVICE_GET,
	                    NULL, 0);
	if (r < 0) {
		return r;
	}
	const Glake__Wire__DeviceGetAnswer *answer = call.answer->device_get;
	*view_out = (struct glake_device_view){
		.quota_bytes = answer->quota_bytes,
		.used_bytes = answer->used_bytes,
		.reserved_bytes = answer->reserved_bytes,
		.idle_bytes = answer->idle_bytes,
		.room_bytes = answer->room_bytes,
		.promise_bytes = answer->promise_bytes,
		.left_bytes = answer->left_bytes,
	};
	glake__call_end(&session->link, &call);
	return 0;
}

int glake__rpc_model_close(struct glake_session *session, uint64_t model)
{
	return call_plain(session, REQUEST(MODEL_CLOSE, ModelClose, model_close, .model = model));
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/*
 * If it has not one fd, a whole digest and sizes that can be mapped, the daemon has broken the
 * protocol.
 */
static bool is_sound(const struct glake__call *call)
{
	const Glake__Wire__BlockAnswer *block = call->answer->block;
	return has_fds(call, 1) && block->digest.len == sizeof(struct glake_digest) &&
	       block->chunk_bytes > 0 && block->chunk_bytes <= GLAKE_MAX_CHUNK_BYTES &&
	       block->chunk_bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       block->content_bytes <= block->chunk_bytes;
}

/* Ends @call, which was answered. */
static int take_block(struct glake_session *session, struct glake__call *call,
                      struct glake__block_answer *answer_out)
{
	int r = 0;
	if (is_sound(call)) {
		const Glake__Wire__BlockAnswer *block = call->answer->block;
		*answer_out = (struct glake__block_answer){
			.block = block->block,
			.chunk_bytes = block->chunk_bytes,
			.content_bytes = block->content_bytes,
			.was_known = block->was_known,
			.is_kept = block->is_kept,
			.fd = fdlist_take(&call->fds, 0),
		};
		memcpy(answer_out->digest.bytes, block->digest.data, block->digest.len);
	} else {
		r = glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
		                     "the daemon's answer about a block is invalid");
	}
	glake__call_end(&session->link, call);
	return r;
}

static int call_block(struct glake_session *session, Glake__Wire__Request *request,
                      struct glake__block_answer *answer_out)
{
	struct glake__call call;
	int r = glake__call(&session->link, &call, request, GLAKE__WIRE__ANSWER__BODY_BLOCK, NULL,
	                    0);
	return r < 0 ? r : take_block(session, &call, answer_out);
}

static Glake__Wire__BlockPublish wanted_block(const struct glake__publication *publication)
{
	Glake__Wire__BlockPublish publish = GLAKE__WIRE__BLOCK_PUBLISH__INIT;
	publish.chunk = publication->chunk;
	publish.content_bytes = publication->content_bytes;
	publish.confirms = true;
	publish.is_alone = publication->is_alone;
	return publish;
}

/* There is an answer. It is about memory of the chunk's size, or about nothing that could be mapped there. */
static int check_published(struct glake_session *session, struct glake__publication *publication)
{
	if (publication->answer.chunk_bytes == publication->chunk_bytes) {
		return 0;
	}
	fd_close(&publication->answer.fd);
	return glake__link_kill(&session->link, GLAKE_E_PROTOCOL,
	                        "the daemon's block has another size than the chunk");
}

static void start_publish(struct glake__publisher *publisher)
{
	size_t i = publisher->n_started++;
	struct glake__publication *publication = &publisher->list[i];
	Glake__Wire__BlockPublish publish = wanted_block(publication);
	publication->is_started = true;
	publication->result = glake__call_start(&publisher->session->link,
	                                        &publisher->calls[i % GLAKE__PUBLISHED_AT_ONCE],
	                                        REQUEST_OF(BLOCK_PUBLISH, block_publish, &publish),
	                                        GLAKE__WIRE__ANSWER__BODY_BLOCK, NULL, 0);
}

bool glake__may_be_block(int error)
{
	return error == GLAKE_E_GONE || error == GLAKE_E_PROTOCOL;
}

/* By itself, and on a new connection if there is one. */
static void publish_again(struct glake_session *session, struct glake__publication *publication)
{
	Glake__Wire__BlockPublish publish = wanted_block(publication);
	int r = call_block(session, REQUEST_OF(BLOCK_PUBLISH, block_publish, &publish),
	                   &publication->answer);
	publication->result = r < 0 ? r : check_published(session, publication);
}

/* Wait for the oldest that is under way. */
static void end_publish(struct glake__publisher *publisher)
{
	struct glake_session *session = publisher->session;
	size_t i = publisher->n_ended++;
	struct glake__publication *publication = &publisher->list[i];
	struct glake__call *call = &publisher->calls[i % GLAKE__PUBLISHED_AT_ONCE];
	if (publication->result == 0) {
		publication->result = glake__call_wait(&session->link, call, NULL, NULL);
		if (publication->result == 0) {
			publication->result = take_block(session, call, &publication->answer);
			if (publication->result == 0) {
				publication->result = check_published(session, publication);
			}
		} else {
			glake__call_end(&session->link, call);
		}
	}
	if (publication->result == GLAKE_E_GONE || publication->result == GLAKE_E_BUSY) {
		publish_again(session, publication);
	}
	if (publication->result < 0) {
		publication->text = glake__error_save();
	}
}

static void start_publishing(struct glake__publisher *publisher)
{
	while (publisher->n_started < publisher->n &&
	       publisher->n_started < publisher->n_ended + GLAKE__PUBLISHED_AT_ONCE) {
		start_publish(publisher);
	}
}

static bool has_answer(const struct glake__publisher *publisher)
{
	size_t i = publisher->n_ended;
	return i < publisher->n_started &&
	       (publisher->list[i].result < 0 ||
	        glake__call_is_done(&publisher->session->link,
	                            &publisher->calls[i % GLAKE__PUBLISHED_AT_ONCE]));
}

void glake__publisher_go_on(struct glake__publisher *publisher)
{
	if (publisher->n_ended < publisher->n_started) {
		/* An error is the calls' as well. */
		glake__link_poll(&publisher->session->link);
	}
	while (has_answer(publisher)) {
		end_publish(publisher);
	}
	start_publishing(publisher);
}

void glake__publisher_wait(struct glake__publisher *publisher, size_t n)
{
	start_publishing(publisher);
	while (publisher->n_ended < n && publisher->n_ended < publisher->n_started) {
		end_publish(publisher);
		start_publishing(publisher);
	}
}

void glake__publisher_stop(struct glake__publisher *publisher)
{
	publisher->n = publisher->n_started;
}

int glake__rpc_block_lookup(struct glake_session *session, uint32_t device,
                            const struct glake_digest *digest,
                            struct glake__block_answer *answer_out)
{
	const ProtobufCBinaryData bytes = {.len = sizeof(digest->bytes),
	                                   .data = (uint8_t *)digest->bytes};
	return call_block(
		session,
		REQUEST(BLOCK_LOOKUP, BlockLookup, block_lookup, .device = device, .digest = bytes),
		answer_out);
}

int glake__rpc_block_release(struct glake_session *session, uint64_t block)
{
	return call_plain(session,
	                  REQUEST(BLOCK_RELEASE, BlockRelease, block_release, .block = block));
}
