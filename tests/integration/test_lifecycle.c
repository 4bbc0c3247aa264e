/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glaked from start to end: configurations that are wrong, who owns the socket, the signals, and
 * what the service manager is told.
 */
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/harness/models.h"
#include "tests/harness/world.h"

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	return address;
}

static int connect_to(const char *path)
{
	struct glake_connect_options options = {
		.size = sizeof(options), .no_cuda = 1, .socket_path = path};
	struct glake_session *session;
	int r = glake_connect(&options, &session);
	if (r == 0) {
		r = glake_ping(session);
		world_disconnect(session);
	}
	return r;
}

/* ---- the configuration ----------------------------------------------------------------------- */

START_TEST_WITH(a_wrong_configuration_is_refused_with_its_line, .n = 6)
{
	static const struct {
		const char *text;
		const char *words;
	} wrong[] = {
		{"drain_ms = 100;\nmax_sesions = 3;\n", "glaked.conf:2: "},
		{"\n\ndrain_ms = \"soon\";\n", "glaked.conf:3: "},
		{"drain_ms = 100\nmax_sessions = = 3;\n", "glaked.conf:2: "},
		{"max_sessions = 0;\n", "glaked.conf:1: "},
		{"tenants = ({ name = \"a\"; uids = [1]; },\n{ name = \"a\"; uids = [2]; });\n",
	         "glaked.conf:2: "},
		{"realms = ({ name = \"a\";\nusers = [\"nobody-of-that-name\"]; });\n",
	         "glaked.conf:2: "},
	};
	int status = harness_start_failing(&harness,
	                                   &(struct harness_options){.config = wrong[_i].text});
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 2, "status 0x%x", status);
	ck_assert_msg(strstr(harness_log(&harness), wrong[_i].words), "%s", harness_log(&harness));
	ck_assert_int_ne(access(harness.socket_path, F_OK), 0);
}
END_TEST

START_TEST(a_device_that_is_not_there_is_refused)
{
	int status = harness_start_failing(
		&harness,
		&(struct harness_options){.config = "devices = [0, 5];", .devices = "2x256MiB"});
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", status);
	ck_assert_ptr_nonnull(strstr(harness_log(&harness), "device 5"));
}
END_TEST

START_TEST(a_driver_that_does_not_start_is_told)
{
	int status = harness_start_failing(
		&harness, &(struct harness_options){.faults = "glaked/cuInit:1:fail=100"});
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", status);
	ck_assert_ptr_nonnull(strstr(harness_log(&harness), "CUDA_ERROR_NO_DEVICE"));
	status = harness_start_failing(
		&harness,
		&(struct harness_options){.config = "libcuda = \"/nowhere/libcuda.so\";"});
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", status);
	ck_assert_ptr_nonnull(strstr(harness_log(&harness), "/nowhere/libcuda.so"));
}
END_TEST

START_TEST(a_mover_that_is_not_there_fails_the_load_alone)
{
	struct glake_model *model;
	world_begin(.config = "mover_path = \"/nowhere/glake-mover\";");
	const char *path = world_write_model("m.safetensors", 100, 1);
	for (int i = 0; i < 3; i++) {
		assert_fails(GLAKE_E_MOVER, "/nowhere/glake-mover",
		             world_open_unmapped(eye, path, &model));
	}
	ck_assert_uint_eq(world_books().n_models, 0);
}
END_TEST

/* ---- the socket ------------------------------------------------------------------------------ */

/* Whatever glaked's own environment says. */
START_TEST(a_mover_joins_no_mps_server)
{
	static const char *const env[] = {"CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps", NULL};
	static char text[65536];
	char path[64];
	size_t n_seen = 0;
	world_begin(.config = WORLD_CONFIG, .env = env);
	world_start_mover();
	snprintf(path, sizeof(path), "/proc/%d/environ", (int)world_running_mover());
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	size_t n_bytes = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	for (const char *at = text; at < text + n_bytes; at += strlen(at) + 1) {
		if (strncmp(at, "CUDA_MPS_PIPE", 13) == 0) {
			ck_assert_str_eq(at, "CUDA_MPS_PIPE_DIRECTORY=/dev/null");
			n_seen++;
		}
	}
	ck_assert_uint_eq(n_seen, 1);
}
END_TEST

START_TEST(the_socket_of_a_dead_glaked_is_replaced)
{
	world_begin_unseen();
	ck_assert_int_eq(connect_to(harness.socket_path), 0);
	harness_kill(&harness);
	ck_assert_int_eq(access(harness.socket_path, F_OK), 0);
	ck_assert_int_eq(connect_to(harness.socket_path), GLAKE_E_GONE);
	harness_restart(&harness);
	ck_assert_int_eq(connect_to(harness.socket_path), 0);
}
END_TEST

/* A name that clients have told each other must mean nothing to the next glaked. */
START_TEST(no_id_comes_again)
{
	struct glake_session_info before = {.size = sizeof(before)};
	struct glake_session_info after = {.size = sizeof(after)};
	world_begin();
	ck_assert_int_eq(glake_session_info(eye, &before), 0);
	harness_kill(&harness);
	world_restart();
	ck_assert_int_eq(glake_session_info(eye, &after), 0);
	ck_assert_uint_gt(after.session, before.session);
}
END_TEST

START_TEST(the_socket_goes_with_its_glaked)
{
	char path[HARNESS_PATH_BYTES];
	world_begin_unseen();
	strcpy(path, harness.socket_path);
	harness_signal(&harness, SIGTERM);
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
	ck_assert_int_ne(access(path, F_OK), 0);
}
END_TEST

/* Another glaked for the same path; what waitpid() says of it. */
static int start_second(void)
{
	char program[600];
	const char *build = getenv("GLAKE_BUILD");
	snprintf(program, sizeof(program), "%s/bin/glaked", build && *build ? build : "build");
	fflush(NULL);
	pid_t second = fork();
	ck_assert_int_ge(second, 0);
	if (second == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(10);
		int log = open(world_path("second"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
		dup2(log, STDERR_FILENO);
		execl(program, program, "--socket", harness.socket_path, (char *)NULL);
		_exit(127);
	}
	int status;
	ck_assert_int_eq(waitpid(second, &status, 0), second);
	return status;
}

static const char *log_of_second(void)
{
	static char text[8192];
	FILE *file = fopen(world_path("second"), "re");
	ck_assert_ptr_nonnull(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	return text;
}

START_TEST(a_second_glaked_is_refused)
{
	char words[64];
	world_begin();
	snprintf(words, sizeof(words), "another glaked (pid %d)", (int)harness.pid);
	int status = start_second();
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", status);
	ck_assert_msg(strstr(log_of_second(), words), "%s", log_of_second());
	assert_ok(glake_ping(eye));
	ck_assert_int_eq(connect_to(harness.socket_path), 0);
}
END_TEST

enum squatter { LISTENS_SEQPACKET, LISTENS_STREAM, IS_A_FILE, N_SQUATTERS };

START_TEST_WITH(a_path_that_is_somebody_elses_is_left_alone, .n = N_SQUATTERS)
{
	world_begin_unseen();
	harness_signal(&harness, SIGTERM);
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
	int fd = -1;
	if (_i == IS_A_FILE) {
		fd = open(harness.socket_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	} else {
		struct sockaddr_un address = address_of(harness.socket_path);
		int type = _i == LISTENS_STREAM ? SOCK_STREAM : SOCK_SEQPACKET;
		fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
		ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
		ck_assert_int_eq(listen(fd, 4), 0);
	}
	struct stat before;
	struct stat after;
	ck_assert_int_eq(lstat(harness.socket_path, &before), 0);
	int status = start_second();
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "status 0x%x", status);
	ck_assert_msg(strstr(log_of_second(), _i == IS_A_FILE ? "not a socket" : "another process"),
	              "%s", log_of_second());
	ck_assert_int_eq(lstat(harness.socket_path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino);
	close(fd);
}
END_TEST

START_TEST(the_managers_socket_is_used_and_left)
{
	world_begin_unseen(.is_activated = true);
	ck_assert_int_eq(connect_to(harness.socket_path), 0);
	harness_signal(&harness, SIGTERM);
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
	ck_assert_int_eq(access(harness.socket_path, F_OK), 0);
	/* Who connects meanwhile waits for the next glaked. */
	struct sockaddr_un address = address_of(harness.socket_path);
	cleanup_fd int early = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(early, (struct sockaddr *)&address, sizeof(address)), 0);
	harness_restart(&harness);
	ck_assert_int_eq(connect_to(harness.socket_path), 0);
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

static void note_shutdown(void *user, const struct glake_notice *notice)
{
	if (notice->kind == GLAKE_NOTICE_SHUTTING_DOWN) {
		++*(int *)user;
	}
}

static void work_while_it_drains(void *user)
{
	int n_notices = 0;
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	struct glake_model *model;
	struct glake_model *other;
	struct glake_session *session = world_connect();
	glake_set_notice_handler(session, note_shutdown, &n_notices);
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	assert_ok(glake_model_open(session, user, NULL, &model));
	world_reach(1);
	world_await(2);
	struct pollfd ready = {.fd = glake_fd(session), .events = POLLIN};
	ck_assert_int_eq(poll(&ready, 1, HARNESS_TIMEOUT_MS), 1);
	ck_assert_int_ge(glake_dispatch(session), 1);
	ck_assert_int_eq(n_notices, 1);
	/* The session's memory works on, and can be given back; there is none that is new. */
	assert_ok(glake_ping(session));
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, 1000, 1, 0));
	assert_fails(GLAKE_E_SHUTTING_DOWN, "", glake_alloc(session, 0, 64 * MIB, 0, &more));
	assert_fails(GLAKE_E_SHUTTING_DOWN, "", glake_model_open(session, user, NULL, &other));
	struct glake_session *late;
	assert_fails(GLAKE_E_GONE, "", glake_connect(NULL, &late));
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
	glake_model_close(model);
	if (atomic_load(world_stage) == 2) {
		world_disconnect(session);
		return;
	}
	/* Stays, and is sent away when the time is up. */
	while (glake_ping(session) == 0) {
		harness_sleep_ms(10);
	}
}

static void ck_ended(bool time_was_up)
{
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "drain_ms is over, with 1 sessions left"),
	                  time_was_up);
}

/* A process of its own, as glaked is told while this one waits for its first word. */
static pid_t end_who_listens(void)
{
	const struct sockaddr_un address = address_of(harness.socket_path);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct ucred peer;
		socklen_t n = sizeof(peer);
		int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		while (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
		}
		_exit(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 ||
		      kill(peer.pid, SIGTERM) < 0);
	}
	return pid;
}

START_TEST(a_stop_may_come_as_soon_as_it_listens)
{
	int status;
	world_begin_unseen();
	harness_signal(&harness, SIGTERM);
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
	for (int i = 0; i < 10; i++) {
		pid_t pid = end_who_listens();
		harness_restart(&harness);
		ck_assert_int_eq(waitpid(pid, &status, 0), pid);
		ck_assert_int_eq(status, 0);
		ck_assert_int_eq(harness_wait_exit(&harness), 0);
	}
	harness_restart(&harness);
}
END_TEST

START_TEST_WITH(a_stop_lets_sessions_end, .n = 2)
{
	bool stays = _i == 1;
	world_begin_unseen(.config = stays ? "drain_ms = 700;" : "drain_ms = 1000000;");
	const char *path = world_write_model("m.safetensors", 1000, 1);
	pid_t client = world_client(work_while_it_drains, (void *)path);
	world_await(1);
	uint64_t since_ms = harness_now_ms();
	harness_signal(&harness, SIGTERM);
	harness_wait_log(&harness, "draining 1 sessions");
	world_reach(stays ? 3 : 2);
	world_join(client);
	ck_ended(stays);
	ck_assert(!stays || harness_now_ms() - since_ms >= 600);
}
END_TEST

static void load_for_ever(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	world_reach(1);
	int r = world_open_unmapped(session, user, &model);
	ck_assert_msg(r == GLAKE_E_GONE, "%d: %s", r, glake_error());
}

/* The time is up in the middle of a load, and again by a second signal. */
START_TEST_WITH(a_stop_does_not_wait_for_a_load, .n = 2)
{
	world_begin_unseen(.config = _i ? "drain_ms = 200;" : "drain_ms = 1000000;",
	                   .faults = WORLD_STOP_AND_GO, .env = WORLD_SMALL_STEPS);
	const char *path = world_write_layers("m.safetensors", 1);
	pid_t client = world_client(load_for_ever, (void *)path);
	harness_wait_log(&harness, "started glake-mover");
	harness_sleep_ms(100);
	harness_signal(&harness, SIGTERM);
	if (_i == 0) {
		harness_wait_log(&harness, "draining");
		harness_signal(&harness, SIGTERM);
	}
	world_join(client);
	ck_ended(_i == 1);
}
END_TEST

/* ---- reading it again ------------------------------------------------------------------------ */

static uint64_t quota_seen;

static int note_quota(void *user, const struct glake_tenant_row *row)
{
	if (strcmp(row->name, "default") == 0) {
		quota_seen = row->devices[0].quota_bytes;
	}
	return 0;
}

static uint64_t quota(void)
{
	assert_ok(glake_list_tenants(eye, note_quota, NULL));
	return quota_seen;
}

#define QUOTA(bytes) \
	WORLD_CONFIG "tenants = ({ name = \"default\"; device_bytes = \"" bytes "\"; });"

START_TEST(limits_are_read_again)
{
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	world_begin(.config = QUOTA("64MiB"), .devices = "1x256MiB");
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &ptr));
	assert_fails(GLAKE_E_OVER_QUOTA, "", glake_alloc(session, 0, 60 * MIB, 0, &more));
	harness_reload(&harness, QUOTA("128MiB"));
	ck_assert_uint_eq(quota(), 128 * MIB);
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &more));
	/* Below what is used: nothing is taken, and nothing more given. */
	harness_reload(&harness, QUOTA("32MiB"));
	assert_ok(glake_free(session, more));
	assert_ok(glake_trim(session, 0, 0));
	assert_fails(GLAKE_E_OVER_QUOTA, "of 32.0 MiB", glake_alloc(session, 0, 2 * MIB, 0, &more));
	/* A broken one changes nothing. */
	harness_reload(&harness, "tenants = ({ name = \"default\"; device_bytes = \"lots\"; });");
	harness_wait_log(&harness, "glaked.conf:1: ");
	ck_assert_uint_eq(quota(), 32 * MIB);
	/* By hand, until the next reading. */
	assert_ok(glake_set_quota(eye, "default", 0, 200 * MIB));
	assert_ok(glake_alloc(session, 0, 100 * MIB, 0, &more));
	harness_reload(&harness, QUOTA("32MiB"));
	ck_assert_uint_eq(quota(), 32 * MIB);
}
END_TEST

/* A tenant that is gone from the file lives as long as it has something. */
START_TEST(a_tenant_may_go_while_it_is_used)
{
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	world_begin(.config = WORLD_CONFIG
	            "tenants = ({ name = \"root\"; uids = [0]; device_bytes = \"64MiB\"; });",
	            .devices = "1x256MiB");
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &ptr));
	harness_reload(&harness, WORLD_CONFIG);
	/* Its session is still its. */
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant root",
	             glake_alloc(session, 0, 60 * MIB, 0, &more));
	struct glake_session *next = world_connect();
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(next, &info));
	ck_assert_str_eq(info.tenant, "default");
}
END_TEST

/* ---- the manager ----------------------------------------------------------------------------- */

static unsigned count_notified(const char *words, unsigned ms)
{
	unsigned n = 0;
	uint64_t end_ms = harness_now_ms() + ms;
	while (harness_now_ms() < end_ms) {
		char text[1024];
		struct pollfd ready = {.fd = harness.notify_fd, .events = POLLIN};
		if (poll(&ready, 1, 10) == 1) {
			ssize_t got = recv(harness.notify_fd, text, sizeof(text) - 1, 0);
			ck_assert_int_gt(got, 0);
			text[got] = '\0';
			n += strstr(text, words) != NULL;
		}
	}
	return n;
}

START_TEST(the_watchdog_is_fed)
{
	static const char *const env[] = {"WATCHDOG_USEC=200000", NULL};
	world_begin_unseen(.env = env);
	for (int i = 0; i < 3; i++) {
		harness_wait_notified(&harness, "\nWATCHDOG=1\n");
	}
	/* In half of the time, not all the time. */
	ck_assert_uint_le(count_notified("WATCHDOG=1", 500), 7);
	/* Not by a loop that does not turn. */
	harness_signal(&harness, SIGSTOP);
	count_notified("WATCHDOG=1", 50);
	ck_assert_uint_eq(count_notified("WATCHDOG=1", 250), 0);
	harness_signal(&harness, SIGCONT);
	harness_wait_notified(&harness, "\nWATCHDOG=1\n");
}
END_TEST

START_TEST(the_manager_is_told_of_the_end)
{
	world_begin_unseen(.config = "drain_ms = 3000;", .speed = 5);
	struct glake_session *session = world_connect_blind();
	harness_wait_notified(&harness, "\nSTATUS=1 sessions");
	harness_signal(&harness, SIGTERM);
	harness_wait_notified(&harness, "\nSTOPPING=1\n");
	world_disconnect(session);
	ck_assert_int_eq(harness_wait_exit(&harness), 0);
}
END_TEST
