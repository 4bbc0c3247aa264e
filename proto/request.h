/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as expressions (message.h).
 *
 *     REQUEST(CHUNK_FREE, ChunkFree, chunk_free, .ids = ids, .n_ids = 3)
 *     REQUEST_OF(CHUNK_FREE, chunk_free, &body)
 */
#ifndef GLAKE_PROTO_REQUEST_H
#define GLAKE_PROTO_REQUEST_H

#include "proto/glake.pb-c.h"
#include "proto/message.h"

#define REQUEST_OF(CASE, member, body) \
	MESSAGE(Glake__Wire__Request, glake__wire__request__descriptor, \
	        .body_case = GLAKE__WIRE__REQUEST__BODY_##CASE, .member = (body))

#define REQUEST(CASE, Type, member, ...) \
	REQUEST_OF(CASE, member, \
	           MESSAGE(Glake__Wire__##Type, glake__wire__##member##__descriptor, __VA_ARGS__))

#endif
