/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session with a real glaked, which runs on a thread of this process so that the fuzzer sees what
 * its input reaches.
 *
 * The input is a program: each byte chooses a request, the next ones its values. Values are chosen
 * from what matters (ids that were given out, sizes at the edges), or are raw; one choice sends the
 * rest of the input as a raw packet. Each request must be answered, or the connection closed, in
 * time; afterwards a second session must still be served.
 *
 * The driver is the simulator of the same build. There is no glake-mover: a process with a
 * sanitizer's threads must not fork (its child may wait for ever for a lock that a thread held), so
 * uv_spawn() fails here before it would, and with it every load.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/server.h"
#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"
#include "proto/wire.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/must.h"

#define TIMEOUT_S 8
#define MAX_IDS 16u
#define MAX_REQUESTS 64u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

typedef Glake__Wire__Request request_t;
typedef Glake__Wire__Answer answer_t;

struct client {
	int socket;
	uint64_t last_request;
	int last_kind;
	uint64_t ids[MAX_IDS]; /* that answers brought */
	unsigned n_ids;
	uint8_t key[GLAKE_KEY_BYTES];
};

static char folder[] = "/tmp/glake-fuzz.XXXXXX";
static char socket_path[108];
static struct client witness = {.socket = -1};

/* ---- glaked ---------------------------------------------------------------------------------- */

/* Fds are what this daemon is about: closing one twice may close somebody else's. */
int close(int fd)
{
	int result = (int)syscall(SYS_close, fd);
	must(result == 0 || errno != EBADF);
	return result;
}

/* The real one fails at an fd that is none, and leaves the handle as its contract says. */
int uv_spawn(uv_loop_t *loop, uv_process_t *process, const uv_process_options_t *options)
{
	int (*real)(uv_loop_t *, uv_process_t *, const uv_process_options_t *);
	uv_stdio_container_t none = {.flags = UV_INHERIT_FD, .data.fd = -1};
	uv_process_options_t failing = *options;
	*(void **)&real = dlsym(RTLD_NEXT, "uv_spawn");
	must(real != NULL);
	failing.stdio = &none;
	failing.stdio_count = 1;
	int result = real(loop, process, &failing);
	must(result < 0);
	return result;
}

static void *run_glaked(void *user)
{
	server_run(user);
	abort(); /* Nobody told it to end. */
}

static void write_config(const char *path)
{
	FILE *file = fopen(path, "w");
	must(file && fputs("pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 2; } );"
	                   "log_level = \"error\"; fd_budget = 400;",
	                   file) >= 0);
	fclose(file);
}

static int try_connect(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, socket_path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		fd_close(&fd);
	}
	return fd;
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	return remove(path);
}

static void clean_up(void)
{
	nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static struct server_options options;
	static char config_path[128];
	char library[4096];
	char state[128];
	pthread_t thread;
	ssize_t n = readlink("/proc/self/exe", library, sizeof(library) - 64);
	must(n > 0 && mkdtemp(folder));
	atexit(clean_up);
	library[n] = '\0';
	strcpy(strrchr(library, '/'), "/../../cudasim/libcuda.so.1");
	snprintf(state, sizeof(state), "%s/cudasim", folder);
	snprintf(config_path, sizeof(config_path), "%s/glaked.conf", folder);
	snprintf(socket_path, sizeof(socket_path), "%s/glaked.sock", folder);
	setenv("GLAKE_LIBCUDA", library, 0);
	setenv("CUDASIM_STATE", state, 1);
	setenv("CUDASIM_DEVICES", "2x64MiB", 1);
	write_config(config_path);
	options.config_path = config_path;
	options.socket_path = socket_path;
	must(pthread_create(&thread, NULL, run_glaked, &options) == 0);
	for (int i = 0; i < 500 && witness.socket < 0; i++) {
		usleep(20000);
		witness.socket = try_connect();
	}
	must(witness.socket >= 0);
	return 0;
}

/* ---- talking to it --------------------------------------------------------------------------- */

static void learn_ids(struct client *client, const answer_t *answer)
{
	uint64_t id = 0;
	if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_HELLO) {
		id = answer->hello->session;
		must(answer->hello->key.len == sizeof(client->key));
		memcpy(client->key, answer->hello->key.data, sizeof(client->key));
	} else if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_CHUNK_SHARE) {
		id = answer->chunk_share->ticket;
	} else if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC) {
		id = answer->chunk_alloc->n_ids ? answer->chunk_alloc->ids[0] : 0;
	} else if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN) {
		id = answer->model_open->model;
	} else if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_BLOCK) {
		id = answer->block->block;
	} else if (answer->body_case == GLAKE__WIRE__ANSWER__BODY_WEIGHTS_PUBLISH) {
		id = answer->weights_publish->draft;
	}
	if (id) {
		client->ids[client->n_ids++ % MAX_IDS] = id;
	}
}

/* Returns whether the answer to the last request came; false: the connection is closed. */
static bool wait_answer(struct client *client)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES + 1];
	for (;;) {
		struct pollfd ready = {.fd = client->socket, .events = POLLIN};
		struct fdlist fds;
		size_t n_bytes;
		fdlist_init(&fds);
		/* In slices: some virtual machines wake a thread late that sleeps long. */
		int is_ready = 0;
		for (int i = 0; i < TIMEOUT_S && is_ready != 1; i++) {
			is_ready = poll(&ready, 1, 1000);
		}
		if (is_ready != 1) {
			fprintf(stderr, "no answer to request %llu, of kind %d%s\n",
			        (unsigned long long)client->last_request, client->last_kind,
			        client == &witness ? ", of the witness" : "");
			abort();
		}
		int result = wire_recv(client->socket, bytes, sizeof(bytes), &n_bytes, &fds, 0);
		fdlist_deinit(&fds);
		if (result == WIRE_E_EOF) {
			return false;
		}
		must(result == 0);
		answer_t *answer = glake__wire__answer__unpack(NULL, n_bytes, bytes);
		must(answer != NULL);
		must(answer->status == GLAKE__WIRE__STATUS__OK || answer->error[0]);
		learn_ids(client, answer);
		bool is_it = answer->id == client->last_request;
		glake__wire__answer__free_unpacked(answer, NULL);
		if (is_it) {
			return true;
		}
	}
}

static bool call(struct client *client, request_t *request, const int *fds, size_t n_fds)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	request->id = ++client->last_request;
	client->last_kind = (int)request->body_case;
	size_t n_bytes = glake__wire__request__get_packed_size(request);
	if (n_bytes > sizeof(bytes)) {
		return true;
	}
	glake__wire__request__pack(request, bytes);
	return wire_send(client->socket, bytes, n_bytes, fds, n_fds, 0) == 0 && wait_answer(client);
}

static bool ping(struct client *client)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Ping body = GLAKE__WIRE__PING__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_PING;
	request.ping = &body;
	return call(client, &request, NULL, 0);
}

static bool hello(struct client *client, uint32_t version, char *program)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello body = GLAKE__WIRE__HELLO__INIT;
	body.version = version;
	body.program = program;
	body.name = program;
	body.script = program;
	body.arguments = program;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &body;
	return call(client, &request, NULL, 0);
}

/* This process lives on: without it glaked would keep all. */
static void goodbye(struct client *client)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Goodbye body = GLAKE__WIRE__GOODBYE__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_GOODBYE;
	request.goodbye = &body;
	call(client, &request, NULL, 0);
}

/* Then its ids are its session, a chunk, and what others need to open it. */
static bool name_chunk(struct client *client)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkAlloc alloc = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	Glake__Wire__ChunkShare share = GLAKE__WIRE__CHUNK_SHARE__INIT;
	alloc.chunk_bytes = 2u << 20;
	alloc.n_chunks = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC;
	request.chunk_alloc = &alloc;
	if (!call(client, &request, NULL, 0)) {
		return false;
	}
	share.ids = &client->ids[client->n_ids - 1];
	share.n_ids = 1;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_SHARE;
	request.chunk_share = &share;
	return call(client, &request, NULL, 0);
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t take_size(struct input *input)
{
	static const uint64_t sizes[] = {
		0,           1,           4096,        2ull << 20,   (2ull << 20) + 1, 4ull << 20,
		32ull << 20, 64ull << 20, 64ull << 30, 128ull << 30, UINT64_MAX};
	uint8_t choice = take_byte(input);
	return choice < 200 ? sizes[choice % n_elements(sizes)] : take_raw(input);
}

static uint64_t take_id(struct client *client, struct input *input)
{
	uint8_t choice = take_byte(input);
	return choice < 220 ? client->ids[choice % MAX_IDS] : take_raw(input);
}

#define N_TAKEN 4u

/* Returns how many. */
static size_t take_ids(struct client *client, struct input *input, uint64_t ids_out[N_TAKEN])
{
	size_t n = take_byte(input) % (N_TAKEN + 1);
	for (size_t i = 0; i < n; i++) {
		ids_out[i] = take_id(client, input);
	}
	return n;
}

/* Up to 31 bytes, of static storage that the next call but three uses again. */
static char *take_text(struct input *input)
{
	static char texts[4][32];
	static unsigned next;
	char *text = texts[next++ % n_elements(texts)];
	size_t n = take_byte(input) % sizeof(texts[0]);
	for (size_t i = 0; i < n; i++) {
		text[i] = (char)take_byte(input);
	}
	text[n] = '\0';
	return text;
}

static int open_some_fd(uint8_t choice)
{
	static const char safetensors[] = "\x08\0\0\0\0\0\0\0{}      ";
	int fd;
	switch (choice % 5) {
	case 0:
		return open("/dev/null", O_RDONLY | O_CLOEXEC);
	case 1:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	case 2:
		return open("/proc/self/exe", O_PATH | O_CLOEXEC);
	case 3:
		return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	default:
		fd = memfd_create("model", MFD_CLOEXEC);
		must(write(fd, safetensors, sizeof(safetensors) - 1) > 0);
		return fd;
	}
}

/* ---- requests -------------------------------------------------------------------------------- */

#define SEND(client, case_, member, body) \
	(request.body_case = GLAKE__WIRE__REQUEST__BODY_##case_, request.member = (body), \
	 call(client, &request, NULL, 0))

static bool memory_request(struct client *client, struct input *input, unsigned choice)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkAlloc alloc = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	Glake__Wire__ChunkPart parts[3];
	Glake__Wire__ChunkPart *part_list[n_elements(parts)];
	Glake__Wire__ChunkFree free_ = GLAKE__WIRE__CHUNK_FREE__INIT;
	Glake__Wire__ChunkShare share = GLAKE__WIRE__CHUNK_SHARE__INIT;
	Glake__Wire__ChunkOpen open_ = GLAKE__WIRE__CHUNK_OPEN__INIT;
	Glake__Wire__DriverMemory driver[4];
	Glake__Wire__DriverMemory *list[n_elements(driver)];
	Glake__Wire__Unsealed unsealed = GLAKE__WIRE__UNSEALED__INIT;
	Glake__Wire__Unsealed *unsealed_list[] = {&unsealed};
	Glake__Wire__PoolReport pools[2];
	Glake__Wire__PoolReport *pool_list[] = {&pools[0], &pools[1]};
	Glake__Wire__UsageReport usage = GLAKE__WIRE__USAGE_REPORT__INIT;
	uint64_t ids[N_TAKEN];
	switch (choice) {
	case 0:
		alloc.device = take_byte(input) % 3;
		alloc.chunk_bytes = take_size(input);
		alloc.n_chunks = take_byte(input);
		alloc.last_bytes = alloc.n_chunks % 2 ? take_size(input) : 0;
		alloc.at = (Glake__Wire__LocationKind)(take_byte(input) % 3);
		for (; alloc.n_also < n_elements(parts) && take_byte(input) % 2; alloc.n_also++) {
			Glake__Wire__ChunkPart *part = &parts[alloc.n_also];
			glake__wire__chunk_part__init(part);
			part->at = (Glake__Wire__LocationKind)(take_byte(input) % 3);
			part->number = take_byte(input) % 3;
			part->chunk_bytes = take_size(input);
			part->n_chunks = take_byte(input);
			part_list[alloc.n_also] = part;
		}
		alloc.also = part_list;
		return SEND(client, CHUNK_ALLOC, chunk_alloc, &alloc);
	case 1:
		free_.n_ids = take_ids(client, input, ids);
		free_.ids = ids;
		return SEND(client, CHUNK_FREE, chunk_free, &free_);
	case 2:
		share.n_ids = take_ids(client, input, ids);
		share.ids = ids;
		return SEND(client, CHUNK_SHARE, chunk_share, &share);
	case 3:
		open_.session = take_byte(input) & 1 ? take_id(client, input) : 0;
		open_.ticket = take_id(client, input);
		open_.n_ids = take_ids(client, input, ids);
		open_.ids = ids;
		return SEND(client, CHUNK_OPEN, chunk_open, &open_);
	default:
		usage.live_bytes = take_size(input);
		usage.warm_bytes = take_size(input);
		usage.n_driver = take_byte(input) % (n_elements(driver) + 1);
		for (size_t i = 0; i < usage.n_driver; i++) {
			glake__wire__driver_memory__init(&driver[i]);
			driver[i].device = take_byte(input) % 3;
			driver[i].managed_bytes = take_raw(input);
			driver[i].other_bytes = take_raw(input);
			list[i] = &driver[i];
		}
		usage.driver = list;
		/* These are made of what was taken already: seeds mean what they meant. */
		unsealed.why = (Glake__Wire__UnsealedWhy)usage.live_bytes;
		unsealed.bytes = usage.warm_bytes;
		usage.unsealed = unsealed_list;
		usage.n_unsealed = usage.n_driver % 2;
		for (size_t i = 0; i < n_elements(pools); i++) {
			glake__wire__pool_report__init(&pools[i]);
			pools[i].device = (uint32_t)(usage.live_bytes >> i) % 3;
			pools[i].live_bytes = pools[i].n_allocs = usage.warm_bytes;
			pools[i].reserved_bytes = usage.live_bytes;
		}
		usage.pools = pool_list;
		usage.n_pools = usage.live_bytes % (n_elements(pools) + 1);
		return SEND(client, USAGE_REPORT, usage_report, &usage);
	}
}

static bool fault_report(struct client *client, struct input *input)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__FaultSuspect suspect = GLAKE__WIRE__FAULT_SUSPECT__INIT;
	Glake__Wire__FaultSuspect *suspects[GLAKE_MAX_SUSPECTS + 1];
	Glake__Wire__FaultReport body = GLAKE__WIRE__FAULT_REPORT__INIT;
	suspect.kernel = take_text(input);
	suspect.address = take_raw(input);
	suspect.range_bytes = take_raw(input);
	body.error = take_byte(input);
	body.name = take_text(input);
	body.n_suspects = take_byte(input) % (n_elements(suspects) + 1);
	for (size_t i = 0; i < body.n_suspects; i++) {
		suspects[i] = &suspect;
	}
	body.suspects = suspects;
	return SEND(client, FAULT_REPORT, fault_report, &body);
}

static bool open_request(struct client *client, struct input *input)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ModelOpen body = GLAKE__WIRE__MODEL_OPEN__INIT;
	char *files[3];
	int fds[4];
	size_t n_fds = take_byte(input) % (n_elements(fds) + 1);
	body.device = take_byte(input) % 3;
	body.n_files = take_byte(input) % (n_elements(files) + 1);
	for (size_t i = 0; i < body.n_files; i++) {
		files[i] = take_text(input);
	}
	body.files = files;
	body.progress = true;
	body.pin = take_byte(input) & 1;
	body.name = take_text(input);
	for (size_t i = 0; i < n_fds; i++) {
		fds[i] = open_some_fd(take_byte(input));
	}
	request.body_case = GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN;
	request.model_open = &body;
	bool goes_on = call(client, &request, fds, n_fds);
	for (size_t i = 0; i < n_fds; i++) {
		fd_close(&fds[i]);
	}
	return goes_on;
}

static bool store_request(struct client *client, struct input *input, unsigned choice)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ModelTensors tensors = GLAKE__WIRE__MODEL_TENSORS__INIT;
	Glake__Wire__ModelBlocks blocks = GLAKE__WIRE__MODEL_BLOCKS__INIT;
	Glake__Wire__ModelClose close_ = GLAKE__WIRE__MODEL_CLOSE__INIT;
	Glake__Wire__BlockPublish publish = GLAKE__WIRE__BLOCK_PUBLISH__INIT;
	Glake__Wire__BlockLookup lookup = GLAKE__WIRE__BLOCK_LOOKUP__INIT;
	Glake__Wire__BlockRelease release = GLAKE__WIRE__BLOCK_RELEASE__INIT;
	switch (choice) {
	case 0:
		tensors.model = take_id(client, input);
		tensors.first = take_size(input);
		return SEND(client, MODEL_TENSORS, model_tensors, &tensors);
	case 1:
		blocks.model = take_id(client, input);
		blocks.first = take_size(input);
		return SEND(client, MODEL_BLOCKS, model_blocks, &blocks);
	case 2:
		close_.model = take_id(client, input);
		return SEND(client, MODEL_CLOSE, model_close, &close_);
	case 3:
		publish.chunk = take_id(client, input);
		publish.content_bytes = take_size(input);
		return SEND(client, BLOCK_PUBLISH, block_publish, &publish);
	case 4:
		lookup.device = take_byte(input) % 3;
		lookup.digest.data = (uint8_t *)take_text(input);
		lookup.digest.len = take_byte(input) % 32;
		return SEND(client, BLOCK_LOOKUP, block_lookup, &lookup);
	default:
		release.block = take_id(client, input);
		return SEND(client, BLOCK_RELEASE, block_release, &release);
	}
}

/* Without glake-mover there are no blocks, but manifests of tensors without bytes. */
static bool publish_request(struct client *client, struct input *input)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__WeightsPublish publish = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	Glake__Wire__WeightsBlocks run = GLAKE__WIRE__WEIGHTS_BLOCKS__INIT;
	Glake__Wire__WeightsBlocks *runs[] = {&run};
	Glake__Wire__Tensor tensors[4];
	Glake__Wire__Tensor *list[n_elements(tensors)];
	uint64_t ids[N_TAKEN];
	uint64_t numbers[n_elements(tensors)][2];
	publish.draft = take_byte(input) & 1 ? take_id(client, input) : 0;
	publish.key = take_text(input);
	publish.device = take_byte(input) % 3;
	publish.commit = take_byte(input) & 1;
	publish.pin = take_byte(input) & 1;
	publish.n_blocks = take_byte(input) & 1;
	publish.blocks = runs;
	run.n_blocks = take_ids(client, input, ids);
	run.blocks = ids;
	run.model = take_id(client, input);
	run.first = take_size(input);
	run.count = take_size(input);
	publish.n_tensors = take_byte(input) % (n_elements(tensors) + 1);
	publish.tensors = list;
	for (size_t i = 0; i < publish.n_tensors; i++) {
		glake__wire__tensor__init(&tensors[i]);
		list[i] = &tensors[i];
		tensors[i].name = take_text(input);
		tensors[i].dtype = take_byte(input) % 24;
		numbers[i][0] = take_size(input);
		numbers[i][1] = take_size(input);
		tensors[i].shape = tensors[i].strides = numbers[i];
		tensors[i].n_shape = take_byte(input) % 3;
		tensors[i].n_strides = take_byte(input) % 3;
		tensors[i].offset = take_size(input);
		tensors[i].bytes = take_size(input);
	}
	return SEND(client, WEIGHTS_PUBLISH, weights_publish, &publish);
}

static bool weights_request(struct client *client, struct input *input)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__WeightsAttach attach = GLAKE__WIRE__WEIGHTS_ATTACH__INIT;
	if (take_byte(input) & 1) {
		return publish_request(client, input);
	}
	attach.key = take_text(input);
	attach.device = take_byte(input) % 3;
	attach.pin = take_byte(input) & 1;
	return SEND(client, WEIGHTS_ATTACH, weights_attach, &attach);
}

static bool look_request(struct client *client, struct input *input, unsigned choice)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__StatusGet status = GLAKE__WIRE__STATUS_GET__INIT;
	Glake__Wire__DeviceGet device = GLAKE__WIRE__DEVICE_GET__INIT;
	Glake__Wire__StatsGet stats = GLAKE__WIRE__STATS_GET__INIT;
	Glake__Wire__SessionList sessions = GLAKE__WIRE__SESSION_LIST__INIT;
	Glake__Wire__TenantList tenants = GLAKE__WIRE__TENANT_LIST__INIT;
	Glake__Wire__ModelList models = GLAKE__WIRE__MODEL_LIST__INIT;
	Glake__Wire__BlockList blocks = GLAKE__WIRE__BLOCK_LIST__INIT;
	Glake__Wire__EventList events = GLAKE__WIRE__EVENT_LIST__INIT;
	Glake__Wire__UseList uses = GLAKE__WIRE__USE_LIST__INIT;
	uint64_t after = take_byte(input) & 1 ? take_raw(input) : 0;
	sessions.after = tenants.after = models.after = blocks.after = events.after = after;
	uses.after = after;
	switch (choice) {
	case 0:
		return SEND(client, STATUS_GET, status_get, &status);
	case 1:
		return SEND(client, STATS_GET, stats_get, &stats);
	case 2:
		return SEND(client, SESSION_LIST, session_list, &sessions);
	case 3:
		return SEND(client, TENANT_LIST, tenant_list, &tenants);
	case 4:
		return SEND(client, MODEL_LIST, model_list, &models);
	case 5:
		return SEND(client, BLOCK_LIST, block_list, &blocks);
	case 6:
		return SEND(client, EVENT_LIST, event_list, &events);
	case 7:
		return SEND(client, USE_LIST, use_list, &uses);
	default:
		device.device = take_byte(input) % 3;
		return SEND(client, DEVICE_GET, device_get, &device);
	}
}

static bool act_request(struct client *client, struct input *input, unsigned choice)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Pin pin = GLAKE__WIRE__PIN__INIT;
	Glake__Wire__Evict evict = GLAKE__WIRE__EVICT__INIT;
	Glake__Wire__QuotaSet quota = GLAKE__WIRE__QUOTA_SET__INIT;
	switch (choice) {
	case 0:
		pin.name = take_text(input);
		pin.unpin = take_byte(input) & 1;
		return SEND(client, PIN, pin, &pin);
	case 1:
		evict.name = take_text(input);
		return SEND(client, EVICT, evict, &evict);
	case 2:
		quota.tenant = take_byte(input) & 1 ? (char *)"default" : take_text(input);
		quota.device = take_byte(input) % 3;
		quota.quota_bytes = take_size(input);
		/* Not the sessions: the fuzzer would lock itself out. */
		return SEND(client, QUOTA_SET, quota_set, &quota);
	default:
		return hello(client, take_byte(input), take_text(input));
	}
}

static bool hello_with_key(struct client *client, struct input *input, uint8_t *key, size_t n_bytes,
                           size_t max_unanswered)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello body = GLAKE__WIRE__HELLO__INIT;
	uint64_t unanswered[GLAKE_MAX_UNANSWERED + 1];
	body.version = GLAKE_WIRE_VERSION;
	body.key.data = key;
	body.key.len = n_bytes;
	body.image = take_byte(input) % 3;
	body.unanswered = unanswered;
	uint8_t choice = take_byte(input);
	body.n_unanswered = choice < 250 ? choice % 8 : max_unanswered;
	for (size_t i = 0; i < body.n_unanswered; i++) {
		unanswered[i] = i & 1 ? take_raw(input) : client->last_request - i;
	}
	return SEND(client, HELLO, hello, &body) && ping(client);
}

/* The connection is lost, or only seems to be. */
static bool resume(struct client *client, struct input *input)
{
	struct client before = *client;
	bool is_lost = take_byte(input) & 1;
	if (is_lost) {
		fd_close(&client->socket);
	}
	client->socket = try_connect();
	must(client->socket >= 0);
	bool goes_on = hello_with_key(client, input, before.key, sizeof(before.key),
	                              GLAKE_MAX_UNANSWERED);
	if (!is_lost) {
		fd_close(&before.socket);
	}
	return goes_on;
}

/* A key of nobody: of the wrong length, or the witness's but for a bit. */
static bool guess(struct client *client, struct input *input)
{
	uint8_t key[2 * GLAKE_KEY_BYTES] = {0};
	struct client other = {.socket = try_connect()};
	uint8_t bit = take_byte(input) % (8 * GLAKE_KEY_BYTES);
	uint8_t n_bytes = take_byte(input);
	memcpy(key, witness.key, sizeof(witness.key));
	key[bit / 8] ^= (uint8_t)(1 << bit % 8);
	must(other.socket >= 0);
	must(!hello_with_key(&other, input, key,
	                     n_bytes < 200 ? GLAKE_KEY_BYTES : n_bytes % sizeof(key) + 1,
	                     GLAKE_MAX_UNANSWERED + 1));
	fd_close(&other.socket);
	return true;
}

static bool seal_request(struct client *client, struct input *input)
{
	request_t request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__SessionSeal seal = GLAKE__WIRE__SESSION_SEAL__INIT;
	Glake__Wire__SealProgress progress = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	if (take_byte(input) & 1) {
		seal.session = take_id(client, input);
		return SEND(client, SESSION_SEAL, session_seal, &seal);
	}
	/* Not 0, which says that it will follow, and then it would be waited for. */
	progress.seal = take_id(client, input) | 1;
	return SEND(client, SEAL_PROGRESS, seal_progress, &progress);
}

/* Whatever it is, and whether it is answered cannot be known: a Ping behind it tells. */
static bool raw_packet(struct client *client, struct input *input)
{
	int fds[4];
	size_t n_fds = take_byte(input) % (n_elements(fds) + 1);
	for (size_t i = 0; i < n_fds; i++) {
		fds[i] = open_some_fd(take_byte(input));
	}
	size_t n_bytes = (size_t)(input->end - input->at);
	ssize_t sent = -1;
	if (n_bytes > 0) {
		sent = wire_send(client->socket, input->at, n_bytes, fds, n_fds, 0);
	}
	input->at = input->end;
	for (size_t i = 0; i < n_fds; i++) {
		fd_close(&fds[i]);
	}
	return sent == 0 && ping(client);
}

static size_t put_counted(uint8_t *bytes, size_t at, unsigned number, size_t n_bytes)
{
	for (size_t value = number << 3 | 2; value > 0; value >>= 7) {
		bytes[at++] = (uint8_t)(value | (value >= 0x80 ? 0x80 : 0));
	}
	bytes[at++] = (uint8_t)(n_bytes | 0x80);
	bytes[at++] = (uint8_t)(n_bytes >> 7 | 0x80);
	bytes[at++] = (uint8_t)(n_bytes >> 14);
	return at;
}

/* Fields by the thousand, around the limits of the type and far above; in a row of them, or not. */
static bool crowded_packet(struct client *client, struct input *input)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	uint8_t tag = (uint8_t)((take_byte(input) % 16) << 3 | 2);
	unsigned number = take_byte(input) % 32 + 1;
	bool is_deep = take_byte(input) & 1;
	size_t n_fields = take_raw(input) % 32000;
	size_t at = put_counted(bytes, 0, number, 2 * n_fields + (is_deep ? 4 : 0));
	if (is_deep) {
		at = put_counted(bytes, at, 6, 2 * n_fields);
	}
	for (size_t i = 0; i < n_fields; i++) {
		bytes[at++] = tag;
		bytes[at++] = 0;
	}
	return wire_send(client->socket, bytes, at, NULL, 0, 0) == 0 && ping(client);
}

static bool one_request(struct client *client, struct input *input)
{
	unsigned choice = take_byte(input) % 36;
	if (choice < 5) {
		return memory_request(client, input, choice);
	}
	if (choice < 7) {
		return open_request(client, input);
	}
	if (choice < 13) {
		return store_request(client, input, choice - 7);
	}
	if (choice < 20) {
		return look_request(client, input, take_byte(input) % 9);
	}
	if (choice < 24) {
		return act_request(client, input, choice - 20);
	}
	if (choice < 26) {
		return raw_packet(client, input);
	}
	if (choice < 29) {
		return weights_request(client, input);
	}
	if (choice < 30) {
		return crowded_packet(client, input);
	}
	if (choice < 32) {
		return choice < 31 ? ping(client) : fault_report(client, input);
	}
	return choice < 34   ? resume(client, input)
	       : choice < 35 ? guess(client, input)
	                     : seal_request(client, input);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	struct input input = {.at = bytes, .end = bytes + n_bytes};
	struct client client = {.socket = try_connect()};
	must(client.socket >= 0);
	if (witness.last_request == 0) {
		must(hello(&witness, GLAKE_WIRE_VERSION, (char *)"witness"));
		must(name_chunk(&witness));
	}
	memcpy(client.ids, witness.ids, sizeof(client.ids));
	client.n_ids = witness.n_ids;
	bool goes_on = take_byte(&input) % 16 == 0 ||
	               hello(&client, GLAKE_WIRE_VERSION, (char *)"x");
	for (unsigned i = 0; goes_on && input.at < input.end && i < MAX_REQUESTS; i++) {
		goes_on = one_request(&client, &input);
	}
	if (goes_on) {
		goodbye(&client);
	}
	fd_close(&client.socket);
	must(ping(&witness));
	return 0;
}
