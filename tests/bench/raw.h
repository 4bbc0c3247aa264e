/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions without the client library, for benchmarks of the daemon: the cheapest client there can
 * be, many in one thread. It maps nothing and closes the fds it is given.
 *
 * Threads: any; a socket belongs to one.
 */
#ifndef GLAKE_BENCH_RAW_H
#define GLAKE_BENCH_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/glake.pb-c.h"

/* Enough for every request made here. */
#define RAW_REQUEST_BYTES 512u

/* Connect and say Hello; the answer has come. Ends the program on failure. Returns the socket. */
int raw_connect(const char *socket_path, const char *program);

/* Say Goodbye and close: without it glaked keeps the session for as long as this process lives. */
void raw_close(int socket);

/* Pack into @bytes_out, which has room for RAW_REQUEST_BYTES. Each returns the length. */
size_t raw_pack_ping(uint64_t id, uint8_t *bytes_out);
size_t raw_pack_chunk_alloc(uint64_t id, uint64_t chunk_bytes, uint32_t n_chunks,
                            uint8_t *bytes_out);
size_t raw_pack_chunk_free(uint64_t id, uint64_t *chunks, size_t n_chunks, uint8_t *bytes_out);

/*
 * Receive an answer, close its fds. NULL: nothing there (with MSG_DONTWAIT in @flags), or the
 * connection has ended, *is_gone_out then. The caller frees it.
 */
Glake__Wire__Answer *raw_receive(int socket, int flags, bool *is_gone_out);
void raw_free(Glake__Wire__Answer *answer);

#endif
