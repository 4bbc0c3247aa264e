/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uthash that reports a lack of memory instead of ending the process.
 *
 * Include this and never <uthash.h>. Check hash_has(element) after each HASH_ADD: if it is false,
 * there was no memory, and the table is unchanged.
 */
#ifndef GLAKE_DAEMON_HASH_H
#define GLAKE_DAEMON_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define hash_has(element) ((element)->hh.tbl != NULL)

#endif
