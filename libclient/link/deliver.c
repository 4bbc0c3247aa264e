/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/deliver.h"

#include <errno.h>

#include "proto/cleanup.h"
#include "libclient/link/error.h"

/* Called with link->lock held, which is let go meanwhile. */
static int deliver_locked(struct glake__link *link)
{
	int n_delivered = 0;
	struct glake__notice *notice;
	while ((notice = glake__notices_pop(&link->notices))) {
		glake_notice_fn handler = link->handler;
		void *user = link->handler_user;
		pthread_mutex_unlock(&link->lock);
		if (notice->public.kind == GLAKE_NOTICE_RECLAIM) {
			link->reclaim(link->reclaim_user, notice->public.device,
			              notice->public.bytes, notice->reclaim);
		}
		if (notice->seal) {
			link->seal(link->seal_user, notice->seal,
			           (enum glake__seal_what)notice->what);
		} else if (notice->sleep) {
			link->sleep(link->sleep_user, notice->sleep, notice->wakes, notice->why);
		} else if (notice->is_doubt) {
			link->doubt(link->doubt_user, notice->public.name);
		} else if (handler) {
			handler(user, &notice->public);
		}
		glake__notice_free(notice);
		n_delivered++;
		pthread_mutex_lock(&link->lock);
	}
	return n_delivered;
}

int glake__deliver(struct glake__link *link)
{
	if (link->notices.n_notices == 0) {
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
		n_delivered = deliver_locked(link);
		link->is_delivering = false;
		pthread_cond_broadcast(&link->changed);
	}
	pthread_mutex_unlock(&link->lock);
	glake__error_restore(text);
	errno = saved;
	return n_delivered;
}

void glake__deliver_to(struct glake__link *link, glake_notice_fn handler, void *user)
{
	cleanup_cancel int cancel = cancel_disable();
	pthread_mutex_lock(&link->lock);
	link->handler = handler;
	link->handler_user = user;
	while (link->is_delivering && !pthread_equal(link->deliverer, pthread_self())) {
		pthread_cond_wait(&link->changed, &link->lock);
	}
	pthread_mutex_unlock(&link->lock);
}
