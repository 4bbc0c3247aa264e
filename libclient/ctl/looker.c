/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/looker.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ctl/pod_refusals.h"
#include "glake.h"

/* A look of an answering glaked is over by then. */
#define END_S 1

struct looker {
	struct ctl ctl; /* with the session; of the thread, and so the next */
	struct pod_refusals refusals;
	bool follows;
	pthread_t thread;
	pthread_mutex_t lock; /* of the next */
	pthread_cond_t changed;
	bool is_looking; /* asked for, and not done */
	bool is_ended;
	uint64_t began_ms;
	struct snapshot found; /* of the last look, until it is fetched */
	int err;
	int done_fd; /* owned; an eventfd: there is a result to fetch */
};

/* Refusals that are not found now are found by the next look. Returns 0 or -ENOMEM. */
static int add_refusals(struct looker *looker, struct snapshot *snapshot)
{
	pod_refusals_follow(&looker->refusals, &looker->ctl, snapshot->status.pid);
	for (size_t i = 0; i < looker->refusals.rows.n; i++) {
		const struct pod_refusal *row = rows_at(&looker->refusals.rows, i);
		if (rows_append(&snapshot->refusals, row, sizeof(*row)) < 0) {
			return -ENOMEM;
		}
	}
	snapshot->has_refusals = true;
	return 0;
}

/* A session may have ended with its glaked: then another one is tried, once. */
static int look(struct ctl *ctl, struct snapshot *snapshot)
{
	int err = GLAKE_E_GONE;
	for (int i = 0; err != 0 && i < 2; i++) {
		err = ctl->session ? 0 : ctl_connect(ctl);
		err = err ? err : snapshot_take(ctl, snapshot);
		if (err) {
			ctl_disconnect(ctl);
		}
	}
	return err;
}

static void *run(void *user)
{
	struct looker *looker = user;
	pthread_mutex_lock(&looker->lock);
	while (!looker->is_ended) {
		if (!looker->is_looking) {
			pthread_cond_wait(&looker->changed, &looker->lock);
			continue;
		}
		struct snapshot found = {.at_ms = 0};
		pthread_mutex_unlock(&looker->lock);
		int err = look(&looker->ctl, &found);
		if (err == 0 && looker->follows && add_refusals(looker, &found) < 0) {
			snapshot_deinit(&found);
			err = -ENOMEM;
		}
		pthread_mutex_lock(&looker->lock);
		looker->found = found;
		looker->err = err;
		looker->is_looking = false;
		eventfd_write(looker->done_fd, 1);
	}
	pthread_mutex_unlock(&looker->lock);
	ctl_disconnect(&looker->ctl);
	pod_refusals_deinit(&looker->refusals);
	return NULL;
}

/* Signals are for the other threads. */
static int start(struct looker *looker)
{
	sigset_t all;
	sigset_t before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = pthread_create(&looker->thread, NULL, run, looker);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return err;
}

static struct looker *make(struct ctl *ctl, bool follows)
{
	struct looker *looker = calloc(1, sizeof(*looker));
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (looker && fd >= 0) {
		looker->ctl = *ctl;
		looker->follows = follows;
		looker->done_fd = fd;
		pthread_mutex_init(&looker->lock, NULL);
		pthread_cond_init(&looker->changed, NULL);
		if (start(looker) == 0) {
			ctl->session = NULL;
			return looker;
		}
	}
	if (fd >= 0) {
		close(fd);
	}
	free(looker);
	return NULL;
}

struct looker *looker_new(struct ctl *ctl)
{
	return make(ctl, false);
}

struct looker *looker_new_following(struct ctl *ctl)
{
	return make(ctl, true);
}

void looker_free(struct looker *looker)
{
	struct timespec end;
	if (!looker) {
		return;
	}
	pthread_mutex_lock(&looker->lock);
	looker->is_ended = true;
	pthread_cond_signal(&looker->changed);
	pthread_mutex_unlock(&looker->lock);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += END_S;
	if (pthread_timedjoin_np(looker->thread, NULL, &end) != 0) {
		return;
	}
	snapshot_deinit(&looker->found);
	close(looker->done_fd);
	free(looker);
}

/* Called with the lock held. Is there a result that nobody has fetched? */
static bool take_done(struct looker *looker)
{
	eventfd_t n;
	return eventfd_read(looker->done_fd, &n) == 0;
}

void looker_begin(struct looker *looker)
{
	pthread_mutex_lock(&looker->lock);
	if (!looker->is_looking) {
		take_done(looker);
		snapshot_deinit(&looker->found);
		looker->is_looking = true;
		looker->began_ms = ctl_now_ms();
		pthread_cond_signal(&looker->changed);
	}
	pthread_mutex_unlock(&looker->lock);
}

static void wait_for(const struct looker *looker, uint64_t began_ms, int ms)
{
	struct pollfd done = {.fd = looker->done_fd, .events = POLLIN};
	int n;
	do {
		uint64_t age_ms = ctl_now_ms() - began_ms;
		int left_ms = ms < 0 ? -1 : age_ms < (uint64_t)ms ? ms - (int)age_ms : 0;
		n = poll(&done, 1, left_ms);
	} while (n < 0 && errno == EINTR);
}

int looker_end(struct looker *looker, int ms, struct snapshot *snapshot_out)
{
	int err = -EAGAIN;
	/* Only this thread writes it. */
	wait_for(looker, looker->began_ms, ms);
	pthread_mutex_lock(&looker->lock);
	if (take_done(looker)) {
		err = looker->err;
		*snapshot_out = looker->found;
		looker->found = (struct snapshot){.at_ms = 0};
	}
	pthread_mutex_unlock(&looker->lock);
	return err;
}

int looker_fd(const struct looker *looker)
{
	return looker->done_fd;
}
