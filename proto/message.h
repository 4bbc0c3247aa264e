/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message as an expression: a pointer to it, until the end of the block.
 *
 * A field that is not named is absent: strings are NULL, which is packed as an empty one.
 */
#ifndef GLAKE_PROTO_MESSAGE_H
#define GLAKE_PROTO_MESSAGE_H

#include <protobuf-c/protobuf-c.h>

#define MESSAGE(Type, descriptor, ...) \
	(&(Type){.base = PROTOBUF_C_MESSAGE_INIT(&(descriptor)), __VA_ARGS__})

#endif
