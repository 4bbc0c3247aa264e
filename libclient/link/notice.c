/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/notice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "libclient/memory/heap.h"
#include "libclient/link/usage.h"

void glake__notice_free(struct glake__notice *notice)
{
	free((char *)notice->public.name);
	free(notice);
}

/* Called with link->lock held. NULL: no memory. */
static struct glake__notice *queue_new(struct glake__link *link, enum glake_notice_kind kind)
{
	struct glake__notice *notice = calloc(1, sizeof(*notice));
	if (notice) {
		notice->public.size = sizeof(notice->public);
		notice->public.kind = kind;
		*link->last_notice = notice;
		link->last_notice = &notice->next;
		link->n_notices++;
	}
	return notice;
}

void glake__notice_queue(struct glake__link *link, enum glake_notice_kind kind, const char *name)
{
	struct glake__notice *notice = queue_new(link, kind);
	if (notice && name) {
		notice->public.name = strdup(name);
	}
}

void glake__notice_queue_reclaim(struct glake__link *link, uint32_t device, uint64_t bytes,
                                 uint64_t id)
{
	struct glake__notice *notice = queue_new(link, GLAKE_NOTICE_RECLAIM);
	if (notice) {
		notice->public.device = device;
		notice->public.bytes = bytes;
		notice->reclaim = id;
	}
}

/* Called with link->lock held. */
static struct glake__notice *pop_locked(struct glake__link *link)
{
	struct glake__notice *notice = link->notices;
	if (notice) {
		link->notices = notice->next;
		if (!link->notices) {
			link->last_notice = &link->notices;
		}
		link->n_notices--;
	}
	return notice;
}

/* Called with link->lock held, which is let go meanwhile. */
static int deliver_locked(struct glake_session *session)
{
	struct glake__link *link = &session->link;
	int n_delivered = 0;
	struct glake__notice *notice;
	while ((notice = pop_locked(link))) {
		glake_notice_fn handler = link->handler;
		void *user = link->handler_user;
		pthread_mutex_unlock(&link->lock);
		if (notice->public.kind == GLAKE_NOTICE_RECLAIM) {
			glake__heap_reclaim(session, notice->public.device, notice->public.bytes);
			glake__usage_answer(session, notice->reclaim);
		}
		if (handler) {
			handler(user, &notice->public);
		}
		glake__notice_free(notice);
		n_delivered++;
		pthread_mutex_lock(&link->lock);
	}
	return n_delivered;
}

int glake__notice_deliver(struct glake_session *session)
{
	struct glake__link *link = &session->link;
	if (link->n_notices == 0) {
		return 0;
	}
	cleanup_cancel int cancel = cancel_disable();
	int saved = errno;
	int n_delivered = 0;
	char *text = glake__error_save();
	pthread_mutex_lock(&link->lock);
	if (!link->is_delivering) {
		link->is_delivering = true;
		link->deliverer = pthread_self();
		n_delivered = deliver_locked(session);
		link->is_delivering = false;
		pthread_cond_broadcast(&link->changed);
	}
	pthread_mutex_unlock(&link->lock);
	glake__error_restore(text);
	errno = saved;
	return n_delivered;
}

int glake__leave(struct glake_session *session, int result)
{
	glake__usage_report(session);
	glake__notice_deliver(session);
	return result;
}

void glake_set_notice_handler(struct glake_session *session, glake_notice_fn handler, void *user)
{
	if (glake__session_check(session) < 0) {
		return;
	}
	cleanup_cancel int cancel = cancel_disable();
	struct glake__link *link = &session->link;
	pthread_mutex_lock(&link->lock);
	link->handler = handler;
	link->handler_user = user;
	/* The old handler is done when we return, unless it is our caller. */
	while (link->is_delivering && !pthread_equal(link->deliverer, pthread_self())) {
		pthread_cond_wait(&link->changed, &link->lock);
	}
	pthread_mutex_unlock(&link->lock);
}

int glake_fd(struct glake_session *session)
{
	if (glake__session_check(session) < 0) {
		return -1;
	}
	struct glake__link *link = &session->link;
	pthread_mutex_lock(&link->lock);
	int socket = link->error || !glake__link_has_socket(link) ? -1 : link->socket;
	pthread_mutex_unlock(&link->lock);
	return socket;
}

int glake_dispatch(struct glake_session *session)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	r = glake__link_poll(session);
	glake__usage_report(session);
	int n_delivered = glake__notice_deliver(session);
	return n_delivered > 0 ? n_delivered : r;
}
