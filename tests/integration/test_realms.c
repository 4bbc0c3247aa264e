/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other users of the machine: what they see, what they share, what they may do. As root, which then
 * becomes somebody else.
 */
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "proto/wire.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"

#define ALICE 12345u
#define BOB 12346u

/* The lists as a user sees them. */
struct view {
	unsigned n_sessions;
	unsigned n_models;
	unsigned n_blocks;
	unsigned n_tenants;
	unsigned n_events;
};

static int count_session(void *user, const struct glake_session_row *row)
{
	((struct view *)user)->n_sessions++;
	return 0;
}

static int count_model(void *user, const struct glake_model_row *row)
{
	((struct view *)user)->n_models++;
	return 0;
}

static int count_block(void *user, const struct glake_block_row *row)
{
	((struct view *)user)->n_blocks++;
	return 0;
}

static int count_tenant(void *user, const struct glake_tenant_row *row)
{
	((struct view *)user)->n_tenants++;
	return 0;
}

static int count_event(void *user, const struct glake_event_row *row)
{
	((struct view *)user)->n_events++;
	return 0;
}

static struct view look(struct glake_session *session)
{
	struct view view = {0};
	assert_ok(glake_list_sessions(session, count_session, &view));
	assert_ok(glake_list_models(session, count_model, &view));
	assert_ok(glake_list_blocks(session, count_block, &view));
	assert_ok(glake_list_tenants(session, count_tenant, &view));
	assert_ok(glake_list_events(session, count_event, &view));
	return view;
}

/* ---- a process of a user, that holds what it has until it is told -------------------------- */

struct person {
	uid_t uid;
	gid_t gid;
	gid_t group; /* a supplementary one; 0 = none */
	world_fn live;
	void *user;
};

static void become(const struct person *person)
{
	ck_assert_int_eq(chdir(harness.folder), 0);
	setenv("GLAKE_SOCKET", "glaked.sock", 1);
	setenv("CUDASIM_STATE", "cudasim", 1);
	setenv("GLAKE_LIBCUDA", "./libcuda.so.1", 1);
	ck_assert_int_eq(setgroups(person->group ? 1 : 0, &person->group), 0);
	ck_assert_int_eq(setresgid(person->gid, person->gid, person->gid), 0);
	ck_assert_int_eq(setresuid(person->uid, person->uid, person->uid), 0);
}

static void live_as(void *user)
{
	const struct person *person = user;
	become(person);
	person->live(person->user);
}

/* In memory that all processes of the test have. */
static uint64_t *alices_session;

/* The driver is copied to where everybody may read it. */
static void begin(const char *config)
{
	char command[1500];
	world_begin(.config = config, .devices = "1x512MiB");
	alices_session = mmap(NULL, sizeof(*alices_session), PROT_READ | PROT_WRITE,
	                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	snprintf(command, sizeof(command), "cp '%s' '%s' && chmod 644 '%s'",
	         getenv("GLAKE_LIBCUDA"), world_path("libcuda.so.1"), world_path("libcuda.so.1"));
	ck_assert_int_eq(system(command), 0);
}

static void as(uid_t uid, gid_t group, world_fn live)
{
	struct person person = {.uid = uid, .gid = uid, .group = group, .live = live};
	world_join(world_client(live_as, &person));
}

#define FILE_NAME "m.safetensors"
#define FILE_BYTES (10 * MIB)
#define FILE_SEED 3

static glake_ptr map_model(struct glake_session *session)
{
	struct glake_model *model;
	assert_ok(glake_model_open(session, FILE_NAME, NULL, &model));
	glake_ptr ptr = world_tensor(model, "w").ptr;
	ck_assert(world_is_content(session, ptr, FILE_BYTES, FILE_SEED, 0));
	return ptr;
}

/* ---- strangers ------------------------------------------------------------------------------- */

static void publish_some(struct glake_session *session, struct glake_block **block_out)
{
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
	assert_ok(glake_block_publish(session, ptr, 100, block_out));
}

static void live_and_stay(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_block *block;
	struct glake_session_info info = {.size = sizeof(info)};
	struct glake_seal_report report = {.size = sizeof(report)};
	map_model(session);
	assert_ok(glake_session_info(session, &info));
	*alices_session = info.session;
	/* Her own she may ask, if it were under the shim. */
	assert_fails(GLAKE_E_BAD_REQUEST, "not under glake run",
	             glake_seal_session(session, info.session, NULL, &report));
	publish_some(session, &block);
	world_reach(1);
	world_await(4);
	world_disconnect(session);
}

static void map_and_leave(void *user)
{
	struct glake_session *session = world_connect();
	map_model(session);
	world_disconnect(session);
}

static void look_around(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_block *block;
	struct glake_digest digest;
	uint8_t zeros[100] = {0};
	uint64_t n_models = 1;
	uint64_t freed_bytes = 1;

	struct view view = look(session);
	ck_assert_uint_eq(view.n_sessions, 1);
	ck_assert_uint_eq(view.n_models, 0);
	ck_assert_uint_eq(view.n_blocks, 0);
	ck_assert_uint_eq(view.n_tenants, 1);
	ck_assert_uint_eq(view.n_events, 0);

	/* Bob does not find what is there, not even by its exact name or digest. */
	char name[PATH_MAX];
	ck_assert_ptr_nonnull(realpath(FILE_NAME, name));
	assert_fails(GLAKE_E_NOT_FOUND, FILE_NAME, glake_pin(session, name, 1));
	assert_fails(GLAKE_E_NOT_FOUND, FILE_NAME, glake_evict(session, name, NULL, NULL));
	assert_ok(glake_evict(session, NULL, &n_models, &freed_bytes));
	ck_assert_uint_eq(n_models, 0);
	ck_assert_uint_eq(freed_bytes, 0);
	glake_digest_bytes(zeros, sizeof(zeros), &digest);
	assert_fails(GLAKE_E_NOT_FOUND, "realm", glake_block_lookup(session, 0, &digest, &block));
	struct glake_seal_report report = {.size = sizeof(report)};
	assert_fails(GLAKE_E_NOT_FOUND, "no session",
	             glake_seal_session(session, *alices_session, NULL, &report));
	assert_fails(GLAKE_E_NO_PERMISSION, "admin", glake_set_quota(session, "default", 0, 1));
	assert_fails(GLAKE_E_NO_PERMISSION, "admin", glake_set_max_sessions(session, "default", 1));
	assert_fails(GLAKE_E_NO_PERMISSION, "admin",
	             glake_set_manifest_quota(session, "default", 1));

	/* Bob loads the same file, and publishes the same bytes: he gets copies of his own. */
	map_model(session);
	publish_some(session, &block);
	struct glake_block_info info = {.size = sizeof(info)};
	assert_ok(glake_block_info(block, &info));
	ck_assert_int_eq(info.was_known, 0);
	view = look(session);
	ck_assert_uint_eq(view.n_models, 1);
	ck_assert_uint_eq(view.n_blocks, 2);
	world_reach(3);
	world_await(4);
	world_disconnect(session);
}

START_TEST(strangers_share_and_see_nothing)
{
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG);
	world_write_model(FILE_NAME, FILE_BYTES, FILE_SEED);
	struct person alice = {.uid = ALICE, .gid = ALICE, .live = live_and_stay};
	struct person bob = {.uid = BOB, .gid = BOB, .live = look_around};
	pid_t first = world_client(live_as, &alice);
	world_await(1);
	ck_assert_uint_eq(world_books().block_bytes, FILE_BYTES + 2 * MIB);
	/* An event of no realm. */
	ck_assert_int_eq(kill(world_running_mover(), SIGKILL), 0);
	world_wait_metric("mover_deaths", 1);
	pid_t second = world_client(live_as, &bob);
	world_await(3);
	/* Nothing became one, and root sees it all. */
	ck_assert_uint_eq(world_books().block_bytes, 2 * (FILE_BYTES + 2 * MIB));
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 0);
	struct view view = look(eye);
	ck_assert_uint_eq(view.n_events, 1);
	ck_assert_uint_eq(view.n_sessions, 3);
	ck_assert_uint_eq(view.n_models, 2);
	ck_assert_uint_eq(view.n_blocks, 4);
	world_reach(4);
	world_join(second);
	world_join(first);
	/* Alice finds her model again. */
	as(ALICE, 0, map_and_leave);
	ck_assert_uint_eq(world_metric("models_hit"), 1);
}
END_TEST

/* ---- asleep ----------------------------------------------------------------------------------- */

static void sleep_at_stage(void *user)
{
	const int *stage = user;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 7);
	words_fall_asleep(session);
	world_reach(*stage);
	world_await(10);
	assert_ok(glake_wake(session, NULL));
	words_check(ptr, 6 * MIB, 7);
	world_disconnect(session);
}

/* Equal private bytes are one copy for her two programs, and another for his. */
START_TEST(who_sleeps_shares_no_copy_with_strangers)
{
	static const uid_t uids[] = {ALICE, BOB, ALICE, BOB};
	static const uint64_t expected[] = {6 * MIB, 12 * MIB, 12 * MIB, 12 * MIB};
	static int stages[4];
	static struct person persons[4];
	pid_t pids[4];
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG "warm_bytes = \"0\"; ");
	for (int i = 0; i < 4; i++) {
		stages[i] = i + 1;
		persons[i] = (struct person){
			.uid = uids[i], .gid = uids[i], .live = sleep_at_stage};
		persons[i].user = &stages[i];
		pids[i] = world_client(live_as, &persons[i]);
		world_await(stages[i]);
		ck_assert_uint_eq(world_copy_bytes(), expected[i]);
	}
	world_reach(10);
	for (int i = 0; i < 4; i++) {
		world_join(pids[i]);
	}
}
END_TEST

/* ---- published weights ------------------------------------------------------------------------ */

static void publish_key(struct glake_session *session)
{
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 4 * MIB, GLAKE_ZERO, &ptr));
	const struct glake_tensor tensor = {
		.size = sizeof(tensor),
		.name = "w",
		.dtype = GLAKE_U8,
		.n_dims = 1,
		.shape = (const uint64_t[]){4 * MIB},
		.ptr = ptr,
	};
	assert_ok(glake_weights_publish(session, "key", &tensor, 1, NULL, NULL));
}

static void publish_and_leave(void *user)
{
	struct glake_session *session = world_connect();
	publish_key(session);
	world_disconnect(session);
}

static void have_own_weights(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	assert_fails(GLAKE_E_NOT_FOUND, "'key'",
	             glake_weights_attach(session, "key", NULL, &model));
	assert_fails(GLAKE_E_NOT_FOUND, "'key'", glake_evict(session, "key", NULL, NULL));
	ck_assert_uint_eq(look(session).n_models, 0);
	publish_key(session);
	assert_ok(glake_weights_attach(session, "key", NULL, &model));
	ck_assert_uint_eq(look(session).n_models, 1);
	world_disconnect(session);
}

START_TEST(a_key_is_the_realms)
{
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG);
	as(ALICE, 0, publish_and_leave);
	as(BOB, 0, have_own_weights);
	struct books books = world_books();
	ck_assert_uint_eq(books.n_models, 2);
	ck_assert_uint_eq(books.block_bytes, 2 * 4 * MIB);
	/* Root sees both, and says which. */
	assert_fails(GLAKE_E_BAD_REQUEST, "2 models have that name",
	             glake_evict(eye, "key", NULL, NULL));
}
END_TEST

/* ---- friends --------------------------------------------------------------------------------- */

static void find_it_there(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_session_info info = {.size = sizeof(info)};
	struct glake_block *block;
	struct glake_block_info block_info = {.size = sizeof(block_info)};
	struct glake_digest digest;
	uint8_t zeros[100] = {0};
	assert_ok(glake_session_info(session, &info));
	ck_assert_str_eq(info.realm, "friends");
	struct view view = look(session);
	ck_assert_uint_eq(view.n_sessions, 2);
	ck_assert_uint_eq(view.n_models, 1);
	ck_assert_uint_eq(view.n_blocks, 2);
	map_model(session);
	glake_digest_bytes(zeros, sizeof(zeros), &digest);
	assert_ok(glake_block_lookup(session, 0, &digest, &block));
	glake_block_release(block);
	publish_some(session, &block);
	assert_ok(glake_block_info(block, &block_info));
	ck_assert_int_ne(block_info.was_known, 0);
	world_disconnect(session);
}

START_TEST(a_named_realm_shares)
{
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG "realms = ({ name = \"friends\"; uids = [12345]; gids = [12346]; });");
	world_write_model(FILE_NAME, FILE_BYTES, FILE_SEED);
	struct person alice = {.uid = ALICE, .gid = ALICE, .live = live_and_stay};
	pid_t first = world_client(live_as, &alice);
	world_await(1);
	struct person bob = {.uid = BOB, .gid = BOB, .live = find_it_there};
	pid_t second = world_client(live_as, &bob);
	world_join(second);
	ck_assert_uint_eq(world_books().block_bytes, FILE_BYTES + 2 * MIB);
	world_reach(4);
	world_join(first);
	ck_assert_uint_eq(world_metric("models_hit"), 1);
}
END_TEST

/* ---- admins ---------------------------------------------------------------------------------- */

static void administer(void *user)
{
	struct glake_session *session = world_connect_blind();
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	ck_assert_int_ne(info.is_admin, 0);
	char name[PATH_MAX];
	ck_assert_ptr_nonnull(realpath(FILE_NAME, name));
	ck_assert_uint_eq(look(session).n_models, 1);
	assert_ok(glake_pin(session, name, 1));
	assert_fails(GLAKE_E_BUSY, "pinned", glake_evict(session, name, NULL, NULL));
	assert_ok(glake_pin(session, name, 0));
	assert_ok(glake_evict(session, name, NULL, NULL));
	assert_ok(glake_set_quota(session, "default", 0, 100 * MIB));
	assert_ok(glake_set_max_sessions(session, "default", 10));
	assert_fails(GLAKE_E_NOT_FOUND, "tenant", glake_set_quota(session, "nobody", 0, 1));
	assert_fails(GLAKE_E_NOT_FOUND, "tenant", glake_set_quota(session, "cache", 0, 1));
	assert_fails(GLAKE_E_BAD_REQUEST, "device", glake_set_quota(session, "default", 9, 1));
	world_disconnect(session);
}

static void load_and_leave(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, FILE_NAME, &model));
	world_disconnect(session);
}

START_TEST(the_admin_group_may_steer_all)
{
	struct group *group = getgrnam("users");
	if (!harness_is_root()) {
		return;
	}
	if (!group) {
		printf("SKIP: there is no group users\n");
		return;
	}
	begin(WORLD_CONFIG "admin_group = \"users\";");
	world_write_model(FILE_NAME, FILE_BYTES, FILE_SEED);
	as(ALICE, 0, load_and_leave);
	as(BOB, group->gr_gid, administer);
	ck_assert_uint_eq(world_books().n_models, 0);
}
END_TEST

/* ---- tenants --------------------------------------------------------------------------------- */

static void have_less(void *user)
{
	glake_ptr ptr = 0;
	struct glake_session *session = world_connect();
	struct glake_device device;
	assert_ok(glake_device_at(session, 0, &device));
	ck_assert_uint_eq(device.quota_bytes, 32 * MIB);
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant small",
	             glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	assert_ok(glake_alloc(session, 0, 30 * MIB, 0, &ptr));
	struct glake_session *second;
	assert_fails(GLAKE_E_OVER_QUOTA, "sessions", glake_connect(NULL, &second));
	ck_assert_uint_eq(look(session).n_tenants, 1);
	world_disconnect(session);
}

START_TEST(each_has_the_limits_of_his_tenant)
{
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG
	      "tenants = ({ name = \"small\"; uids = [12346]; device_bytes = \"32MiB\";"
	      "max_sessions = 1; });");
	struct person bob = {.uid = BOB, .gid = BOB, .live = have_less};
	pid_t client = world_client(live_as, &bob);
	struct glake_session *session = world_connect_blind();
	ck_assert_uint_eq(look(session).n_tenants, 3);
	world_join(client);
}
END_TEST

/* The socket's mode keeps out whom the configuration keeps out. */
static void stay_outside(void *user)
{
	struct glake_session *session;
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	assert_fails(-EACCES, "glaked.sock", glake_connect(&options, &session));
}

START_TEST(the_mode_of_the_socket_holds)
{
	if (!harness_is_root()) {
		return;
	}
	begin(WORLD_CONFIG "socket_mode = \"0600\";");
	as(BOB, 0, stay_outside);
}
END_TEST

/* ---- who knows another's secrets ---------------------------------------------------------------- */

/* All that a process has, and what lets it have that. In memory that all processes of the test have. */
static struct loot {
	struct connection_identity identity;
	pid_t pid;
	uint64_t chunk; /* named, with that ticket */
	uint64_t ticket;
	uint64_t block;
	uint8_t digest[16];
} * loot;

static void begin_open(bool keeps_fds)
{
	world_begin(.config = WORLD_CONFIG, .is_activated = keeps_fds, .keeps_fds = keeps_fds);
	ck_assert_int_eq(chmod(harness.folder, 0755), 0);
	ck_assert_int_eq(chmod(harness.socket_path, 0777), 0);
	loot = mmap(NULL, sizeof(*loot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* From now on sockets are found from here, since folders above need not let another user pass. */
static void enter(const char *folder)
{
	ck_assert_int_eq(chdir(folder), 0);
	strcpy(harness.socket_path, "glaked.sock");
}

static int be_somebody(void)
{
	cleanup_fdlist struct fdlist fds;
	uint64_t ids[2];
	int connection = connection_open(&harness);
	fdlist_init(&fds);
	loot->pid = getpid();
	loot->identity.version = GLAKE_WIRE_VERSION;
	ck_assert_int_eq(connection_greet_as(connection, &loot->identity), 0);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 2, ids, &fds), 0);
	loot->chunk = ids[0];
	ck_assert_int_eq(connection_share(connection, ids, 1, &loot->ticket), 0);
	Glake__Wire__Answer *answer = connection_call(connection,
	                                              REQUEST(BLOCK_PUBLISH, BlockPublish,
	                                                      block_publish, .chunk = ids[1],
	                                                      .content_bytes = 5),
	                                              NULL, 0, NULL);
	ck_assert_int_eq(answer->status, 0);
	loot->block = answer->block->block;
	memcpy(loot->digest, answer->block->digest.data, sizeof(loot->digest));
	connection_free(answer);
	return connection;
}

static Glake__Wire__Status free_chunk(int connection)
{
	return connection_free_chunks(connection, &loot->chunk, 1);
}

static Glake__Wire__Status open_chunk(int connection, uint64_t ticket)
{
	return connection_status(connection,
	                         REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
	                                 .session = loot->identity.session, .ids = &loot->chunk,
	                                 .n_ids = 1, .ticket = ticket),
	                         NULL, 0);
}

/* The key and the ids get another process nothing, of whatever realm. Returns its own session. */
static int steal_from_session(void)
{
	struct connection_identity stolen = loot->identity;
	int connection = connection_open(&harness);
	ck_assert_int_eq(connection_greet_as(connection, &stolen), GLAKE__WIRE__STATUS__NOT_FOUND);
	connection_drop(&connection);
	connection = connection_open(&harness);
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(HELLO, Hello, hello, .version = GLAKE_WIRE_VERSION,
	                .new_key = {GLAKE_KEY_BYTES, loot->identity.key}),
		NULL, 0, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_ne(answer->hello->session, loot->identity.session);
	connection_free(answer);
	ck_assert_int_eq(free_chunk(connection), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(open_chunk(connection, 0), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(connection_release(connection, loot->block),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	return connection;
}

/* Nor do tickets, digests and numbers in another realm. */
static void steal(void)
{
	int connection = steal_from_session();
	ck_assert_int_eq(open_chunk(connection, loot->ticket), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(BLOCK_LOOKUP, BlockLookup, block_lookup,
	                                           .digest = {sizeof(loot->digest), loot->digest}),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(SESSION_SEAL, SessionSeal, session_seal,
	                                           .session = loot->identity.session),
	                                   NULL, 0),
	                 GLAKE__WIRE__STATUS__NOT_FOUND);
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(SESSION_LIST, SessionList, session_list), NULL, 0, NULL);
	ck_assert_uint_eq(answer->session_list->n_sessions, 1);
	connection_free(answer);
	connection_close(&connection);
}

/* ---- a process that becomes another user -------------------------------------------------------- */

static void set_uid(uid_t uid)
{
	ck_assert_int_eq(setresuid(0, 0, 0), 0);
	ck_assert_int_eq(setresuid(uid, uid, 0), 0);
}

static void change_users(void *user)
{
	enter(harness.folder);
	set_uid(ALICE);
	int connection = be_somebody();
	world_reach(1);
	world_await(2);
	set_uid(BOB);
	steal();
	connection_drop(&connection);
	steal();
	/* Only the uid keeps the process out. */
	set_uid(ALICE);
	connection = connection_hello_as(&harness, &loot->identity);
	ck_assert_int_eq(free_chunk(connection), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
}

static void steal_as(void *uid)
{
	enter(harness.folder);
	set_uid(*(const uid_t *)uid);
	if (*(const uid_t *)uid == ALICE) {
		connection_drop(&(int){steal_from_session()});
	} else {
		steal();
	}
}

/* Nor does it follow him, or those who know it, to the next glaked. */
START_TEST_WITH(a_key_is_of_one_process_and_one_uid, .n = 2)
{
	if (!harness_is_root()) {
		return;
	}
	begin_open(_i == 1);
	pid_t owner = world_client(change_users, NULL);
	world_await(1);
	if (_i == 1) {
		harness_kill(&harness);
		harness_restart(&harness);
	}
	world_join(world_client(steal_as, &(uid_t){ALICE}));
	world_join(world_client(steal_as, &(uid_t){BOB}));
	world_reach(2);
	world_join(owner);
}
END_TEST

/* ---- containers ---------------------------------------------------------------------------------- */

struct container {
	const char *name;
	uid_t uid; /* of the host, as which its user counts */
	world_fn live;
};

/* Another number for the same user: inside he is Alice, who also owns the namespace. */
static void map_ids(uid_t uid)
{
	char line[64];
	FILE *file;
	snprintf(line, sizeof(line), "%u %u 1\n", ALICE, (unsigned)uid);
	const char *const lines[][2] = {{"/proc/self/setgroups", "deny"},
	                                {"/proc/self/uid_map", line},
	                                {"/proc/self/gid_map", line}};
	for (size_t i = 0; i < n_elements(lines); i++) {
		file = fopen(lines[i][0], "we");
		ck_assert_ptr_nonnull(file);
		ck_assert_int_ge(fputs(lines[i][1], file), 0);
		ck_assert_int_eq(fclose(file), 0);
	}
}

static void live_inside(void *user)
{
	const struct container *container = user;
	ck_assert_int_eq(setgroups(0, NULL), 0);
	ck_assert_int_eq(setresgid(container->uid, container->uid, container->uid), 0);
	ck_assert_int_eq(setresuid(container->uid, container->uid, container->uid), 0);
	prctl(PR_SET_DUMPABLE, 1); /* or its files in /proc are root's */
	ck_assert_int_eq(unshare(CLONE_NEWUSER), 0);
	map_ids(container->uid);
	ck_assert_uint_eq(getuid(), ALICE);
	container->live(NULL);
}

/* The next process inside has the number that the owner has outside, where the kernel lets itself be told. */
static void take_pid(void)
{
	FILE *file = fopen("/proc/sys/kernel/ns_last_pid", "we");
	if (file) {
		fprintf(file, "%d", loot->pid - 1);
		fclose(file);
	}
}

static void start_inside(void *user)
{
	take_pid();
	world_join(world_client(live_inside, user));
}

/* Do what a container runtime does, as far as glaked can see it. */
static void be_container(void *user)
{
	const struct container *container = user;
	char socket[64];
	enter(harness.folder);
	snprintf(socket, sizeof(socket), "%s/glaked.sock", container->name);
	ck_assert_int_eq(mkdir(container->name, 0755), 0);
	close(open(socket, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	ck_assert_int_eq(unshare(CLONE_NEWNS | CLONE_NEWPID), 0);
	ck_assert_int_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	ck_assert_int_eq(mount("glaked.sock", socket, NULL, MS_BIND, NULL), 0);
	enter(container->name);
	world_join(world_client(start_inside, user));
}

static pid_t start_container(const char *name, uid_t uid, world_fn live)
{
	struct container container = {.name = name, .uid = uid, .live = live};
	return world_client(be_container, &container);
}

static void live_there(void *user)
{
	int connection = be_somebody();
	world_reach(1);
	world_await(2);
	ck_assert_int_eq(free_chunk(connection), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
}

static void live_on_host(void *user)
{
	enter(harness.folder);
	set_uid(ALICE);
	live_there(user);
}

static void steal_there(void *user)
{
	steal();
}

static void steal_there_in_realm(void *user)
{
	connection_drop(&(int){steal_from_session()});
}

static bool try_namespaces(void)
{
	pid_t child = fork();
	int status;
	if (child == 0) {
		_exit(unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUSER) != 0 ||
		      mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return status == 0;
}

/* From the host, from a container and from another one of the same user of the host. */
START_TEST_WITH(a_container_reaches_nothing_outside, .n = 2)
{
	if (!harness_is_root()) {
		return;
	}
	if (!try_namespaces()) {
		printf("SKIP: no namespaces\n");
		return;
	}
	begin_open(false);
	pid_t owner = _i == 0 ? world_client(live_on_host, NULL)
	                      : start_container("hers", ALICE, live_there);
	world_await(1);
	world_join(start_container("his", BOB, steal_there));
	world_join(start_container("mine", ALICE, steal_there_in_realm));
	world_join(world_client(steal_as, &(uid_t){BOB}));
	world_reach(2);
	world_join(owner);
}
END_TEST

/* Processes that begin from now on have pids of their own. Returns the namespace of before; < 0: SKIP is said. */
static int unshare_pids(void)
{
	if (!harness_is_root()) {
		return -1;
	}
	int home = open("/proc/self/ns/pid_for_children", O_RDONLY | O_CLOEXEC);
	if (home < 0 || unshare(CLONE_NEWPID) < 0) {
		printf("SKIP: no namespaces\n");
		fd_close(&home);
	}
	return home;
}

/* A glaked in a container without the host's pids: to it all processes outside have the number 0. */
START_TEST(processes_without_a_visible_pid_are_not_one)
{
	cleanup_fd int home = unshare_pids();
	if (home < 0) {
		return;
	}
	begin_open(false);
	ck_assert_int_eq(setns(home, CLONE_NEWPID), 0);
	pid_t owner = world_client(live_on_host, NULL);
	world_await(1);
	world_join(world_client(steal_as, &(uid_t){ALICE}));
	world_join(world_client(steal_as, &(uid_t){BOB}));
	world_reach(2);
	world_join(owner);
}
END_TEST

/* ---- numbers that come again -------------------------------------------------------------------- */

/* Leaves a connection of its own to the other end of @user. */
static void leave_connection(void *user)
{
	const int *ends = user;
	enter(harness.folder);
	set_uid(ALICE);
	loot->pid = getpid();
	int connection = connection_open(&harness);
	ck_assert_int_eq(wire_send(ends[1], "", 1, &connection, 1, 0), 0);
}

/* Its connection is lost, and its session waits for it. */
static void live_on_and_off(void *user)
{
	enter(harness.folder);
	set_uid(ALICE);
	loot->identity.image = 1;
	int connection = be_somebody();
	connection_drop(&connection);
	world_reach(1);
	world_await(2);
	connection = connection_hello_as(&harness, &loot->identity);
	ck_assert_int_eq(free_chunk(connection), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
}

struct namesake {
	pid_t pid;
	world_fn live;
};

static void live_as_called(void *user)
{
	const struct namesake *namesake = user;
	if (getpid() == namesake->pid) {
		namesake->live(NULL);
	}
}

/* A thread of glaked may take the number first. */
static void start_with_pid(void *live)
{
	struct namesake namesake = {loot->pid, *(const world_fn *)live};
	for (int i = 0; i < 100 && loot->identity.session == 0; i++) {
		take_pid();
		world_join(world_client(live_as_called, &namesake));
	}
	world_reach(1);
}

static void greet_with_its_key(int connection)
{
	struct connection_identity stolen = loot->identity;
	ck_assert_int_eq(connection_greet_as(connection, &stolen), GLAKE__WIRE__STATUS__NOT_FOUND);
}

/* As a process does that has replaced its program: then what it had is nobody's. */
static void greet_as_another_image(int connection)
{
	struct connection_identity other = {.version = GLAKE_WIRE_VERSION, .image = 2};
	struct glake_session_row row = {.session = loot->identity.session};
	while (!row.detached) {
		ck_assert_int_eq(glake_list_sessions(eye, world_find_row, &row), 1);
	}
	ck_assert_int_eq(connection_greet_as(connection, &other), GLAKE__WIRE__STATUS__OK);
}

/* By the number of the test. */
static const struct {
	world_fn live;
	void (*greet)(int connection);
} strangers[] = {{live_on_host, greet_with_its_key}, {live_on_and_off, greet_as_another_image}};

/* A socket has the number of the process that made it, though that has ended and another one is called so. */
START_TEST_WITH(an_earlier_process_of_that_pid_is_another_one, .n = n_elements(strangers))
{
	cleanup_fd int home = unshare_pids();
	int ends[2];
	char byte;
	size_t n_bytes;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	if (home < 0) {
		return;
	}
	begin_open(false);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	world_join(world_client(leave_connection, ends));
	ck_assert_int_eq(wire_recv(ends[0], &byte, 1, &n_bytes, &fds, 0), 0);
	ck_assert_uint_eq(fds.n_fds, 1);
	world_fn live = strangers[_i].live;
	pid_t owner = world_client(start_with_pid, &live);
	ck_assert_int_eq(setns(home, CLONE_NEWPID), 0);
	world_await(1);
	if (loot->identity.session != 0) {
		strangers[_i].greet(fds.fds[0]);
	} else {
		printf("SKIP: the kernel gives no number again\n");
	}
	world_reach(2);
	world_join(owner);
	close(ends[0]);
	close(ends[1]);
}
END_TEST
