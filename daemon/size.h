/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte counts as people write them.
 *
 * A count is decimal digits and a unit: B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB
 * (powers of 1000), or none, which is bytes. One space may stand between. No fractions, no signs.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_SIZE_H
#define GLAKE_DAEMON_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* Enough for any size_format(). */
#define SIZE_TEXT_BYTES 32u

/* Returns 0, -EINVAL (not a size), or -ERANGE (does not fit 64 bits). */
int size_parse(const char *text, uint64_t *bytes_out);

/* "24.0 GiB", for log lines and error texts: rounded to a tenth, down, so not for size_parse(). */
void size_format(uint64_t bytes, char text_out[SIZE_TEXT_BYTES]);

#endif
