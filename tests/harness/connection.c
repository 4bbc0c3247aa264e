/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/connection.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

#define MAX_OPENED 8192u

/* The connections of the test's process. An fd that has become another file's is not ours any more. */
static struct {
	int fd;
	ino_t socket;
} opened[MAX_OPENED];
static size_t n_opened;

static ino_t socket_of(int fd)
{
	struct stat stat;
	return fstat(fd, &stat) == 0 ? stat.st_ino : 0;
}

static void note_opened(int fd)
{
	if (n_opened < MAX_OPENED) {
		opened[n_opened].fd = fd;
		opened[n_opened++].socket = socket_of(fd);
	}
}

static void forget(int fd)
{
	for (size_t i = 0; i < n_opened; i++) {
		if (opened[i].fd == fd) {
			opened[i] = opened[--n_opened];
			return;
		}
	}
}

int connection_try_open(const struct harness *harness)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	ck_assert_uint_lt(strlen(harness->socket_path), sizeof(address.sun_path));
	strcpy(address.sun_path, harness->socket_path);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		return -errno;
	}
	note_opened(fd);
	return fd_steal(&fd);
}

int connection_open(const struct harness *harness)
{
	int fd = connection_try_open(harness);
	ck_assert_msg(fd >= 0, "%s: %s", harness->socket_path, strerror(-fd));
	return fd;
}

static uint64_t send_hello_as(int connection, struct connection_identity *identity)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = identity->version;
	hello.program = (char *)"test";
	hello.image = identity->image;
	hello.key.data = identity->key;
	hello.key.len = identity->has_key ? sizeof(identity->key) : 0;
	hello.unanswered = identity->unanswered;
	hello.n_unanswered = identity->n_unanswered;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	return connection_send(connection, &request, NULL, 0);
}

uint64_t connection_send_hello(int connection)
{
	struct connection_identity identity = {.version = GLAKE_WIRE_VERSION};
	return send_hello_as(connection, &identity);
}

Glake__Wire__Status connection_greet_as(int connection, struct connection_identity *identity)
{
	uint64_t id = send_hello_as(connection, identity);
	Glake__Wire__Answer *answer = connection_receive_for(connection, id, NULL);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK) {
		identity->session = answer->hello->session;
		identity->has_key = true;
		ck_assert_uint_eq(answer->hello->key.len, sizeof(identity->key));
		memcpy(identity->key, answer->hello->key.data, sizeof(identity->key));
	}
	connection_free(answer);
	return status;
}

Glake__Wire__Status connection_greet(int connection, uint32_t version)
{
	struct connection_identity identity = {.version = version};
	return connection_greet_as(connection, &identity);
}

int connection_hello_as(const struct harness *harness, struct connection_identity *identity)
{
	int connection = connection_open(harness);
	identity->version = GLAKE_WIRE_VERSION;
	ck_assert_int_eq(connection_greet_as(connection, identity), GLAKE__WIRE__STATUS__OK);
	return connection;
}

int connection_hello(const struct harness *harness)
{
	struct connection_identity identity = {0};
	return connection_hello_as(harness, &identity);
}

int connection_await_hello(const struct harness *harness)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	for (;;) {
		int again = connection_open(harness);
		if (connection_greet(again, GLAKE_WIRE_VERSION) == GLAKE__WIRE__STATUS__OK) {
			return again;
		}
		connection_close(&again);
		ck_assert_uint_lt(harness_now_ms(), end_ms);
	}
}

void connection_drop(int *connection)
{
	forget(*connection);
	fd_close(connection);
}

void connection_goodbye(int connection)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Goodbye goodbye = GLAKE__WIRE__GOODBYE__INIT;
	uint8_t bytes[64];
	request.id = UINT64_MAX;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_GOODBYE;
	request.goodbye = &goodbye;
	size_t n_bytes = glake__wire__request__pack(&request, bytes);
	wire_send(connection, bytes, n_bytes, NULL, 0, MSG_DONTWAIT);
}

void connection_close(int *connection)
{
	if (*connection >= 0) {
		connection_goodbye(*connection);
	}
	connection_drop(connection);
}

void connection_close_all(void)
{
	while (n_opened > 0) {
		int fd = opened[n_opened - 1].fd;
		if (socket_of(fd) == opened[n_opened - 1].socket) {
			connection_close(&fd);
		} else {
			n_opened--;
		}
	}
}

int connection_send_bytes(int connection, const void *bytes, size_t n_bytes, const int *fds,
                          size_t n_fds)
{
	return wire_send(connection, bytes, n_bytes, fds, n_fds, 0);
}

uint64_t connection_send(int connection, Glake__Wire__Request *request, const int *fds,
                         size_t n_fds)
{
	static uint64_t last_id = 1000;
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	if (request->id == 0) {
		request->id = ++last_id;
	}
	size_t n_bytes = glake__wire__request__get_packed_size(request);
	ck_assert_uint_le(n_bytes, sizeof(bytes));
	glake__wire__request__pack(request, bytes);
	int result = connection_send_bytes(connection, bytes, n_bytes, fds, n_fds);
	ck_assert_msg(result == 0, "cannot send: %d", result);
	return request->id;
}

Glake__Wire__Answer *connection_receive(int connection, struct fdlist *fds)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES + 1];
	struct fdlist unwanted;
	size_t n_bytes;
	struct pollfd ready = {.fd = connection, .events = POLLIN};
	ck_assert_msg(poll(&ready, 1, HARNESS_TIMEOUT_MS) == 1, "glaked does not answer");
	fdlist_init(&unwanted);
	int result = wire_recv(connection, bytes, sizeof(bytes), &n_bytes, fds ? fds : &unwanted,
	                       0);
	fdlist_deinit(&unwanted);
	if (result == WIRE_E_EOF) {
		return NULL;
	}
	ck_assert_msg(result == 0, "a broken packet from glaked: %d", result);
	Glake__Wire__Answer *answer = glake__wire__answer__unpack(NULL, n_bytes, bytes);
	ck_assert_msg(answer, "%zu bytes from glaked that are no Answer", n_bytes);
	return answer;
}

void connection_free(Glake__Wire__Answer *answer)
{
	if (answer) {
		glake__wire__answer__free_unpacked(answer, NULL);
	}
}

Glake__Wire__Answer *connection_receive_for(int connection, uint64_t id, struct fdlist *fds)
{
	for (;;) {
		Glake__Wire__Answer *answer = connection_receive(connection, fds);
		ck_assert_msg(answer, "glaked closed the connection");
		if (answer->id == id) {
			return answer;
		}
		ck_assert_uint_eq(answer->id, 0);
		connection_free(answer);
	}
}

Glake__Wire__Status connection_status_of(int connection, uint64_t id)
{
	Glake__Wire__Answer *answer = connection_receive_for(connection, id, NULL);
	Glake__Wire__Status status = answer->status;
	connection_free(answer);
	return status;
}

Glake__Wire__Answer *connection_call(int connection, Glake__Wire__Request *request, const int *fds,
                                     size_t n_fds, struct fdlist *fds_out)
{
	uint64_t id = connection_send(connection, request, fds, n_fds);
	return connection_receive_for(connection, id, fds_out);
}

Glake__Wire__Status connection_status(int connection, Glake__Wire__Request *request, const int *fds,
                                      size_t n_fds)
{
	return connection_status_of(connection, connection_send(connection, request, fds, n_fds));
}

void connection_ping(int connection)
{
	ck_assert_int_eq(connection_status(connection, REQUEST(PING, Ping, ping), NULL, 0),
	                 GLAKE__WIRE__STATUS__OK);
}

void connection_expect_closed(int connection)
{
	Glake__Wire__Answer *answer;
	while ((answer = connection_receive(connection, NULL))) {
		connection_free(answer);
	}
}

Glake__Wire__Status connection_alloc(int connection, uint32_t device, uint64_t chunk_bytes,
                                     uint32_t n_chunks, uint64_t *ids_out, struct fdlist *fds)
{
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .device = device,
	                .chunk_bytes = chunk_bytes, .n_chunks = n_chunks),
		NULL, 0, fds);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK) {
		ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC);
		ck_assert_uint_eq(answer->chunk_alloc->n_ids, n_chunks);
		memcpy(ids_out, answer->chunk_alloc->ids, n_chunks * sizeof(ids_out[0]));
	} else {
		ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY__NOT_SET);
		ck_assert_str_ne(answer->error, "");
	}
	connection_free(answer);
	return status;
}

Glake__Wire__Status connection_free_chunks(int connection, uint64_t *ids, size_t n_ids)
{
	return connection_status(
		connection, REQUEST(CHUNK_FREE, ChunkFree, chunk_free, .ids = ids, .n_ids = n_ids),
		NULL, 0);
}

Glake__Wire__Status connection_share(int connection, uint64_t *ids, size_t n_ids,
                                     uint64_t *ticket_out)
{
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(CHUNK_SHARE, ChunkShare, chunk_share, .ids = ids, .n_ids = n_ids), NULL, 0,
		NULL);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK && ticket_out) {
		*ticket_out = answer->chunk_share->ticket;
	}
	connection_free(answer);
	return status;
}

Glake__Wire__Status connection_publish(int connection, uint64_t chunk, uint64_t content_bytes)
{
	return connection_status(connection,
	                         REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish, .chunk = chunk,
	                                 .content_bytes = content_bytes),
	                         NULL, 0);
}

Glake__Wire__Status connection_release(int connection, uint64_t block)
{
	return connection_status(
		connection, REQUEST(BLOCK_RELEASE, BlockRelease, block_release, .block = block),
		NULL, 0);
}

uint64_t connection_counter(int connection, const char *name)
{
	uint64_t value = UINT64_MAX;
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(STATS_GET, StatsGet, stats_get), NULL, 0, NULL);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_STATS_GET);
	for (size_t i = 0; i < answer->stats_get->n_metrics; i++) {
		if (strcmp(answer->stats_get->metrics[i]->name, name) == 0) {
			value = answer->stats_get->metrics[i]->value;
		}
	}
	connection_free(answer);
	ck_assert_msg(value != UINT64_MAX, "there is no counter %s", name);
	return value;
}

uint64_t connection_private_bytes(int connection)
{
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(STATUS_GET, StatusGet, status_get), NULL, 0, NULL);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_STATUS_GET);
	uint64_t n_bytes = 0;
	for (size_t i = 0; i < answer->status_get->n_devices; i++) {
		n_bytes += answer->status_get->devices[i]->private_bytes;
	}
	connection_free(answer);
	return n_bytes;
}

void connection_await_private(int connection, uint64_t n_bytes)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	uint64_t has_bytes;
	while ((has_bytes = connection_private_bytes(connection)) != n_bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "private are %llu bytes, not %llu",
		              (unsigned long long)has_bytes, (unsigned long long)n_bytes);
		harness_sleep_ms(5);
	}
}
