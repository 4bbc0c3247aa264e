/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory each word of which tells its place and its content (a number). Tests write, seal and check it, and let it sleep, by
 * `drv`, after words_open_driver().
 *
 * Owner: one Check test. Threads: any.
 */
#ifndef GLAKE_TESTS_HARNESS_WORDS_H
#define GLAKE_TESTS_HARNESS_WORDS_H

#include "tests/harness/world.h"

/* Open the driver (world.h), and make the first device's context current. */
void words_open_driver(void);
/* Memory is written and read in a context of its device. */
void words_use_device(int ordinal);

void words_write(glake_ptr ptr, uint64_t n_bytes, uint64_t content);
bool words_are(glake_ptr ptr, uint64_t n_bytes, uint64_t content);
void words_check(glake_ptr ptr, uint64_t n_bytes, uint64_t content);

/* Allocate memory, and write @content. */
glake_ptr words_alloc(struct glake_session *session, uint64_t n_bytes, uint64_t content);

/* Write a word. Is the memory private? */
bool words_can_write(glake_ptr ptr);

struct glake_sealed words_seal(glake_ptr ptr, uint64_t n_bytes);

/* Put all of @session's memory to sleep that can leave the device. */
struct glake_slept words_fall_asleep(struct glake_session *session);

/* The bytes of private memory and blocks on the devices, by glaked. */
uint64_t words_device_bytes(void);

#endif
