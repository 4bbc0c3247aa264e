/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte counts as people write them.
 *
 * A count is decimal digits and a unit: B, KiB, MiB, GiB, TiB (powers of 1024), the same
 * without "iB", kB, MB, GB, TB (powers of 1000), or none, which is bytes. One space may stand between. No fractions, no signs.
 *
 * Threads: any.
 */
#ifndef GLAKE_PROTO_SIZE_H
#define GLAKE_PROTO_SIZE_H

#include <stdint.h>

/* Returns 0, -EINVAL (not a size), or -ERANGE (does not fit 64 bits). */
int size_parse(const char *text, uint64_t *bytes_out);

#endif
