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

/* Close the probe's fds before its report: with that glaked takes the chunks for free. */
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
	/* A chunk that is not forgotten stays mapped for good, and glaked gives it back. */
	bool is_full = prober->n_queued >= PROBER_MAX_QUEUED && probe->kind != PROBE_FORGET;
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

/* Take the probe behind *link out of the queue. Called with the lock held. */
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

/* ---- the thread ------------------------------------------------------------------------------- */

/* Started, and not finished; oldest first. */
struct runs {
	struct probe_run ring[PROBES_AT_ONCE];
	unsigned first;
	unsigned n;
};

static struct probe_run *oldest(struct runs *runs)
{
	return &runs->ring[runs->first];
}

static void start(struct prober *prober, struct runs *runs, const struct probe *probe)
{
	struct fault fault;
	unsigned i_slot = (runs->first + runs->n) % PROBES_AT_ONCE;
	struct probe_run *run = &runs->ring[i_slot];
	*run = (struct probe_run){.probe = *probe};
	int error = probe_start(&prober->lanes, run, i_slot, &fault);
	drop_fds(&run->probe);
	if (error) {
		free(run->layout);
		report_failed(prober->report, run->probe.job, &fault);
	} else {
		runs->n++;
	}
}

static void finish_oldest(struct prober *prober, struct runs *runs)
{
	struct fault fault;
	struct probe_result result;
	struct probe_run *run = oldest(runs);
	uint64_t job = run->probe.job;
	int error = probe_finish(run, &result, &fault);
	runs->first = (runs->first + 1) % PROBES_AT_ONCE;
	runs->n--;
	if (error) {
		report_failed(prober->report, job, &fault);
	} else if (run->probe.kind == PROBE_LAYOUT) {
		report_prints(prober->report, job, run->layout, run->copied_ns);
	} else if (run->probe.kind != PROBE_COMPARE && run->probe.kind != PROBE_COMPARE_HOST) {
		report_digested(prober->report, job, &result.digest, result.equal, result.zero);
	} else {
		report_compared(prober->report, job, result.equal);
	}
	free(run->layout);
}

/* Copies from and to the chunk may be under way. */
static void forget(struct prober *prober, struct runs *runs, const struct probe *probe)
{
	while (runs->n > 0) {
		finish_oldest(prober, runs);
	}
	host_chunks_forget(&prober->lanes.hosts, probe->host_chunk);
	report_forgotten(prober->report, probe->job);
}

/* The next probe; NULL: there is none, and if @waits there will be none. */
static struct probe *next_probe(struct prober *prober, bool waits)
{
	struct probe *probe = NULL;
	pthread_mutex_lock(&prober->lock);
	while (waits && !prober->first && !prober->is_stopping) {
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
	struct runs runs = {.n = 0};
	struct probe *probe;
	for (;;) {
		while (runs.n == PROBES_AT_ONCE || (runs.n > 0 && probe_is_done(oldest(&runs)))) {
			finish_oldest(prober, &runs);
		}
		probe = next_probe(prober, runs.n == 0);
		if (probe && probe->kind == PROBE_FORGET) {
			forget(prober, &runs, probe);
			free(probe);
		} else if (probe) {
			start(prober, &runs, probe);
			free(probe);
		} else if (runs.n > 0) {
			finish_oldest(prober, &runs);
		} else {
			break;
		}
	}
	probe_lanes_deinit(&prober->lanes);
	return NULL;
}
