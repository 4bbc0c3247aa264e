/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that keep to the protocol and mean harm: what one of them asks for may cost the others
 * neither glaked's life, nor its time, nor what the configuration keeps back.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/fuse_file.h"
#include "tests/harness/model_file.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define CONTENT_BYTES (HARNESS_PATH_BYTES + 32)

/* The answer of StatusGet; connection_free() it. */
static Glake__Wire__Answer *status_of(int connection)
{
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(STATUS_GET, StatusGet, status_get), NULL, 0, NULL);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_STATUS_GET);
	return answer;
}

/* A row of a list must fit a page, whatever a client calls itself. */
START_TEST(a_name_too_long_for_a_listing_is_refused)
{
	static char program[GLAKE_MAX_NAME_BYTES + 2];
	memset(program, 'x', sizeof(program) - 1);
	world_begin(.has_witness = true);
	int connection = connection_open(&harness);
	Glake__Wire__Status status = connection_status(
		connection,
		REQUEST(HELLO, Hello, hello, .version = GLAKE_WIRE_VERSION, .program = program),
		NULL, 0);
	Glake__Wire__Answer *answer = connection_call(
		witness, REQUEST(SESSION_LIST, SessionList, session_list), NULL, 0, NULL);
	/* The witness and the eye. */
	ck_assert_uint_eq(answer->session_list->n_sessions, 2);
	connection_free(answer);
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection_expect_closed(connection);
}
END_TEST

/* Sends @n_requests at once; counts the granted ones. */
static unsigned pour(int connection, unsigned n_requests, uint64_t chunk_bytes, uint32_t n_chunks)
{
	unsigned n_granted = 0;
	for (unsigned i = 0; i < n_requests; i++) {
		connection_send(connection,
		                REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
		                        .chunk_bytes = chunk_bytes, .n_chunks = n_chunks),
		                NULL, 0);
	}
	for (unsigned n_answers = 0; n_answers < n_requests;) {
		Glake__Wire__Answer *answer = connection_receive(connection, NULL);
		ck_assert_ptr_nonnull(answer);
		/* Or a notice. */
		n_answers += answer->id != 0;
		n_granted += answer->id != 0 && answer->status == GLAKE__WIRE__STATUS__OK;
		connection_free(answer);
	}
	return n_granted;
}

START_TEST(requests_at_once_do_not_spend_the_same_fds)
{
	world_begin(.config = "pool = (); fd_budget = 64;",
	            .faults = "glaked/cuMemCreate:*:slow=2");
	int connection = connection_hello(&harness);
	ck_assert_uint_eq(pour(connection, 8, 2 * MIB, 8), 8);
	Glake__Wire__Answer *answer = status_of(connection);
	ck_assert_uint_eq(answer->status_get->devices[0]->private_bytes, 8 * 8 * 2 * MIB);
	ck_assert_uint_gt(answer->status_get->fds_used, 0);
	ck_assert_uint_le(answer->status_get->fds_used, answer->status_get->fds_budget);
	connection_free(answer);
}
END_TEST

START_TEST(requests_at_once_do_not_eat_the_reserve)
{
	world_begin(.config = "pool = (); reserve_bytes = \"96MiB\";", .devices = "1x256MiB",
	            .faults = "glaked/cuMemCreate:*:slow=20");
	int connection = connection_hello(&harness);
	/* 160 MiB may be given out, 2 of which glaked needs itself. */
	ck_assert_uint_eq(pour(connection, 8, 32 * MIB, 1), 4);
	Glake__Wire__Answer *answer = status_of(connection);
	ck_assert_uint_eq(answer->status_get->devices[0]->physical_bytes, (2 + 4 * 32) * MIB);
	connection_free(answer);
}
END_TEST

START_TEST(a_lost_reader_of_the_log_is_survived)
{
	world_begin();
	int connection = connection_hello(&harness);
	harness_signal(&harness, SIGPIPE);
	harness_sleep_ms(50);
	connection_ping(connection);
}
END_TEST

static uint64_t send_open_fd(int connection, int fd)
{
	char *files[] = {(char *)"a.safetensors"};
	return connection_send(
		connection,
		REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = files, .n_files = 1), &fd, 1);
}

static uint64_t send_open(int connection, const char *path)
{
	int fd = model_file_open(path);
	uint64_t id = send_open_fd(connection, fd);
	close(fd);
	return id;
}

static Glake__Wire__Status load(int connection, const char *path)
{
	uint64_t id = send_open(connection, path);
	return connection_status_of(connection, id);
}

/* A client that hands in a file whose close() never ends: neither its own, nor anybody's. */
static pid_t start_villain(const char *path)
{
	fflush(NULL);
	pid_t villain = fork();
	ck_assert_int_ge(villain, 0);
	if (villain == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int connection = connection_hello(&harness);
		send_open(connection, path);
		pause();
	}
	return villain;
}

static pid_t mover_pid(int connection)
{
	unsigned pid = 0;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (pid == 0) {
		Glake__Wire__Answer *answer = status_of(connection);
		sscanf(answer->status_get->mover, "running %u", &pid);
		connection_free(answer);
		ck_assert_msg(harness_now_ms() < end_ms, "no mover");
	}
	return (pid_t)pid;
}

enum villainy { BEFORE_THE_MOVER, IN_A_MOVER_THAT_DIES, N_VILLAINIES };

static const struct harness_options quiet = {.config = WORLD_CONFIG, .has_witness = true};
static const struct harness_options hurried = {.config = "drain_ms = 100;", .has_witness = true};
#define OTHER_TENANT "drain_ms = 100; tenants = ({ name = \"other\"; uids = [1234]; });"

/*
 * A glaked, a model's file at @content, and the same on a file system that is hostile as @faults say.
 * False, with nothing started, where mounting is not possible.
 */
static bool begin_with_fuse(const struct harness_options *options,
                            const struct fuse_file_faults *faults, struct fuse_file *file,
                            char content[CONTENT_BYTES])
{
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	char folder[CONTENT_BYTES];
	struct harness_options with_witness = *options;
	with_witness.has_witness = true;
	world_begin_as(&with_witness);
	snprintf(content, CONTENT_BYTES, "%s/a.safetensors", harness.folder);
	snprintf(folder, sizeof(folder), "%s/fuse", harness.folder);
	model_file_write(content, &tensor, 1);
	bool is_mounted = fuse_file_start(file, folder, content, faults);
	return is_mounted;
}

START_TEST_WITH(a_file_that_cannot_be_closed_stops_nobody, .n = N_VILLAINIES)
{
	static const struct fuse_file_faults faults = {.is_flush_endless = true};
	struct fuse_file file;
	char content[CONTENT_BYTES];
	if (!begin_with_fuse(&hurried, &faults, &file, content)) {
		return;
	}
	pid_t villain = start_villain(file.path);
	for (int i = 0; i < 10; i++) {
		harness_sleep_ms(30);
		connection_ping(witness);
	}
	if (_i == IN_A_MOVER_THAT_DIES) {
		kill(mover_pid(witness), SIGKILL);
		/* Unless its death is known already. */
		Glake__Wire__Status status = load(witness, content);
		ck_assert(status == GLAKE__WIRE__STATUS__MOVER_FAILED ||
		          status == GLAKE__WIRE__STATUS__OK);
	}
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	kill(villain, SIGKILL);
	fuse_file_stop(&file);
	ck_assert_int_eq(waitpid(villain, NULL, 0), villain);
	harness_sleep_ms(100);
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* A copy of the mover of that name, and a configuration that has it. */
static void reload_with_mover(const char *name)
{
	char command[1024];
	char config[HARNESS_PATH_BYTES + 128];
	snprintf(command, sizeof(command), "cp '%s' '%s/%s'", run_in_build("bin/glake-mover"),
	         harness.folder, name);
	ck_assert_int_eq(system(command), 0);
	snprintf(config, sizeof(config), "drain_ms = 100; mover_path = \"%s/%s\";", harness.folder,
	         name);
	harness_reload(&harness, config);
}

static void assert_mover_is(int connection, const char *name)
{
	char link[64];
	char path[HARNESS_PATH_BYTES + 64] = "";
	snprintf(link, sizeof(link), "/proc/%d/exe", (int)mover_pid(connection));
	ck_assert_int_gt(readlink(link, path, sizeof(path) - 1), 0);
	ck_assert_str_eq(strrchr(path, '/') + 1, name);
}

START_TEST(another_configuration_is_for_the_next_mover)
{
	static const struct model_tensor tensors[] = {{"a", "U8", 1, {1000}, 1},
	                                              {"b", "U8", 1, {1000}, 2}};
	char content[CONTENT_BYTES];
	world_begin_as(&hurried);
	snprintf(content, sizeof(content), "%s/a.safetensors", harness.folder);
	reload_with_mover("first-mover");
	model_file_write(content, &tensors[0], 1);
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	reload_with_mover("second-mover");
	assert_mover_is(witness, "first-mover");
	kill(mover_pid(witness), SIGKILL);
	harness_wait_log(&harness, "glake-mover died: signal 9");
	model_file_write(content, &tensors[1], 1);
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	assert_mover_is(witness, "second-mover");
}
END_TEST

static void send_open_fds(int connection, const int *fds, size_t n_fds)
{
	char *names[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_fds; i++) {
		names[i] = (char *)"a.safetensors";
	}
	connection_send(
		connection,
		REQUEST(MODEL_OPEN, ModelOpen, model_open, .files = names, .n_files = n_fds), fds,
		n_fds);
}

/* Has @n_files files loaded, all of them @path but the last. */
static void send_open_many(int connection, const char *path, const char *last_path, size_t n_files)
{
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_files; i++) {
		fds[i] = model_file_open(i + 1 < n_files ? path : last_path);
	}
	send_open_fds(connection, fds, n_files);
}

/* Two loads while the mover does not read; the witness is served meanwhile. */
static void send_two(int connection, pid_t mover, const char *path, const char *last_path)
{
	kill(mover, SIGSTOP);
	send_open_many(connection, path, path, 60);
	/* Unread, they are more than a packet may have: these wait in glaked. */
	send_open_many(connection, path, last_path, 200);
	connection_ping(witness);
	harness_sleep_ms(50);
	kill(mover, SIGCONT);
}

/* A file that waits for a mover that does not read keeps no file of others open. */
START_TEST(a_file_that_waits_for_the_mover_keeps_nobodys_open)
{
	enum { N = 5 };
	static const struct fuse_file_faults faults = {.is_flush_endless = true};
	struct fuse_file file;
	char content[CONTENT_BYTES];
	if (!harness_is_root()) {
		return;
	}
	if (!begin_with_fuse(&hurried, &faults, &file, content)) {
		return;
	}
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	pid_t mover = mover_pid(witness);
	fflush(NULL);
	pid_t villain = fork();
	ck_assert_int_ge(villain, 0);
	if (villain == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ck_assert_int_eq(seteuid(1234), 0);
		int connection = connection_hello(&harness);
		ck_assert_int_eq(seteuid(0), 0);
		send_two(connection, mover, content, file.path);
		pause();
	}
	harness_sleep_ms(500);
	size_t n_fds = harness_settle_n_fds(&harness);
	int connection = connection_hello(&harness);
	for (int i = 0; i < N; i++) {
		send_two(connection, mover, content, content);
		for (int k = 0; k < 2; k++) {
			Glake__Wire__Answer *answer = connection_receive(connection, NULL);
			ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BAD_FILE);
			connection_free(answer);
		}
	}
	ck_assert_uint_le(harness_settle_n_fds(&harness), n_fds + 1);
	connection_close(&connection);
	kill(villain, SIGKILL);
	fuse_file_stop(&file);
	ck_assert_int_eq(waitpid(villain, NULL, 0), villain);
}
END_TEST

/* Loads that nobody waits for any more, and that do not end, take the places of others no more. */
START_TEST(cancelled_loads_leave_room_for_others)
{
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	static const struct fuse_file_faults faults = {.endless_from = 1};
	static const struct harness_options options = {.config = OTHER_TENANT};
	struct fuse_file file;
	char content[CONTENT_BYTES];
	char another[CONTENT_BYTES];
	if (!harness_is_root() || !begin_with_fuse(&options, &faults, &file, content)) {
		return;
	}
	snprintf(another, sizeof(another), "%s/b.safetensors", harness.folder);
	model_file_write(another, &tensor, 1);
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	cleanup_fd int fd = model_file_open(file.path);
	for (int i = 0; i < 70; i++) {
		ck_assert_int_eq(seteuid(1234), 0);
		int connection = connection_hello(&harness);
		ck_assert_int_eq(seteuid(0), 0);
		send_open_fd(connection, fd);
		/* Until the mover has begun, which tells nobody. */
		harness_sleep_ms(10);
		connection_close(&connection);
	}
	ck_assert_int_eq(load(witness, another), GLAKE__WIRE__STATUS__OK);
	fuse_file_stop(&file);
}
END_TEST

/* Nor does one user's fill the table of open files that the mover has for all. */
START_TEST(the_files_of_one_user_leave_room_for_others)
{
	static const struct fuse_file_faults faults = {.endless_from = 1};
	static const struct harness_options options = {.config = OTHER_TENANT, .max_fds = 1300};
	enum { N_LOADS = 14, N_FILES = 100 };
	struct fuse_file file;
	char content[CONTENT_BYTES];
	if (!harness_is_root() || !begin_with_fuse(&options, &faults, &file, content)) {
		return;
	}
	ck_assert_int_eq(load(witness, content), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(seteuid(1234), 0);
	int connection = connection_hello(&harness);
	ck_assert_int_eq(seteuid(0), 0);
	int fds[N_FILES + N_LOADS];
	for (size_t i = 0; i < n_elements(fds); i++) {
		fds[i] = model_file_open(file.path);
	}
	for (size_t i = 0; i < N_LOADS; i++) {
		/* Each load is of other files than those before: nobody joins a load. */
		send_open_fds(connection, fds, N_FILES + i);
	}
	Glake__Wire__Answer *answer = connection_receive(connection, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BUSY);
	ck_assert_ptr_nonnull(strstr(answer->error, "too many files"));
	connection_free(answer);
	/* The mover has taken these, and found that they are all the same. */
	send_open_many(witness, content, content, GLAKE_MAX_PACKET_FDS);
	answer = connection_receive(witness, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BAD_FILE);
	connection_free(answer);
	fuse_file_stop(&file);
	for (size_t i = 1; i < N_LOADS; i++) {
		connection_free(connection_receive(connection, NULL));
	}
}
END_TEST

/* More files than the mover can ever have open. */
START_TEST(a_load_of_too_many_files_is_refused)
{
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	char path[CONTENT_BYTES];
	world_begin(.max_fds = 640);
	snprintf(path, sizeof(path), "%s/a.safetensors", harness.folder);
	model_file_write(path, &tensor, 1);
	int connection = connection_hello(&harness);
	send_open_many(connection, path, path, GLAKE_MAX_PACKET_FDS);
	Glake__Wire__Answer *answer = connection_receive(connection, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__NO_FDS);
	ck_assert_ptr_nonnull(strstr(answer->error, "glake-mover"));
	connection_free(answer);
	ck_assert_int_eq(load(connection, path), GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* Rules that name cgroups are not got round by a child that connects and ends. */
START_TEST(the_socket_of_who_has_ended_is_nobodys)
{
	const char *config =
		"tenants = ( { name = \"all\"; cgroup = \"/\"; device_bytes = \"4MiB\"; } );";
	int status;
	world_begin(.config = config);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, harness.socket_path);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	harness_signal(&harness, SIGSTOP);
	pid_t pid = fork();
	if (pid == 0) {
		_exit(connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0);
	}
	ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	harness_signal(&harness, SIGCONT);
	harness_wait_log(&harness, "cannot read its credentials: No such process");
	connection_expect_closed(fd);
	connection_hello(&harness);
}
END_TEST

/* Connections whose processes have ended before glaked can look at them. */
static void connect_and_end(uid_t uid, unsigned n)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	strcpy(address.sun_path, harness.socket_path);
	harness_signal(&harness, SIGSTOP);
	for (unsigned i = 0; i < n; i++) {
		int status;
		pid_t pid = fork();
		if (pid == 0) {
			int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
			_exit(setuid(uid) != 0 ||
			      connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0);
		}
		ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
	}
	harness_signal(&harness, SIGCONT);
}

START_TEST(lines_about_dead_processes_are_bounded_by_user)
{
	enum { N = 60 };
	if (!harness_is_root()) {
		return;
	}
	world_begin(.config = "tenants = ( { name = \"all\"; cgroup = \"/\"; } );");
	uint64_t n_bad = world_metric("sessions_bad");
	connect_and_end(12345, N);
	world_wait_metric("sessions_bad", n_bad + N);
	connect_and_end(12346, 1);
	world_wait_metric("sessions_bad", n_bad + N + 1);
	harness_wait_log(&harness, "uid 12346) closed: cannot read its credentials");
	ck_assert_uint_lt(harness_n_log_lines(&harness, "No such process"), N / 3);
}
END_TEST

/* Programs that try again and again on a GPU that is broken. */
START_TEST(a_device_that_fails_does_not_fill_the_log)
{
	enum { N = 60 };
	world_begin(.config = "pool = ();", .devices = "1x64MiB");
	int connection = connection_hello(&harness);
	world_set_faults("glaked/cuMemCreate:*:fail=999");
	for (unsigned i = 0; i < N; i++) {
		cleanup_fdlist struct fdlist fds;
		uint64_t chunk;
		fdlist_init(&fds);
		ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, &chunk, &fds),
		                 GLAKE__WIRE__STATUS__INTERNAL);
	}
	world_set_faults(NULL);
	harness_wait_log(&harness, "cannot make a chunk");
	ck_assert_uint_lt(harness_n_log_lines(&harness, "cannot make a chunk"), N / 3);
	connection_close(&connection);
}
END_TEST

/* ---- sockets that linger --------------------------------------------------------------------- */

/*
 * A TCP socket whose last close() waits for its peer, @peer_fds_out, for longer than any test.
 */
static int open_lingering(int peer_fds_out[2])
{
	static const uint8_t bytes[64 * 1024];
	static const struct linger linger = {.l_onoff = 1, .l_linger = 600};
	struct sockaddr_in address = {.sin_family = AF_INET,
	                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n_bytes = sizeof(address);
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listening, (struct sockaddr *)&address, n_bytes), 0);
	ck_assert_int_eq(listen(listening, 1), 0);
	ck_assert_int_eq(getsockname(listening, (struct sockaddr *)&address, &n_bytes), 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, n_bytes), 0);
	peer_fds_out[0] = listening;
	peer_fds_out[1] = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	ck_assert_int_ge(peer_fds_out[1], 0);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
	}
	ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

/* In a Unix socket that nobody reads from: for the fds in it, its last close is theirs. */
static int put_into_socket(int fd)
{
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	ck_assert_int_eq(wire_send(ends[0], "x", 1, &fd, 1, 0), 0);
	close(fd);
	close(ends[0]);
	return ends[1];
}

enum lingering { UNREAD, IN_A_PACKET, INSIDE_ANOTHER, N_LINGERINGS };

/* A connection that closes for its first packet, with the socket in the first or the next one. */
static int send_lingering(enum lingering how, int peer_fds_out[2])
{
	/* A Ping; fds do not belong to it, nor it before Hello. */
	static const uint8_t ping[] = {0x08, 0x01, 0x62, 0x00};
	int connection = connection_open(&harness);
	int fd = open_lingering(peer_fds_out);
	fd = how == INSIDE_ANOTHER ? put_into_socket(fd) : fd;
	/* Until it finds both packets, and has the last close. */
	harness_signal(&harness, SIGSTOP);
	if (how == UNREAD) {
		ck_assert_int_eq(connection_send_bytes(connection, "\xff\xff", 2, NULL, 0), 0);
	}
	ck_assert_int_eq(connection_send_bytes(connection, ping, sizeof(ping), &fd, 1), 0);
	close(fd);
	harness_signal(&harness, SIGCONT);
	return connection;
}

START_TEST_WITH(a_socket_that_lingers_stops_nobody, .n = N_LINGERINGS)
{
	enum { N = 8 };
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	char path[HARNESS_PATH_BYTES + 32];
	int connections[N];
	int peers[N][2];
	world_begin_as(&quiet);
	snprintf(path, sizeof(path), "%s/a.safetensors", harness.folder);
	model_file_write(path, &tensor, 1);
	for (int i = 0; i < N; i++) {
		connections[i] = send_lingering((enum lingering)_i, peers[i]);
		connection_expect_closed(connections[i]);
		connection_ping(witness);
	}
	ck_assert_int_eq(load(witness, path), GLAKE__WIRE__STATUS__OK);
	for (int i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
	/* The block's. */
	world_wait_n_fds(1);
	for (int i = 0; i < N; i++) {
		close(peers[i][0]);
		close(peers[i][1]);
	}
}
END_TEST

START_TEST(who_fails_again_and_again_does_not_fill_the_log)
{
	char path[HARNESS_PATH_BYTES + 32];
	world_begin(.config = "drain_ms = 100;");
	snprintf(path, sizeof(path), "%s/bad.safetensors", harness.folder);
	FILE *file = fopen(path, "we");
	fputs("nothing of the kind", file);
	fclose(file);
	int connection = connection_hello(&harness);
	for (int i = 0; i < 300; i++) {
		ck_assert_int_eq(load(connection, path), GLAKE__WIRE__STATUS__BAD_FILE);
	}
	unsigned n_lines = harness_n_log_lines(&harness, "a.safetensors");
	ck_assert_msg(n_lines >= 1 && n_lines <= 10, "%u lines", n_lines);
}
END_TEST

static void load_and_evict(int connection, const char *path)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection,
	                                                     send_open(connection, path), NULL);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN);
	uint64_t model = answer->model_open->model;
	connection_free(answer);
	ck_assert_int_eq(
		connection_status(connection,
	                          REQUEST(MODEL_CLOSE, ModelClose, model_close, .model = model),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(
		connection_status(connection,
	                          REQUEST(EVICT, Evict, evict, .name = (char *)"a.safetensors"),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__OK);
}

/* Enough lines for the models of a node, and no more, however often they come and go. */
START_TEST(who_loads_and_evicts_without_end_does_not_fill_the_log)
{
	static const struct model_tensor tensor = {"a", "U8", 1, {1000}, 1};
	char path[HARNESS_PATH_BYTES + 32];
	world_begin(.config = "drain_ms = 100;");
	snprintf(path, sizeof(path), "%s/a.safetensors", harness.folder);
	model_file_write(path, &tensor, 1);
	for (int i = 0; i < 150; i++) {
		int connection = connection_hello(&harness);
		load_and_evict(connection, path);
		connection_close(&connection);
	}
	unsigned n_loaded = harness_n_log_lines(&harness, "loaded 'a.safetensors'");
	unsigned n_evicted = harness_n_log_lines(&harness, "evicted model 'a.safetensors'");
	ck_assert_msg(n_loaded >= 100 && n_loaded <= 120, "%u loaded", n_loaded);
	ck_assert_uint_eq(n_evicted, n_loaded);
}
END_TEST
