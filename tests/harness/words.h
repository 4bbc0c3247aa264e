/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory whose words tell where they are and of which content (a number), sealing it, and having it asleep. By `drv`, after
 * words_open_driver().
 *
 * Owner: one Check test. Threads: any.
 */
#ifndef GLAKE_TESTS_HARNESS_WORDS_H
#define GLAKE_TESTS_HARNESS_WORDS_H

#include "tests/harness/world.h"

/* And make the first device's context current. */
void words_open_driver(void);

void words_write(glake_ptr ptr, uint64_t n_bytes, uint64_t content);
bool words_are(glake_ptr ptr, uint64_t n_bytes, uint64_t content);
void words_check(glake_ptr ptr, uint64_t n_bytes, uint64_t content);

/* New memory, written. */
glake_ptr words_alloc(struct glake_session *session, uint64_t n_bytes, uint64_t content);

/* Having written a word: is it private? */
bool words_can_write(glake_ptr ptr);

struct glake_sealed words_seal(glake_ptr ptr, uint64_t n_bytes);

/* All of @session's memory that can leaves the device. */
struct glake_slept words_fall_asleep(struct glake_session *session);

/* In glaked's books, private and of blocks. */
uint64_t words_device_bytes(void);

#endif
