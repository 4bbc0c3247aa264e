/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other users of the machine: what they see, what they share, what they may do. As root, which then
 * becomes somebody else.
 */
#include <grp.h>
#include <sys/mman.h>

#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define ALICE 12345
#define BOB 12346

/* What a user sees in the lists. */
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

	/* What is there, by its exact name or digest, is not there for him. */
	char name[600];
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

	/* The same file, the same bytes: a copy of his own. */
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
	/* The same person finds them again. */
	as(ALICE, 0, map_and_leave);
	ck_assert_uint_eq(world_metric("models_hit"), 1);
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
	char name[600];
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
