/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(GLAKE_MAX_PACKET_FDS * sizeof(int))];
};

static int send_error(int error)
{
	return error == EPIPE || error == ECONNRESET ? WIRE_E_EOF : -error;
}

int wire_send(int socket, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
              int flags)
{
	if (n_bytes == 0 || n_bytes > GLAKE_MAX_PACKET_BYTES || n_fds > GLAKE_MAX_PACKET_FDS) {
		return -EMSGSIZE;
	}
	struct iovec iov = {.iov_base = (void *)bytes, .iov_len = n_bytes};
	struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
	union control control;
	if (n_fds > 0) {
		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		memset(control.bytes, 0, header.msg_controllen);
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	for (;;) {
		if (sendmsg(socket, &header, flags | MSG_NOSIGNAL) >= 0) {
			return 0;
		}
		if (errno != EINTR) {
			return send_error(errno);
		}
	}
}

static void collect_fds(struct msghdr *header, struct fdlist *fds)
{
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(header); cmsg; cmsg = CMSG_NXTHDR(header, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
			continue;
		}
		size_t n_fds = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n_fds; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
			/* The control buffer has room for exactly as many as the list. */
			fdlist_add(fds, fd);
		}
	}
}

int wire_recv(int socket, void *buffer, size_t capacity, size_t *n_bytes_out, struct fdlist *fds,
              int flags)
{
	struct iovec iov = {.iov_base = buffer, .iov_len = capacity};
	union control control;
	struct msghdr header = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	ssize_t n_bytes;
	do {
		n_bytes = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
		/* If a peer ends before it has read all, ECONNRESET comes once, in front of its packets: try again. */
	} while (n_bytes < 0 && (errno == EINTR || errno == ECONNRESET));
	if (n_bytes < 0) {
		return -errno;
	}
	collect_fds(&header, fds);
	fds->is_cut = header.msg_flags & MSG_CTRUNC;
	/*
	 * An empty SEQPACKET message and the end of the stream read alike, so an empty message is
	 * an end too; with fds it can only be a broken peer.
	 */
	if (n_bytes == 0 && fds->n_fds == 0 && !fds->is_cut) {
		return WIRE_E_EOF;
	}
	if (n_bytes == 0 || n_bytes > GLAKE_MAX_PACKET_BYTES || (header.msg_flags & MSG_TRUNC)) {
		return WIRE_E_MALFORMED;
	}
	*n_bytes_out = (size_t)n_bytes;
	return 0;
}

bool wire_has_fds(int socket)
{
	struct msghdr header;
	ssize_t n_bytes;
	do {
		header = (struct msghdr){0};
		n_bytes = recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT);
	} while (n_bytes < 0 && (errno == EINTR || errno == ECONNRESET));
	/* There is no room for control data, so MSG_CTRUNC tells of fds. */
	return n_bytes >= 0 && header.msg_flags & MSG_CTRUNC;
}

void wire_discard(int socket)
{
	/* Without room for control data, every packet comes as a cut one, empty ones too; the end of the stream does not. */
	static const int on = 1;
	struct msghdr header;
	ssize_t n_bytes;
	shutdown(socket, SHUT_RD);
	setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
	do {
		header = (struct msghdr){0};
		n_bytes = recvmsg(socket, &header, MSG_DONTWAIT);
		/* ECONNRESET comes once, in front of the peer's packets. */
	} while (n_bytes < 0 ? errno == ECONNRESET : header.msg_flags & MSG_CTRUNC);
}
