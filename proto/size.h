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

#define SIZE_TEXT_BYTES 48u

/* "0", "512 B", "1.5 KiB", "24.0 GiB": rounded to nearest. Returns @text. */
const char *size_text(uint64_t bytes, char text[SIZE_TEXT_BYTES]);
/* "4.8 of 6.0 GiB", "512.0 MiB of 6.0 GiB". Returns @text. */
const char *size_text_of(uint64_t used, uint64_t limit, char text[SIZE_TEXT_BYTES]);

#endif
