/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes text from a client safe to show: valid UTF-8 (RFC 3629) without control characters. Each
 * other byte becomes '?'.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_TEXT_H
#define GLAKE_DAEMON_TEXT_H

void text_clean(char *text);

/* A cleaned copy for the caller to free(). NULL: no memory. */
char *text_clean_copy(const char *text);

#endif
