/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A glake-mover that is not one: it says what it must not say, or claims what no honest one can
 * bring about, like two contents of one digest. glaked ends it, or keeps apart what is not equal.
 *
 * This program is that mover too, when it is started as one; $FALSE_MOVER says what it does.
 */
#include <fcntl.h>
#include <pthread.h>

#include "proto/message.h"
#include "proto/mover.pb-c.h"
#include "proto/wire.h"
#include "tests/harness/connection.h"
#include "tests/harness/fuse_file.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define TENSOR_BYTES 1000u

typedef Glake__Mover__Report report_t;

/* ---- the mover ------------------------------------------------------------------------------- */

static const char *deed;

static bool does(const char *what)
{
	return strcmp(deed, what) == 0;
}

static void say(uint64_t job, report_t *report)
{
	uint8_t bytes[4096];
	report->job = job;
	size_t n_bytes = glake__mover__report__pack(report, bytes);
	if (wire_send(3, bytes, n_bytes, NULL, 0, 0) != 0) {
		_exit(0);
	}
}

#define REPORT(CASE, Type, member, ...) \
	MESSAGE(report_t, glake__mover__report__descriptor, \
	        .body_case = GLAKE__MOVER__REPORT__BODY_##CASE, \
	        .member = MESSAGE(Glake__Mover__##Type, glake__mover__##member##__descriptor, \
	                          __VA_ARGS__))

static void say_tensor(uint64_t job, uint64_t offset, uint64_t n_bytes)
{
	Glake__Mover__PlanTensor tensor = GLAKE__MOVER__PLAN_TENSOR__INIT;
	Glake__Mover__PlanTensor *list[] = {&tensor};
	tensor.name = (char *)"w";
	tensor.dtype = GLAKE_U8;
	tensor.shape = &n_bytes;
	tensor.n_shape = 1;
	tensor.offset = offset;
	tensor.bytes = n_bytes;
	say(job, REPORT(PLAN_TENSORS, PlanTensors, plan_tensors, .tensors = list, .n_tensors = 1));
}

static void say_block(uint64_t job, uint64_t n_bytes)
{
	say(job, REPORT(PLAN_BLOCKS, PlanBlocks, plan_blocks, .content_bytes = &n_bytes,
	                .n_content_bytes = 1));
}

static void say_plan_end(uint64_t job)
{
	say(job, REPORT(PLAN_END, PlanEnd, plan_end));
}

/* Every block has the same digest, whatever is in it. */
static void say_loaded(uint64_t job, uint64_t block, size_t n_digest_bytes)
{
	static uint8_t digest[16] = "sixteen letters";
	say(job, REPORT(BLOCK_LOADED, BlockLoaded, block_loaded, .block = block,
	                .digest = {n_digest_bytes, digest}));
}

static void say_done(uint64_t job)
{
	say(job, REPORT(LOAD_DONE, LoadDone, load_done));
}

static void say_failed(uint64_t job, uint32_t status)
{
	say(job,
	    REPORT(FAILED, Failed, failed, .status = status, .error = (char *)"for no reason"));
}

static void say_compared(uint64_t job, bool equal)
{
	say(job, REPORT(COMPARED, Compared, compared, .equal = equal));
}

static void on_load_start(uint64_t job)
{
	if (does("takes its time")) {
		return;
	}
	if (does("says nothing understandable")) {
		wire_send(3, "\xff\xff\xff\xff", 4, NULL, 0, 0);
		return;
	}
	if (does("exits")) {
		_exit(0);
	}
	if (does("fails with success")) {
		say_failed(job, 0);
		return;
	}
	if (does("fails with what is no status")) {
		say_failed(job, 4000000000u);
		return;
	}
	if (does("is done before the plan")) {
		say_done(job);
		return;
	}
	if (does("compares a load")) {
		say_compared(job, true);
		return;
	}
	if (does("speaks of other jobs")) {
		say_done(job + 1000);
		say_failed(job + 1001, 3);
	}
	say_tensor(job, does("puts a tensor outside") ? UINT64_MAX - 10 : 0, TENSOR_BYTES);
	say_block(job, does("makes a block too large") ? UINT64_MAX : TENSOR_BYTES);
	if (does("makes an empty block")) {
		say_block(job, 0);
	}
	say_plan_end(job);
	if (does("plans twice")) {
		say_plan_end(job);
	}
	if (does("plans afterwards")) {
		say_tensor(job, 0, 1);
	}
	if (does("loads before it is granted")) {
		say_loaded(job, 0, 16);
	}
}

static void *read_endlessly(void *user)
{
	char byte;
	const int *fd = user;
	return read(*fd, &byte, 1) < 0 ? user : NULL;
}

/* "reads FILE": it never answers a job, and while the file does not either, it cannot end. */
static void on_digest(uint64_t job)
{
	static int fd;
	pthread_t thread;
	if (strncmp(deed, "reads ", 6) != 0) {
		return;
	}
	fd = open(deed + 6, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		say_failed(job, 0);
	} else if (pthread_create(&thread, NULL, read_endlessly, &fd) != 0) {
		_exit(1);
	}
}

static void on_grant(uint64_t job)
{
	if (does("exits with chunks")) {
		_exit(1);
	}
	if (does("is done too early")) {
		say_done(job);
		return;
	}
	say_loaded(job, does("loads what is not there") ? 1 : 0, does("cuts a digest") ? 15 : 16);
	if (does("loads twice")) {
		say_loaded(job, 0, 16);
	}
	say_done(job);
}

static void mover_main(void)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	struct fdlist fds;
	size_t n_bytes;
	deed = getenv("FALSE_MOVER");
	fdlist_init(&fds);
	while (wire_recv(3, bytes, sizeof(bytes), &n_bytes, &fds, 0) == 0) {
		Glake__Mover__Order *order = glake__mover__order__unpack(NULL, n_bytes, bytes);
		fdlist_deinit(&fds);
		switch (order->body_case) {
		case GLAKE__MOVER__ORDER__BODY_LOAD_START:
			on_load_start(order->job);
			break;
		case GLAKE__MOVER__ORDER__BODY_GRANT:
			on_grant(order->job);
			break;
		case GLAKE__MOVER__ORDER__BODY_DIGEST:
			on_digest(order->job);
			break;
		case GLAKE__MOVER__ORDER__BODY_COMPARE:
			say_compared(order->job, false);
			break;
		default:
			break;
		}
		glake__mover__order__free_unpacked(order, NULL);
	}
	_exit(0);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static char mover_deed[600];

static void begin(const char *what)
{
	static char config[600];
	static const char *env[] = {mover_deed, NULL};
	char self[400];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	ck_assert_int_gt(n, 0);
	self[n] = '\0';
	snprintf(config, sizeof(config),
	         WORLD_CONFIG "mover_path = \"%s\"; max_requests_in_flight = 100;"
	                      "tenants = ({ name = \"other\"; uids = [12345]; });",
	         self);
	snprintf(mover_deed, sizeof(mover_deed), "FALSE_MOVER=%s", what);
	world_begin(.config = config, .devices = "1x64MiB", .env = env);
}

static const struct {
	const char *deed;
	int code;
} deeds[] = {
	{"says nothing understandable", GLAKE_E_MOVER},
	{"exits", GLAKE_E_MOVER},
	{"exits with chunks", GLAKE_E_MOVER},
	{"fails with success", GLAKE_E_INTERNAL},
	{"fails with what is no status", GLAKE_E_INTERNAL},
	{"is done before the plan", GLAKE_E_INTERNAL},
	{"is done too early", GLAKE_E_INTERNAL},
	{"compares a load", GLAKE_E_MOVER},
	{"puts a tensor outside", GLAKE_E_MOVER},
	{"makes a block too large", GLAKE_E_MOVER},
	{"makes an empty block", GLAKE_E_MOVER},
	{"plans twice", GLAKE_E_MOVER},
	{"plans afterwards", GLAKE_E_MOVER},
	{"loads before it is granted", GLAKE_E_MOVER},
	{"loads what is not there", GLAKE_E_MOVER},
	{"cuts a digest", GLAKE_E_MOVER},
	{"loads twice", GLAKE_E_MOVER},
	{"speaks of other jobs", 0},
};

START_TEST_WITH(nonsense_ends_the_load_and_nothing_else, .n = n_elements(deeds))
{
	struct glake_model *model;
	begin(deeds[_i].deed);
	const char *path = world_write_model("m.safetensors", TENSOR_BYTES, 1);
	struct glake_session *session = world_connect_blind();
	/* More often than the device has room for, were it lost each time. */
	for (int i = 0; i < 40; i++) {
		int r = world_open_unmapped(session, path, &model);
		ck_assert_msg(r == deeds[_i].code, "%s: %d %s", deeds[_i].deed, r, glake_error());
	}
	assert_ok(glake_ping(session));
}
END_TEST

static uint64_t send_publish(int connection, uint64_t chunk)
{
	return connection_send(connection,
	                       REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish, .chunk = chunk,
	                               .content_bytes = 1000),
	                       NULL, 0);
}

/* Who publishes has gone, and the mover still has the chunk. */
START_TEST(what_the_mover_digests_is_paid_for)
{
	uint64_t chunk;
	begin("takes its time");
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, 2 * MIB, 1, &chunk, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	struct books books = world_books();
	send_publish(connection, chunk);
	connection_ping(connection);
	connection_close(&connection);
	while (world_books().n_sessions > books_before.n_sessions) {
		harness_sleep_ms(1);
	}
	ck_assert_uint_eq(world_books().charged_bytes, books.charged_bytes);
	ck_assert_uint_eq(world_books().charged_fds, books.charged_fds);
	ck_assert_uint_eq(world_books().physical_bytes, books.physical_bytes);
	ck_assert_uint_eq(world_books().private_bytes, 0);
	ck_assert_int_eq(kill(world_running_mover(), SIGKILL), 0);
	world_wait_books(&books_before);
}
END_TEST

/* A lost connection takes the answer along, and neither the chunk nor who pays for it. */
START_TEST(what_the_mover_digests_of_a_lost_session_is_its_process_own)
{
	struct connection_identity identity = {0};
	uint64_t chunk;
	begin("takes its time");
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_int_eq(connection_alloc(connection, 0, 2 * MIB, 1, &chunk, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	struct books books = world_books();
	send_publish(connection, chunk);
	connection_drop(&connection);
	world_wait_metric("sessions_lost", 1);
	struct books now = world_books();
	/* For the record of the block to be. */
	books.charged_manifest_bytes += 256;
	ck_assert_mem_eq(&now, &books, sizeof(now));
	connection = connection_hello_as(&harness, &identity);
	/* Its answer is waited for again, once. */
	uint64_t again = send_publish(connection, chunk);
	uint64_t once_more = send_publish(connection, chunk);
	ck_assert_int_eq(connection_status_of(connection, once_more),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(kill(world_running_mover(), SIGKILL), 0);
	ck_assert_int_eq(connection_status_of(connection, again),
	                 GLAKE__WIRE__STATUS__MOVER_FAILED);
	books.charged_manifest_bytes -= 256;
	now = world_books();
	ck_assert_mem_eq(&now, &books, sizeof(now));
	connection_close(&connection);
	world_wait_books(&books_before);
}
END_TEST

/* Its publisher is told at once, and can publish the chunk when the mover has gone. */
START_TEST(a_chunk_of_a_mover_that_cannot_end_is_busy)
{
	static const struct fuse_file_faults faults = {.endless_from = 1};
	struct fuse_file file;
	char top[200];
	char folder[256];
	char what[400];
	uint64_t chunk;
	Glake__Wire__Status status = GLAKE__WIRE__STATUS__BUSY;
	const char *tmp = getenv("TMPDIR");
	/* Before glaked is there, and its folder: else its movers do not see the mount. */
	snprintf(top, sizeof(top), "%s/endless.XXXXXX", tmp ? tmp : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(top));
	snprintf(folder, sizeof(folder), "%s/fuse", top);
	if (!fuse_file_start(&file, folder, "/proc/self/exe", &faults)) {
		return;
	}
	snprintf(what, sizeof(what), "reads %s", file.path);
	begin(what);
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, 2 * MIB, 1, &chunk, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	uint64_t request = send_publish(connection, chunk);
	fuse_file_await_held(&file);
	ck_assert_int_eq(kill(world_running_mover(), SIGKILL), 0);
	ck_assert_int_eq(connection_status_of(connection, request),
	                 GLAKE__WIRE__STATUS__MOVER_FAILED);
	ck_assert_int_eq(connection_publish(connection, chunk, 1000), GLAKE__WIRE__STATUS__BUSY);
	fuse_file_stop(&file);
	while (status == GLAKE__WIRE__STATUS__BUSY) {
		harness_sleep_ms(1);
		status = connection_publish(connection, chunk, 1000);
	}
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__INTERNAL);
	connection_close(&connection);
	world_wait_books(&books_before);
	rmdir(folder);
	rmdir(top);
}
END_TEST

struct collisions {
	unsigned n;
	struct glake_digest digests[8];
	uint64_t ids[8];
};

static int note_block(void *user, const struct glake_block_row *row)
{
	struct collisions *seen = user;
	seen->digests[seen->n] = row->digest;
	seen->ids[seen->n++] = row->id;
	return 0;
}

/* The digest alone is never believed: contents that compare unequal stay two. */
START_TEST(two_contents_of_one_digest_are_kept_apart)
{
	struct glake_model *models[3];
	struct collisions seen = {0};
	struct glake_block *block;
	begin("claims one digest for all");
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof(name), "m%u.safetensors", i);
		assert_ok(world_open_unmapped(session, world_write_model(name, TENSOR_BYTES, i),
		                              &models[i]));
		ck_assert_uint_eq(world_info(models[i]).deduplicated_bytes, 0);
	}
	ck_assert_uint_eq(world_books().block_bytes, 3 * 2 * MIB);
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 0);
	assert_ok(glake_list_blocks(eye, note_block, &seen));
	ck_assert_uint_eq(seen.n, 3);
	ck_assert_mem_eq(&seen.digests[0], &seen.digests[2], sizeof(seen.digests[0]));
	ck_assert_uint_ne(seen.ids[0], seen.ids[1]);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "two different contents"), 2);
	/* The first goes: nobody takes the digest over, and everybody can go. */
	glake_model_close(models[0]);
	assert_ok(glake_evict(session, NULL, NULL, NULL));
	assert_fails(GLAKE_E_NOT_FOUND, "",
	             glake_block_lookup(session, 0, &seen.digests[0], &block));
}
END_TEST

/* Have file number @i loaded. */
static uint64_t send_load(int connection, const char *folder, unsigned i)
{
	char path[600];
	char name[16];
	char *names[] = {name};
	snprintf(name, sizeof(name), "%u", i);
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
	ck_assert_int_ge(fd, 0);
	uint64_t id = connection_send(
		connection,
		REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = names, .n_files = 1), &fd, 1);
	close(fd);
	return id;
}

static void expect_busy(int connection, uint64_t request)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection, request, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BUSY);
	ck_assert_ptr_nonnull(strstr(answer->error, "loads under way"));
	connection_free(answer);
}

static void load_as_other(struct harness *where, void *user)
{
	int connection = connection_hello(where);
	/* Another realm has the same files loaded anew. */
	for (unsigned i = 0; i < GLAKE_MAX_LOADS / 4; i++) {
		send_load(connection, where->folder, i);
	}
	/* No refusal is in the way of the answer. */
	connection_ping(connection);
	expect_busy(connection, send_load(connection, where->folder, GLAKE_MAX_LOADS / 4));
	connection_close(&connection);
}

/* Each user, also of one tenant, has half of the places for loads that the others leave. */
START_TEST(the_loads_of_one_user_leave_room_for_others)
{
	begin("takes its time");
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < GLAKE_MAX_LOADS / 2; i++) {
		send_load(connection, harness.folder, i);
	}
	connection_ping(connection);
	expect_busy(connection, send_load(connection, harness.folder, GLAKE_MAX_LOADS / 2));
	/* Who waits for what is being loaded needs no place. */
	send_load(connection, harness.folder, 0);
	connection_ping(connection);
	ck_assert_uint_eq(world_books().n_models, GLAKE_MAX_LOADS / 2);
	if (harness_is_root()) {
		harness_as(&harness, 12345, 12345, load_as_other, NULL);
	}
	connection_close(&connection);
	world_wait_books(&books_before);
}
END_TEST

int main(void)
{
	/* Whatever it is called: a mover that ran the tests would start movers without end. */
	if (getenv("FALSE_MOVER")) {
		mover_main();
	}
	return tests_run();
}
