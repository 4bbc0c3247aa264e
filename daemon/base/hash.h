/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uthash, where no memory is an answer and not the end of the process.
 *
 * Include this and never <uthash.h>. After each HASH_ADD ask hash_has(element): when it is false there
 * was no memory, the element is not in the table, and the table is as it was.
 */
#ifndef GLAKE_DAEMON_HASH_H
#define GLAKE_DAEMON_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define hash_has(element) ((element)->hh.tbl != NULL)

#endif
