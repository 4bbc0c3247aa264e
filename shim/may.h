/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether somebody outside may have the program sealed, or put to sleep. The answer is no for a program whose fault may harm
 * others, and for one that may write past the shim. Other reasons not to sleep are found later: by shim/sleep.c, the library
 * (libclient/sleep/sleep.c) and glaked (daemon/holders/sleep_copy.c); docs/tiers.md has a table of all.
 *
 * Threads: any. Looks at the process's open files and mappings, and at the contexts of the session's memory.
 */
#ifndef GLAKE_SHIM_MAY_H
#define GLAKE_SHIM_MAY_H

#include <stddef.h>

struct glake_session;

/* Returns 0, or -EPERM or -EBUSY with the reason in @why. */
int may_seal(struct glake_session *session, char *why, size_t n_why);
int may_sleep(struct glake_session *session, char *why, size_t n_why);

#endif
