/* SPDX-License-Identifier: Apache-2.0 */
/* Requests before they are decoded: what the library sends passes, what costs too much does not. */
#include "proto/bounds.h"

#include <stdbool.h>
#include <string.h>

#include "proto/glake.pb-c.h"
#include "proto/limits.h"
#include "tests/check_glake.h"

static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];

static size_t put_varint(size_t at, uint64_t value)
{
	for (; value >= 0x80; value >>= 7) {
		bytes[at++] = (uint8_t)(value | 0x80);
	}
	bytes[at++] = (uint8_t)value;
	return at;
}

/* A field with a length. */
static size_t put_counted(size_t at, uint32_t number, size_t n_bytes)
{
	return put_varint(put_varint(at, number << 3 | 2), n_bytes);
}

/* A request with @n_fields empty fields @number in its body. */
static size_t put_crowd(uint32_t body, uint32_t number, size_t n_fields)
{
	size_t at = put_varint(put_varint(0, 1 << 3), 7);
	at = put_counted(at, body, 2 * n_fields);
	for (size_t i = 0; i < n_fields; i++) {
		at = put_counted(at, number, 0);
	}
	return at;
}

static const char *check(const Glake__Wire__Request *request)
{
	return bounds_check_request(bytes, glake__wire__request__pack(request, bytes));
}

/* A type that the table forgets would be refused whatever it has. */
START_TEST(every_type_has_limits)
{
	const ProtobufCMessageDescriptor *request = &glake__wire__request__descriptor;
	unsigned n_types = 0;
	for (unsigned i = 0; i < request->n_fields; i++) {
		if (request->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
			n_types++;
			size_t n_bytes = put_crowd(request->fields[i].id, 9, 3);
			ck_assert_msg(!bounds_check_request(bytes, n_bytes), "%s: %s",
			              request->fields[i].name,
			              bounds_check_request(bytes, n_bytes));
		}
	}
	ck_assert_uint_gt(n_types, 20);
}
END_TEST

START_TEST(the_longest_reports_and_lists_pass)
{
	enum { N = GLAKE_MAX_REPORTED_DEVICES, MANY = GLAKE_MAX_FREED_CHUNKS };
	static Glake__Wire__DriverMemory rows[N];
	static Glake__Wire__DriverMemory *list[N];
	static Glake__Wire__PoolReport pools[N];
	static Glake__Wire__PoolReport *pool_list[N];
	static uint64_t ids[MANY];
	Glake__Wire__Unsealed unsealed[GLAKE_N_UNSEALED];
	Glake__Wire__Unsealed *unsealed_list[GLAKE_N_UNSEALED];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__UsageReport report = GLAKE__WIRE__USAGE_REPORT__INIT;
	Glake__Wire__ChunkFree chunk_free = GLAKE__WIRE__CHUNK_FREE__INIT;
	request.id = UINT64_MAX;
	for (size_t i = 0; i < N; i++) {
		glake__wire__driver_memory__init(&rows[i]);
		rows[i].device = UINT32_MAX;
		rows[i].managed_bytes = rows[i].array_bytes = UINT64_MAX;
		rows[i].graph_bytes = rows[i].other_bytes = UINT64_MAX;
		list[i] = &rows[i];
		glake__wire__pool_report__init(&pools[i]);
		pools[i].device = UINT32_MAX;
		pools[i].live_bytes = pools[i].peak_live_bytes = UINT64_MAX;
		pools[i].reserved_bytes = pools[i].peak_reserved_bytes = UINT64_MAX;
		pools[i].n_allocs = pools[i].n_stitches = pools[i].stitched_bytes = UINT64_MAX;
		pools[i].n_reuses = pools[i].n_grows = pools[i].n_mapped = UINT64_MAX;
		pools[i].n_unmapped = pools[i].n_kept = pools[i].kept_bytes = UINT64_MAX;
		pool_list[i] = &pools[i];
	}
	report.pools = pool_list;
	report.n_pools = N;
	report.live_bytes = report.warm_bytes = report.peak_bytes = UINT64_MAX;
	report.n_owned = report.n_passed = report.reclaim = UINT64_MAX;
	report.n_seals = report.seal_ns = report.held_ns = UINT64_MAX;
	for (unsigned i = 0; i < GLAKE_N_UNSEALED; i++) {
		glake__wire__unsealed__init(&unsealed[i]);
		unsealed[i].why = GLAKE__WIRE__UNSEALED_WHY__UNSEALED_MULTICAST;
		unsealed[i].bytes = UINT64_MAX;
		unsealed_list[i] = &unsealed[i];
	}
	report.unsealed = unsealed_list;
	report.n_unsealed = GLAKE_N_UNSEALED;
	report.driver = list;
	report.n_driver = N;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT;
	request.usage_report = &report;
	ck_assert_ptr_null(check(&request));

	memset(ids, 0xff, sizeof(ids));
	chunk_free.ids = ids;
	chunk_free.n_ids = MANY;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE;
	request.chunk_free = &chunk_free;
	ck_assert_ptr_null(check(&request));
}
END_TEST

START_TEST(the_longest_list_of_candidates_passes)
{
	enum { N = GLAKE_MAX_CANDIDATES };
	static Glake__Wire__Candidate rows[N];
	static Glake__Wire__Candidate *list[N];
	static char why[GLAKE_MAX_ALONE_WHY_BYTES];
	char *reasons[GLAKE_MAX_REASONS];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SealResult result = GLAKE__WIRE__SEAL_RESULT__INIT;
	memset(why, 'w', sizeof(why) - 1);
	for (size_t i = 0; i < GLAKE_MAX_REASONS; i++) {
		reasons[i] = why;
	}
	for (size_t i = 0; i < N; i++) {
		glake__wire__candidate__init(&rows[i]);
		rows[i].address = rows[i].bytes = rows[i].filled_bytes = UINT64_MAX;
		rows[i].reason = rows[i].n_unsealed = UINT32_MAX;
		rows[i].state = GLAKE__WIRE__CANDIDATE_STATE__CANDIDATE_REFUSED;
		list[i] = &rows[i];
	}
	result.candidates = list;
	result.n_candidates = N;
	result.reasons = reasons;
	result.n_reasons = GLAKE_MAX_REASONS;
	result.tells_candidates = true;
	result.all_candidates = UINT32_MAX;
	body.result = &result;
	request.id = UINT64_MAX;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_SEAL_PROGRESS;
	request.seal_progress = &body;
	ck_assert_ptr_null(check(&request));
}
END_TEST

START_TEST(the_longest_model_passes)
{
	enum { N = GLAKE_MAX_PACKET_FDS - 1 };
	static char file[200];
	static char name[GLAKE_MAX_NAME_BYTES + 1];
	static char *files[N];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ModelOpen body = GLAKE__WIRE__MODEL_OPEN__INIT;
	memset(file, 'f', sizeof(file) - 1);
	memset(name, 'n', sizeof(name) - 1);
	for (size_t i = 0; i < N; i++) {
		files[i] = file;
	}
	body.files = files;
	body.n_files = N;
	body.name = name;
	body.index = name;
	body.device = 1;
	body.progress = body.pin = body.may_direct = true;
	request.id = UINT64_MAX;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN;
	request.model_open = &body;
	ck_assert_ptr_null(check(&request));
}
END_TEST

/* Whatever the type, and however deep they lie. */
START_TEST(crowds_of_fields_are_refused)
{
	const ProtobufCMessageDescriptor *request = &glake__wire__request__descriptor;
	for (unsigned i = 0; i < request->n_fields; i++) {
		if (request->fields[i].type != PROTOBUF_C_TYPE_MESSAGE) {
			continue;
		}
		for (uint32_t number = 1; number < 9; number++) {
			size_t n_bytes = put_crowd(request->fields[i].id, number, 30000);
			ck_assert_msg(bounds_check_request(bytes, n_bytes), "%s",
			              request->fields[i].name);
			n_bytes = put_crowd(request->fields[i].id, number, 2100);
			ck_assert_msg(bounds_check_request(bytes, n_bytes), "%s",
			              request->fields[i].name);
		}
	}
	/* In the rows of a report: no row too many, but fields. */
	size_t at = put_counted(0, GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT, 3 + 4000);
	at = put_counted(at, 6, 4000);
	for (unsigned i = 0; i < 2000; i++) {
		at = put_varint(put_varint(at, 2 << 3), 1);
	}
	ck_assert_ptr_nonnull(bounds_check_request(bytes, at));
}
END_TEST

START_TEST(long_packets_of_short_requests_are_refused)
{
	for (size_t n_bytes = 300; n_bytes < 60000; n_bytes *= 3) {
		size_t at = put_counted(0, GLAKE__WIRE__REQUEST__BODY_PING, n_bytes + 4);
		at = put_counted(at, 15, n_bytes);
		memset(bytes + at, 0, n_bytes);
		ck_assert_ptr_nonnull(bounds_check_request(bytes, at + n_bytes));
	}
}
END_TEST

/* Decoding would copy the first into the second. */
START_TEST(two_requests_in_one_are_refused)
{
	size_t at = put_counted(0, GLAKE__WIRE__REQUEST__BODY_PING, 0);
	ck_assert_ptr_null(bounds_check_request(bytes, at));
	size_t again = put_counted(at, GLAKE__WIRE__REQUEST__BODY_PING, 0);
	ck_assert_ptr_nonnull(bounds_check_request(bytes, again));
	again = put_counted(at, GLAKE__WIRE__REQUEST__BODY_STATUS_GET, 0);
	ck_assert_ptr_nonnull(bounds_check_request(bytes, again));
}
END_TEST

/* A request of a later version is refused by an answer, and a field of one is passed over. */
START_TEST(what_is_unknown_passes)
{
	size_t at = put_varint(put_varint(0, 1 << 3), 7);
	size_t end = put_counted(at, 4000, 1000);
	memset(bytes + end, 0x0a, 1000);
	ck_assert_ptr_null(bounds_check_request(bytes, end + 1000));
	end = put_crowd(GLAKE__WIRE__REQUEST__BODY_PING, 9, 3);
	ck_assert_ptr_null(bounds_check_request(bytes, end));
	for (unsigned i = 0; i < 100; i++) {
		at = put_counted(at, 100 + i % 3, 0);
	}
	ck_assert_ptr_nonnull(bounds_check_request(bytes, at));
}
END_TEST

START_TEST(what_is_cut_is_refused)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = 1;
	hello.program = (char *)"program";
	hello.name = (char *)"name";
	hello.script = (char *)"script";
	hello.arguments = (char *)"arguments";
	request.id = 300;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	size_t n_bytes = glake__wire__request__pack(&request, bytes);
	ck_assert_ptr_null(bounds_check_request(bytes, n_bytes));
	for (size_t n = 1; n < n_bytes; n++) {
		/* Cut behind the number it is a message still. */
		ck_assert_int_eq(bounds_check_request(bytes, n) == NULL, n == 3);
	}
	/* A length beyond its field, a number without an end, a group. */
	static const uint8_t beyond[] = {0x12, 0x02, 0x12, 0x09};
	static const uint8_t endless[] = {0x08, 0xff, 0xff, 0xff, 0xff, 0xff,
	                                  0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
	static const uint8_t group[] = {0x0b, 0x0c};
	ck_assert_ptr_nonnull(bounds_check_request(beyond, sizeof(beyond)));
	ck_assert_ptr_nonnull(bounds_check_request(endless, sizeof(endless)));
	ck_assert_ptr_nonnull(bounds_check_request(group, sizeof(group)));
}
END_TEST
