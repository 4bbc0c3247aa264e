/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A raw connection to glaked: packets as a client library would never send them, and answers as
 * they come.
 *
 * Owner: the test. Threads: one. Failures are failed Check assertions, unless returned.
 */
#ifndef GLAKE_TESTS_HARNESS_CONNECTION_H
#define GLAKE_TESTS_HARNESS_CONNECTION_H

#include <stdint.h>

#include "proto/fdlist.h"
#include "proto/request.h"
#include "tests/harness/harness.h"

/* Connect a socket, close-on-exec, for the caller to close; connection_close_all() closes it after each world. */
int connection_open(const struct harness *harness);

/* Like connection_open(), but returns -errno instead of failing. */
int connection_try_open(const struct harness *harness);

/* Say Hello on a connection, in the protocol's @version. Returns the answer's status. */
Glake__Wire__Status connection_greet(int connection, uint32_t version);

/* The fields of a Hello; after the call those of its answer. */
struct connection_identity {
	uint32_t version;
	bool has_key; /* the key is an existing session's */
	uint8_t key[GLAKE_KEY_BYTES];
	uint64_t image;
	uint64_t *unanswered; /* borrowed */
	size_t n_unanswered;
	uint64_t session;
};

/* Like connection_greet(), with that identity. */
Glake__Wire__Status connection_greet_as(int connection, struct connection_identity *identity);

/* Say Hello, in the protocol's newest version. Returns the request's id: the answer is not waited for. */
uint64_t connection_send_hello(int connection);

/* Connect and say Hello, which must be accepted. */
int connection_hello(const struct harness *harness);

/* Like connection_hello(), with that identity, in the protocol's newest version. */
int connection_hello_as(const struct harness *harness, struct connection_identity *identity);

/* Connect and say Hello, again and again, until that is accepted. The caller closes the connection. */
int connection_await_hello(const struct harness *harness);

/* Say Goodbye. glaked may be slow, so the answer is not waited for. */
void connection_goodbye(int connection);

/* Say Goodbye, and close the connection; does nothing for -1. */
void connection_close(int *connection);

/* Close all connections that this process has opened and not closed. */
void connection_close_all(void);

/* Close the connection as if it were lost: while this process lives, glaked keeps what the session has. */
void connection_drop(int *connection);

/* Send bytes as one packet. Returns 0, WIRE_E_EOF or -errno. */
int connection_send_bytes(int connection, const void *bytes, size_t n_bytes, const int *fds,
                          size_t n_fds);

/* Send a request. @request->id 0 is replaced by a number of its own. Returns the id. */
uint64_t connection_send(int connection, Glake__Wire__Request *request, const int *fds,
                         size_t n_fds);

/*
 * Receive the next answer or notice, within HARNESS_TIMEOUT_MS. Its fds go to @fds (initialised, empty) or, with
 * NULL, are closed. Free it with connection_free(). Returns NULL when glaked closed the connection.
 */
Glake__Wire__Answer *connection_receive(int connection, struct fdlist *fds);

/* Receive the answer to request @id; notices are skipped. Fails when the connection is closed. */
Glake__Wire__Answer *connection_receive_for(int connection, uint64_t id, struct fdlist *fds);

/* The status of the answer to request @id, whose fds are closed. */
Glake__Wire__Status connection_status_of(int connection, uint64_t id);

void connection_free(Glake__Wire__Answer *answer);

/* Send and wait for the answer. */
Glake__Wire__Answer *connection_call(int connection, Glake__Wire__Request *request, const int *fds,
                                     size_t n_fds, struct fdlist *fds_out);

/* Send and wait. Returns the answer's status; its fds are closed. */
Glake__Wire__Status connection_status(int connection, Glake__Wire__Request *request, const int *fds,
                                      size_t n_fds);

/* Send a Ping on this session, which glaked must answer. */
void connection_ping(int connection);

/* glaked must close the connection, after at most some answers that were under way. */
void connection_expect_closed(int connection);

/* Request @n_chunks chunks on @device. Ids go to @ids_out, fds (owned by the caller) to @fds; with NULL they are closed. */
Glake__Wire__Status connection_alloc(int connection, uint32_t device, uint64_t chunk_bytes,
                                     uint32_t n_chunks, uint64_t *ids_out, struct fdlist *fds);

/*
 * Free chunks, or name them for other sessions: the ticket goes to @ticket_out, unless that is NULL. Both return
 * the answer's status.
 */
Glake__Wire__Status connection_free_chunks(int connection, uint64_t *ids, size_t n_ids);
Glake__Wire__Status connection_share(int connection, uint64_t *ids, size_t n_ids,
                                     uint64_t *ticket_out);

/* Make a block of a chunk, or release a block. Both return the answer's status. */
Glake__Wire__Status connection_publish(int connection, uint64_t chunk, uint64_t content_bytes);
Glake__Wire__Status connection_release(int connection, uint64_t block);

/* The private bytes of all sessions on all devices. */
uint64_t connection_private_bytes(int connection);

/* Wait until these are @n_bytes. */
void connection_await_private(int connection, uint64_t n_bytes);

/* One counter of StatsGet, by name. */
uint64_t connection_counter(int connection, const char *name);

#endif
