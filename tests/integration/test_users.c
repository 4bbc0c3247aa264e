/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What glaked has in limited amount (daemon/net/users.def): one user takes of each thing as much as it gets, and
 * another one is still served. A row without a flood here fails.
 */
#include "daemon/net/user.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/wire.h"
#include "tests/harness/connection.h"
#include "tests/harness/fuse_file.h"
#include "tests/harness/model_file.h"
#include "tests/harness/world.h"

#define ALICE 12345
#define BOB 12346
#define MANY 64

static char model_path[512]; /* a model's file, small */

static int connect_as(uid_t uid)
{
	ck_assert_int_eq(seteuid(uid), 0);
	int connection = connection_open(&harness);
	ck_assert_int_eq(seteuid(0), 0);
	return connection;
}

static int hello_as(uid_t uid)
{
	int connection = connect_as(uid);
	ck_assert_int_eq(connection_greet(connection, GLAKE_WIRE_VERSION), GLAKE__WIRE__STATUS__OK);
	return connection;
}

static Glake__Wire__Status alloc(int connection, uint32_t n_chunks, uint64_t *ids_out)
{
	return connection_alloc(connection, 0, CHUNK_BYTES, n_chunks, ids_out, NULL);
}

static uint64_t send_share(int connection, uint64_t *ids, size_t n_ids)
{
	return connection_send(
		connection,
		REQUEST(CHUNK_SHARE, ChunkShare, chunk_share, .ids = ids, .n_ids = n_ids), NULL, 0);
}

/* Whether the named memory is there after a restart. */
static bool await_kept(int connection, uint64_t request)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection, request, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_ne(answer->chunk_share->ticket, 0);
	bool is_kept = !answer->chunk_share->is_unkept;
	connection_free(answer);
	return is_kept;
}

static uint64_t send_open_fd(int connection, int fd, size_t n_files)
{
	char *names[GLAKE_MAX_PACKET_FDS];
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_files; i++) {
		names[i] = (char *)"a.safetensors";
		fds[i] = fd;
	}
	return connection_send(
		connection,
		REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = names, .n_files = n_files), fds,
		n_files);
}

static uint64_t send_open(int connection)
{
	int fd = model_file_open(model_path);
	uint64_t id = send_open_fd(connection, fd, 1);
	close(fd);
	return id;
}

static Glake__Wire__Status await(int connection, uint64_t request, const char *words)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection, request, NULL);
	Glake__Wire__Status status = answer->status;
	ck_assert_msg(status == GLAKE__WIRE__STATUS__OK || (words && strstr(answer->error, words)),
	              "%s", answer->error);
	connection_free(answer);
	return status;
}

/* Begin to publish weights: their manifest is glaked's memory. */
static Glake__Wire__Status draft(int connection)
{
	return connection_status(
		connection,
		REQUEST(WEIGHTS_PUBLISH, WeightsPublish, weights_publish, .key = (char *)"key"),
		NULL, 0);
}

/* All that a user may want. */
static void is_served(uid_t uid, bool is_kept)
{
	uint64_t id;
	int connection = hello_as(uid);
	ck_assert_int_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(await_kept(connection, send_share(connection, &id, 1)), is_kept);
	ck_assert_int_eq(draft(connection), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(await(connection, send_open(connection), NULL), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
}

static void begin(const struct harness_options *options)
{
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	world_begin_as(options);
	/* One that was passed is as this process has made it. */
	ck_assert_int_eq(chmod(harness.socket_path, 0666), 0);
	snprintf(model_path, sizeof(model_path), "%s/a.safetensors", harness.folder);
	model_file_write(model_path, &tensor, 1);
	world_start_mover();
}

/* ---- the floods ------------------------------------------------------------------------------- */

static void flood_sessions(void)
{
	enum { SHARE = 16 };
	int connections[SHARE];
	for (unsigned i = 0; i < SHARE; i++) {
		connections[i] = hello_as(ALICE);
	}
	int refused = connect_as(ALICE);
	ck_assert_int_eq(connection_greet(refused, GLAKE_WIRE_VERSION),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	is_served(BOB, false);
	for (unsigned i = 0; i < SHARE; i++) {
		connection_close(&connections[i]);
	}
}

/* Answers with fds that are not read: first they lie in the socket, then they wait in glaked. */
static void do_not_read(struct harness *h, void *user)
{
	enum { N = 8, CHUNKS = 60, PACKETS = 200 };
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	int connections[N];
	uint64_t ids[N][CHUNKS];
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_as(ALICE);
		ck_assert_int_eq(alloc(connections[i], CHUNKS, ids[i]), GLAKE__WIRE__STATUS__OK);
	}
	for (unsigned i = 0; i < N; i++) {
		Glake__Wire__Request *request = REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
		                                        .ids = ids[i], .n_ids = CHUNKS);
		request->id = 1;
		size_t n_bytes = glake__wire__request__pack(request, bytes);
		for (unsigned n = 0; n < PACKETS; n++) {
			wire_send(connections[i], bytes, n_bytes, NULL, 0, MSG_DONTWAIT);
		}
	}
	harness_settle_n_fds(&harness);
	for (unsigned n = 0; n < 20; n++) {
		is_served(BOB, false);
	}
}

/* Its sessions end with their process. */
static void flood_answers(void)
{
	harness_in_child(&harness, do_not_read, NULL);
}

/* A file that does not answer: its loads do not end. False: it cannot be mounted. */
static bool mount_endless(struct fuse_file *file)
{
	static const struct fuse_file_faults faults = {.endless_from = 1};
	char folder[512];
	snprintf(folder, sizeof(folder), "%s/fuse", harness.folder);
	return fuse_file_start(file, folder, model_path, &faults);
}

/* The load is not refused; readers of the mover may have to wait for the file that does not answer. */
static uint64_t send_accepted(int connection)
{
	uint64_t request = send_open(connection);
	/* No refusal is in the way of the answer. */
	connection_ping(connection);
	return request;
}

/* As soon as the mover reads what it is sent. */
static void load_endless(int connection, int fd, size_t n_files)
{
	uint64_t answered;
	uint64_t request;
	do {
		request = send_open_fd(connection, fd, n_files);
		uint64_t ping = connection_send(connection, REQUEST(PING, Ping, ping), NULL, 0);
		Glake__Wire__Answer *answer = connection_receive(connection, NULL);
		answered = answer->id;
		if (answered == request) {
			ck_assert_ptr_nonnull(strstr(answer->error, "too many files"));
			await(connection, ping, NULL);
			harness_sleep_ms(10);
		}
		connection_free(answer);
	} while (answered == request);
}

static void flood_loads_of(unsigned n_files, unsigned n_share, const char *words)
{
	struct fuse_file file;
	if (!mount_endless(&file)) {
		return;
	}
	/* Once: later it might wait for a reader. */
	int fd = model_file_open(file.path);
	int connections[4];
	for (unsigned i = 0; i < n_elements(connections); i++) {
		connections[i] = hello_as(ALICE);
	}
	/* Each of other files than the others: nobody joins a load. */
	for (unsigned i = 0; i < n_share; i++) {
		load_endless(connections[i % 4], fd, n_files + i);
	}
	ck_assert_int_eq(
		await(connections[0], send_open_fd(connections[0], fd, n_files + n_share), words),
		GLAKE__WIRE__STATUS__BUSY);
	int other = hello_as(BOB);
	uint64_t request = send_accepted(other);
	/* A request that the user has given up counts until it ends. */
	connection_close(&connections[1]);
	ck_assert_int_eq(
		await(connections[0], send_open_fd(connections[0], fd, n_files + n_share), words),
		GLAKE__WIRE__STATUS__BUSY);
	close(fd);
	fuse_file_stop(&file);
	ck_assert_int_eq(await(other, request, NULL), GLAKE__WIRE__STATUS__OK);
	connection_close(&other);
	is_served(BOB, false);
	for (unsigned i = 0; i < n_elements(connections); i++) {
		connection_close(&connections[i]);
	}
}

static void flood_loads(void)
{
	flood_loads_of(1, GLAKE_MAX_LOADS / 2, "loads under way");
}

static void flood_load_fds(void)
{
	/* The mover has (1300 - 512) * 3 / 4 = 591 for loads. */
	flood_loads_of(100, 2, "too many files");
}

/* Memory of programs that glake-mover has to look through; it does nothing at the moment. */
static void flood_probes(void)
{
	/* The mover has (1300 - 512) / 8 = 98 fds for it, two for each. */
	enum { SHARE = 24, N = 3 };
	uint64_t ids[SHARE + 1];
	uint64_t requests[SHARE + 1];
	int connections[N];
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_as(ALICE);
		ck_assert_int_eq(alloc(connections[i], SHARE / 2 + 1, &ids[0]),
		                 GLAKE__WIRE__STATUS__OK);
		if (i == 0) {
			kill(world_running_mover(), SIGSTOP);
		}
		for (unsigned k = 0; k < SHARE / 2 + 1; k++) {
			requests[k] = connection_send(connections[i],
			                              REQUEST(BLOCK_PUBLISH, BlockPublish,
			                                      block_publish, .chunk = ids[k],
			                                      .content_bytes = CHUNK_BYTES),
			                              NULL, 0);
		}
	}
	/* All of the last one's are beyond the share. */
	ck_assert_int_eq(await(connections[N - 1], requests[0], "too much under way"),
	                 GLAKE__WIRE__STATUS__BUSY);
	int other = hello_as(BOB);
	ck_assert_int_eq(alloc(other, 1, &ids[0]), GLAKE__WIRE__STATUS__OK);
	uint64_t request = connection_send(other,
	                                   REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish,
	                                           .chunk = ids[0], .content_bytes = CHUNK_BYTES),
	                                   NULL, 0);
	connection_ping(other);
	kill(world_running_mover(), SIGCONT);
	ck_assert_int_eq(await(other, request, NULL), GLAKE__WIRE__STATUS__OK);
	is_served(BOB, false);
	for (unsigned i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
	connection_close(&other);
}

/* Each takes 16 KiB, and no GPU memory. */
static void flood_manifests(void)
{
	enum { N = 4 };
	int connections[N];
	unsigned n_drafts = 0;
	Glake__Wire__Status status = GLAKE__WIRE__STATUS__OK;
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_as(ALICE);
	}
	for (unsigned i = 0; i < N && status != GLAKE__WIRE__STATUS__OVER_QUOTA; i++) {
		while ((status = draft(connections[i])) == GLAKE__WIRE__STATUS__OK) {
			n_drafts++;
		}
		/* A session may have 64. */
		ck_assert(status == GLAKE__WIRE__STATUS__OVER_QUOTA || n_drafts == 64 * (i + 1));
	}
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_uint_le(n_drafts, 2 * MIB / (16 * KIB));
	is_served(BOB, false);
	/* One more of hers is refused, whatever it is for. */
	ck_assert_int_eq(await(connections[0], send_open(connections[0]), "its share in tenant"),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	for (unsigned i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
	is_served(ALICE, false);
}

/*
 * One draft of weights, without blocks, of so many bytes of names. Returns to how many it has come: a refusal ends the
 * draft.
 */
static uint64_t publish_names(int connection, uint64_t max_bytes)
{
	enum { TENSORS = 55, NAME = 1000 };
	static char names[TENSORS][NAME + 1];
	static Glake__Wire__Tensor tensors[TENSORS];
	Glake__Wire__Tensor *list[TENSORS];
	uint64_t none = 0;
	uint64_t n_bytes = 0;
	uint64_t id = 0;
	for (unsigned i = 0; i < TENSORS; i++) {
		glake__wire__tensor__init(&tensors[i]);
		memset(names[i], 'n', NAME);
		tensors[i].name = names[i];
		tensors[i].dtype = GLAKE_U8;
		tensors[i].shape = &none;
		tensors[i].n_shape = 1;
		list[i] = &tensors[i];
	}
	for (unsigned page = 0; n_bytes < max_bytes; page++) {
		for (unsigned i = 0; i < TENSORS; i++) {
			snprintf(names[i] + NAME - 16, 17, "%016u", page * TENSORS + i);
		}
		Glake__Wire__Answer *answer = connection_call(
			connection,
			REQUEST(WEIGHTS_PUBLISH, WeightsPublish, weights_publish, .draft = id,
		                .key = (char *)"key", .tensors = list, .n_tensors = TENSORS),
			NULL, 0, NULL);
		Glake__Wire__Status status = answer->status;
		id = status == GLAKE__WIRE__STATUS__OK ? answer->weights_publish->draft : 0;
		connection_free(answer);
		if (status != GLAKE__WIRE__STATUS__OK) {
			ck_assert_int_eq(status, GLAKE__WIRE__STATUS__OVER_QUOTA);
			return n_bytes;
		}
		n_bytes += (uint64_t)TENSORS * NAME;
	}
	return n_bytes;
}

/* Tenants that may have as much memory as they like fill the books all the same. */
static void flood_books(void)
{
	int connections[2] = {hello_as(ALICE), hello_as(ALICE)};
	uint64_t n_bytes = publish_names(connections[0], GIB);
	ck_assert_uint_gt(n_bytes, 100 * MIB);
	ck_assert_uint_lt(n_bytes, 160 * MIB);
	n_bytes -= MIB / 2;
	ck_assert_uint_ge(publish_names(connections[0], n_bytes), n_bytes);
	while (draft(connections[1]) == GLAKE__WIRE__STATUS__OK) {
	}
	ck_assert_int_eq(await(connections[1], send_open(connections[1]), "its share in tenant"),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	is_served(BOB, true);
	connection_close(&connections[0]);
	connection_close(&connections[1]);
}

/* Memory that others may open, until no more of it is kept. Returns the session. */
static int name_memory(uid_t uid, unsigned *n_kept_out)
{
	uint64_t ids[MANY];
	unsigned n_kept = 0;
	int connection = hello_as(uid);
	ck_assert_int_eq(alloc(connection, MANY, ids), GLAKE__WIRE__STATUS__OK);
	while (n_kept < MANY && await_kept(connection, send_share(connection, &ids[n_kept], 1))) {
		n_kept++;
	}
	*n_kept_out = n_kept;
	return connection;
}

static void flood_places(void)
{
	unsigned n_kept;
	int connection = name_memory(ALICE, &n_kept);
	ck_assert_uint_gt(n_kept, MANY / 4);
	ck_assert_uint_le(n_kept, MANY / 2);
	ck_assert_uint_eq(world_status().unkept_chunks, 1);
	/* Both what they name and what they load has room. */
	is_served(BOB, true);
	connection_close(&connection);
	is_served(ALICE, true);
	ck_assert_uint_eq(world_status().unkept_chunks, 0);
}

/* Fds that glaked has given to the service manager. */
static void await_n_kept(size_t n)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (fdkeeper_n_kept(&harness.fdkeeper) != n) {
		ck_assert_msg(harness_now_ms() < end_ms, "%zu fds are kept, not %zu",
		              fdkeeper_n_kept(&harness.fdkeeper), n);
		harness_sleep_ms(10);
	}
}

/* The service manager does not say that it has done what it was told. */
static void flood_orders(void)
{
	enum { N = 5, EACH = GLAKE_MAX_PACKET_FDS, SHARE = 1024 / EACH * EACH };
	static uint64_t ids[N][EACH];
	uint64_t requests[N];
	uint64_t id;
	int connection = hello_as(ALICE);
	int other = hello_as(BOB);
	for (unsigned i = 0; i < N; i++) {
		ck_assert_int_eq(alloc(connection, EACH, ids[i]), GLAKE__WIRE__STATUS__OK);
	}
	ck_assert_int_eq(alloc(other, 1, &id), GLAKE__WIRE__STATUS__OK);
	size_t n_kept = fdkeeper_n_kept(&harness.fdkeeper);
	fdkeeper_stall(&harness.fdkeeper);
	for (unsigned i = 0; i < N; i++) {
		requests[i] = send_share(connection, ids[i], EACH);
	}
	await_n_kept(n_kept + SHARE);
	uint64_t request = send_share(other, &id, 1);
	await_n_kept(n_kept + SHARE + 1);
	fdkeeper_stall(&harness.fdkeeper);
	ck_assert(await_kept(other, request));
	is_served(BOB, true);
	/* And the rest of hers gets there, too. */
	for (unsigned i = 0; i < N; i++) {
		ck_assert(await_kept(connection, requests[i]));
	}
	connection_close(&connection);
	connection_close(&other);
}

/* A process of that user with wills of one chunk each. */
struct leaving {
	uid_t uid;
	uint64_t chunk_bytes;
	uint32_t n_chunks;
};

static void make_wills(void *user)
{
	const struct leaving *leaving = user;
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	int connection = hello_as(leaving->uid);
	ck_assert_int_eq(
		connection_alloc(connection, 0, leaving->chunk_bytes, leaving->n_chunks, ids, NULL),
		GLAKE__WIRE__STATUS__OK);
	for (uint32_t i = 0; i < leaving->n_chunks; i++) {
		ck_assert_int_eq(
			connection_status(connection,
		                          REQUEST(CHUNK_KEEP, ChunkKeep, chunk_keep, .ids = &ids[i],
		                                  .n_ids = 1, .key = {1, (uint8_t *)"k"}),
		                          NULL, 0),
			GLAKE__WIRE__STATUS__OK);
	}
	world_reach(*world_stage + 1);
	world_await(1000);
}

static void leave_behind(uid_t uid, uint64_t chunk_bytes, uint32_t n_chunks)
{
	struct leaving leaving = {uid, chunk_bytes, n_chunks};
	uint64_t n_kept = world_metric("steps_kept");
	int stage = *world_stage;
	pid_t client = world_client(make_wills, &leaving);
	world_await(stage + 1);
	world_kill(client);
	world_wait_metric("steps_kept", n_kept + n_chunks);
}

/* Alice leaves more than her share, of which Bob's does not push anything out. */
static void flood_kept(uint64_t chunk_bytes, uint32_t share)
{
	leave_behind(ALICE, chunk_bytes, share + 4);
	ck_assert_uint_eq(world_device(0).kept_bytes, share * chunk_bytes);
	leave_behind(BOB, chunk_bytes, 2);
	ck_assert_uint_eq(world_device(0).kept_bytes, (share + 2) * chunk_bytes);
	is_served(BOB, true);
}

/* Her share is half of 1 GiB, less the reserve. */
static void flood_kept_bytes(void)
{
	flood_kept(64 * MIB, 7);
}

/* Her share is half of 100 fds, a quarter of the 400 for chunks. */
static void flood_kept_fds(void)
{
	flood_kept(CHUNK_BYTES, 50);
}

static const struct flood {
	void (*run)(void);
	struct harness_options options;
} floods[USER_N_ROWS] = {
	[USER_SESSIONS] = {flood_sessions, {.config = WORLD_CONFIG "max_sessions = 64;"}},
	[USER_TABLE_FDS] = {flood_answers,
                            {.config = WORLD_CONFIG "max_sessions = 200;",
                             .devices = "1x4GiB",
                             .max_fds = 2500}},
	[USER_UNREAD_FDS] = {flood_answers,
                             {.config = WORLD_CONFIG "max_sessions = 200;",
                              .devices = "1x4GiB",
                              .max_fds = 2500}},
	[USER_LOADS] = {flood_loads, {.config = WORLD_CONFIG}},
	[USER_LOAD_FDS] = {flood_load_fds, {.config = WORLD_CONFIG, .max_fds = 1300}},
	[USER_PROBES] = {flood_probes, {.config = WORLD_CONFIG, .max_fds = 1300}},
	[USER_MANIFESTS] = {flood_manifests,
                            {.config = WORLD_CONFIG "tenants = ({ name = \"default\"; "
                                                    "manifest_bytes = \"4MiB\"; });"}},
	[USER_BOOKS] = {flood_books,
                        {.config = WORLD_CONFIG "tenants = ({ name = \"default\"; "
                                                "manifest_bytes = 0; });",
                         .devices = "1x1GiB",
                         .has_keeper = true}},
	[USER_PLACES] = {flood_places,
                         {.config = WORLD_CONFIG, .has_keeper = true, .max_kept = "64"}},
	[USER_KEPT_BYTES] = {flood_kept_bytes,
                             {.config = WORLD_CONFIG "reserve_bytes = \"64MiB\";",
                              .devices = "1x1GiB",
                              .has_keeper = true}},
	[USER_KEPT_FDS] = {flood_kept_fds,
                           {.config = WORLD_CONFIG "fd_budget = 464; max_sessions = 64;",
                            .devices = "1x1GiB",
                            .has_keeper = true}},
	[USER_ORDERS] = {flood_orders,
                         {.config = WORLD_CONFIG,
                          .devices = "1x8GiB",
                          .is_activated = true,
                          .keeps_fds = true}},
};

START_TEST_WITH(what_one_user_takes_leaves_enough_for_others, .n = USER_N_ROWS)
{
	const struct flood *flood = &floods[_i];
	ck_assert_msg(flood->run, "row %d of users.def has no flood", _i);
	if (!harness_is_root()) {
		return;
	}
	begin(&flood->options);
	flood->run();
}
END_TEST

/* A model that nobody uses makes room for one that is used, if both are the same user's. */
START_TEST(what_a_user_has_idle_goes_for_its_share)
{
	unsigned n_kept;
	static const struct model_tensor tensor = {"b", "U8", 1, {2000}, 1};
	if (!harness_is_root()) {
		return;
	}
	begin(&(struct harness_options){
		.config = WORLD_CONFIG, .devices = "1x1GiB", .has_keeper = true, .max_kept = "64"});
	int first = hello_as(ALICE);
	ck_assert_int_eq(await(first, send_open(first), NULL), GLAKE__WIRE__STATUS__OK);
	connection_close(&first);
	int connection = name_memory(ALICE, &n_kept);
	ck_assert_uint_eq(world_books().n_models, 1);
	snprintf(model_path, sizeof(model_path), "%s/b.safetensors", harness.folder);
	model_file_write(model_path, &tensor, 1);
	ck_assert_int_eq(await(connection, send_open(connection), NULL), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(world_status().unkept_blocks, 0);
	/* Nothing of hers is idle any more: the next one waits for room, and others have some. */
	first = hello_as(ALICE);
	snprintf(model_path, sizeof(model_path), "%s/a.safetensors", harness.folder);
	ck_assert_int_eq(await(first, send_open(first), NULL), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_status().unkept_blocks, 1);
	is_served(BOB, true);
	/* The next one gets the room of what is closed. */
	connection_close(&connection);
	do {
		harness_sleep_ms(10);
	} while (world_status().unkept_blocks > 0);
	connection_close(&first);
}
END_TEST

/* The books say who has made what is kept, and whose memory it is. */
static void name_and_survive(void *user)
{
	unsigned n_kept;
	int before = name_memory(ALICE, &n_kept);
	int loaded = hello_as(BOB);
	ck_assert_int_eq(await(loaded, send_open(loaded), NULL), GLAKE__WIRE__STATUS__OK);
	world_reach(1);
	world_await(2);
	int after = name_memory(ALICE, &n_kept);
	ck_assert_uint_eq(n_kept, 0);
	is_served(BOB, true);
	connection_close(&after);
	close(before);
	close(loaded);
}

START_TEST(a_restart_changes_nobodys_share)
{
	if (!harness_is_root()) {
		return;
	}
	begin(&(struct harness_options){
		.config = WORLD_CONFIG, .devices = "1x1GiB", .has_keeper = true, .max_kept = "64"});
	pid_t client = world_client(name_and_survive, NULL);
	world_await(1);
	harness_kill(&harness);
	harness_restart(&harness);
	world_reach(2);
	world_join(client);
}
END_TEST
