/* SPDX-License-Identifier: Apache-2.0 */
/* Equal memory that is not shared, since it lies at other offsets: it is told, about how much and whose, and nothing else happens. */
#include <grp.h>
#include <stdlib.h>

#include "libclient/glake_admin.h"
#include "tests/harness/words.h"

#define MODEL_BYTES (16 * MIB)

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "measure_layout = true; warm_bytes = \"64MiB\"; "
	                                   "realms = ( { name = \"others\"; gids = [ 4321 ]; } );",
	            .devices = "1x4GiB");
	words_open_driver();
}
BEGIN_EACH(begin)

/* ---- memory ---- */

/* Fill in bytes that no other seed has. */
static void fill(uint8_t *to, size_t n_bytes, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i < n_bytes; i += sizeof(state)) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		memcpy(to + i, &state, sizeof(state));
	}
}

/* Sealed memory with that content, of @session until its end. */
static glake_ptr seal(struct glake_session *session, const uint8_t *bytes, size_t n_bytes)
{
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, n_bytes, 0, &ptr));
	ck_assert_int_eq(drv.cuMemcpyHtoD(ptr, bytes, n_bytes), CUDA_SUCCESS);
	struct glake_sealed sealed = words_seal(ptr, n_bytes);
	ck_assert_uint_eq(sealed.sealed_bytes, n_bytes);
	return ptr;
}

/* @n_bytes of it; parts of its content are made by those functions. */
static uint8_t *new_content(size_t n_bytes, uint64_t seed)
{
	uint8_t *bytes = malloc(n_bytes);
	ck_assert_ptr_nonnull(bytes);
	fill(bytes, n_bytes, seed);
	return bytes;
}

/* ---- what is told ---- */

struct told {
	uint64_t session; /* looked for */
	uint64_t with;
	unsigned n;
	unsigned n_open; /* that are not looked at yet */
	struct glake_layout_row row;
};

static int take(void *user, const struct glake_layout_row *row)
{
	struct told *told = user;
	told->n++;
	told->n_open += row->looked_bytes < row->unshared_bytes;
	if (row->session == told->session && row->with == told->with) {
		told->row = *row;
	}
	return 0;
}

static uint64_t id_of(struct glake_session *session)
{
	return world_row(session).session;
}

/* Once all memory was looked at. */
static struct glake_layout_row tell(struct glake_session *session)
{
	struct told told;
	do {
		usleep(10000);
		told = (struct told){.session = id_of(session)};
		assert_ok(glake_list_layout(eye, 0, take, &told));
	} while (told.row.session == 0 || told.n_open > 0);
	return told.row;
}

/* The equal bytes of @session beside @other; 0 if there is no row. */
static uint64_t tell_beside(struct glake_session *session, struct glake_session *other)
{
	struct told told = {.session = id_of(session), .with = id_of(other)};
	assert_ok(glake_list_layout(eye, id_of(session), take, &told));
	ck_assert(told.row.session == 0 || told.row.with_pid == (uint32_t)getpid());
	return told.row.equal_bytes;
}

static void assert_about(uint64_t n_bytes, uint64_t wanted, unsigned percent)
{
	ck_assert_msg(n_bytes + wanted * percent / 100 >= wanted &&
	                      n_bytes <= wanted + wanted * percent / 100,
	              "%llu bytes, not about %llu", (unsigned long long)n_bytes,
	              (unsigned long long)wanted);
}

/* ---- cases ---- */

START_TEST(a_model_that_lies_further_is_told)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_session *third = world_connect();
	cleanup_free uint8_t *model = new_content(MODEL_BYTES, 1);
	cleanup_free uint8_t *further = new_content(MODEL_BYTES, 2);
	cleanup_free uint8_t *other = new_content(MODEL_BYTES, 3);
	memcpy(further + 512, model, MODEL_BYTES - 512);
	seal(one, model, MODEL_BYTES);
	seal(two, further, MODEL_BYTES);
	seal(third, other, MODEL_BYTES);
	assert_about(tell(one).equal_bytes, MODEL_BYTES, 4);
	assert_about(tell(two).equal_bytes, MODEL_BYTES, 4);
	ck_assert_uint_eq(tell(third).equal_bytes, 0);
	assert_about(tell_beside(one, two), MODEL_BYTES, 4);
	assert_about(tell_beside(two, one), MODEL_BYTES, 4);
	ck_assert_uint_eq(tell_beside(one, third), 0);
	ck_assert_uint_eq(tell_beside(third, two), 0);
	/* Equal bytes are told, and nothing else is done about them. */
	struct books books = world_books();
	ck_assert_uint_eq(books.block_bytes, 3 * MODEL_BYTES);
	ck_assert_uint_eq(books.logical_bytes, 3 * MODEL_BYTES);
	/* Who has gone has nothing. */
	world_disconnect(two);
	ck_assert_uint_eq(tell(one).equal_bytes, 0);
}
END_TEST

START_TEST(tensors_in_another_order_are_told)
{
	const size_t n_first = 5 * MIB + 1024;
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	cleanup_free uint8_t *model = new_content(MODEL_BYTES, 4);
	cleanup_free uint8_t *turned = malloc(MODEL_BYTES);
	ck_assert_ptr_nonnull(turned);
	memcpy(turned, model + n_first, MODEL_BYTES - n_first);
	memcpy(turned + MODEL_BYTES - n_first, model, n_first);
	seal(one, model, MODEL_BYTES);
	seal(two, turned, MODEL_BYTES);
	assert_about(tell(one).equal_bytes, MODEL_BYTES, 4);
	assert_about(tell_beside(two, one), MODEL_BYTES, 4);
}
END_TEST

/* A half of it; and what is equal as a whole is shared, not told. */
START_TEST(parts_are_told)
{
	const size_t n_bytes = 2 * MODEL_BYTES;
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	cleanup_free uint8_t *model = new_content(n_bytes, 5);
	cleanup_free uint8_t *half = new_content(n_bytes, 6);
	memcpy(half + 512, model, n_bytes / 2);
	seal(one, model, n_bytes);
	seal(two, half, n_bytes);
	cleanup_free uint8_t *same = new_content(4 * MIB, 7);
	seal(one, same, 4 * MIB);
	seal(two, same, 4 * MIB);
	struct glake_layout_row row = tell(one);
	ck_assert_uint_eq(row.unshared_bytes, n_bytes);
	assert_about(row.equal_bytes, n_bytes / 2, 30);
	assert_about(tell(two).equal_bytes, n_bytes / 2, 30);
}
END_TEST

/* Zeros and constants are everywhere. */
START_TEST(constants_are_not_told)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	cleanup_free uint8_t *first = new_content(MODEL_BYTES, 8);
	cleanup_free uint8_t *second = new_content(MODEL_BYTES, 9);
	memset(first, 0, MODEL_BYTES / 2);
	memset(first + MODEL_BYTES / 2, 0x3f, 2 * MIB);
	memset(second + MODEL_BYTES / 4, 0, MODEL_BYTES / 2);
	memset(second, 0x3f, 2 * MIB);
	seal(one, first, MODEL_BYTES);
	seal(two, second, MODEL_BYTES);
	ck_assert_uint_eq(tell(one).equal_bytes, 0);
	ck_assert_uint_eq(tell(two).equal_bytes, 0);
	/* Nor do they make more of what is equal. */
	struct glake_session *third = world_connect();
	cleanup_free uint8_t *further = new_content(MODEL_BYTES, 10);
	memcpy(further + 512, first, MODEL_BYTES - 512);
	seal(third, further, MODEL_BYTES);
	tell(third);
	assert_about(tell(one).equal_bytes, MODEL_BYTES / 2 - 2 * MIB, 4);
}
END_TEST

START_TEST(realms_are_not_compared)
{
	const gid_t group = 4321;
	if (!harness_is_root()) {
		return;
	}
	struct glake_session *one = world_connect();
	assert_ok(setgroups(1, &group));
	struct glake_session *two = world_connect();
	struct glake_session *looker = world_connect_blind();
	assert_ok(setgroups(0, NULL));
	cleanup_free uint8_t *model = new_content(MODEL_BYTES, 11);
	cleanup_free uint8_t *further = new_content(MODEL_BYTES, 12);
	memcpy(further + 512, model, MODEL_BYTES - 512);
	seal(one, model, MODEL_BYTES);
	seal(two, further, MODEL_BYTES);
	ck_assert_uint_eq(tell(one).equal_bytes, 0);
	ck_assert_uint_eq(tell(two).equal_bytes, 0);
	ck_assert_uint_eq(tell_beside(one, two), 0);
	(void)looker;
}
END_TEST

static void look_as_other(struct harness *of, void *user)
{
	const uint64_t id = *(const uint64_t *)user;
	struct glake_session *other;
	struct glake_connect_options options = {
		.size = sizeof(options), .no_cuda = 1, .socket_path = of->socket_path};
	struct told told = {.n = 0};
	assert_ok(glake_connect(&options, &other));
	assert_ok(glake_list_layout(other, 0, take, &told));
	ck_assert_uint_eq(told.n, 0);
	assert_fails(GLAKE_E_NOT_FOUND, "there is no session",
	             glake_list_layout(other, id, take, &told));
	glake_disconnect(other);
}

START_TEST(others_see_nothing_of_it)
{
	if (!harness_is_root()) {
		return;
	}
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	cleanup_free uint8_t *model = new_content(MODEL_BYTES, 13);
	cleanup_free uint8_t *further = new_content(MODEL_BYTES, 14);
	memcpy(further + 512, model, MODEL_BYTES - 512);
	seal(one, model, MODEL_BYTES);
	seal(two, further, MODEL_BYTES);
	assert_about(tell(one).equal_bytes, MODEL_BYTES, 4);
	uint64_t id = id_of(one);
	harness_as(&harness, 1000, 1000, look_as_other, &id);
	struct told told = {.n = 0};
	assert_fails(GLAKE_E_NOT_FOUND, "there is no session",
	             glake_list_layout(eye, 12345, take, &told));
}
END_TEST

/* A block that nobody has cannot go while the mover reads it: whoever needs its room gets it a moment later. */
#define SMALL_BYTES (32 * MIB)

static void begin_small(void)
{
	world_begin(.config = WORLD_CONFIG "measure_layout = true; ", .devices = "1x128MiB");
	words_open_driver();
}

START_TEST_WITH(a_look_keeps_nobody_from_memory, .begin = begin_small)
{
	cleanup_free uint8_t *content = new_content(SMALL_BYTES, 1);
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	world_set_faults("glake-mover/cuMemcpyDtoHAsync:*:slow=40");
	seal(one, content, SMALL_BYTES);
	/* The look at the content has surely begun by then. */
	harness_sleep_ms(100);
	world_disconnect(one);
	/* Until glaked has heard of it, the memory is in use. */
	while (world_books().n_sessions > books_before.n_sessions + 1) {
		harness_sleep_ms(1);
	}
	glake_ptr ptr = 0;
	/* The mover has some of the device, too. */
	int r = glake_alloc(two, 0, 100 * MIB, 0, &ptr);
	if (r == GLAKE_E_NO_DEVICE_MEMORY) {
		/* On a busy machine a look takes longer than the second that is waited for it. */
		ck_assert_uint_eq(world_metric("memory_waits"), 1);
		world_wait_metric("blocks_looked_at", 1);
		r = glake_alloc(two, 0, 100 * MIB, 0, &ptr);
	}
	assert_ok(r);
	ck_assert_uint_eq(world_metric("blocks_looked_at"), 1);
}
END_TEST

/* The GPU refuses the copy, or the mover dies of it: that costs the look, and nothing else. */
static const char *const faults[] = {"glake-mover/cuMemcpyDtoHAsync:*:fail=2",
                                     "glake-mover/cuMemcpyDtoHAsync:*:die"};

START_TEST_WITH(a_look_that_fails_costs_nothing, .n = n_elements(faults))
{
	struct glake_session *one = world_connect();
	cleanup_free uint8_t *model = new_content(MODEL_BYTES, 15);
	world_set_faults(faults[_i]);
	glake_ptr ptr = seal(one, model, MODEL_BYTES);
	usleep(300000);
	world_set_faults(NULL);
	ck_assert_uint_eq(world_metric("blocks_looked_at"), 0);
	struct glake_usage usage = world_usage(one);
	ck_assert_uint_eq(usage.shared_bytes, MODEL_BYTES);
	assert_ok(glake_unseal(ptr, MODEL_BYTES));
	assert_ok(glake_free(one, ptr));
}
END_TEST
