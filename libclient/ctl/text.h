/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and names as people read and write them.
 *
 * Threads: any.
 */
#ifndef GLAKE_CTL_TEXT_H
#define GLAKE_CTL_TEXT_H

#include <stddef.h>
#include <stdint.h>

#define TEXT_NUMBER_BYTES 32u

/* "0", "512 B", "1.5 KiB", "24.0 GiB": three digits or more, rounded to nearest. */
void text_size(uint64_t bytes, char text_out[TEXT_NUMBER_BYTES]);

/* "950 ms", "12.3 s", "4m 10s", "3h 05m", "12d 4h". */
void text_duration(uint64_t ms, char text_out[TEXT_NUMBER_BYTES]);

/* "2026-11-22 19:03:12", the local time; "?". @ms since 1970. */
void text_time(uint64_t ms, char text_out[TEXT_NUMBER_BYTES]);

/*
 * "24GiB", "1.5 MiB", "2GB", "4096", "none". A unit is B, KiB, MiB, GiB, TiB, the same without "iB", or kB,
 * MB, GB, TB (powers of 1000); "none" is 0, and a plain 0 is refused, since to glaked 0 means "no limit". Returns 0 or -EINVAL.
 */
int text_parse_size(const char *text, uint64_t *bytes_out);

/* Decimal digits only, at most @max. Returns 0 or -EINVAL. */
int text_parse_count(const char *text, uint64_t max, uint64_t *count_out);

/*
 * A copy of @text that a terminal cannot be steered by: control characters (C1 and the ones that
 * turn the direction of writing included), backslashes and bytes that are not UTF-8 become \xNN.
 * The caller frees it. NULL: no memory.
 */
char *text_escape(const char *text);

/* Columns of UTF-8 text on a terminal. */
size_t text_width(const char *text);

/* Bytes at the beginning of the text that have room in @columns. */
size_t text_fitting(const char *text, size_t columns);

/* Before text_width(), and before a library that shows text: how wide characters are is part of the locale. */
void text_set_locale(void);

/*
 * Cut UTF-8 text to @columns code points, 5 at least, as long as it is longer: "..." stands for its middle, since
 * beginning and end tell names apart.
 */
void text_shorten(char *text, size_t columns);

/* Is it UTF-8 throughout? */
int text_is_utf8(const char *text);

#endif
