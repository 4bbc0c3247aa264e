/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of HTML that need nothing else: no script, and nothing from elsewhere. Light or dark as the reader has it,
 * and readable on a phone.
 *
 * Threads: any.
 */
#ifndef GLAKE_CTL_HTML_H
#define GLAKE_CTL_HTML_H

#include <stdint.h>
#include <stdio.h>

/* Everything up to the body's first element. @css is added to what all pages have. */
void html_begin(FILE *out, const char *title, const char *css);
void html_end(FILE *out);

/* Foreign text: safe in elements and attributes, without control characters. */
void html_text(FILE *out, const char *text);
void html_size(FILE *out, uint64_t bytes);
/* "-" below 0. */
void html_percent(FILE *out, double ratio);

/* "node7, 2026-11-22 19:03:12 CET". */
void html_place(FILE *out, int64_t seconds);

#endif
