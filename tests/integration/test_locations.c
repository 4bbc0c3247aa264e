/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in host memory beside those of GPUs: granted together or not at all, charged, kept, refused. */
#include <stdlib.h>

#include "libclient/link/rpc.h"
#include "tests/harness/connection.h"
#include "tests/harness/proxy.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

#define HOST GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST
#define GPU GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU
#define STATUS(name) GLAKE__WIRE__STATUS__##name
/* Longer than any test may last. */
#define WAIT "pressure = \"wait\"; wait_ms = 3600000; "

/* Nodes as the kernel lists them: number, MiB, processors. */
static void write_node(const char *folder, unsigned number, unsigned mib, const char *processors)
{
	char path[512];
	char text[128];
	snprintf(path, sizeof(path), "%s/node%u", folder, number);
	ck_assert_int_eq(mkdir(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/node%u/meminfo", folder, number);
	FILE *file = fopen(path, "w");
	snprintf(text, sizeof(text), "Node %u MemTotal:       %u kB\nNode %u MemFree: 1 kB\n",
	         number, mib * 1024, number);
	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
	snprintf(path, sizeof(path), "%s/node%u/cpulist", folder, number);
	file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	fprintf(file, "%s\n", processors);
	fclose(file);
}

/* Node 0 and 1 of 256 MiB each. Node 2 has no memory, node 3 no processors. */
static void set_machine(const char *cudasim_host)
{
	static char folder[256];
	snprintf(folder, sizeof(folder), "%s/nodes.XXXXXX",
	         getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	write_node(folder, 0, 256, "0-3");
	write_node(folder, 1, 256, "4-7");
	write_node(folder, 2, 0, "8");
	write_node(folder, 3, 256, "");
	setenv("GLAKE_NODES", folder, 1);
	setenv("CUDASIM_HOST", cudasim_host, 1);
}

static void begin(const char *config)
{
	set_machine("4xany");
	world_begin(.config = config, .devices = "2x256MiB");
}

/* ---- requests --------------------------------------------------------------------------------- */

struct wanted {
	Glake__Wire__LocationKind at;
	uint32_t number;
	uint64_t mib;
	uint32_t n;
};

/* One request for all of @wanted. */
static Glake__Wire__Answer *ask(int connection, const struct wanted *wanted, size_t n,
                                struct fdlist *fds)
{
	Glake__Wire__ChunkPart parts[GLAKE_MAX_ALSO + 1];
	Glake__Wire__ChunkPart *list[GLAKE_MAX_ALSO + 1];
	for (size_t i = 1; i < n; i++) {
		glake__wire__chunk_part__init(&parts[i - 1]);
		parts[i - 1].at = wanted[i].at;
		parts[i - 1].number = wanted[i].number;
		parts[i - 1].chunk_bytes = wanted[i].mib * MIB;
		parts[i - 1].n_chunks = wanted[i].n;
		list[i - 1] = &parts[i - 1];
	}
	return connection_call(connection,
	                       REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .at = wanted[0].at,
	                               .device = wanted[0].number,
	                               .chunk_bytes = wanted[0].mib * MIB, .n_chunks = wanted[0].n,
	                               .also = list, .n_also = n - 1),
	                       NULL, 0, fds);
}

/* The answer must be @status, and say @words. Returns the id of the first chunk, if any. */
static uint64_t expect(int connection, const struct wanted *wanted, size_t n,
                       Glake__Wire__Status status, const char *words)
{
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = ask(connection, wanted, n, &fds);
	ck_assert_msg(answer->status == status && (!words || strstr(answer->error, words)),
	              "%d: %s", answer->status, answer->error);
	uint64_t id = status == STATUS(OK) ? answer->chunk_alloc->ids[0] : 0;
	connection_free(answer);
	return id;
}

#define EXPECT(connection, status, words, ...) \
	expect(connection, (const struct wanted[]){__VA_ARGS__}, \
	       sizeof((const struct wanted[]){__VA_ARGS__}) / sizeof(struct wanted), \
	       STATUS(status), words)

struct seen {
	uint32_t n_hosts;
	struct glake_host_status hosts[4];
	char lacking[96];
	struct glake_tenant_device used[4];
};

static int see_status(void *user, const struct glake_status *status)
{
	struct seen *seen = user;
	seen->n_hosts = status->n_hosts;
	for (uint32_t i = 0; i < status->n_hosts && i < 4; i++) {
		seen->hosts[i] = status->hosts[i];
	}
	snprintf(seen->lacking, sizeof(seen->lacking), "%s", status->hosts_lacking);
	return 0;
}

static int see_tenant(void *user, const struct glake_tenant_row *row)
{
	struct seen *seen = user;
	if (strcmp(row->name, "default") == 0) {
		memcpy(seen->used, row->hosts, row->n_hosts * sizeof(row->hosts[0]));
	}
	return 0;
}

static struct seen see(void)
{
	struct seen seen = {0};
	assert_ok(glake_get_status(eye, see_status, &seen));
	assert_ok(glake_list_tenants(eye, see_tenant, &seen));
	return seen;
}

/* ---- what there is ---------------------------------------------------------------------------- */

START_TEST(nodes_with_memory_and_processors_are_locations)
{
	begin(WORLD_CONFIG);
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 2);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_uint_eq(seen.hosts[i].node, i);
		ck_assert_uint_eq(seen.hosts[i].total_bytes, 256 * MIB);
		ck_assert_uint_eq(seen.hosts[i].limit_bytes, 64 * MIB);
		ck_assert_uint_eq(seen.hosts[i].physical_bytes, 0);
	}
	ck_assert_str_eq(seen.lacking, "");
}
END_TEST

START_TEST(a_kernel_without_nodes_has_node_0)
{
	setenv("GLAKE_NODES", "/nowhere", 1);
	world_begin(.config = WORLD_CONFIG "host_bytes = \"32MiB\";");
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 1);
	ck_assert_uint_eq(seen.hosts[0].node, 0);
	ck_assert_uint_eq(seen.hosts[0].limit_bytes, 32 * MIB);
}
END_TEST

START_TEST(an_old_driver_has_none_and_status_says_why)
{
	set_machine("none");
	world_begin(.config = WORLD_CONFIG);
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 0);
	ck_assert_str_eq(seen.lacking, "the driver has no chunks in host memory");
	int connection = connection_hello(&harness);
	EXPECT(connection, BAD_REQUEST, "there is no host node 0: the driver has no chunks",
	       {HOST, 0, 2, 1});
	connection_ping(connection);
	connection_close(&connection);
}
END_TEST

START_TEST(a_node_that_the_driver_refuses_is_left_out)
{
	set_machine("1xany");
	world_begin(.config = WORLD_CONFIG);
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 1);
	ck_assert_ptr_nonnull(strstr(seen.lacking, "node 1: CUDA_ERROR_INVALID_VALUE"));
}
END_TEST

START_TEST(host_bytes_may_forbid_it)
{
	begin(WORLD_CONFIG "host_bytes = [ \"16MiB\", \"0\" ];");
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 1);
	ck_assert_uint_eq(seen.hosts[0].limit_bytes, 16 * MIB);
	ck_assert_str_eq(seen.lacking, "node 1: host_bytes allows none");
}
END_TEST

START_TEST(a_node_gives_out_no_more_than_it_has)
{
	begin(WORLD_CONFIG "host_bytes = [ \"16MiB\", \"1GiB\" ];");
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 2);
	ck_assert_uint_eq(seen.hosts[0].limit_bytes, 16 * MIB);
	ck_assert_uint_eq(seen.hosts[1].limit_bytes, 256 * MIB);
}
END_TEST

/* ---- grants ----------------------------------------------------------------------------------- */

static void map_and_fill(int fd, uint64_t n_bytes, CUmemLocationType type)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	const CUmemAccessDesc access = {.location = {.type = type},
	                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	ck_assert_int_eq(
		drv.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
	                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
		0);
	ck_assert_int_eq(drv.cuMemAddressReserve(&at, n_bytes, 0, 0, 0), 0);
	ck_assert_int_eq(drv.cuMemMap(at, n_bytes, 0, handle, 0), 0);
	ck_assert_int_eq(drv.cuMemSetAccess(at, n_bytes, &access, 1), 0);
	if (type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
		ck_assert_int_eq(*(volatile char *)at, 0);
		memset((void *)at, 7, n_bytes);
	} else {
		ck_assert_int_eq(drv.cuMemsetD8(at, 7, n_bytes), 0);
	}
	ck_assert_int_eq(drv.cuMemUnmap(at, n_bytes), 0);
	ck_assert_int_eq(drv.cuMemAddressFree(at, n_bytes), 0);
	ck_assert_int_eq(drv.cuMemRelease(handle), 0);
}

/* The order of the request is not that of the grant. */
static void use_both(void *user)
{
	struct glake_session *session = world_connect();
	const struct glake__chunks_at wanted[] = {
		{.is_host = true, .number = 1, .n_chunks = 2, .chunk_bytes = 4 * MIB},
		{.number = 1, .n_chunks = 1, .chunk_bytes = 8 * MIB},
		{.is_host = true, .n_chunks = 2, .chunk_bytes = 6 * MIB, .last_bytes = 2 * MIB},
	};
	static const uint64_t sizes[] = {4 * MIB, 4 * MIB, 8 * MIB, 6 * MIB, 2 * MIB};
	struct glake__wait wait = {0};
	uint64_t ids[5];
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	world_open_driver();
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), 0);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), 0);
	assert_ok(glake__rpc_chunk_alloc_at(session, wanted, 3, &wait, ids, &fds));
	ck_assert_uint_eq(fds.n_fds, 5);
	for (size_t i = 0; i < 5; i++) {
		map_and_fill(fds.fds[i], sizes[i],
		             i == 2 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST_NUMA);
	}
	assert_fails(-ENOTSUP, "no chunks in host memory of node 2",
	             glake__rpc_chunk_alloc_at(session,
	                                       &(struct glake__chunks_at){
						       .is_host = true, .number = 2, .n_chunks = 1},
	                                       1, &wait, ids, &fds));
	world_reach(1);
	world_await(2);
	assert_ok(glake__rpc_chunk_free(session, ids, 5));
	world_disconnect(session);
}

static int host_bytes_of(void *user, const struct glake_session_row *row)
{
	*(uint64_t *)user += row->host_bytes;
	return 0;
}

START_TEST(a_request_for_several_locations_brings_all)
{
	uint64_t host_bytes = 0;
	begin(WORLD_CONFIG);
	pid_t client = world_client(use_both, NULL);
	world_await(1);
	struct seen seen = see();
	ck_assert_uint_eq(seen.hosts[0].private_bytes, 8 * MIB);
	ck_assert_uint_eq(seen.hosts[1].private_bytes, 8 * MIB);
	ck_assert_uint_eq(seen.used[0].used_bytes, 8 * MIB);
	ck_assert_uint_eq(seen.used[1].used_bytes, 8 * MIB);
	ck_assert_uint_eq(world_books().private_bytes, 8 * MIB);
	assert_ok(glake_list_sessions(eye, host_bytes_of, &host_bytes));
	ck_assert_uint_eq(host_bytes, 16 * MIB);
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(a_part_that_can_never_be_costs_the_others_nothing)
{
	begin(WORLD_CONFIG
	      "tenants = ({ name = \"default\"; host_bytes = [ \"0\", \"16MiB\" ]; });");
	int connection = connection_hello(&harness);
	uint64_t n_made = world_metric("chunks_created");
	EXPECT(connection, NO_HOST_MEMORY, "more on host node 0", {GPU, 0, 8, 1}, {HOST, 0, 66, 1});
	EXPECT(connection, OVER_QUOTA, "on host node 1: tenant default", {GPU, 0, 8, 1},
	       {HOST, 1, 18, 1});
	EXPECT(connection, NO_DEVICE_MEMORY, "device 1", {HOST, 0, 8, 1}, {GPU, 1, 512, 1});
	struct seen seen = see();
	ck_assert_uint_eq(seen.used[0].peak_bytes, 0);
	ck_assert_uint_eq(world_metric("chunks_created"), n_made);
	connection_close(&connection);
}
END_TEST

/* The last part could be granted, but the memory of its node is in use. */
START_TEST(a_part_that_cannot_be_now_gives_the_others_back)
{
	begin(WORLD_CONFIG);
	int connection = connection_hello(&harness);
	EXPECT(connection, OK, NULL, {HOST, 1, 40, 1});
	EXPECT(connection, NO_HOST_MEMORY, "more on host node 1", {GPU, 0, 8, 2}, {HOST, 0, 8, 3},
	       {HOST, 1, 40, 1});
	struct books books = books_before;
	books.host_bytes = books.charged_host_bytes = 40 * MIB;
	books.n_sessions++;
	books.fds_used++;
	books.charged_fds++;
	world_wait_books(&books);
	connection_close(&connection);
}
END_TEST

START_TEST(the_drivers_memory_may_end_before_the_limit)
{
	set_machine("8MiB,8MiB");
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB", .speed = 10);
	int connection = connection_hello(&harness);
	EXPECT(connection, OK, NULL, {HOST, 0, 4, 1});
	EXPECT(connection, NO_HOST_MEMORY, "more on host node 0", {GPU, 0, 2, 1}, {HOST, 0, 6, 1});
	EXPECT(connection, OK, NULL, {HOST, 0, 4, 1});
	connection_close(&connection);
}
END_TEST

START_TEST(impossible_requests_are_answered)
{
	begin(WORLD_CONFIG);
	int connection = connection_hello(&harness);
	EXPECT(connection, BAD_REQUEST, "there is no host node 2", {HOST, 2, 2, 1});
	EXPECT(connection, BAD_REQUEST, "there is no host node 4294967295", {GPU, 0, 2, 1},
	       {HOST, UINT32_MAX, 2, 1});
	EXPECT(connection, BAD_REQUEST, "there is no location of that kind",
	       {(Glake__Wire__LocationKind)7, 0, 2, 1});
	EXPECT(connection, BAD_REQUEST, "named before", {HOST, 0, 2, 1}, {GPU, 0, 2, 1},
	       {HOST, 0, 2, 1});
	EXPECT(connection, BAD_REQUEST, "impossible", {HOST, 0, 4 * 1024 + 2, 1});
	EXPECT(connection, BAD_REQUEST, "impossible", {HOST, 0, 2, 0});
	EXPECT(connection, BAD_REQUEST, "impossible", {HOST, 0, 2, 200}, {GPU, 0, 2, 54});
	EXPECT(connection, BAD_REQUEST, "impossible", {HOST, 0, 2, 1}, {GPU, 0, 2, UINT32_MAX});
	connection_ping(connection);
	connection_close(&connection);
}
END_TEST

START_TEST(a_chunk_in_host_memory_is_no_block)
{
	begin(WORLD_CONFIG);
	int connection = connection_hello(&harness);
	uint64_t id = EXPECT(connection, OK, NULL, {HOST, 0, 2, 1});
	ck_assert_int_eq(connection_publish(connection, id, 1), STATUS(BAD_REQUEST));
	connection_close(&connection);
}
END_TEST

/* ---- limits ----------------------------------------------------------------------------------- */

START_TEST(a_quota_can_be_set_and_is_forgotten_by_a_reload)
{
	begin(WORLD_CONFIG);
	int connection = connection_hello(&harness);
	assert_ok(glake_set_host_quota(eye, "default", 1, 8 * MIB));
	assert_fails(-ENOTSUP, "node 5", glake_set_host_quota(eye, "default", 5, 8 * MIB));
	EXPECT(connection, OK, NULL, {HOST, 0, 10, 1});
	EXPECT(connection, OVER_QUOTA, "host node 1", {HOST, 1, 10, 1});
	harness_reload(&harness, WORLD_CONFIG "tenants = ({ name = \"default\"; host_bytes = "
	                                      "\"12MiB\"; });");
	EXPECT(connection, OK, NULL, {HOST, 1, 10, 1});
	EXPECT(connection, OVER_QUOTA, "host node 0", {HOST, 0, 10, 1});
	connection_close(&connection);
}
END_TEST

static void take_and_give(void *first)
{
	const struct wanted forth[] = {{GPU, 0, 200, 1}, {HOST, 0, 60, 1}};
	const struct wanted back[] = {{HOST, 0, 60, 1}, {GPU, 0, 200, 1}};
	int connection = connection_hello(&harness);
	for (unsigned round = 0; round < 30; round++) {
		cleanup_fdlist struct fdlist fds;
		fdlist_init(&fds);
		Glake__Wire__Answer *answer = ask(connection, first ? forth : back, 2, &fds);
		ck_assert_int_eq(answer->status, STATUS(OK));
		ck_assert_uint_eq(answer->chunk_alloc->n_ids, 2);
		ck_assert_int_eq(connection_free_chunks(connection, answer->chunk_alloc->ids, 2),
		                 STATUS(OK));
		connection_free(answer);
	}
	connection_close(&connection);
}

/* Each would have what the other wants next, if they were granted in the order of the request. */
START_TEST(requests_in_opposite_orders_do_not_wait_for_each_other)
{
	set_machine("4xany");
	/* Each makes its first part while the other does. */
	world_begin(.config = WORLD_CONFIG WAIT, .devices = "2x256MiB",
	            .faults = "glaked/cuMemCreate:*:slow=5");
	pid_t clients[2] = {world_client(take_and_give, NULL),
	                    world_client(take_and_give, &harness)};
	world_join(clients[0]);
	world_join(clients[1]);
}
END_TEST

/* One part is granted, and the other waits. */
START_TEST(a_session_that_goes_while_a_part_waits_leaves_nothing)
{
	begin(WORLD_CONFIG WAIT);
	int holder = connection_hello(&harness);
	int goer = connection_hello(&harness);
	EXPECT(holder, OK, NULL, {HOST, 1, 60, 1});
	Glake__Wire__ChunkPart part = GLAKE__WIRE__CHUNK_PART__INIT;
	Glake__Wire__ChunkPart *list[] = {&part};
	part.at = HOST;
	part.number = 1;
	part.chunk_bytes = 60 * MIB;
	part.n_chunks = 1;
	connection_send(goer,
	                REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .at = HOST,
	                        .chunk_bytes = 2 * MIB, .n_chunks = 3, .also = list, .n_also = 1),
	                NULL, 0);
	while (see().used[0].used_bytes != 6 * MIB) {
		harness_sleep_ms(2);
	}
	connection_close(&goer);
	connection_close(&holder);
}
END_TEST

/* ---- an older glaked -------------------------------------------------------------------------- */

/* A glaked that knew only GPUs: its Hello has no nodes, and of a request it sees the first part, as one of a GPU. */
static atomic_bool is_older;
static atomic_bool is_lost;

static void forget_hosts(Glake__Wire__Answer *answer)
{
	if (answer->body_case != GLAKE__WIRE__ANSWER__BODY_HELLO) {
		return;
	}
	for (size_t i = 0; i < answer->hello->n_hosts; i++) {
		glake__wire__host__free_unpacked(answer->hello->hosts[i], NULL);
	}
	answer->hello->n_hosts = 0;
}

static void forget_locations(Glake__Wire__Request *request)
{
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_QUOTA_SET) {
		request->quota_set->at = GPU;
	} else if (request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC) {
		request->chunk_alloc->at = GPU;
		for (size_t i = 0; i < request->chunk_alloc->n_also; i++) {
			glake__wire__chunk_part__free_unpacked(request->chunk_alloc->also[i], NULL);
		}
		request->chunk_alloc->n_also = 0;
	}
}

/* A session may report at any time what it uses: what is lost is a request that the test makes. */
static bool is_lost_here(const Glake__Wire__Request *request)
{
	return (request->body_case == GLAKE__WIRE__REQUEST__BODY_QUOTA_SET ||
	        request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC) &&
	       atomic_exchange(&is_lost, false);
}

static bool be_older(void *user, struct proxy_packet *packet)
{
	if (!is_older) {
		return true;
	}
	if (packet->is_answer) {
		Glake__Wire__Answer *answer = glake__wire__answer__unpack(NULL, packet->n_bytes,
		                                                          packet->bytes);
		ck_assert_ptr_nonnull(answer);
		forget_hosts(answer);
		packet->n_bytes = glake__wire__answer__pack(answer, packet->bytes);
		glake__wire__answer__free_unpacked(answer, NULL);
		return true;
	}
	Glake__Wire__Request *request = glake__wire__request__unpack(NULL, packet->n_bytes,
	                                                             packet->bytes);
	ck_assert_ptr_nonnull(request);
	bool is_sent = !is_lost_here(request);
	forget_locations(request);
	packet->n_bytes = glake__wire__request__pack(request, packet->bytes);
	glake__wire__request__free_unpacked(request, NULL);
	return is_sent;
}

static int quota_of_gpus(void *user, const struct glake_tenant_row *row)
{
	for (uint32_t i = 0; i < row->n_devices; i++) {
		*(uint64_t *)user += row->devices[i].quota_bytes;
	}
	return 0;
}

static int alloc_at(struct glake_session *session, const struct glake__chunks_at *parts, size_t n)
{
	struct glake__wait wait = {0};
	uint64_t ids[4];
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	int r = glake__rpc_chunk_alloc_at(session, parts, n, &wait, ids, &fds);
	return r < 0 ? r : glake__rpc_chunk_free(session, ids, n);
}

/* The older glaked came after the session began: the request finds the connection lost, and is sent once more. */
START_TEST(an_older_glaked_does_nothing_to_a_gpu_instead_of_a_node)
{
	static const struct glake__chunks_at both[] = {
		{.n_chunks = 1, .chunk_bytes = 2 * MIB},
		{.is_host = true, .n_chunks = 1, .chunk_bytes = 2 * MIB},
	};
	static const struct glake__chunks_at gpus[] = {
		{.n_chunks = 1, .chunk_bytes = 2 * MIB},
		{.number = 1, .n_chunks = 1, .chunk_bytes = 2 * MIB},
	};
	begin(WORLD_CONFIG);
	proxy_start(be_older, NULL);
	struct glake_session *sessions[4];
	for (unsigned i = 0; i < 4; i++) {
		sessions[i] = world_connect_blind();
	}
	assert_ok(glake_set_host_quota(sessions[0], "default", 0, 40 * MIB));
	assert_ok(glake_set_host_quota(sessions[0], "default", 0, 0));
	assert_ok(alloc_at(sessions[1], both, 2));
	is_older = true;
	is_lost = true;
	assert_fails(-ENOTSUP, "no chunks in host memory any more",
	             glake_set_host_quota(sessions[0], "default", 0, 40 * MIB));
	is_lost = true;
	assert_fails(-ENOTSUP, "no chunks in host memory any more", alloc_at(sessions[1], both, 2));
	is_lost = true;
	assert_fails(-ENOTSUP, "no chunks in host memory any more",
	             alloc_at(sessions[2], &both[1], 1));
	is_lost = true;
	assert_fails(-ENOTSUP, "one location in a request", alloc_at(sessions[3], gpus, 2));
	uint64_t quota_bytes = 0;
	assert_ok(glake_list_tenants(eye, quota_of_gpus, &quota_bytes));
	ck_assert_uint_eq(quota_bytes, 0);
	/* And they go on. */
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(glake_ping(sessions[i]));
	}
}
END_TEST

/* ---- a restart -------------------------------------------------------------------------------- */

START_TEST(host_chunks_survive_a_restart)
{
	set_machine("4xany");
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB", .is_activated = true,
	            .keeps_fds = true);
	struct connection_identity identity = {0};
	int connection = connection_hello_as(&harness, &identity);
	uint64_t named = EXPECT(connection, OK, NULL, {HOST, 1, 4, 1});
	EXPECT(connection, OK, NULL, {HOST, 0, 6, 1}, {GPU, 0, 8, 1});
	assert_ok(glake_set_host_quota(eye, "default", 1, 20 * MIB));
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(CHUNK_SHARE, ChunkShare, chunk_share, .ids = &named, .n_ids = 1), NULL, 0,
		NULL);
	ck_assert_int_eq(answer->status, STATUS(OK));
	ck_assert(!answer->chunk_share->is_unkept);
	connection_free(answer);
	harness_kill(&harness);
	connection_drop(&connection);
	harness_restart(&harness);
	struct seen seen = see();
	ck_assert_uint_eq(seen.hosts[0].private_bytes, 6 * MIB);
	ck_assert_uint_eq(seen.hosts[1].private_bytes, 4 * MIB);
	ck_assert_uint_eq(seen.used[0].used_bytes, 6 * MIB);
	ck_assert_uint_eq(seen.used[1].used_bytes, 4 * MIB);
	ck_assert_uint_eq(seen.used[1].quota_bytes, 20 * MIB);
	connection = connection_hello_as(&harness, &identity);
	/* A chunk that was named is there, with its fd; one that was not, only its process has. */
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	answer = connection_call(
		connection, REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open, .ids = &named, .n_ids = 1),
		NULL, 0, &fds);
	ck_assert_int_eq(answer->status, STATUS(OK));
	ck_assert_int_eq(answer->chunk_open->at, HOST);
	ck_assert_uint_eq(answer->chunk_open->device, 1);
	ck_assert_uint_eq(fds.n_fds, 1);
	connection_free(answer);
	connection_goodbye(connection);
	assert_ok(glake_set_host_quota(eye, "default", 1, 0));
	connection_close(&connection);
}
END_TEST

static void restart_with(const char *config)
{
	harness_kill(&harness);
	FILE *file = fopen(harness.config_path, "w");
	ck_assert_ptr_nonnull(file);
	fputs(config, file);
	fclose(file);
	harness_restart(&harness);
}

/* And no other call finds out between them that there is another glaked. */
START_TEST(a_session_sees_whether_the_next_glaked_has_nodes)
{
	set_machine("4xany");
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB", .is_activated = true,
	            .keeps_fds = true);
	assert_ok(glake_set_host_quota(eye, "default", 1, 20 * MIB));
	for (unsigned i = 0; i < 2; i++) {
		restart_with(WORLD_CONFIG "host_bytes = \"0\";");
		assert_fails(-ENOTSUP, "no chunks in host memory any more",
		             glake_set_host_quota(eye, "default", 1, 20 * MIB));
		restart_with(WORLD_CONFIG);
		assert_ok(glake_set_host_quota(eye, "default", 1, 20 * MIB));
	}
	assert_ok(glake_set_host_quota(eye, "default", 1, 0));
}
END_TEST

/* Another configuration: the node is no location any more. */
START_TEST(host_chunks_of_a_node_that_is_gone_are_given_back)
{
	set_machine("4xany");
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB", .is_activated = true,
	            .keeps_fds = true);
	struct connection_identity identity = {0};
	int connection = connection_hello_as(&harness, &identity);
	uint64_t named = EXPECT(connection, OK, NULL, {HOST, 0, 4, 1});
	EXPECT(connection, OK, NULL, {HOST, 1, 6, 1}, {GPU, 0, 8, 1});
	ck_assert_int_eq(connection_share(connection, &named, 1, NULL), STATUS(OK));
	connection_drop(&connection);
	restart_with(WORLD_CONFIG "host_bytes = 0;");
	harness_wait_log(&harness, "not adopted: 2 private chunks (10485760 bytes)");
	struct seen seen = see();
	ck_assert_uint_eq(seen.n_hosts, 0);
	ck_assert_uint_eq(world_books().private_bytes, 8 * MIB);
	connection = connection_hello_as(&harness, &identity);
	connection_close(&connection);
}
END_TEST

/* ---- copies of sleepers ----------------------------------------------------------------------- */

#define SLEPT_BYTES (48 * MIB)

static struct glake_session *begin_sleeper(uint64_t content, glake_ptr *ptr_out)
{
	struct glake_session *session = world_connect();
	*ptr_out = words_alloc(session, SLEPT_BYTES, content);
	return session;
}

static int take_hosts(void *user, const struct glake_status *status)
{
	ck_assert_uint_eq(status->n_hosts, 2);
	memcpy(user, status->hosts, 2 * sizeof(status->hosts[0]));
	return 0;
}

static void ck_copies(uint64_t slept_0, uint64_t cached_0, uint64_t slept_1, uint64_t cached_1)
{
	struct glake_host_status hosts[2];
	assert_ok(glake_get_status(eye, take_hosts, hosts));
	ck_assert_uint_eq(hosts[0].sleep_copy_bytes, slept_0);
	ck_assert_uint_eq(hosts[0].cached_copy_bytes, cached_0);
	ck_assert_uint_eq(hosts[1].sleep_copy_bytes, slept_1);
	ck_assert_uint_eq(hosts[1].cached_copy_bytes, cached_1);
}

/* Each node has room for one copy. The third program is asked for on node 0, whose cache it gets; that of node 1 is older, and stays. */
START_TEST(a_sleeper_takes_the_cache_of_the_node_that_it_goes_to)
{
	struct glake_session *sessions[3];
	glake_ptr ptrs[3];
	begin(WORLD_CONFIG "warm_bytes = 0; host_bytes = [ \"64MiB\", \"64MiB\" ];");
	words_open_driver();
	for (unsigned i = 0; i < 3; i++) {
		sessions[i] = begin_sleeper(i + 1, &ptrs[i]);
	}
	words_fall_asleep(sessions[0]);
	words_fall_asleep(sessions[1]);
	ck_copies(SLEPT_BYTES, 0, SLEPT_BYTES, 0);
	assert_ok(glake_wake(sessions[1], NULL));
	assert_ok(glake_wake(sessions[0], NULL));
	ck_copies(0, SLEPT_BYTES, 0, SLEPT_BYTES);
	words_fall_asleep(sessions[2]);
	ck_copies(SLEPT_BYTES, 0, 0, SLEPT_BYTES);
	/* The second program's memory has not changed, and needs nothing of node 0. */
	words_fall_asleep(sessions[1]);
	ck_copies(SLEPT_BYTES, 0, SLEPT_BYTES, 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(glake_wake(sessions[i], NULL));
		words_check(ptrs[i], SLEPT_BYTES, i + 1);
		assert_ok(glake_free(sessions[i], ptrs[i]));
		world_disconnect(sessions[i]);
	}
}
END_TEST
