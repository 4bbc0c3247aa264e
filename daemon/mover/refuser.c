/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/refuser.h"

#include <stdlib.h>

struct refusal {
	struct refusal *next; /* link: refuser.refusals */
	uint64_t job;
	struct fault fault;
	struct fdlist fds;
};

/* Called with the lock held. It is released while the refusal's fds are closed. */
static void finish_one(struct refuser *refuser)
{
	struct refusal *refusal = refuser->refusals;
	refuser->refusals = refusal->next;
	refuser->n_refusals--;
	pthread_mutex_unlock(&refuser->lock);
	fdlist_deinit(&refusal->fds);
	if (refusal->fault.kind != FAULT_NONE) {
		report_failed(refuser->report, refusal->job, &refusal->fault);
	}
	free(refusal);
	pthread_mutex_lock(&refuser->lock);
}

static void *refuser_main(void *argument)
{
	struct refuser *refuser = argument;
	pthread_mutex_lock(&refuser->lock);
	while (refuser->refusals || !refuser->is_stopping) {
		if (refuser->refusals) {
			finish_one(refuser);
			continue;
		}
		refuser->n_idle++;
		pthread_cond_wait(&refuser->changed, &refuser->lock);
		refuser->n_idle--;
	}
	refuser->n_threads--;
	pthread_cond_broadcast(&refuser->changed);
	pthread_mutex_unlock(&refuser->lock);
	return NULL;
}

/* Called with the lock held. */
static int start_thread(struct refuser *refuser)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, refuser_main, refuser);
	if (!error) {
		pthread_detach(thread);
		refuser->n_threads++;
	}
	return -error;
}

int refuser_init(struct refuser *refuser, struct report *report)
{
	*refuser = (struct refuser){.report = report};
	pthread_mutex_init(&refuser->lock, NULL);
	pthread_cond_init(&refuser->changed, NULL);
	pthread_mutex_lock(&refuser->lock);
	int error = start_thread(refuser);
	pthread_mutex_unlock(&refuser->lock);
	return error;
}

void refuser_deinit(struct refuser *refuser)
{
	pthread_mutex_lock(&refuser->lock);
	refuser->is_stopping = true;
	pthread_cond_broadcast(&refuser->changed);
	while (refuser->n_threads > 0) {
		pthread_cond_wait(&refuser->changed, &refuser->lock);
	}
	pthread_mutex_unlock(&refuser->lock);
	pthread_cond_destroy(&refuser->changed);
	pthread_mutex_destroy(&refuser->lock);
}

void refuser_refuse(struct refuser *refuser, uint64_t job, const struct fault *fault,
                    struct fdlist *fds)
{
	struct refusal *refusal = malloc(sizeof(*refusal));
	if (!refusal) {
		/*
		 * Leaked is better than stuck. The job is not reported, so glaked keeps counting
		 * its fds.
		 */
		say("no memory to refuse a job: %s", fault->text);
		fdlist_init(fds);
		return;
	}
	*refusal = (struct refusal){.job = job, .fault = *fault, .fds = *fds};
	fdlist_init(fds);
	pthread_mutex_lock(&refuser->lock);
	refusal->next = refuser->refusals;
	refuser->refusals = refusal;
	/* If no thread can be started, a busy one takes this refusal next. */
	if (++refuser->n_refusals > refuser->n_idle) {
		start_thread(refuser);
	}
	pthread_cond_signal(&refuser->changed);
	pthread_mutex_unlock(&refuser->lock);
}
