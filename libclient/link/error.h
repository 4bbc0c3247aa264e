/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of this thread's last failure.
 *
 * The function that decides that something is an error sets the text, once; its callers return the
 * code unchanged.
 *
 * Owner: the library; one buffer per thread.
 * Lifetime: until the thread's next failure. Success clears nothing.
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ERROR_H
#define GLAKE_LIBCLIENT_ERROR_H

#include <stdint.h>

#include "libclient/glake.h"

/* Set the text and return @code: `return glake__fail(-EINVAL, "..."`. Keeps errno. */
int glake__fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Put this thread's text aside while something unrelated runs, and back. The copy is owned by the
 * caller until it is restored; NULL (no memory, or no text) restores to what is there.
 */
char *glake__error_save(void);
void glake__error_restore(char *text);

/* The public code for a status number of an answer; 0 for OK. */
int glake__code_of_status(uint32_t status);

#endif
