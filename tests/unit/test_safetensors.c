/* SPDX-License-Identifier: Apache-2.0 */
/* Headers and indexes: what is accepted, and the one line for everything that is not. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/mover/catalog.h"
#include "daemon/mover/safetensors.h"
#include "daemon/mover/weight_index.h"
#include "proto/dtype.h"
#include "proto/limits.h"
#include "tests/check_glake.h"

#define n_of(array) (sizeof(array) / sizeof((array)[0]))

static struct fault fault;
static struct catalog catalog;
static const char *const names[] = {"a.safetensors", "b.safetensors"};

static int parse_bytes(uint32_t number, const char *header, size_t n_bytes, uint64_t data_bytes)
{
	struct safetensors_file file = {
		.name = names[number], .number = number, .bytes = 8 + n_bytes + data_bytes};
	return safetensors_parse(&file, header, n_bytes, &catalog, &fault);
}

static int parse(uint32_t number, const char *header, uint64_t data_bytes)
{
	return parse_bytes(number, header, strlen(header), data_bytes);
}

/* Refused, with exactly this line. */
static void refused(const char *header, uint64_t data_bytes, const char *text)
{
	fault = (struct fault){0};
	catalog_init(&catalog);
	int error = parse(0, header, data_bytes);
	if (!error) {
		error = catalog_finish(&catalog, names, &fault);
	}
	ck_assert_msg(error == MOVER_E_FAULT, "accepted: %s", header);
	ck_assert_str_eq(fault.text, text);
	ck_assert_int_eq(fault.kind, FAULT_BAD_FILE);
	catalog_deinit(&catalog);
}

static void accepted(const char *header, uint64_t data_bytes)
{
	catalog_init(&catalog);
	int error = parse(0, header, data_bytes);
	ck_assert_msg(error == 0, "%s", fault.text);
	ck_assert_int_eq(catalog_finish(&catalog, names, &fault), 0);
	catalog_deinit(&catalog);
}

#define T(name, dtype, shape, offsets) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define IN_A "'a.safetensors': "
#define IN_W IN_A "tensor 'w': "
#define INVALID IN_A "the header is not valid: "

START_TEST(tensors_are_found)
{
	catalog_init(&catalog);
	ck_assert_int_eq(
		parse(0,
	              "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u00e9\"}," T(
			      "w.2", "BF16", "[2,3]",
			      "[8,20]") "," T("w.1", "F32", "[2]",
	                                      "[0,8]") "," T("s", "I64", "[]",
	                                                     "[20,28]") "," T("e", "F32", "[4,0,2]",
	                                                                      "[28,28]") "}   ",
	              28),
		0);
	ck_assert_int_eq(catalog_finish(&catalog, names, &fault), 0);
	ck_assert_uint_eq(catalog.n_tensors, 4);
	ck_assert_str_eq(catalog.tensors[0].name, "e");
	ck_assert_str_eq(catalog.tensors[3].name, "w.2");
	const struct tensor *tensor = catalog_find(&catalog, "w.2");
	ck_assert_ptr_nonnull(tensor);
	ck_assert_uint_eq(tensor->dtype, DTYPE_BF16);
	ck_assert_uint_eq(tensor->n_dims, 2);
	ck_assert_uint_eq(tensor->shape[1], 3);
	ck_assert_uint_eq(tensor->bytes, 12);
	tensor = catalog_find(&catalog, "w.1");
	ck_assert_uint_eq(tensor->begin + 8, catalog_find(&catalog, "w.2")->begin);
	ck_assert_uint_eq(catalog_find(&catalog, "s")->n_dims, 0);
	ck_assert_uint_eq(catalog_find(&catalog, "s")->bytes, 8);
	ck_assert_uint_eq(catalog_find(&catalog, "e")->bytes, 0);
	ck_assert_ptr_null(catalog_find(&catalog, "w"));
	catalog_deinit(&catalog);
}
END_TEST

START_TEST(good_headers_are_accepted)
{
	accepted("{}", 0);
	accepted("{\"__metadata__\":{}}", 0);
	accepted("{ \"w\" :\t{ \"shape\": [ 2 ] ,\n\"data_offsets\" : [ 0 , 1 ],"
	         "\"dtype\":\"F4\" } }",
	         1);
	accepted("{" T("w", "F6_E2M3", "[4]", "[0,3]") "}", 3);
	accepted("{" T("w", "F32", "[0,9223372036854775807,9223372036854775807]", "[0,0]") "}", 0);
	accepted("{" T("", "U8", "[1]", "[0,1]") "}", 1);
	accepted("{" T("\\u00e9\xc3\xa9", "U8", "[1]", "[0,1]") "}", 1);
}
END_TEST

START_TEST(every_dtype_is_known)
{
	for (uint32_t dtype = DTYPE_NONE + 1; dtype < DTYPE_COUNT; dtype++) {
		char header[200];
		snprintf(header, sizeof(header),
		         "{\"w\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
		         dtype_name(dtype), dtype_bits(dtype));
		accepted(header, dtype_bits(dtype));
	}
}
END_TEST

/* ---- the prefix ----------------------------------------------------------------------------- */

static void prefix_refused(const char *prefix, size_t n_bytes, uint64_t file_bytes,
                           const char *text)
{
	struct safetensors_file file = {.name = names[0], .bytes = file_bytes};
	uint64_t header_bytes = 77;
	fault = (struct fault){0};
	ck_assert_int_eq(safetensors_header_bytes(&file, (const uint8_t *)prefix, n_bytes,
	                                          &header_bytes, &fault),
	                 MOVER_E_FAULT);
	ck_assert_str_eq(fault.text, text);
	ck_assert_uint_eq(header_bytes, 77);
}

START_TEST(lengths_are_checked)
{
	struct safetensors_file file = {.name = names[0], .bytes = 100000008};
	uint64_t header_bytes;
	prefix_refused("", 0, 0, IN_A "not a safetensors file: only 0 bytes long");
	prefix_refused("\1\0\0\0\0\0\0", 7, 7, IN_A "not a safetensors file: only 7 bytes long");
	prefix_refused("\3\0\0\0\0\0\0\0", 8, 10,
	               IN_A "the header is cut off: it has 3 bytes, the file only 10");
	prefix_refused("\xff\xff\xff\xff\xff\xff\xff\xff", 8, 10,
	               IN_A "not a safetensors file: such a file begins with the length of its "
	                    "header");
	prefix_refused("root:x:0", 8, 1000,
	               IN_A "not a safetensors file: such a file begins with the length of its "
	                    "header");
	prefix_refused("\x01\xe1\xf5\x05\0\0\0\0", 8, 1ull << 40,
	               IN_A "a header of 100000001 bytes is too large, at most 100000000 are "
	                    "allowed");
	ck_assert_int_eq(safetensors_header_bytes(&file,
	                                          (const uint8_t *)"\x00\xe1\xf5\x05\0\0\0\0", 8,
	                                          &header_bytes, &fault),
	                 0);
	ck_assert_uint_eq(header_bytes, 100000000);
}
END_TEST

/* ---- not JSON, or not this JSON ------------------------------------------------------------- */

START_TEST(what_is_not_json_is_refused)
{
	refused("", 0, IN_A "not a safetensors file: the header does not begin with '{'");
	refused(" {}", 0, IN_A "not a safetensors file: the header does not begin with '{'");
	refused("[]", 0, IN_A "not a safetensors file: the header does not begin with '{'");
	refused("{", 0, INVALID "expected a string at byte 1 of the JSON text");
	refused("{w:1}", 0, INVALID "expected a string at byte 1 of the JSON text");
	refused("{} x", 0, INVALID "more text behind the object");
	refused("{}{}", 0, INVALID "more text behind the object");
	refused("{\"w\"}", 0, INVALID "expected ':' at byte 4 of the JSON text");
	refused("{\"w", 0,
	        INVALID "'premature end of input near \\x27\"w\\x27' at byte 1 of the JSON text");
	refused("{" T("w", "U8", "[1]", "[0,1]"), 1,
	        INVALID "the text ends within an object at byte 52 of the JSON text");
	refused("{" T("w", "U8", "[1]", "[0,1]") " \"x\"", 1,
	        INVALID "expected ',' or '}' at byte 53 of the JSON text");
	refused("{" T("w", "U8", "[1]", "[0,1]") ",}", 1,
	        INVALID "expected a string at byte 53 of the JSON text");
	refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]", 1,
	        IN_W "the header is not valid: '\\x27}\\x27 expected near end of file' "
	             "at byte 5 of the JSON text");
}
END_TEST

START_TEST(text_that_is_not_utf8_is_refused)
{
	refused("{\"w\xff\":{}}", 0,
	        INVALID
	        "'unable to decode byte 0xff near \\x27\"w\\x27' at byte 1 of the JSON text");
	refused("{\"w\\u0000\":{}}", 0,
	        INVALID "'\\x5cu0000 is not allowed without JSON_ALLOW_NUL near "
	                "\\x27\"w\\x5cu0000\"\\x27' at byte 1 of the JSON text");
	fault = (struct fault){0};
	catalog_init(&catalog);
	ck_assert_int_eq(parse_bytes(0, "{}\0\0", 4, 0), MOVER_E_FAULT);
	ck_assert_str_eq(fault.text, INVALID "more text behind the object");
	catalog_deinit(&catalog);
}
END_TEST

START_TEST(entries_must_be_whole)
{
	refused("{\"w\":1}", 0, IN_W "is not described by an object");
	refused("{\"w\":{}}", 0, IN_W "has no dtype");
	refused("{\"w\":{\"dtype\":\"U8\"}}", 0, IN_W "has no shape");
	refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, IN_W "has no data_offsets");
	refused("{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\\n\":1}}", 1,
	        IN_W "unknown field 'x\\x0a'");
	refused("{" T("w", "U8", "[1]", "[0,1]") "," T("w", "U8", "[1]", "[1,2]") "}", 2,
	        IN_W "named twice");
	refused("{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
	        1,
	        IN_W "the header is not valid: 'duplicate object key near \\x27\"dtype\"\\x27' at "
	             "byte 5 of the JSON text");
}
END_TEST

START_TEST(dtypes_are_checked)
{
	refused("{" T("w", "F17", "[1]", "[0,1]") "}", 1, IN_W "unknown dtype 'F17'");
	refused("{" T("w", "?", "[1]", "[0,1]") "}", 1, IN_W "unknown dtype '?'");
	refused("{" T("w", "u8", "[1]", "[0,1]") "}", 1, IN_W "unknown dtype 'u8'");
	refused("{\"w\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
	        IN_W "dtype is not a string");
}
END_TEST

START_TEST(shapes_are_checked)
{
	static const char not_whole[] = IN_W "shape is not an array of non-negative integers";
	refused("{" T("w", "U8", "1", "[0,1]") "}", 1, IN_W "shape is not an array");
	refused("{" T("w", "U8", "[-1]", "[0,1]") "}", 1, not_whole);
	refused("{" T("w", "U8", "[1.0]", "[0,1]") "}", 1, not_whole);
	refused("{" T("w", "U8", "[\\\"1\\\"]", "[0,1]") "}", 1,
	        IN_W
	        "the header is not valid: 'invalid token near \\x27\\x5c\\x27' at byte 5 of the "
	        "JSON text");
	refused("{" T("w", "U8", "[null]", "[0,1]") "}", 1, not_whole);
	refused("{" T("w", "U8", "[9223372036854775808]", "[0,1]") "}", 1,
	        IN_W
	        "the header is not valid: 'too big integer near \\x279223372036854775808\\x27' "
	        "at byte 5 of the JSON text");
	refused("{" T("w", "U8", "[9223372036854775807]", "[0,1]") "}", 1,
	        IN_W "the shape is too large");
	refused("{" T("w", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0,
	        IN_W "the shape is too large");
	refused("{" T("w", "F64", "[288230376151711744]", "[0,0]") "}", 0,
	        IN_W "the shape is too large");
	refused("{" T("w", "F4", "[3]", "[0,1]") "}", 1,
	        IN_W "12 bits are not a whole number of bytes");
	refused("{" T("w", "F6_E3M2", "[2]", "[0,1]") "}", 1,
	        IN_W "12 bits are not a whole number of bytes");
	refused("{" T("w", "U8",
	              "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
	              "[0,1]") "}",
	        1, IN_W "33 dimensions, at most 32 are allowed");
}
END_TEST

START_TEST(offsets_are_checked)
{
	static const char no_pair[] = IN_W "data_offsets is not a pair of non-negative integers";
	refused("{" T("w", "U8", "[1]", "1") "}", 1, no_pair);
	refused("{" T("w", "U8", "[1]", "[0]") "}", 1, no_pair);
	refused("{" T("w", "U8", "[1]", "[0,1,2]") "}", 1, no_pair);
	refused("{" T("w", "U8", "[1]", "[-1,0]") "}", 1, no_pair);
	refused("{" T("w", "U8", "[1]", "[0,1.5]") "}", 1, no_pair);
	refused("{" T("w", "U8", "[1]", "[1,0]") "}", 1,
	        IN_W "data_offsets end before they begin (1, 0)");
	refused("{" T("w", "U8", "[2]", "[0,2]") "}", 1,
	        IN_W "ends at byte 2 of the data, which has only 1");
	refused("{" T("w", "U8", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1,
	        IN_W "ends at byte 9223372036854775807 of the data, which has only 1");
	refused("{" T("w", "F32", "[2]", "[0,4]") "}", 4,
	        IN_W "shape and dtype make 8 bytes, data_offsets 4");
}
END_TEST

START_TEST(the_data_must_be_filled_exactly)
{
	refused("{" T("v", "U8", "[4]", "[0,4]") "," T("w", "U8", "[4]", "[3,7]") "}", 7,
	        IN_W "overlaps tensor 'v'");
	refused("{" T("v", "U8", "[4]", "[0,4]") "," T("w", "U8", "[4]", "[0,4]") "}", 4,
	        IN_W "overlaps tensor 'v'");
	refused("{" T("v", "U8", "[4]", "[0,4]") "," T("w", "U8", "[4]", "[6,10]") "}", 10,
	        IN_W "2 bytes in front of it belong to no tensor");
	refused("{" T("w", "U8", "[4]", "[1,5]") "}", 5,
	        IN_W "1 bytes in front of it belong to no tensor");
	refused("{" T("w", "U8", "[4]", "[0,4]") "}", 9,
	        IN_A "the last 5 bytes belong to no tensor");
	refused("{}", 1, IN_A "the last 1 bytes belong to no tensor");
	refused("{" T("v", "U8", "[4]", "[0,4]") "," T("w", "U8", "[0]", "[2,2]") "}", 4,
	        IN_W "overlaps tensor 'v'");
}
END_TEST

START_TEST(metadata_must_be_strings)
{
	refused("{\"__metadata__\":1}", 0, IN_A "__metadata__ is not an object");
	refused("{\"__metadata__\":{\"a\":1}}", 0, IN_A "__metadata__: 'a' is not a string");
	refused("{\"__metadata__\":{\"a\":\"b\",}}", 0,
	        INVALID "expected a string at byte 25 of the JSON text");
	refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, IN_A "__metadata__ is there twice");
}
END_TEST

START_TEST(names_are_bounded)
{
	char header[4096];
	char name[GLAKE_MAX_NAME_BYTES + 2];
	memset(name, 'n', sizeof(name));
	name[GLAKE_MAX_NAME_BYTES] = '\0';
	snprintf(header, sizeof(header),
	         "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
	accepted(header, 1);
	name[GLAKE_MAX_NAME_BYTES] = 'n';
	name[GLAKE_MAX_NAME_BYTES + 1] = '\0';
	snprintf(header, sizeof(header),
	         "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
	fault = (struct fault){0};
	catalog_init(&catalog);
	ck_assert_int_eq(parse(0, header, 1), MOVER_E_FAULT);
	ck_assert_ptr_nonnull(strstr(fault.text, "nnnn...': a name of 1025 bytes is too long, at "
	                                         "most 1024 are allowed"));
	catalog_deinit(&catalog);
}
END_TEST

START_TEST(names_are_escaped_in_texts)
{
	refused("{" T("\\u001b[31m\\u202e'", "X", "[1]", "[0,1]") "}", 1,
	        IN_A "tensor '\\x1b[31m\\xe2\\x80\\xae\\x27': unknown dtype 'X'");
}
END_TEST

START_TEST(a_name_may_be_in_one_file_only)
{
	catalog_init(&catalog);
	ck_assert_int_eq(parse(0, "{" T("w", "U8", "[1]", "[0,1]") "}", 1), 0);
	ck_assert_int_eq(parse(1, "{" T("w", "U8", "[1]", "[0,1]") "}", 1), 0);
	ck_assert_int_eq(catalog_finish(&catalog, names, &fault), MOVER_E_FAULT);
	ck_assert_ptr_nonnull(strstr(fault.text, "safetensors': tensor 'w': also in '"));
	catalog_deinit(&catalog);
}
END_TEST

/* ---- size does not hurt --------------------------------------------------------------------- */

static char *repeat(const char *head, const char *unit, size_t n, const char *tail, size_t *n_out)
{
	size_t n_head = strlen(head);
	size_t n_unit = strlen(unit);
	char *text = malloc(n_head + n * n_unit + strlen(tail) + 1);
	ck_assert_ptr_nonnull(text);
	memcpy(text, head, n_head);
	for (size_t i = 0; i < n; i++) {
		memcpy(text + n_head + i * n_unit, unit, n_unit);
	}
	strcpy(text + n_head + n * n_unit, tail);
	*n_out = strlen(text);
	return text;
}

START_TEST(large_values_are_refused_early)
{
	static const struct {
		const char *unit;
		const char *text;
	} cases[] = {
		{"0,",
	         IN_W "the header is not valid: a value is too long at byte 5 of the JSON text"},
		{"[",
	         IN_W "the header is not valid: 'maximum parsing depth reached near \\x27[\\x27' "
	              "at byte 5 of the JSON text"},
		{" ",
	         IN_W "the header is not valid: a value is too long at byte 5 of the JSON text"},
	};
	for (size_t i = 0; i < n_of(cases); i++) {
		size_t n_bytes;
		char *text = repeat("{\"w\":[", cases[i].unit, 20000000, "]}", &n_bytes);
		fault = (struct fault){0};
		catalog_init(&catalog);
		ck_assert_int_eq(parse_bytes(0, text, n_bytes, 0), MOVER_E_FAULT);
		ck_assert_str_eq(fault.text, cases[i].text);
		catalog_deinit(&catalog);
		free(text);
	}
}
END_TEST

START_TEST(the_number_of_tensors_is_bounded)
{
	struct tensor tensor = {.name = "w"};
	catalog_init(&catalog);
	for (unsigned i = 0; i < GLAKE_MAX_TENSORS; i++) {
		ck_assert_int_eq(catalog_add(&catalog, &tensor), 0);
	}
	fault = (struct fault){0};
	ck_assert_int_eq(parse(0, "{" T("w", "U8", "[1]", "[0,1]") "}", 1), MOVER_E_FAULT);
	ck_assert_str_eq(fault.text, IN_A "more than 1000000 tensors");
	catalog_deinit(&catalog);
}
END_TEST

/* ---- the index ------------------------------------------------------------------------------ */

static void two_shards(void)
{
	catalog_init(&catalog);
	ck_assert_int_eq(parse(0, "{" T("v", "U8", "[1]", "[0,1]") "}", 1), 0);
	ck_assert_int_eq(parse(1, "{" T("w", "U8", "[1]", "[0,1]") "}", 1), 0);
	ck_assert_int_eq(catalog_finish(&catalog, names, &fault), 0);
}

static int check_index(const char *text)
{
	return weight_index_check("i.json", text, strlen(text), &catalog, names, 2, &fault);
}

START_TEST(indexes_are_accepted)
{
	two_shards();
	ck_assert_int_eq(check_index("{\"weight_map\":{}}"), 0);
	ck_assert_int_eq(check_index(" {\"metadata\":{\"total_size\":2.0},\"weight_map\":{"
	                             "\"w\":\"b.safetensors\",\"v\":\"a.safetensors\"}}\n"),
	                 0);
	catalog_deinit(&catalog);
}
END_TEST

START_TEST(indexes_are_checked)
{
	static const struct {
		const char *index;
		const char *text;
	} cases[] = {
		{"", "'i.json': not valid: expected an object at byte 0 of the JSON text"},
		{"[]", "'i.json': not valid: expected an object at byte 0 of the JSON text"},
		{"{}", "'i.json': has no weight_map"},
		{"{\"weight_map\":[]}", "'i.json': weight_map is not an object"},
		{"{\"weight_map\":{\"v\":1}}",
	         "'i.json': not valid: expected a string at byte 19 of the JSON text"},
		{"{\"weight_map\":{\"v\":\"c\"}}",
	         "'i.json': tensor 'v': its file 'c' was not given"},
		{"{\"weight_map\":{\"x\":\"a.safetensors\"}}",
	         "'a.safetensors': tensor 'x': named by the index 'i.json' but not there"},
		{"{\"weight_map\":{\"w\":\"a.safetensors\"}}",
	         "'a.safetensors': tensor 'w': named by the index 'i.json' but not there"},
		{"{\"weight_map\":{},\"weight_map\":{}}", "'i.json': weight_map is there twice"},
		{"{\"weight_map\":{}} x", "'i.json': not valid: more text behind the object"},
	};
	two_shards();
	for (size_t i = 0; i < n_of(cases); i++) {
		fault = (struct fault){0};
		ck_assert_msg(check_index(cases[i].index) == MOVER_E_FAULT, "%s", cases[i].index);
		ck_assert_str_eq(fault.text, cases[i].text);
	}
	catalog_deinit(&catalog);
}
END_TEST
