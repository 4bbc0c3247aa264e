/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WeightsPublish from a client that sends what no library would. Others attach what it publishes, so
 * nothing may pass that would lead them astray.
 */
#include <string.h>

#include "proto/request.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

typedef Glake__Wire__Tensor tensor_t;
typedef Glake__Wire__WeightsBlocks run_t;

static int connection;
static uint64_t block;          /* of 4 MiB, on a device of 4 GiB */
static uint64_t manifest_bytes; /* charged for it */

static void begin(void)
{
	uint64_t chunk;
	world_begin(.config = WORLD_CONFIG, .devices = "2x4GiB", .has_witness = true);
	connection = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, 4 * MIB, 1, &chunk, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_publish(connection, chunk, 4 * MIB), GLAKE__WIRE__STATUS__OK);
	block = chunk;
	manifest_bytes = world_books().charged_manifest_bytes;
}
BEGIN_EACH(begin)

static run_t run_of(uint64_t *ids, size_t n_ids)
{
	run_t run = GLAKE__WIRE__WEIGHTS_BLOCKS__INIT;
	run.blocks = ids;
	run.n_blocks = n_ids;
	return run;
}

static tensor_t tensor_of(const char *name, uint64_t offset, uint64_t *shape)
{
	tensor_t tensor = GLAKE__WIRE__TENSOR__INIT;
	tensor.name = (char *)name;
	tensor.dtype = GLAKE_U8;
	tensor.shape = shape;
	tensor.n_shape = 1;
	tensor.offset = offset;
	tensor.bytes = *shape;
	return tensor;
}

static Glake__Wire__Status send_page(Glake__Wire__WeightsPublish *page, uint64_t *draft_out)
{
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST_OF(WEIGHTS_PUBLISH, weights_publish, page), NULL, 0, NULL);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK && draft_out) {
		*draft_out = answer->weights_publish->draft;
	}
	connection_free(answer);
	return status;
}

/* All in one request, under "key" of device 0. */
static Glake__Wire__Status publish(run_t *run, tensor_t *tensors, size_t n_tensors)
{
	Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	tensor_t *list[8];
	for (size_t i = 0; i < n_tensors; i++) {
		list[i] = &tensors[i];
	}
	page.key = (char *)"key";
	page.blocks = &run;
	page.n_blocks = run != NULL;
	page.tensors = list;
	page.n_tensors = n_tensors;
	page.commit = true;
	return send_page(&page, NULL);
}

static Glake__Wire__Status attach(int session, const char *key)
{
	return connection_status(
		session, REQUEST(WEIGHTS_ATTACH, WeightsAttach, weights_attach, .key = (char *)key),
		NULL, 0);
}

/* Nothing is there, and nobody is charged for it. */
static void nothing_came_of_it(void)
{
	ck_assert_int_eq(attach(connection, "key"), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_uint_eq(world_books().n_models, 0);
	ck_assert_uint_eq(world_books().charged_manifest_bytes, manifest_bytes);
}

START_TEST(tensors_that_would_lead_astray_are_refused)
{
	uint64_t ids[] = {block};
	uint64_t few[] = {1024};
	uint64_t many[] = {4 * MIB};
	uint64_t too_many[] = {4 * MIB + 1};
	uint64_t huge[] = {UINT64_MAX};
	uint64_t square[] = {1ull << 40, 1ull << 40};
	uint64_t dims[33] = {0};
	static char long_name[1026];
	run_t run = run_of(ids, 1);
	memset(long_name, 'n', sizeof(long_name) - 1);
	tensor_t bad[] = {
		tensor_of("", 0, few),
		tensor_of(long_name, 0, few),
		tensor_of("end", 4 * MIB - 1023, few),
		tensor_of("long", 0, too_many),
		tensor_of("far", UINT64_MAX - 512, few),
		tensor_of("huge", 1, huge),
		tensor_of("short", 0, few),
		tensor_of("square", 0, few),
		tensor_of("dims", 0, few),
		tensor_of("strides", 0, few),
		tensor_of("stride", 0, few),
		tensor_of("dtype", 0, few),
		tensor_of("none", 0, few),
	};
	bad[6].bytes = 1023;
	bad[7].shape = square;
	bad[7].n_shape = 2;
	bad[8].shape = dims;
	bad[8].n_shape = 33;
	bad[8].bytes = 0;
	bad[9].strides = square;
	bad[9].n_strides = 2;
	bad[10].strides = huge;
	bad[10].n_strides = 1;
	bad[11].dtype = 99;
	bad[12].dtype = 0;
	for (size_t i = 0; i < n_elements(bad); i++) {
		tensor_t both[] = {tensor_of("a", 0, many), bad[i]};
		ck_assert_int_eq(publish(&run, &bad[i], 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(publish(&run, both, 2), GLAKE__WIRE__STATUS__BAD_REQUEST);
		nothing_came_of_it();
	}
	/* One name twice would end the session of who attaches. */
	tensor_t twins[] = {tensor_of("a", 0, few), tensor_of("a", 0, few)};
	ck_assert_int_eq(publish(&run, twins, 2), GLAKE__WIRE__STATUS__BAD_REQUEST);
	twins[0].name = (char *)"b";
	ck_assert_int_eq(publish(&run, twins, 2), GLAKE__WIRE__STATUS__BAD_REQUEST);
	nothing_came_of_it();
	tensor_t good[] = {tensor_of("a", 0, many), tensor_of("b", 4 * MIB - 1024, few)};
	ck_assert_int_eq(publish(&run, good, 2), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(attach(witness, "key"), GLAKE__WIRE__STATUS__OK);
	world_serves_in_time();
}
END_TEST

START_TEST(blocks_of_others_are_refused)
{
	int other = connection_hello(&harness);
	uint64_t private;
	uint64_t few[] = {1024};
	uint8_t key[GLAKE_KEY_BYTES] = {1, 2, 3};
	tensor_t tensor = tensor_of("a", 0, few);
	ck_assert_int_eq(connection_alloc(connection, 0, 2 * MIB, 1, &private, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	uint64_t unknown[] = {block, 1ull << 60};
	run_t runs[] = {
		run_of(unknown, 2), run_of(&private, 1), run_of(&block, 1),
		run_of(&block, 1),  run_of(&block, 1),   run_of(NULL, 0),
	};
	runs[2].session_key = (ProtobufCBinaryData){.data = key, .len = sizeof(key)};
	runs[3].session_key = (ProtobufCBinaryData){.data = key, .len = 3};
	runs[4].model = block;
	runs[4].count = 1;
	runs[5].model = 77;
	for (size_t i = 0; i < n_elements(runs); i++) {
		ck_assert_int_eq(publish(&runs[i], &tensor, 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
		nothing_came_of_it();
	}
	/* Another session of the same process does not have it, and its key is a secret. */
	int mine = connection;
	run_t run = run_of(&block, 1);
	connection = other;
	ck_assert_int_eq(publish(&run, &tensor, 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
	connection = mine;
	nothing_came_of_it();
}
END_TEST

START_TEST(parts_of_models_are_checked)
{
	uint64_t few[] = {1024};
	run_t run = run_of(&block, 1);
	tensor_t tensor = tensor_of("a", 0, few);
	ck_assert_int_eq(publish(&run, &tensor, 1), GLAKE__WIRE__STATUS__OK);
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(WEIGHTS_ATTACH, WeightsAttach, weights_attach, .key = (char *)"key"), NULL,
		0, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	uint64_t model = answer->model_open->model;
	ck_assert_uint_eq(answer->model_open->n_blocks, 1);
	ck_assert_uint_eq(answer->model_open->span_bytes, 4 * MIB);
	connection_free(answer);
	static const struct {
		uint64_t first;
		uint64_t count;
		Glake__Wire__Status status;
	} parts[] = {
		{0, 2, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{1, 1, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{UINT64_MAX, 2, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, UINT64_MAX, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{2, 0, GLAKE__WIRE__STATUS__BAD_REQUEST},
		{0, 1, GLAKE__WIRE__STATUS__OK},
	};
	tensor.name = (char *)"b";
	for (size_t i = 0; i < n_elements(parts); i++) {
		run_t part = run_of(NULL, 0);
		part.model = model;
		part.first = parts[i].first;
		part.count = parts[i].count;
		ck_assert_int_eq(publish(&part, &tensor, 1), parts[i].status);
	}
}
END_TEST

/* A span that repeats one block is of no more use than there is memory. */
START_TEST(spans_are_bounded)
{
	enum { N = GLAKE_PAGE_BLOCKS + 1 };
	uint64_t ids[N];
	uint64_t draft = 0;
	Glake__Wire__Status status = GLAKE__WIRE__STATUS__OK;
	for (size_t i = 0; i < N; i++) {
		ids[i] = block;
	}
	run_t run = run_of(ids, N);
	run_t *list[] = {&run};
	unsigned n = 0;
	uint64_t few[] = {1024};
	tensor_t tensor = tensor_of("a", 0, few);
	ck_assert_int_eq(publish(&run, &tensor, 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
	run.n_blocks--;
	run.count = 1;
	ck_assert_int_eq(publish(&run, &tensor, 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
	run.count = UINT64_MAX;
	ck_assert_int_eq(publish(&run, &tensor, 1), GLAKE__WIRE__STATUS__BAD_REQUEST);
	run.count = 0;
	for (; status == GLAKE__WIRE__STATUS__OK && n < 10; n++) {
		Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
		page.draft = draft;
		page.key = (char *)"key";
		page.blocks = list;
		page.n_blocks = 1;
		status = send_page(&page, &draft);
	}
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_uint_lt(n, 10);
	nothing_came_of_it();
}
END_TEST

/* A model of as many places as the device lets it have. */
static void publish_large(const char *key)
{
	enum { N = 1024 };
	uint64_t ids[N];
	for (size_t i = 0; i < N; i++) {
		ids[i] = block;
	}
	run_t run = run_of(ids, N);
	run_t *list[] = {&run};
	Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	page.key = (char *)key;
	page.blocks = list;
	page.n_blocks = 1;
	page.commit = true;
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__OK);
}

/* Each listing walks through all of it, and so does the session's end. */
START_TEST(what_a_session_has_open_is_bounded)
{
	Glake__Wire__Status status = GLAKE__WIRE__STATUS__OK;
	unsigned n = 0;
	publish_large("key");
	for (; status == GLAKE__WIRE__STATUS__OK && n < 5000; n++) {
		status = attach(connection, "key");
	}
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__NO_HOST_MEMORY);
	ck_assert_uint_gt(n, 4000);
	ck_assert_int_eq(attach(witness, "key"), GLAKE__WIRE__STATUS__OK);
	world_serves_in_time();
	connection_close(&connection);
}
END_TEST

static Glake__Wire__Answer *publish_block(int session, uint64_t *chunk_out)
{
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(session, 0, CHUNK_BYTES, 1, chunk_out, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	return connection_call(session,
	                       REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish,
	                               .chunk = *chunk_out, .content_bytes = CHUNK_BYTES),
	                       NULL, 0, NULL);
}

static Glake__Wire__Status look_up(int session, Glake__Wire__BlockAnswer *known, uint64_t *id_out)
{
	Glake__Wire__Answer *answer = connection_call(
		session, REQUEST(BLOCK_LOOKUP, BlockLookup, block_lookup, .digest = known->digest),
		NULL, 0, NULL);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK) {
		*id_out = answer->block->block;
	}
	connection_free(answer);
	return status;
}

enum way { BY_LOOKUP, BY_PUBLICATION, BY_ATTACHING, N_WAYS };

/* A block that is opened again costs nobody memory of the device, but glaked's own, and a record in the books. */
START_TEST_WITH(what_a_tenant_has_open_is_bounded, .n = N_WAYS)
{
	enum { N = 2000 };
	uint64_t id;
	uint64_t chunk;
	Glake__Wire__Status status = GLAKE__WIRE__STATUS__OK;
	publish(NULL, NULL, 0);
	assert_ok(glake_set_manifest_quota(eye, "default", 128 * KIB));
	Glake__Wire__Answer *known = publish_block(connection, &chunk);
	ck_assert_int_eq(known->status, GLAKE__WIRE__STATUS__OK);
	unsigned n = 0;
	for (; status == GLAKE__WIRE__STATUS__OK && n < N; n++) {
		if (_i == BY_LOOKUP) {
			status = look_up(connection, known->block, &id);
		} else if (_i == BY_ATTACHING) {
			status = attach(connection, "key");
		} else {
			Glake__Wire__Answer *answer = publish_block(connection, &chunk);
			status = answer->status;
			connection_free(answer);
		}
	}
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__NO_HOST_MEMORY);
	ck_assert_uint_gt(n, 128);
	/* A block that goes makes room. */
	ck_assert_int_eq(connection_release(connection, known->block->block),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(look_up(connection, known->block, &id), GLAKE__WIRE__STATUS__OK);
	connection_free(known);
	connection_close(&connection);
}
END_TEST

START_TEST(a_page_of_models_ends_before_it_takes_long)
{
	char key[16];
	uint64_t after = 0;
	unsigned n_pages = 0;
	size_t n_models = 0;
	for (unsigned i = 0; i < 40; i++) {
		snprintf(key, sizeof(key), "key%u", i);
		publish_large(key);
	}
	do {
		Glake__Wire__Answer *answer = connection_call(
			connection, REQUEST(MODEL_LIST, ModelList, model_list, .after = after),
			NULL, 0, NULL);
		ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
		n_models += answer->model_list->n_models;
		after = answer->model_list->next;
		n_pages++;
		connection_free(answer);
	} while (after != 0);
	ck_assert_uint_eq(n_models, 40);
	ck_assert_uint_gt(n_pages, 1);
}
END_TEST

static uint64_t begin_draft(void)
{
	uint64_t draft;
	run_t run = run_of(&block, 1);
	run_t *list[] = {&run};
	Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	page.key = (char *)"key";
	page.blocks = list;
	page.n_blocks = 1;
	ck_assert_int_eq(send_page(&page, &draft), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_gt(draft, 0);
	return draft;
}

/* A draft is its holder's alone, is no model, and ends with what it is given up by. */
START_TEST(drafts_end)
{
	Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	uint64_t draft = begin_draft();
	ck_assert_int_eq(attach(connection, "key"), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(
		connection_status(connection,
	                          REQUEST(MODEL_BLOCKS, ModelBlocks, model_blocks, .model = draft),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__BAD_REQUEST);
	int mine = connection;
	connection = connection_hello(&harness);
	page.draft = draft;
	page.commit = true;
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	/* Closed with a draft of its own, of nothing. */
	Glake__Wire__WeightsPublish first = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	first.key = (char *)"key";
	ck_assert_int_eq(send_page(&first, NULL), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
	connection = mine;

	ck_assert_int_eq(
		connection_status(connection,
	                          REQUEST(MODEL_CLOSE, ModelClose, model_close, .model = draft),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	nothing_came_of_it();

	/* The block stays as long as the draft has it. */
	page.draft = begin_draft();
	ck_assert_int_eq(connection_release(connection, block), GLAKE__WIRE__STATUS__OK);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_books().block_bytes, 4 * MIB);
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(attach(connection, "key"), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(send_page(&first, NULL), GLAKE__WIRE__STATUS__OK);
}
END_TEST

START_TEST(a_key_is_a_name)
{
	static char long_key[257];
	static const char *const bad[] = {"",
	                                  "123",
	                                  "a\tb",
	                                  "\xc0\x80",
	                                  "a\xc2\x9b"
	                                  "2J",
	                                  long_key};
	memset(long_key, 'k', sizeof(long_key) - 1);
	for (size_t i = 0; i < n_elements(bad); i++) {
		Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
		page.key = (char *)bad[i];
		page.commit = true;
		ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
		ck_assert_int_eq(attach(connection, bad[i]), GLAKE__WIRE__STATUS__NOT_FOUND);
	}
	Glake__Wire__WeightsPublish page = GLAKE__WIRE__WEIGHTS_PUBLISH__INIT;
	page.key = (char *)"key";
	page.device = 9;
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	/* A block of device 0 on device 1. */
	run_t run = run_of(&block, 1);
	run_t *list[] = {&run};
	page.device = 1;
	page.blocks = list;
	page.n_blocks = 1;
	ck_assert_int_eq(send_page(&page, NULL), GLAKE__WIRE__STATUS__BAD_REQUEST);
	nothing_came_of_it();
}
END_TEST
