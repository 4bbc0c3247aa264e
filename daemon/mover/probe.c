/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/probe.h"

#include <stdlib.h>

#include "proto/cleanup.h"

static void *prober_main(void *argument);

int prober_init(struct prober *prober, struct devices *devices, struct report *report)
{
	*prober = (struct prober){.lanes.devices = devices, .report = report};
	pthread_mutex_init(&prober->lock, NULL);
	pthread_cond_init(&prober->changed, NULL);
	return -pthread_create(&prober->thread, NULL, prober_main, prober);
}

void prober_deinit(struct prober *prober)
{
	pthread_mutex_lock(&prober->lock);
	prober->is_stopping = true;
	pthread_cond_signal(&prober->changed);
	pthread_mutex_unlock(&prober->lock);
	pthread_join(prober->thread, NULL);
	pthread_cond_destroy(&prober->changed);
	pthread_mutex_destroy(&prober->lock);
}

/* Before its report: with that glaked takes the chunks for free. */
static void drop_fds(struct probe *probe)
{
	fd_close(&probe->fds[0]);
	fd_close(&probe->fds[1]);
}

static void refuse(struct prober *prober, struct probe *probe, enum fault_kind kind,
                   const char *cause)
{
	struct fault fault;
	drop_fds(probe);
	fault_set(&fault, kind, "%s", cause);
	report_failed(prober->report, probe->job, &fault);
}

void prober_submit(struct prober *prober, const struct probe *probe)
{
	struct probe *queued = malloc(sizeof(*queued));
	if (!queued) {
		struct probe refused = *probe;
		refuse(prober, &refused, FAULT_NO_HOST_MEMORY, "out of host memory");
		return;
	}
	*queued = *probe;
	queued->next = NULL;
	pthread_mutex_lock(&prober->lock);
	bool is_full = prober->n_queued == PROBER_MAX_QUEUED;
	if (!is_full) {
		if (prober->last) {
			prober->last->next = queued;
		} else {
			prober->first = queued;
		}
		prober->last = queued;
		prober->n_queued++;
		pthread_cond_signal(&prober->changed);
	}
	pthread_mutex_unlock(&prober->lock);
	if (is_full) {
		refuse(prober, queued, FAULT_BUSY, "too many jobs are queued");
		free(queued);
	}
}

/* Under the lock: take the probe behind *link out of the queue. */
static struct probe *unlink_probe(struct prober *prober, struct probe **link, struct probe *before)
{
	struct probe *probe = *link;
	*link = probe->next;
	if (prober->last == probe) {
		prober->last = before;
	}
	prober->n_queued--;
	return probe;
}

void prober_cancel(struct prober *prober, uint64_t job)
{
	struct probe *found = NULL;
	pthread_mutex_lock(&prober->lock);
	struct probe *before = NULL;
	for (struct probe **link = &prober->first; *link; link = &(*link)->next) {
		if ((*link)->job == job) {
			found = unlink_probe(prober, link, before);
			break;
		}
		before = *link;
	}
	pthread_mutex_unlock(&prober->lock);
	if (found) {
		refuse(prober, found, FAULT_CANCELLED, "cancelled");
		free(found);
	}
}

static void run(struct prober *prober, struct probe *probe)
{
	struct fault fault;
	struct digest digest;
	bool equal;
	bool is_digest = probe->kind == PROBE_DIGEST;
	int error = is_digest ? probe_digest(&prober->lanes, probe, &digest, &fault)
	                      : probe_compare(&prober->lanes, probe, &equal, &fault);
	drop_fds(probe);
	if (error) {
		report_failed(prober->report, probe->job, &fault);
	} else if (is_digest) {
		report_digested(prober->report, probe->job, &digest);
	} else {
		report_compared(prober->report, probe->job, equal);
	}
}

static struct probe *next_probe(struct prober *prober)
{
	struct probe *probe = NULL;
	pthread_mutex_lock(&prober->lock);
	while (!prober->first && !prober->is_stopping) {
		pthread_cond_wait(&prober->changed, &prober->lock);
	}
	if (prober->first) {
		probe = unlink_probe(prober, &prober->first, NULL);
	}
	pthread_mutex_unlock(&prober->lock);
	return probe;
}

static void *prober_main(void *argument)
{
	struct prober *prober = argument;
	struct probe *probe;
	while ((probe = next_probe(prober))) {
		run(prober, probe);
		free(probe);
	}
	probe_lanes_deinit(&prober->lanes);
	return NULL;
}
