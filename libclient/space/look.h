/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at an address: which memory is there, and what pins it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_LOOK_H
#define GLAKE_LIBCLIENT_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"
#include "libclient/link/why.h"
#include "libclient/space/kind.h"

struct glake__address_info {
	enum glake__address_kind kind;
	glake_ptr address; /* of the range, unless it is free */
	uint64_t n_bytes;
	void *user; /* glake__opened_set_user() */
};
struct glake__address_info glake__space_look(glake_ptr address);

/* Attach @user to memory of glake_share_open(), for glake__space_look(). */
void glake__opened_set_user(glake_ptr address, void *user);

/* The pin of the memory at @address; GLAKE__PIN_NONE also for memory that is not ours. */
enum glake__pin glake__pin_at(glake_ptr address);

/* Where something of ours may begin behind @address, which nothing has; at most @end, however far that is. */
glake_ptr glake__next_place_locked(glake_ptr address, glake_ptr end);

/* Does a guard stand somewhere in [address, address + n_bytes), or a second place? To whoever gives memory another name it is a hole. */
bool glake__has_guard(glake_ptr address, uint64_t n_bytes);

/*
 * Note that memory in [address, address + n_bytes) is pinned for reason @pin, or no longer is, but for blocks, which
 * could not become private then, and for guards. Waits for changes of it that are under way. Returns whether some of it was pinned for that reason.
 */
bool glake__pin_range(glake_ptr address, uint64_t n_bytes, enum glake__pin pin, bool is_pinned);

#endif
