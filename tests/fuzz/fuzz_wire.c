/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One packet, with fds, over a socket pair and through both decoders, as either end would get it.
 *
 * The first byte is the number of fds, the second the one that is taken out; the rest is the
 * packet. What arrives must be what was sent, no fd may be left behind, a message that was decoded
 * must be as long as it says when it is encoded again, and a request that is within its bounds must
 * be decoded with few allocations.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/bounds.h"
#include "proto/cleanup.h"
#include "proto/glake.pb-c.h"
#include "proto/mover.pb-c.h"
#include "proto/wire.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static int ends[2] = {-1, -1};
static int null_fd = -1;

static void open_all(void)
{
	if (null_fd < 0) {
		null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	}
}

/* One for a field and one for what it points to, or a slab of those that are not parsed yet. */
#define MAX_ALLOCATIONS (2 * (GLAKE_MAX_FREED_CHUNKS + 64))

static size_t n_allocations;

static void *count_alloc(void *user, size_t n_bytes)
{
	n_allocations++;
	return malloc(n_bytes);
}

static void count_free(void *user, void *pointer)
{
	free(pointer);
}

static void through_decoder(const ProtobufCMessageDescriptor *type, const uint8_t *bytes,
                            size_t n_bytes)
{
	static ProtobufCAllocator counting = {.alloc = count_alloc, .free = count_free};
	bool is_bounded = type == &glake__wire__request__descriptor &&
	                  !bounds_check_request(bytes, n_bytes);
	n_allocations = 0;
	ProtobufCMessage *message = protobuf_c_message_unpack(type, &counting, n_bytes, bytes);
	must(!is_bounded || n_allocations <= MAX_ALLOCATIONS);
	if (!message) {
		return;
	}
	size_t n_packed = protobuf_c_message_get_packed_size(message);
	uint8_t *packed = malloc(n_packed + 1);
	must(protobuf_c_message_pack(message, packed) == n_packed);
	protobuf_c_message_free_unpacked(message, &counting);
	free(packed);
}

/* The kernel gives out the lowest number: it rises when one before it was left open. */
static int first_free_fd(void)
{
	int fd = dup(null_fd);
	close(fd);
	return fd;
}

static void send_and_receive(const uint8_t *bytes, size_t n_bytes, size_t n_fds, size_t taken)
{
	static uint8_t buffer[GLAKE_MAX_PACKET_BYTES + 1];
	struct fdlist fds;
	int copies[GLAKE_MAX_PACKET_FDS + 2];
	size_t n_received = 0;
	for (size_t i = 0; i < n_elements(copies); i++) {
		copies[i] = null_fd;
	}
	int result = wire_send(ends[0], bytes, n_bytes, copies, n_fds, MSG_DONTWAIT);
	if (n_bytes == 0 || n_bytes > GLAKE_MAX_PACKET_BYTES || n_fds > GLAKE_MAX_PACKET_FDS) {
		must(result == -EMSGSIZE);
		return;
	}
	must(result == 0);
	fdlist_init(&fds);
	must(wire_recv(ends[1], buffer, sizeof(buffer), &n_received, &fds, MSG_DONTWAIT) == 0);
	must(n_received == n_bytes && memcmp(buffer, bytes, n_bytes) == 0);
	must(fds.n_fds == n_fds);
	int fd = fdlist_take(&fds, taken);
	must((fd >= 0) == (taken < n_fds));
	must(fdlist_take(&fds, taken) == -1);
	fd_close(&fd);
	fdlist_deinit(&fds);
	fdlist_deinit(&fds);
	through_decoder(&glake__wire__request__descriptor, buffer, n_received);
	through_decoder(&glake__wire__answer__descriptor, buffer, n_received);
	through_decoder(&glake__mover__order__descriptor, buffer, n_received);
	through_decoder(&glake__mover__report__descriptor, buffer, n_received);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	if (n_bytes < 2) {
		return 0;
	}
	open_all();
	int before = first_free_fd();
	send_and_receive(bytes + 2, n_bytes - 2, bytes[0], bytes[1]);
	must(first_free_fd() == before);
	return 0;
}
