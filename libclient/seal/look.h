/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at the memory that is to be sealed or unsealed: when it is planned, and again when it is held.
 *
 * The allocation is held (held.h), but not every use can keep it in place: of what a program maps itself, pieces may go
 * and others come from one step to the next. So addresses are looked up anew each time. Whoever plans remembers the
 * number of the last mapping; a piece with a higher one is not what was planned.
 *
 * Threads: any; the lock is taken.
 */
#ifndef GLAKE_LIBCLIENT_SEAL_LOOK_H
#define GLAKE_LIBCLIENT_SEAL_LOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/seal/sessions.h"
#include "libclient/space/held.h"
#include "libclient/space/range.h"

/* One piece. Where there is none of the use that is held: a page, as a hole. */
struct glake__look {
	glake_ptr ptr;
	uint64_t n_bytes;
	enum glake__page_kind kind;
	enum glake__pin pin;
	struct glake__device *device; /* whose memory it is; NULL: not glaked's */
	uint64_t id;                  /* of its chunk or block in the session of the device */
	uint64_t readers;             /* devices that have access, here */
	bool is_unfinished;
	bool is_beside;    /* other memory than what is held lies in it, too */
	bool is_elsewhere; /* its chunk has another place as well, which is not the library's own */
};
/* Enters the session of what is there. */
struct glake__look glake__look_at(const struct glake__held *held, glake_ptr ptr,
                                  struct glake__sessions *sessions);

/*
 * Can it become a block? Where other memory lies in the piece, only if the gate holds back the work on that, too: the
 * caller has waited for the work on his own.
 */
bool glake__look_is_open(const struct glake__look *look);

/* Why a chunk cannot. Static. */
const char *glake__look_why(const struct glake__look *look);

/* The number of the last mapping that was made. */
uint64_t glake__look_last(void);

/*
 * Does @hold have exactly what is at [ptr, ptr + n_bytes), whole chunks, and were they there when @last was the last
 * mapping? And if they are several, has each no place but this one? *pin_out is why one is pinned.
 */
bool glake__look_is_still(const struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes,
                          uint64_t last, enum glake__pin *pin_out);

#endif
