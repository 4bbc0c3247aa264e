/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/bounds.h"

#include <stdbool.h>

#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"
#include "proto/limits.h"

/* Room for the envelope, and for fields of later versions. */
#define SPARE_FIELDS 16u
#define SPARE_BYTES 256u
/* The longest varint, and so the longest number in a list. */
#define VARINT_BYTES 10u

struct bounds {
	uint32_t max_bytes;
	uint32_t max_fields; /* in the body, at all depths */
};

/* A list may come packed, as one field, or as a field for each number. */
#define NUMBERS(n) \
	{ \
		(n) * VARINT_BYTES + SPARE_BYTES, (n) + SPARE_FIELDS \
	}
#define SMALL \
	{ \
		SPARE_BYTES, SPARE_FIELDS \
	}
/* Names that are too long for glaked are still refused by an answer, unless they are absurd. */
#define NAMED \
	{ \
		4 * GLAKE_MAX_NAME_BYTES, SPARE_FIELDS \
	}

/* A DriverMemory: tag and length, and five numbers with their tags. */
#define DRIVER_FIELDS 6u
#define DRIVER_BYTES (2 + 5 * (1 + VARINT_BYTES))

/* An Unsealed, with some room. */
#define UNSEALED_FIELDS 3u
#define UNSEALED_BYTES (2 + 2 * (1 + VARINT_BYTES))

/* A PoolReport: tag and length, and fifteen numbers with their tags. */
#define POOL_FIELDS 16u
#define POOL_BYTES (4 + 15 * (1 + VARINT_BYTES))

/* A ReusableMemory: tag and length, and two numbers with their tags. */
#define REUSABLE_FIELDS 3u
#define REUSABLE_BYTES (3 + 2 * (1 + VARINT_BYTES))

/* An Alone: tag and length, five numbers with their tags, and a text. */
#define ALONE_FIELDS 7u
#define ALONE_BYTES (4 + 5 * (1 + VARINT_BYTES) + 4 + GLAKE_MAX_ALONE_WHY_BYTES)

/* A ChunkPart: tag and length, and five numbers with their tags. */
#define PART_FIELDS 6u
#define PART_BYTES (2 + 5 * (1 + VARINT_BYTES))

/* A Tensor and a WeightsBlocks, with their fields. */
#define TENSOR_FIELDS 7u
#define RUN_FIELDS 6u

/* A FaultSuspect: tag and length, a name with its own, and four numbers with their tags. */
#define SUSPECT_FIELDS 6u
#define SUSPECT_BYTES (3 + 3 + GLAKE_MAX_KERNEL_NAME_BYTES + 4 * (2 + VARINT_BYTES))

/* A Candidate. */
#define CANDIDATE_FIELDS 7u

/* A SleepStay. */
#define STAY_FIELDS 3u

static const struct bounds bounds_of[] = {
	[GLAKE__WIRE__REQUEST__BODY_HELLO] = {4 * GLAKE_MAX_NAME_BYTES +
                                                      (GLAKE_MAX_UNANSWERED + GLAKE_MAX_RELEASED) *
                                                              VARINT_BYTES,
                                              GLAKE_MAX_UNANSWERED + GLAKE_MAX_RELEASED +
                                                      SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_GOODBYE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_PING] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC] = {(GLAKE_MAX_ALSO + 1) * PART_BYTES + SPARE_BYTES,
                                                    (GLAKE_MAX_ALSO + 1) * PART_FIELDS +
                                                            SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE] = NUMBERS(GLAKE_MAX_FREED_CHUNKS),
	/* One number too many is refused by an answer. */
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_SHARE] = NUMBERS(GLAKE_MAX_PACKET_FDS + 1),
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_OPEN] = NUMBERS(GLAKE_MAX_PACKET_FDS + 1),
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_KEEP] = {GLAKE_MAX_PACKET_BYTES,
                                                   GLAKE_MAX_PACKET_FDS + 1 + SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_UNKEEP] = NUMBERS(GLAKE_MAX_PACKET_FDS + 1),
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_ADOPT] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_READ] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_DRAIN] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT] =
		{(GLAKE_MAX_REPORTED_DEVICES + 1) * (DRIVER_BYTES + POOL_BYTES + REUSABLE_BYTES) +
                         GLAKE_N_UNSEALED * UNSEALED_BYTES + ALONE_BYTES + SPARE_BYTES,
                 (GLAKE_MAX_REPORTED_DEVICES + 1) *
                                 (DRIVER_FIELDS + POOL_FIELDS + REUSABLE_FIELDS) +
                         GLAKE_N_UNSEALED *UNSEALED_FIELDS + ALONE_FIELDS + SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_FAULT_REPORT] = {(GLAKE_MAX_SUSPECTS + 1) * SUSPECT_BYTES +
                                                             SPARE_BYTES,
                                                     (GLAKE_MAX_SUSPECTS + 1) * SUSPECT_FIELDS +
                                                             SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN] = {GLAKE_MAX_PACKET_BYTES,
                                                   GLAKE_MAX_PACKET_FDS + SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_TENSORS] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_MODEL_CLOSE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_PUBLISH] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LOOKUP] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_RELEASE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_WEIGHTS_PUBLISH] = {GLAKE_MAX_PACKET_BYTES,
                                                        GLAKE_PAGE_TENSORS *TENSOR_FIELDS +
                                                                GLAKE_PAGE_RUNS *RUN_FIELDS +
                                                                SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_WEIGHTS_ATTACH] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_STATUS_GET] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_DEVICE_GET] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_STATS_GET] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_SESSION_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_TENANT_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_MODEL_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_EVENT_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_USE_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_PIN] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_EVICT] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_QUOTA_SET] = NAMED,
	[GLAKE__WIRE__REQUEST__BODY_SESSION_SEAL] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_SEAL_PROGRESS] =
		{GLAKE_MAX_PACKET_BYTES, GLAKE_MAX_STAYS *STAY_FIELDS +
                                                 GLAKE_MAX_CANDIDATES *CANDIDATE_FIELDS +
                                                 GLAKE_MAX_REASONS + 2 * SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_COPY] = NUMBERS(GLAKE_MAX_SLEPT + 1),
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_ENTER] = {4 * GLAKE_MAX_NAME_BYTES,
                                                    GLAKE_MAX_STAYS *STAY_FIELDS + SPARE_FIELDS},
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_LEAVE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_PROMISE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_SESSION_SLEEP] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_SLEEPER_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_MISTAKE_LIST] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_MISTAKE_FORGIVE] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_READERS_GET] = SMALL,
	[GLAKE__WIRE__REQUEST__BODY_LAYOUT_LIST] = SMALL,
};

/* The bounds of a request of a later version, which is refused and not decoded. */
static const struct bounds bounds_of_unknown = {GLAKE_MAX_PACKET_BYTES, 0};

struct field {
	uint32_t number;
	bool is_counted; /* the field has a length, so it may be a message */
	const uint8_t *at;
	size_t n_bytes;
};

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *value_out)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < VARINT_BYTES && *at < end; i++) {
		uint8_t byte = *(*at)++;
		value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80) {
			*value_out = value;
			return true;
		}
	}
	return false;
}

/* False: there is no whole field. Groups count as none, as protobuf-c does not accept them either. */
static bool read_field(const uint8_t **at, const uint8_t *end, struct field *field_out)
{
	uint64_t tag;
	uint64_t value;
	if (!read_varint(at, end, &tag) || tag > UINT32_MAX) {
		return false;
	}
	*field_out = (struct field){.number = (uint32_t)(tag >> 3)};
	uint64_t n_bytes = 0;
	switch (tag & 7) {
	case PROTOBUF_C_WIRE_TYPE_VARINT:
		return read_varint(at, end, &value);
	case PROTOBUF_C_WIRE_TYPE_64BIT:
		n_bytes = 8;
		break;
	case PROTOBUF_C_WIRE_TYPE_32BIT:
		n_bytes = 4;
		break;
	case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
		if (!read_varint(at, end, &n_bytes)) {
			return false;
		}
		field_out->is_counted = true;
		break;
	default:
		return false;
	}
	if (n_bytes > (size_t)(end - *at)) {
		return false;
	}
	field_out->at = *at;
	field_out->n_bytes = n_bytes;
	*at += n_bytes;
	return true;
}

/* NULL: the field is no message that we know. */
static const ProtobufCMessageDescriptor *message_of(const ProtobufCMessageDescriptor *type,
                                                    const struct field *field)
{
	const ProtobufCFieldDescriptor *known = field->is_counted
	                                                ? protobuf_c_message_descriptor_get_field(
								  type, field->number)
	                                                : NULL;
	return known && known->type == PROTOBUF_C_TYPE_MESSAGE ? known->descriptor : NULL;
}

static const char malformed[] = "it is no message";

/* The recursion is as deep as the schema, which is not recursive. */
static const char *count_fields(const ProtobufCMessageDescriptor *type, const uint8_t *at,
                                size_t n_bytes, uint32_t *n_left)
{
	const uint8_t *end = at + n_bytes;
	const char *error = NULL;
	while (at < end && !error) {
		struct field field;
		if (!read_field(&at, end, &field)) {
			return malformed;
		}
		if (*n_left == 0) {
			return "more fields than a request of its type may have";
		}
		--*n_left;
		const ProtobufCMessageDescriptor *inner = message_of(type, &field);
		if (inner) {
			error = count_fields(inner, field.at, field.n_bytes, n_left);
		}
	}
	return error;
}

const char *bounds_check_request(const uint8_t *bytes, size_t n_bytes)
{
	const ProtobufCMessageDescriptor *body_type = NULL;
	struct field body = {.number = 0};
	const uint8_t *at = bytes;
	for (uint32_t i = 0; at < bytes + n_bytes; i++) {
		struct field field;
		if (!read_field(&at, bytes + n_bytes, &field)) {
			return malformed;
		}
		if (i == SPARE_FIELDS) {
			return "more fields than a request may have";
		}
		const ProtobufCMessageDescriptor *type = message_of(
			&glake__wire__request__descriptor, &field);
		if (type && body_type) {
			return "more than one request in it";
		}
		if (type) {
			body_type = type;
			body = field;
		}
	}
	const struct bounds *bounds = body.number < n_elements(bounds_of) && body_type
	                                      ? &bounds_of[body.number]
	                                      : &bounds_of_unknown;
	if (n_bytes > bounds->max_bytes) {
		return "more bytes than a request of its type may have";
	}
	uint32_t n_left = bounds->max_fields;
	return body_type ? count_fields(body_type, body.at, body.n_bytes, &n_left) : NULL;
}
