/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/raw.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/bench/bench.h"

static size_t pack(Glake__Wire__Request *request, uint64_t id, uint8_t *bytes_out)
{
	request->id = id;
	if (glake__wire__request__get_packed_size(request) > RAW_REQUEST_BYTES) {
		bench_fail("a request is too long");
	}
	return glake__wire__request__pack(request, bytes_out);
}

size_t raw_pack_ping(uint64_t id, uint8_t *bytes_out)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Ping ping = GLAKE__WIRE__PING__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_PING;
	request.ping = &ping;
	return pack(&request, id, bytes_out);
}

size_t raw_pack_chunk_alloc(uint64_t id, uint64_t chunk_bytes, uint32_t n_chunks,
                            uint8_t *bytes_out)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkAlloc body = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	body.chunk_bytes = chunk_bytes;
	body.n_chunks = n_chunks;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC;
	request.chunk_alloc = &body;
	return pack(&request, id, bytes_out);
}

size_t raw_pack_chunk_free(uint64_t id, uint64_t *chunks, size_t n_chunks, uint8_t *bytes_out)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkFree body = GLAKE__WIRE__CHUNK_FREE__INIT;
	body.ids = chunks;
	body.n_ids = n_chunks;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE;
	request.chunk_free = &body;
	return pack(&request, id, bytes_out);
}

Glake__Wire__Answer *raw_receive(int socket, int flags, bool *is_gone_out)
{
	static __thread uint8_t buffer[GLAKE_MAX_PACKET_BYTES + 1];
	cleanup_fdlist struct fdlist fds;
	size_t n_bytes;
	*is_gone_out = false;
	fdlist_init(&fds);
	int r = wire_recv(socket, buffer, sizeof(buffer), &n_bytes, &fds, flags);
	if (r != 0) {
		*is_gone_out = r != -EAGAIN;
		return NULL;
	}
	Glake__Wire__Answer *answer = glake__wire__answer__unpack(NULL, n_bytes, buffer);
	if (!answer) {
		bench_fail("%zu bytes that are no answer", n_bytes);
	}
	return answer;
}

void raw_free(Glake__Wire__Answer *answer)
{
	if (answer) {
		glake__wire__answer__free_unpacked(answer, NULL);
	}
}

static size_t pack_hello(const char *program, uint8_t *bytes_out)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = GLAKE_WIRE_VERSION;
	hello.program = (char *)program;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	return pack(&request, 1, bytes_out);
}

int raw_connect(const char *socket_path, const char *program)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint8_t bytes[RAW_REQUEST_BYTES];
	bool is_gone;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strncpy(address.sun_path, socket_path, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		bench_fail("%s: %s", socket_path, strerror(errno));
	}
	if (wire_send(fd, bytes, pack_hello(program, bytes), NULL, 0, 0) != 0) {
		bench_fail("cannot say Hello");
	}
	Glake__Wire__Answer *answer = raw_receive(fd, 0, &is_gone);
	if (!answer || answer->status != GLAKE__WIRE__STATUS__OK) {
		bench_fail("Hello was refused: %s", answer ? answer->error : "connection closed");
	}
	raw_free(answer);
	return fd;
}

void raw_close(int socket)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Goodbye goodbye = GLAKE__WIRE__GOODBYE__INIT;
	uint8_t bytes[RAW_REQUEST_BYTES];
	request.id = UINT64_MAX;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_GOODBYE;
	request.goodbye = &goodbye;
	if (wire_send(socket, bytes, glake__wire__request__pack(&request, bytes), NULL, 0, 0) !=
	    0) {
		bench_fail("cannot say Goodbye");
	}
	close(socket);
}
