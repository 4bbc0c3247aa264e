/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is a packet worth decoding? Asked of every request before protobuf-c sees it.
 *
 * protobuf-c allocates for each field, so that 64 KiB of empty submessages take it milliseconds.
 * Each type of request has its limits: bytes of the packet, and fields in it, those of submessages
 * and those that we do not know included. They are what the client library sends at most, with
 * room for the fields of later versions. Only one body is taken: decoding merges what comes twice.
 *
 * Nothing is allocated; a packet costs one look at each field, up to the limit.
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
