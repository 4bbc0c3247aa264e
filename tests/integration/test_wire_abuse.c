/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that sends what no client library would. Whatever it is, that session is answered or
 * closed, another session does not notice, and glaked is afterwards as it was before: the same
 * fds, the same chunks, and a clean end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/request.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/model_file.h"
#include "tests/harness/world.h"

static const struct harness_options quiet = {.config = WORLD_CONFIG, .has_witness = true};

/* ---- bytes that are not a request --------------------------------------------------------------- */

/* A new session, greeted or not, sends that packet and is closed for it. */
static void closed_for(const void *bytes, size_t n_bytes, bool greets)
{
	uint64_t n_bad = connection_counter(witness, "sessions_bad");
	int connection = greets ? connection_hello(&harness) : connection_open(&harness);
	/* Not by wire_send(), which has limits of its own. */
	ck_assert_int_eq(send(connection, bytes, n_bytes, MSG_NOSIGNAL), (ssize_t)n_bytes);
	connection_expect_closed(connection);
	connection_close(&connection);
	ck_assert_uint_eq(connection_counter(witness, "sessions_bad"), n_bad + 1);
}

START_TEST(garbage_closes_the_session)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	static const size_t sizes[] = {1, 2, 7, 100, 4096, sizeof(bytes)};
	world_begin_as(&quiet);
	for (unsigned fill = 0; fill < 3; fill++) {
		/* 0x00 is a tag with number 0, 0xff a number that never ends, 0x0a a text. */
		memset(bytes, fill == 0 ? 0x00 : fill == 1 ? 0xff : 0x0a, sizeof(bytes));
		for (size_t i = 0; i < n_elements(sizes); i++) {
			closed_for(bytes, sizes[i], false);
			closed_for(bytes, sizes[i], true);
		}
	}
	/* The tenant has so many lines, and one more every ten seconds. */
	ck_assert_uint_ge(harness_n_log_lines(&harness, "closed: "), 5);
	ck_assert_uint_lt(harness_n_log_lines(&harness, "closed: "), 18);
}
END_TEST

/* A peer that comes again and again is one line per 10 seconds, once its first ones are written. */
START_TEST(the_log_is_bounded)
{
	static const uint8_t bytes[] = {0xff, 0xff, 0xff};
	world_begin_as(&quiet);
	for (unsigned i = 0; i < 200; i++) {
		closed_for(bytes, sizeof(bytes), i % 2);
	}
	ck_assert_uint_ge(harness_n_log_lines(&harness, "closed: "), 1);
	ck_assert_uint_le(harness_n_log_lines(&harness, "closed: "), 10);
}
END_TEST

START_TEST(too_long_a_packet_closes_the_session)
{
	static uint8_t bytes[2 * GLAKE_MAX_PACKET_BYTES];
	world_begin_as(&quiet);
	closed_for(bytes, GLAKE_MAX_PACKET_BYTES + 1, true);
	closed_for(bytes, GLAKE_MAX_PACKET_BYTES + 1, false);
	closed_for(bytes, sizeof(bytes), true);
	harness_wait_log(&harness, "too long");
}
END_TEST

/* A packet of no bytes reads like the end of the connection. */
static void send_empty_packet(struct harness *h, void *user)
{
	int connection = connection_hello(&harness);
	ck_assert_int_eq(send(connection, "", 0, MSG_NOSIGNAL), 0);
	connection_expect_closed(connection);
	connection_close(&connection);
}

START_TEST(empty_packet_ends_the_session)
{
	world_begin_as(&quiet);
	harness_in_child(&harness, send_empty_packet, NULL);
}
END_TEST

/* Decoded, each of these would take milliseconds of everybody's. */
START_TEST(crowd_of_fields_closes_the_session)
{
	static const struct {
		uint8_t body;
		uint8_t field;
	} cases[] = {
		{GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT, 6},
		{GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN, 2},
		{GLAKE__WIRE__REQUEST__BODY_PING, 1},
	};
	enum { N = 30000 };
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	world_begin_as(&quiet);
	for (size_t i = 0; i < n_elements(cases); i++) {
		size_t n_bytes = 0;
		/* Its id, the tag of the body in two bytes as it may be, and the length in three. */
		bytes[n_bytes++] = 0x08;
		bytes[n_bytes++] = 7;
		bytes[n_bytes++] = (uint8_t)(cases[i].body << 3 | 2 | 0x80);
		bytes[n_bytes++] = (uint8_t)(cases[i].body >> 4);
		bytes[n_bytes++] = (2 * N & 0x7f) | 0x80;
		bytes[n_bytes++] = (2 * N >> 7 & 0x7f) | 0x80;
		bytes[n_bytes++] = 2 * N >> 14;
		for (unsigned k = 0; k < N; k++) {
			bytes[n_bytes++] = (uint8_t)(cases[i].field << 3 | 2);
			bytes[n_bytes++] = 0;
		}
		closed_for(bytes, n_bytes, true);
	}
	harness_wait_log(&harness, "fields");
	ck_assert_uint_eq(harness_n_log_lines(&harness, "closed: "), n_elements(cases));
}
END_TEST

START_TEST(request_without_id_closes_the_session)
{
	uint8_t bytes[64];
	size_t n_bytes = glake__wire__request__pack(REQUEST(PING, Ping, ping), bytes);
	world_begin_as(&quiet);
	closed_for(bytes, n_bytes, true);
}
END_TEST

/* The session still answers, or is closed. */
static void answered_or_closed(int connection)
{
	static uint64_t id = 1ull << 40;
	uint8_t bytes[64];
	Glake__Wire__Request *request = REQUEST(PING, Ping, ping);
	request->id = ++id;
	size_t n_bytes = glake__wire__request__pack(request, bytes);
	if (wire_send(connection, bytes, n_bytes, NULL, 0, 0) != 0) {
		return;
	}
	Glake__Wire__Answer *answer;
	while ((answer = connection_receive(connection, NULL))) {
		bool is_it = answer->id == request->id;
		connection_free(answer);
		if (is_it) {
			return;
		}
	}
}

static size_t pack_model_open(uint8_t *bytes)
{
	char *files[] = {(char *)"a.safetensors", (char *)"b.safetensors"};
	Glake__Wire__Request *request = REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = files,
	                                        .n_files = 2, .name = (char *)"model",
	                                        .index = (char *)"model.safetensors.index.json",
	                                        .progress = true);
	request->id = 77;
	return glake__wire__request__pack(request, bytes);
}

START_TEST(every_prefix_and_flipped_bit_is_survived)
{
	uint8_t bytes[256];
	world_begin_as(&quiet);
	size_t n_bytes = pack_model_open(bytes);
	for (size_t n = 1; n < n_bytes; n++) {
		int connection = connection_hello(&harness);
		ck_assert_int_eq(connection_send_bytes(connection, bytes, n, NULL, 0), 0);
		answered_or_closed(connection);
		connection_close(&connection);
	}
	for (size_t bit = 0; bit < n_bytes * 8; bit++) {
		int connection = connection_hello(&harness);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert_int_eq(connection_send_bytes(connection, bytes, n_bytes, NULL, 0), 0);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		answered_or_closed(connection);
		connection_close(&connection);
	}
}
END_TEST

START_TEST(names_of_bad_text_are_survived)
{
	static const char *const names[] = {
		"\xff\xfe", "a\nb\x1b[31m<3>forged", "\xe2\x82", "\xc0\x80", "", "%s%n%s",
	};
	world_begin_as(&quiet);
	for (size_t i = 0; i < n_elements(names); i++) {
		int connection = connection_open(&harness);
		char *name = (char *)names[i];
		ck_assert_int_eq(
			connection_status(connection,
		                          REQUEST(HELLO, Hello, hello,
		                                  .version = GLAKE_WIRE_VERSION, .program = name),
		                          NULL, 0),
			GLAKE__WIRE__STATUS__OK);
		Glake__Wire__Status status = connection_status(
			connection, REQUEST(EVICT, Evict, evict, .name = name), NULL, 0);
		ck_assert_int_eq(status, names[i][0] ? GLAKE__WIRE__STATUS__NOT_FOUND
		                                     : GLAKE__WIRE__STATUS__OK);
		connection_close(&connection);
	}
	ck_assert_uint_eq(harness_n_log_lines(&harness, "\n<3>"), 0);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "\x1b"), 0);
}
END_TEST

/* ---- requests in the wrong place ------------------------------------------------------------- */

START_TEST(wrong_version_is_told_and_closed)
{
	static const uint32_t versions[] = {0, GLAKE_WIRE_VERSION + 1, UINT32_MAX};
	world_begin_as(&quiet);
	for (size_t i = 0; i < n_elements(versions); i++) {
		int connection = connection_open(&harness);
		ck_assert_int_eq(connection_greet(connection, versions[i]),
		                 GLAKE__WIRE__STATUS__VERSION);
		connection_expect_closed(connection);
		connection_close(&connection);
	}
}
END_TEST

START_TEST(requests_before_hello_are_refused)
{
	struct fdlist fds;
	uint64_t id;
	fdlist_init(&fds);
	world_begin_as(&quiet);
	int connection = connection_open(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, &id, &fds),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection_expect_closed(connection);
}
END_TEST

START_TEST(second_hello_is_refused)
{
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_greet(connection, GLAKE_WIRE_VERSION),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection_ping(connection);
}
END_TEST

/* A request with a field that this glaked has never heard of is refused. */
static void expect_unknown_refused(int connection)
{
	/* id 7 comes before it. */
	static const uint8_t bytes[] = {0x08, 0x07, 0xfa, 0x3f, 0x02, 0x08, 0x01};
	ck_assert_int_eq(connection_send_bytes(connection, bytes, sizeof(bytes), NULL, 0), 0);
	ck_assert_int_eq(connection_status_of(connection, 7), GLAKE__WIRE__STATUS__BAD_REQUEST);
}

START_TEST(unknown_request_before_hello_closes_too)
{
	world_begin_as(&quiet);
	uint64_t n_bad = connection_counter(witness, "sessions_bad");
	int connection = connection_open(&harness);
	expect_unknown_refused(connection);
	connection_expect_closed(connection);
	connection_close(&connection);
	/* At once, and not because no Hello came in time. */
	ck_assert_uint_eq(connection_counter(witness, "sessions_bad"), n_bad);
}
END_TEST

START_TEST(unknown_request_is_refused_and_the_session_goes_on)
{
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	expect_unknown_refused(connection);
	connection_ping(connection);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
	static const struct {
		uint32_t device;
		uint64_t chunk_bytes;
		uint32_t n_chunks;
		Glake__Wire__Status status;
	} cases[] = {
		{2, CHUNK_BYTES, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{UINT32_MAX, CHUNK_BYTES, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, 0, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, 1, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, CHUNK_BYTES + 1, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, UINT64_MAX, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, 1ull << 63, 253, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, CHUNK_BYTES, 0, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, CHUNK_BYTES, 254, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, CHUNK_BYTES, UINT32_MAX, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, 512ull << 20, 1, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY},
		{0, GLAKE_MAX_CHUNK_BYTES, 253, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY},
		/* All or nothing: the device has room for 128. */
		{1, CHUNK_BYTES, 253, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY},
	};
	struct fdlist fds;
	uint64_t ids[256];
	fdlist_init(&fds);
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (size_t i = 0; i < n_elements(cases); i++) {
		Glake__Wire__Status status = connection_alloc(connection, cases[i].device,
		                                              cases[i].chunk_bytes,
		                                              cases[i].n_chunks, ids, &fds);
		ck_assert_msg(status == cases[i].status, "case %zu: status %d", i, (int)status);
	}
	ck_assert_int_eq(connection_alloc(connection, 1, CHUNK_BYTES, 100, ids, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(fds.n_fds, 100);
	fdlist_deinit(&fds);
}
END_TEST

START_TEST(a_refusal_names_the_bytes_of_the_whole_request)
{
	world_begin_as(&quiet);
	Glake__Wire__Answer *answer = connection_call(
		witness,
		REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .device = 1,
	                .chunk_bytes = CHUNK_BYTES, .n_chunks = 253),
		NULL, 0, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	ck_assert_msg(strstr(answer->error, "506.0 MiB more on device 1"), "%s", answer->error);
	connection_free(answer);
}
END_TEST

/* glaked says that the chunks have these sizes. */
static void expect_sizes(int connection, uint64_t *ids, size_t n_ids, uint64_t last_bytes)
{
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open, .ids = ids, .n_ids = n_ids),
		NULL, 0, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(answer->chunk_open->n_chunk_bytes, n_ids);
	for (size_t i = 0; i < n_ids; i++) {
		ck_assert_uint_eq(answer->chunk_open->chunk_bytes[i],
		                  i + 1 < n_ids ? CHUNK_BYTES : last_bytes);
	}
	connection_free(answer);
}

/* The second run asks for free memory only. */
START_TEST_WITH(the_last_chunk_may_be_another_size, .n = 2)
{
	static const struct {
		uint64_t last_bytes;
		uint32_t n_chunks;
		Glake__Wire__Status status;
	} cases[] = {
		{1, 2, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{UINT64_MAX, 2, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{GLAKE_MAX_CHUNK_BYTES + CHUNK_BYTES, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{GLAKE_MAX_CHUNK_BYTES, 2, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY},
		{3 * CHUNK_BYTES, 1, GLAKE__WIRE__STATUS__OK},
		{3 * CHUNK_BYTES, 3, GLAKE__WIRE__STATUS__OK},
	};
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (size_t i = 0; i < n_elements(cases); i++) {
		struct fdlist fds;
		fdlist_init(&fds);
		Glake__Wire__Answer *answer = connection_call(
			connection,
			REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .chunk_bytes = CHUNK_BYTES,
		                .n_chunks = cases[i].n_chunks, .last_bytes = cases[i].last_bytes,
		                .is_spare = _i),
			NULL, 0, &fds);
		ck_assert_msg(answer->status == cases[i].status, "case %zu: status %d", i,
		              (int)answer->status);
		if (answer->status == GLAKE__WIRE__STATUS__OK) {
			ck_assert_uint_eq(answer->chunk_alloc->n_ids, cases[i].n_chunks);
			ck_assert_uint_eq(fds.n_fds, cases[i].n_chunks);
			expect_sizes(connection, answer->chunk_alloc->ids, cases[i].n_chunks,
			             cases[i].last_bytes);
		}
		fdlist_deinit(&fds);
		connection_free(answer);
	}
}
END_TEST

/* ---- fds that should not be there, or should ------------------------------------------------- */

static uint64_t send_model_open(int connection, size_t n_files, const int *fds, size_t n_fds)
{
	char *files[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_files; i++) {
		files[i] = (char *)"x.safetensors";
	}
	return connection_send(
		connection,
		REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = files, .n_files = n_files), fds,
		n_fds);
}

static Glake__Wire__Status open_model(int connection, size_t n_files, const int *fds, size_t n_fds)
{
	uint64_t id = send_model_open(connection, n_files, fds, n_fds);
	Glake__Wire__Answer *answer = connection_receive_for(connection, id, NULL);
	Glake__Wire__Status status = answer->status;
	if (status != GLAKE__WIRE__STATUS__OK) {
		ck_assert_str_ne(answer->error, "");
	}
	connection_free(answer);
	return status;
}

START_TEST(fds_with_a_request_that_takes_none_are_closed)
{
	int fds[GLAKE_MAX_PACKET_FDS];
	cleanup_fd int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < n_elements(fds); i++) {
		fds[i] = null_fd;
	}
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_int_eq(connection_status(connection, REQUEST(PING, Ping, ping), fds,
		                                   n_elements(fds)),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	}
	connection_ping(connection);
	world_wait_n_fds(1);
}
END_TEST

/* glaked is at its limit of open files: that is an answer, not the end of who asked. */
START_TEST(fds_that_glaked_has_no_room_for_are_refused)
{
	enum { N = 200 };
	int fds[N];
	struct harness_options options = quiet;
	cleanup_fd int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < N; i++) {
		fds[i] = null_fd;
	}
	options.max_fds = 100;
	world_begin_as(&options);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(open_model(witness, N, fds, N), GLAKE__WIRE__STATUS__NO_FDS);
		connection_ping(witness);
		world_wait_n_fds(0);
	}
}
END_TEST

START_TEST(garbage_with_fds_leaks_none)
{
	uint8_t bytes[] = {0xff, 0xff, 0xff};
	int fds[GLAKE_MAX_PACKET_FDS];
	cleanup_fd int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < n_elements(fds); i++) {
		fds[i] = null_fd;
	}
	world_begin_as(&quiet);
	for (unsigned i = 0; i < 20; i++) {
		int connection = connection_hello(&harness);
		ck_assert_int_eq(connection_send_bytes(connection, bytes, sizeof(bytes), fds,
		                                       n_elements(fds)),
		                 0);
		connection_expect_closed(connection);
		connection_close(&connection);
	}
}
END_TEST

START_TEST(too_few_and_too_many_files_are_refused)
{
	int fds[GLAKE_MAX_PACKET_FDS];
	cleanup_fd int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (size_t i = 0; i < n_elements(fds); i++) {
		fds[i] = null_fd;
	}
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	static const struct {
		size_t n_files;
		size_t n_fds;
	} cases[] = {{1, 0}, {0, 0}, {0, 1}, {2, 1}, {1, 2}, {1, 253}, {253, 1}, {252, 253}};
	for (size_t i = 0; i < n_elements(cases); i++) {
		Glake__Wire__Status status = open_model(connection, cases[i].n_files, fds,
		                                        cases[i].n_fds);
		ck_assert_msg(status == GLAKE__WIRE__STATUS__BAD_REQUEST, "case %zu: %d", i,
		              (int)status);
	}
	connection_ping(connection);
}
END_TEST

static int write_only_file(void)
{
	char path[HARNESS_PATH_BYTES + 16];
	snprintf(path, sizeof(path), "%s/write-only", harness.folder);
	return open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
}

START_TEST(fds_of_the_wrong_kind_are_refused)
{
	int pipe_ends[2];
	int pair[2];
	world_begin_as(&quiet);
	ck_assert_int_eq(pipe2(pipe_ends, O_CLOEXEC), 0);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	int connection = connection_hello(&harness);
	int fds[] = {
		open("/dev/null", O_RDONLY | O_CLOEXEC),
		open("/dev/zero", O_RDONLY | O_CLOEXEC),
		open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		open("/proc/self/exe", O_PATH | O_CLOEXEC),
		write_only_file(),
		pipe_ends[0],
		pipe_ends[1],
		pair[0],
		epoll_create1(EPOLL_CLOEXEC),
		/* Its own connection: the kernel's collector has to find that circle. */
		fcntl(connection, F_DUPFD_CLOEXEC, 0),
	};
	for (size_t i = 0; i < n_elements(fds); i++) {
		ck_assert_int_ge(fds[i], 0);
		Glake__Wire__Status status = open_model(connection, 1, &fds[i], 1);
		ck_assert_msg(status == GLAKE__WIRE__STATUS__BAD_FILE, "fd %zu: status %d", i,
		              (int)status);
		fd_close(&fds[i]);
	}
	fd_close(&pipe_ends[1]);
	fd_close(&pair[1]);
	connection_ping(connection);
}
END_TEST

START_TEST(files_of_bad_content_are_refused)
{
	static const struct {
		const char *bytes;
		size_t n_bytes;
	} contents[] = {
		{"", 0},
		{"x", 1},
		{"\x08\0\0\0\0\0\0\0", 8},
		{"\x08\0\0\0\0\0\0\0[]      ", 16},
		{"\x08\0\0\0\0\0\0\0{}    ", 14},
		{"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10},
	};
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (size_t i = 0; i < n_elements(contents); i++) {
		cleanup_fd int fd = memfd_create("model", MFD_CLOEXEC);
		ck_assert_int_eq(write(fd, contents[i].bytes, contents[i].n_bytes),
		                 (ssize_t)contents[i].n_bytes);
		Glake__Wire__Status status = open_model(connection, 1, &fd, 1);
		ck_assert_msg(status == GLAKE__WIRE__STATUS__BAD_FILE, "content %zu: status %d", i,
		              (int)status);
	}
	connection_ping(connection);
	connection_close(&connection);
	/* The mover was started: it and its socket are there to stay. */
}
END_TEST

/* ---- ids ------------------------------------------------------------------------------------- */

/* The status of each of the three requests that name a model; they must agree. */
static Glake__Wire__Status touch_model(int connection, uint64_t model)
{
	Glake__Wire__Status first = connection_status(
		connection, REQUEST(MODEL_TENSORS, ModelTensors, model_tensors, .model = model),
		NULL, 0);
	ck_assert_int_eq(
		connection_status(connection,
	                          REQUEST(MODEL_BLOCKS, ModelBlocks, model_blocks, .model = model),
	                          NULL, 0),
		first);
	return first;
}

static Glake__Wire__Status close_model(int connection, uint64_t model)
{
	return connection_status(
		connection, REQUEST(MODEL_CLOSE, ModelClose, model_close, .model = model), NULL, 0);
}

START_TEST(chunks_of_another_session_are_out_of_reach)
{
	uint64_t ids[4];
	uint64_t mixed[2];
	world_begin_as(&quiet);
	int thief = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(witness, 0, CHUNK_BYTES, 3, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_alloc(thief, 0, CHUNK_BYTES, 1, &ids[3], NULL),
	                 GLAKE__WIRE__STATUS__OK);
	for (size_t i = 0; i < 3; i++) {
		ck_assert_int_eq(connection_free_chunks(thief, &ids[i], 1),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(connection_publish(thief, ids[i], CHUNK_BYTES),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	}
	/* All or none: his own is not freed either, whichever comes first. */
	mixed[0] = ids[3];
	mixed[1] = ids[0];
	ck_assert_int_eq(connection_free_chunks(thief, mixed, 2), GLAKE__WIRE__STATUS__BAD_REQUEST);
	mixed[0] = ids[0];
	mixed[1] = ids[3];
	ck_assert_int_eq(connection_free_chunks(thief, mixed, 2), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_free_chunks(thief, &ids[3], 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_free_chunks(thief, &ids[3], 1),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_free_chunks(witness, ids, 3), GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* @text_out: the error, without the number that was asked for. It is the same for all that cannot be had. */
static Glake__Wire__Status open_chunks(int connection, const Glake__Wire__ChunkOpen *body,
                                       char text_out[256])
{
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST_OF(CHUNK_OPEN, chunk_open, (Glake__Wire__ChunkOpen *)body),
		NULL, 0, NULL);
	Glake__Wire__Status status = answer->status;
	size_t n_kept = 0;
	for (const char *at = answer->error; *at && n_kept < 255; at++) {
		if (*at < '0' || *at > '9') {
			text_out[n_kept++] = *at;
		}
	}
	text_out[n_kept] = '\0';
	connection_free(answer);
	return status;
}

START_TEST(a_ticket_is_for_what_was_named)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS + 1] = {0};
	uint64_t ticket = 0;
	uint64_t again = 0;
	world_begin_as(&quiet);
	int thief = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(witness, 0, CHUNK_BYTES, 3, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_share(witness, ids, 0, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_share(witness, ids, n_elements(ids), NULL),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	/* Other sessions do not name it; nor is a part named of what cannot be named whole. */
	ck_assert_int_eq(connection_share(thief, ids, 1, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_share(witness, ids, 4, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_share(witness, ids, 2, &ticket), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_share(witness, ids, 2, &again), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(ticket, again);
	ck_assert_int_eq(connection_share(witness, ids, 1, &again), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(ticket, again);
	/* A block that others could write to must not be. */
	ck_assert_int_eq(connection_publish(witness, ids[0], CHUNK_BYTES),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_share(witness, &ids[1], 2, NULL),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_free_chunks(witness, ids, 3), GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* The list of sessions, which is the caller's, and the youngest one in it. */
static Glake__Wire__Answer *list_sessions(const Glake__Wire__SessionInfo **last_out)
{
	Glake__Wire__Answer *answer = connection_call(
		witness, REQUEST(SESSION_LIST, SessionList, session_list), NULL, 0, NULL);
	const Glake__Wire__SessionListAnswer *list = answer->session_list;
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_SESSION_LIST);
	/* The eye, the witness, and that one. */
	ck_assert_uint_eq(list->n_sessions, 3);
	*last_out = list->sessions[2];
	return answer;
}

/* Whatever is wrong with a name, the answer is the same. */
START_TEST(a_wrong_name_tells_nothing)
{
	uint64_t ids[3];
	uint64_t ticket = 0;
	char first[256];
	char text[256];
	world_begin_as(&quiet);
	const Glake__Wire__SessionInfo *info;
	int thief = connection_hello(&harness);
	Glake__Wire__Answer *list = list_sessions(&info);
	uint64_t owner = list->session_list->sessions[1]->session;
	connection_free(list);
	ck_assert_int_eq(connection_alloc(witness, 0, CHUNK_BYTES, 2, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ids[2] = ids[1] + 1000;
	ck_assert_int_eq(connection_share(witness, ids, 1, &ticket), GLAKE__WIRE__STATUS__OK);

	Glake__Wire__ChunkOpen body = GLAKE__WIRE__CHUNK_OPEN__INIT;
	body.session = owner;
	body.ids = ids;
	body.n_ids = 1;
	body.ticket = ticket;
	ck_assert_int_eq(open_chunks(thief, &body, first), GLAKE__WIRE__STATUS__OK);
	const struct {
		uint64_t session;
		uint64_t *ids;
		size_t n_ids;
		uint64_t ticket;
	} cases[] = {
		{owner, ids, 1, 0},           {owner, ids, 1, ticket ^ 1},
		{owner, &ids[1], 1, ticket},  {owner, &ids[1], 1, 0},
		{owner, &ids[2], 1, ticket},  {owner, &ids[2], 1, 0},
		{owner + 1000, ids, 1, 0},    {owner + 1000, ids, 1, ticket},
		{0, ids, 1, ticket},          {owner, ids, 2, ticket},
		{UINT64_MAX, ids, 1, ticket},
	};
	for (size_t i = 0; i < n_elements(cases); i++) {
		body.session = cases[i].session;
		body.ids = cases[i].ids;
		body.n_ids = cases[i].n_ids;
		body.ticket = cases[i].ticket;
		ck_assert_int_eq(open_chunks(thief, &body, text), GLAKE__WIRE__STATUS__NOT_FOUND);
		if (i == 0) {
			strcpy(first, text);
		}
		ck_assert_str_eq(text, first);
	}
	ck_assert_int_eq(connection_free_chunks(witness, ids, 2), GLAKE__WIRE__STATUS__OK);
	/* Nor does it say who is there to those who ask for nothing, or for too much. */
	for (size_t i = 0; i < 2; i++) {
		body.session = i ? owner : owner + 1000;
		body.n_ids = 0;
		ck_assert_int_eq(open_chunks(thief, &body, text), GLAKE__WIRE__STATUS__BAD_REQUEST);
	}
}
END_TEST

START_TEST(ids_that_nobody_has_are_refused)
{
	static const uint64_t ids[] = {0, 1, 2, 3, UINT32_MAX, 1ull << 63, UINT64_MAX};
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (size_t i = 0; i < n_elements(ids); i++) {
		uint64_t id = ids[i];
		ck_assert_int_eq(connection_free_chunks(connection, &id, 1),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(connection_publish(connection, id, CHUNK_BYTES),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(touch_model(connection, id), GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(close_model(connection, id), GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(connection_release(connection, id),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	}
}
END_TEST

static Glake__Wire__Status send_report(int connection, Glake__Wire__UsageReport *report)
{
	return connection_status(connection, REQUEST_OF(USAGE_REPORT, usage_report, report), NULL,
	                         0);
}

START_TEST(reports_are_cut_or_refused)
{
	enum { MANY = GLAKE_MAX_REPORTED_DEVICES + 1 };
	static Glake__Wire__DriverMemory rows[MANY];
	static Glake__Wire__DriverMemory *list[MANY];
	const Glake__Wire__SessionInfo *info;
	Glake__Wire__UsageReport report = GLAKE__WIRE__USAGE_REPORT__INIT;
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	for (uint32_t i = 0; i < MANY; i++) {
		glake__wire__driver_memory__init(&rows[i]);
		rows[i].device = i;
		rows[i].managed_bytes = UINT64_MAX;
		rows[i].array_bytes = UINT64_MAX;
		rows[i].graph_bytes = UINT64_MAX;
		rows[i].other_bytes = UINT64_MAX;
		list[i] = &rows[i];
	}
	report.live_bytes = report.warm_bytes = report.peak_bytes = UINT64_MAX;
	report.n_owned = report.n_passed = UINT64_MAX;
	/* A cause twice, and one of a later version. */
	Glake__Wire__Unsealed unsealed[3];
	Glake__Wire__Unsealed *unsealed_list[3];
	for (unsigned i = 0; i < 3; i++) {
		glake__wire__unsealed__init(&unsealed[i]);
		unsealed[i].why = i < 2 ? GLAKE__WIRE__UNSEALED_WHY__UNSEALED_WRITTEN
		                        : (Glake__Wire__UnsealedWhy)GLAKE_N_UNSEALED;
		unsealed[i].bytes = UINT64_MAX;
		unsealed_list[i] = &unsealed[i];
	}
	report.unsealed = unsealed_list;
	report.n_unsealed = 3;
	Glake__Wire__PoolReport pools[2];
	Glake__Wire__PoolReport *pool_list[] = {&pools[0], &pools[1]};
	for (uint32_t i = 0; i < 2; i++) {
		glake__wire__pool_report__init(&pools[i]);
		pools[i].device = i;
		pools[i].live_bytes = pools[i].peak_live_bytes = UINT64_MAX;
		pools[i].reserved_bytes = pools[i].peak_reserved_bytes = UINT64_MAX;
		pools[i].n_mapped = pools[i].n_kept = pools[i].kept_bytes = UINT64_MAX;
	}
	report.pools = pool_list;
	report.n_pools = 2;
	report.driver = list;
	report.n_driver = 2;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__OK);
	Glake__Wire__Answer *answer = list_sessions(&info);
	ck_assert_uint_eq(info->live_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->warm_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->peak_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->n_passed, UINT64_MAX);
	ck_assert_uint_eq(info->n_unsealed, 1);
	ck_assert_int_eq(info->unsealed[0]->why, GLAKE__WIRE__UNSEALED_WHY__UNSEALED_WRITTEN);
	ck_assert_uint_eq(info->unsealed[0]->bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->n_devices, 2);
	ck_assert_uint_eq(info->devices[1]->device, 1);
	ck_assert_uint_eq(info->devices[1]->managed_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->devices[1]->array_bytes, 256ull << 20);
	ck_assert_uint_eq(info->devices[1]->graph_bytes, 256ull << 20);
	ck_assert_uint_eq(info->devices[1]->other_bytes, 256ull << 20);
	ck_assert_uint_eq(info->n_pools, 2);
	ck_assert_uint_eq(info->pools[1]->device, 1);
	ck_assert_uint_eq(info->pools[1]->live_bytes, 256ull << 20);
	ck_assert_uint_eq(info->pools[1]->peak_live_bytes, 256ull << 20);
	ck_assert_uint_eq(info->pools[1]->reserved_bytes, 256ull << 20);
	ck_assert_uint_eq(info->pools[1]->peak_reserved_bytes, 256ull << 20);
	ck_assert_uint_eq(info->pools[1]->n_mapped, UINT64_MAX);
	ck_assert_uint_eq(info->pools[1]->kept_bytes, GLAKE_MAX_REPORTED_BYTES);
	connection_free(answer);

	/* Refused whole: what was reported before stays. */
	report.live_bytes = 1;
	report.n_driver = MANY;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__BAD_REQUEST);
	report.n_driver = 2;
	rows[1].device = 0;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__BAD_REQUEST);
	rows[1].device = UINT32_MAX;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__BAD_REQUEST);
	rows[1].device = 1;
	pools[1].device = 0;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__BAD_REQUEST);
	pools[1].device = UINT32_MAX;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__BAD_REQUEST);
	answer = list_sessions(&info);
	ck_assert_uint_eq(info->live_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(info->n_devices, 2);
	connection_free(answer);

	/* A report is all there is: what it does not name is gone. */
	report.n_driver = 0;
	report.n_pools = 0;
	ck_assert_int_eq(send_report(connection, &report), GLAKE__WIRE__STATUS__OK);
	answer = list_sessions(&info);
	ck_assert_uint_eq(info->live_bytes, 1);
	ck_assert_uint_eq(info->n_devices, 0);
	ck_assert_uint_eq(info->n_pools, 0);
	connection_free(answer);
}
END_TEST

static int count_event(void *user, const struct glake_event_row *row)
{
	for (const char *at = row->text; *at; at++) {
		ck_assert_int_ge((unsigned char)*at, ' ');
	}
	ck_assert_ptr_nonnull(strstr(row->text, "CUDA error 7 (x?y), "));
	++*(unsigned *)user;
	return 0;
}

/* The most that a client of ours sends becomes an event, if there are not too many. */
START_TEST(reports_of_faults_are_cleaned_and_limited)
{
	enum { MANY = GLAKE_MAX_SUSPECTS + 1 };
	static char name[GLAKE_MAX_KERNEL_NAME_BYTES + 1];
	static Glake__Wire__FaultSuspect rows[MANY];
	static Glake__Wire__FaultSuspect *list[MANY];
	Glake__Wire__FaultReport report = GLAKE__WIRE__FAULT_REPORT__INIT;
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	unsigned n_events = 0;
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	memset(name, '\n', GLAKE_MAX_KERNEL_NAME_BYTES);
	for (uint32_t i = 0; i < MANY; i++) {
		glake__wire__fault_suspect__init(&rows[i]);
		rows[i].kernel = name;
		rows[i].address = rows[i].range = rows[i].range_bytes = UINT64_MAX;
		list[i] = &rows[i];
	}
	report.error = 7;
	report.name = (char *)"x\033y";
	report.sealed_bytes = UINT64_MAX;
	report.suspects = list;
	report.n_suspects = MANY;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_FAULT_REPORT;
	request.fault_report = &report;
	ck_assert_int_eq(connection_status(connection, &request, NULL, 0),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	report.n_suspects = GLAKE_MAX_SUSPECTS;
	for (unsigned i = 0; i < 20; i++) {
		ck_assert_int_eq(connection_status(connection, &request, NULL, 0),
		                 GLAKE__WIRE__STATUS__OK);
	}
	assert_ok(glake_list_events(eye, count_event, &n_events));
	ck_assert_uint_ge(n_events, 1);
	ck_assert_uint_lt(n_events, 20);
}
END_TEST

static Glake__Wire__Status tell_seal(int connection, Glake__Wire__SealProgress *report)
{
	return connection_status(connection, REQUEST_OF(SEAL_PROGRESS, seal_progress, report), NULL,
	                         0);
}

/* Returns the id of the request, which @program has then got a notice of: *seal_out. */
static uint64_t ask_seal(int asker, int program, uint64_t session, uint64_t *seal_out)
{
	uint64_t id = connection_send(asker,
	                              REQUEST(SESSION_SEAL, SessionSeal, session_seal,
	                                      .session = session, .progress = true),
	                              NULL, 0);
	Glake__Wire__Answer *notice = connection_receive(program, NULL);
	ck_assert_uint_eq(notice->id, 0);
	ck_assert_int_eq(notice->body_case, GLAKE__WIRE__ANSWER__BODY_SEAL);
	*seal_out = notice->seal->id;
	connection_free(notice);
	return id;
}

/* A program may say anything about itself, and nothing about others. */
START_TEST(reports_of_sealing_are_cut_and_cleaned)
{
	Glake__Wire__SealProgress report = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SealResult result = GLAKE__WIRE__SEAL_RESULT__INIT;
	struct connection_identity identity = {0};
	world_begin_as(&quiet);
	int program = connection_hello_as(&harness, &identity);
	int asker = connection_hello(&harness);
	int other = connection_hello(&harness);
	report.seal = 5;
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__NOT_FOUND);
	report.seal = 0;
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__OK);

	/* The id is another's. The status may say nothing about glaked. */
	uint64_t id = ask_seal(asker, program, identity.session, &report.seal);
	report.status = GLAKE__WIRE__STATUS__VERSION;
	report.error = (char *)"x\033y";
	ck_assert_int_eq(tell_seal(other, &report), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__OK);
	Glake__Wire__Answer *answer = connection_receive_for(asker, id, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__INTERNAL);
	ck_assert_ptr_nonnull(strstr(answer->error, "x?y"));
	connection_free(answer);
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__NOT_FOUND);

	id = ask_seal(asker, program, identity.session, &report.seal);
	report.status = GLAKE__WIRE__STATUS__OK;
	report.done_bytes = report.total_bytes = UINT64_MAX;
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__OK);
	answer = connection_receive(asker, NULL);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_PROGRESS);
	ck_assert_uint_eq(answer->progress->request, id);
	ck_assert_uint_eq(answer->progress->done_bytes, GLAKE_MAX_REPORTED_BYTES);
	connection_free(answer);
	result.sealed_bytes = result.failed_bytes = UINT64_MAX;
	result.failed_why = (char *)"a\nb";
	report.result = &result;
	ck_assert_int_eq(tell_seal(program, &report), GLAKE__WIRE__STATUS__OK);
	answer = connection_receive_for(asker, id, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(answer->session_seal->sealed_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_uint_eq(answer->session_seal->failed_bytes, GLAKE_MAX_REPORTED_BYTES);
	ck_assert_str_eq(answer->session_seal->failed_why, "a?b");
	connection_free(answer);

	/* Its session may be gone while it is asked. */
	id = ask_seal(asker, program, identity.session, &report.seal);
	connection_goodbye(program);
	ck_assert_int_eq(connection_status_of(asker, id), GLAKE__WIRE__STATUS__NOT_FOUND);
}
END_TEST

START_TEST(one_id_given_twice_is_freed_once)
{
	uint64_t ids[3];
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 2, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ids[2] = ids[0];
	Glake__Wire__Status status = connection_free_chunks(connection, ids, 3);
	ck_assert(status == GLAKE__WIRE__STATUS__OK || status == GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection_ping(connection);
}
END_TEST

/* The witness opens a model of one tensor. */
static uint64_t open_one_tensor(void)
{
	static const struct model_tensor tensor = {
		.name = "w", .dtype = "U8", .n_dims = 1, .shape = {4 << 20}, .seed = 5};
	char path[HARNESS_PATH_BYTES + 16];
	snprintf(path, sizeof(path), "%s/m.safetensors", harness.folder);
	model_file_write(path, &tensor, 1);
	cleanup_fd int fd = model_file_open(path);
	uint64_t id = send_model_open(witness, 1, &fd, 1);
	Glake__Wire__Answer *answer = connection_receive_for(witness, id, NULL);
	ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s", answer->error);
	ck_assert_uint_eq(answer->model_open->n_tensors, 1);
	uint64_t model = answer->model_open->model;
	connection_free(answer);
	return model;
}

START_TEST(models_of_another_session_are_out_of_reach)
{
	world_begin_as(&quiet);
	uint64_t model = open_one_tensor();

	int thief = connection_hello(&harness);
	ck_assert_int_eq(touch_model(thief, model), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(close_model(thief, model), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_free_chunks(thief, &model, 1),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_release(thief, model), GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection_close(&thief);
	/* An id names what it was given for, and nothing else. */
	ck_assert_int_eq(connection_free_chunks(witness, &model, 1),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(connection_release(witness, model), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(touch_model(witness, model), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(close_model(witness, model), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(touch_model(witness, model), GLAKE__WIRE__STATUS__BAD_REQUEST);
}
END_TEST

START_TEST(pages_behind_the_end_are_empty)
{
	static const uint64_t firsts[] = {0, 1, 2, UINT32_MAX, UINT64_MAX};
	world_begin_as(&quiet);
	uint64_t model = open_one_tensor();
	for (size_t i = 0; i < n_elements(firsts); i++) {
		Glake__Wire__Answer *answer = connection_call(witness,
		                                              REQUEST(MODEL_TENSORS, ModelTensors,
		                                                      model_tensors, .model = model,
		                                                      .first = firsts[i]),
		                                              NULL, 0, NULL);
		ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
		ck_assert_uint_eq(answer->model_tensors->n_tensors, firsts[i] == 0 ? 1 : 0);
		ck_assert_uint_eq(answer->model_tensors->next, 0);
		connection_free(answer);
	}
}
END_TEST
