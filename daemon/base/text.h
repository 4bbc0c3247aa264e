/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that comes from a client, made fit to be shown: valid UTF-8 (RFC 3629) without control
 * characters. What is not becomes '?', byte by byte.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_TEXT_H
#define GLAKE_DAEMON_TEXT_H

void text_clean(char *text);

/* A cleaned copy for the caller to free(). NULL: no memory. */
char *text_clean_copy(const char *text);

#endif
