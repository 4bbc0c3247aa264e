/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/access.h"

#include "libclient/space/map.h"

int glake__access_set(glake_ptr ptr, uint64_t n_bytes, uint64_t readers, uint64_t writers,
                      enum glake__access access)
{
	uint64_t may_write = access == GLAKE__ACCESS_WRITE ? writers & readers : 0;
	uint64_t may_read = access == GLAKE__ACCESS_NONE ? 0 : readers & ~may_write;
	int r = may_write ? glake__map_access(ptr, n_bytes, may_write, GLAKE__ACCESS_WRITE) : 0;
	return r == 0 && may_read ? glake__map_access(ptr, n_bytes, may_read, GLAKE__ACCESS_READ)
	                          : r;
}

uint64_t glake__access_writers(const struct glake__piece *piece)
{
	return piece->range->use->is_programs ? piece->writers : piece->readers;
}

bool glake__access_touches(const struct glake__piece *piece, const struct glake__piece *next)
{
	return piece->range == next->range && piece->offset + piece->n_bytes == next->offset &&
	       piece->readers == next->readers &&
	       glake__access_writers(piece) == glake__access_writers(next);
}
