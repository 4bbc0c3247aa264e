/* SPDX-License-Identifier: Apache-2.0 */
/* Much is given back at once: glaked's answers wait until it has closed most of that. */
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

enum { N_CHUNKS = 200, N_AT_ONCE = 8 };

static uint64_t ids[N_CHUNKS];

static int connect_with_chunks(void)
{
	int client = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(client, 0, 2 * MIB, N_CHUNKS, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	return client;
}

static void send_free(int client, uint64_t *id)
{
	connection_send(client, REQUEST(CHUNK_FREE, ChunkFree, chunk_free, .ids = id, .n_ids = 1),
	                NULL, 0);
}

/* The next answer is OK, whichever request it is to. */
static void expect_ok(int client)
{
	Glake__Wire__Answer *answer = connection_receive(client, NULL);
	ck_assert(answer && answer->id != 0);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	connection_free(answer);
}

START_TEST(each_free_is_answered)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x1GiB");
	int client = connect_with_chunks();
	for (unsigned i = 0; i < N_CHUNKS; i++) {
		send_free(client, &ids[i]);
		if (i >= N_AT_ONCE) {
			expect_ok(client);
		}
	}
	for (unsigned i = 0; i < N_AT_ONCE; i++) {
		expect_ok(client);
	}
	ck_assert_uint_eq(world_books().private_bytes, 0);
	/* The client has its quota and its turn again. */
	ck_assert_int_eq(connection_alloc(client, 0, 2 * MIB, N_CHUNKS, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* world_end() counts what is left. */
START_TEST(who_goes_meanwhile_gets_no_answer)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x1GiB");
	for (unsigned round = 0; round < 5; round++) {
		int client = connect_with_chunks();
		for (unsigned i = 0; i < 100; i++) {
			send_free(client, &ids[i]);
		}
		connection_close(&client);
	}
}
END_TEST
