/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as expressions: pointers to messages that live until the end of the block.
 *
 *     REQUEST(CHUNK_FREE, ChunkFree, chunk_free, .ids = ids, .n_ids = 3)
 *     REQUEST_OF(CHUNK_FREE, chunk_free, &body)
 *
 * A field that is not named is absent: strings are NULL, which is packed as an empty one.
 */
#ifndef GLAKE_PROTO_REQUEST_H
#define GLAKE_PROTO_REQUEST_H

#include "proto/glake.pb-c.h"

#define REQUEST_OF(CASE, member, body) \
	(&(Glake__Wire__Request){ \
		.base = PROTOBUF_C_MESSAGE_INIT(&glake__wire__request__descriptor), \
		.body_case = GLAKE__WIRE__REQUEST__BODY_##CASE, \
		.member = (body)})

#define REQUEST(CASE, Type, member, ...) \
	REQUEST_OF(CASE, member, \
	           (&(Glake__Wire__##Type){ \
			   .base = PROTOBUF_C_MESSAGE_INIT(&glake__wire__##member##__descriptor), \
			   ##__VA_ARGS__}))

#endif
