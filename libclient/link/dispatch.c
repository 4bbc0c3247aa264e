/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/dispatch.h"

#include "libclient/link/call.h"
#include "libclient/link/deliver.h"
#include "libclient/link/rpc.h"

int glake__leave(struct glake_session *session, int result)
{
	session->report(session);
	glake__deliver(&session->link);
	return result;
}

void glake_set_notice_handler(struct glake_session *session, glake_notice_fn handler, void *user)
{
	if (glake__session_check(session) == 0) {
		glake__deliver_to(&session->link, handler, user);
	}
}

int glake__session_socket(struct glake_session *session, uint64_t *inode_out)
{
	if (glake__session_check(session) < 0) {
		return -1;
	}
	struct glake__link *link = &session->link;
	pthread_mutex_lock(&link->lock);
	bool is_up = glake__state_is_up(link->state) && glake__link_has_socket(link);
	int socket = is_up ? link->socket : -1;
	*inode_out = link->socket_inode;
	pthread_mutex_unlock(&link->lock);
	return socket;
}

int glake_fd(struct glake_session *session)
{
	uint64_t inode;
	return glake__session_socket(session, &inode);
}

int glake_dispatch(struct glake_session *session)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	r = glake__link_poll(&session->link);
	if (session->settle) {
		session->settle(session);
	}
	session->report(session);
	int n_delivered = glake__deliver(&session->link);
	if (session->follow) {
		session->follow(session);
	}
	return n_delivered > 0 ? n_delivered : r;
}

int glake_ping(struct glake_session *session)
{
	int r = glake__session_check(session);
	return r < 0 ? r : glake__leave(session, glake__rpc_ping(session));
}
