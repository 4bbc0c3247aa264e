/* SPDX-License-Identifier: Apache-2.0 */
/* A glaked under glake-keeper: it may die at any time, and clients find the next one. */
#include <sys/socket.h>

#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

/* A keeper that waits between quick ends does not wait long then. */
#define SPEED 20

static ino_t socket_inode(void)
{
	struct stat stat;
	ck_assert_int_eq(lstat(harness.socket_path, &stat), 0);
	return stat.st_ino;
}

/* A client that has connected while there was no glaked is served by the next one. */
static void is_served(int connection)
{
	ck_assert_int_eq(connection_greet(connection, GLAKE_WIRE_VERSION), GLAKE__WIRE__STATUS__OK);
	connection_goodbye(connection);
	connection_close(&connection);
	harness_restart(&harness);
}

START_TEST(clients_find_the_next_glaked_on_the_same_socket)
{
	world_begin_unseen(.config = WORLD_CONFIG, .has_keeper = true, .speed = SPEED);
	ino_t inode = socket_inode();
	for (int i = 0; i < 20; i++) {
		pid_t before = harness.pid;
		int old = connection_hello(&harness);
		harness_kill(&harness);
		/* There is no glaked now: it waits in the backlog. The next one's clock is fast, and it waits for a Hello. */
		int new = connection_open(&harness);
		uint64_t id = connection_send_hello(new);
		harness_restart(&harness);
		ck_assert_int_ne(harness.pid, before);
		ck_assert_int_eq(connection_status_of(new, id), GLAKE__WIRE__STATUS__OK);
		connection_close(&new);
		connection_close(&old);
		ck_assert_uint_eq(socket_inode(), inode);
	}
	ck_assert_uint_eq(harness_n_log_lines(&harness, "was killed by signal 9"), 20);
}
END_TEST

/* With the books (tests/integration/test_restart.c) and the real keeper. */
START_TEST(an_open_model_survives_twenty_kills)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG, .has_keeper = true, .speed = SPEED);
	const char *path = world_write_model("m.safetensors", 5, 1);
	assert_ok(world_open_unmapped(eye, path, &model));
	ck_assert_int_eq(unlink(path), 0);
	const struct books before = world_books();
	ck_assert_uint_gt(before.block_bytes, 0);
	for (int i = 0; i < 20; i++) {
		harness_kill(&harness);
		harness_restart(&harness);
		world_wait_books(&before);
	}
	glake_model_close(model);
	/* And so does its end. */
	world_evict_until(&books_before);
	harness_kill(&harness);
	world_restart();
	ck_assert_uint_eq(books_before.block_bytes, 0);
}
END_TEST

/* Kill the keeper, and only it, with SIGKILL: nobody has the fds then. */
static void lose_keeper(void)
{
	pid_t parent;
	pid_t glaked = harness.pid;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	kill(harness.keeper, SIGKILL);
	harness_wait_exit(&harness);
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_state_of(glaked, &parent) != 'Z') {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(5);
	}
}

#define LOST_BYTES (6 * MIB)

static int n_gone;

static void count_gone(void *user, const struct glake_notice *notice)
{
	n_gone += notice->kind == GLAKE_NOTICE_GONE;
}

static void open_lost(struct glake_session *session, struct glake_model **model_out)
{
	assert_ok(glake_model_open(session, world_path("model"), NULL, model_out));
	ck_assert(world_is_content(session, world_tensor(*model_out, "w").ptr, LOST_BYTES, 5, 0));
}

/* The program computes on with what it has, and gets more as soon as it connects anew. */
static void outlive_keeper(void *user)
{
	glake_ptr more;
	struct glake_model *model;
	struct glake_model *again;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_set_notice_handler(session, count_gone, NULL);
	glake_ptr private = words_alloc(session, LOST_BYTES, 1);
	open_lost(session, &model);
	world_reach(1);
	world_await(2);
	assert_fails(GLAKE_E_GONE, "connect again", glake_alloc(session, 0, LOST_BYTES, 0, &more));
	ck_assert_int_eq(n_gone, 1);
	struct glake_session *new = world_connect();
	more = words_alloc(new, LOST_BYTES, 2);
	open_lost(new, &again);
	words_check(private, LOST_BYTES, 1);
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, LOST_BYTES, 5, 0));
	ck_assert_int_eq(world_row(new).reserved_bytes, LOST_BYTES);
	glake_model_close(model);
	assert_ok(glake_free(session, private));
	world_disconnect(session);
	words_check(more, LOST_BYTES, 2);
	glake_model_close(again);
	world_disconnect(new);
}

/* With its keeper glaked and the store end, but no process. The next keeper begins at once. */
START_TEST(glaked_ends_with_its_keeper)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB", .has_keeper = true);
	world_write_model("model", LOST_BYTES, 5);
	pid_t client = world_client(outlive_keeper, NULL);
	world_await(1);
	lose_keeper();
	world_restart();
	ck_assert_uint_eq(harness_n_log_lines(&harness, "nobody has kept the fds"), 1);
	ck_assert_uint_eq(books_before.private_bytes + books_before.block_bytes, 0);
	world_reach(2);
	world_join(client);
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
	/* And this keeper keeps. */
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_uint_eq(world_books().n_models, 1);
}
END_TEST

/* As for another version of it. */
START_TEST(sigusr2_restarts_glaked)
{
	world_begin_unseen(.config = WORLD_CONFIG, .has_keeper = true);
	pid_t before = harness.pid;
	ino_t inode = socket_inode();
	ck_assert_int_eq(kill(harness.keeper, SIGUSR2), 0);
	harness.pid = 0;
	harness_restart(&harness);
	ck_assert_int_ne(harness.pid, before);
	ck_assert_uint_eq(socket_inode(), inode);
}
END_TEST

/* As from a kill or pkill. Whoever wants the end of both tells the keeper. */
START_TEST(sigterm_to_glaked_itself_is_a_restart)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG, .has_keeper = true);
	const char *path = world_write_model("m.safetensors", 5, 1);
	assert_ok(world_open_unmapped(eye, path, &model));
	const struct books before = world_books();
	pid_t glaked = harness.pid;
	harness_signal(&harness, SIGTERM);
	harness.pid = 0;
	harness_restart(&harness);
	ck_assert_int_ne(harness.pid, glaked);
	world_wait_books(&before);
	glake_model_close(model);
	world_evict_until(&books_before);
}
END_TEST

START_TEST(socket_of_a_socket_unit_is_kept)
{
	world_begin_unseen(.config = WORLD_CONFIG, .has_keeper = true, .is_activated = true);
	harness_kill(&harness);
	is_served(connection_open(&harness));
}
END_TEST

/* Such as when a folder in /run is made anew. */
START_TEST(a_kept_socket_that_nobody_finds_is_replaced)
{
	world_begin_unseen(.config = WORLD_CONFIG, .has_keeper = true);
	ck_assert_int_eq(unlink(harness.socket_path), 0);
	harness_kill(&harness);
	harness_restart(&harness);
	/* And that one is kept. */
	ino_t inode = socket_inode();
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_uint_eq(socket_inode(), inode);
}
END_TEST

/* ---- a full fd store --------------------------------------------------------------------------- */

#define MODEL_BYTES (258 * MIB)
#define N_BLOCKS 3u
/* The socket, the mark of the books, the watch of the models' file system (store/superblock.h). A model, and one more. */
#define N_OWN 3u
#define MAX_KEPT "7"

static void restart(void)
{
	harness_kill(&harness);
	harness_restart(&harness);
}

static void load(const char *name, uint64_t seed)
{
	const char *path = world_write_model(name, MODEL_BYTES, seed);
	world_load(path);
}

/* False, having said so: this kernel does not let file systems be watched, and there is room for one more. */
static bool begin_small(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x1GiB", .has_keeper = true,
	            .max_kept = MAX_KEPT);
	load("first", 4);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	if (world_status().kept_fds != N_OWN) {
		printf("SKIP: file systems are not watched here\n");
		return false;
	}
	return true;
}

START_TEST(what_is_idle_goes_for_what_has_no_room)
{
	if (!begin_small()) {
		return;
	}
	load("one", 5);
	load("two", 6);
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(world_status().unkept_blocks, 0);
	restart();
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(world_books().n_blocks, N_BLOCKS);
	ck_assert_uint_eq(world_status().kept_fds, N_OWN + N_BLOCKS);
	ck_assert_uint_eq(world_status().max_kept_fds, strtoull(MAX_KEPT, NULL, 10));
}
END_TEST

struct opened {
	const char *path;
	int open_stage;  /* reached when it is open */
	int close_stage; /* then it closes it */
};

static void open_until(void *user)
{
	const struct opened *opened = user;
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, opened->path, &model));
	world_reach(opened->open_stage);
	world_await(opened->close_stage);
	glake_model_close(model);
	world_disconnect(session);
}

/* Two models are open, and there is room for the first only. False: see begin_small(). */
static bool open_two(pid_t clients[2])
{
	static struct opened opened[2];
	if (!begin_small()) {
		return false;
	}
	for (int i = 0; i < 2; i++) {
		opened[i] = (struct opened){
			world_write_model(i ? "two" : "one", MODEL_BYTES, 5 + (uint64_t)i), i + 1,
			10 * (i + 1)};
		clients[i] = world_client(open_until, &opened[i]);
		world_await(i + 1);
	}
	harness_wait_log(&harness, "the fd store is full");
	ck_assert_uint_eq(world_status().kept_fds, N_OWN + N_BLOCKS + 1);
	ck_assert_uint_eq(world_status().unkept_blocks, N_BLOCKS - 1);
	return true;
}

START_TEST(what_has_no_room_gets_the_next)
{
	pid_t clients[2];
	if (!open_two(clients)) {
		return;
	}
	world_reach(10);
	world_join(clients[0]);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_status().kept_fds, N_OWN + N_BLOCKS);
	ck_assert_uint_eq(world_status().unkept_blocks, 0);
	restart();
	ck_assert_uint_eq(harness_n_log_lines(&harness, "not adopted"), 0);
	world_reach(20);
	world_join(clients[1]);
	ck_assert_uint_eq(world_books().n_models, 1);
}
END_TEST

/* Its process has it mapped, and others load it anew. */
START_TEST(what_had_no_room_stays_its_processes)
{
	pid_t clients[2];
	if (!open_two(clients)) {
		return;
	}
	struct books before = world_books();
	for (int i = 0; i < 2; i++) {
		restart();
		harness_wait_log(&harness, "not adopted: 2 blocks");
		struct books after = world_books();
		ck_assert_uint_eq(after.physical_bytes, before.physical_bytes);
		ck_assert_uint_eq(after.charged_bytes, before.charged_bytes);
		ck_assert_uint_eq(after.n_models, 2);
		ck_assert_uint_gt(world_status().unparked_bytes, 0);
	}
	world_reach(10);
	world_join(clients[0]);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	world_load(world_path("two"));
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
	ck_assert_uint_eq(world_books().n_models, 2);
	world_reach(20);
	world_join(clients[1]);
	/* The model that was not adopted has gone with its process: it is of no use to anybody else. */
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(world_books().n_blocks, N_BLOCKS);
	ck_assert_uint_eq(world_status().unparked_bytes, 0);
}
END_TEST

static void name_memory(void *user)
{
	glake_ptr memory;
	struct glake_share share;
	world_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &memory));
	assert_ok(glake_share(session, memory, &share));
	world_reach(1);
	world_await(2);
	glake_free(session, memory);
	world_disconnect(session);
}

/* Other processes may open it at any time. */
START_TEST(named_memory_takes_room_and_gives_it_back)
{
	if (!begin_small()) {
		return;
	}
	pid_t client = world_client(name_memory, NULL);
	world_await(1);
	ck_assert_uint_eq(world_status().kept_fds, N_OWN + 1);
	struct glake_model *model;
	const char *path = world_write_model("one", 2 * MODEL_BYTES, 5);
	assert_ok(world_open_unmapped(eye, path, &model));
	uint64_t n_waiting = world_status().unkept_blocks;
	ck_assert_uint_gt(n_waiting, 0);
	world_reach(2);
	world_join(client);
	ck_assert_uint_eq(world_status().unkept_blocks, n_waiting - 1);
	glake_model_close(model);
}
END_TEST
