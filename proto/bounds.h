/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks every request before protobuf-c decodes it.
 *
 * protobuf-c allocates for each field, so 64 KiB of empty submessages take milliseconds. Each type
 * of request has limits for the bytes of the packet and for its fields, submessages and unknown
 * fields included: the most that the client library sends, with room for the fields of later
 * versions. A packet may have only one body, because decoding merges duplicates.
 *
 * The check allocates nothing and visits each field once, up to the limit.
 * Threads: any.
 */
#ifndef GLAKE_PROTO_BOUNDS_H
#define GLAKE_PROTO_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

/*
 * Check a packet that should be a Request. Returns NULL if it may be decoded, which may still fail,
 * or a static text that says what is wrong.
 */
const char *bounds_check_request(const uint8_t *bytes, size_t n_bytes);

#endif
