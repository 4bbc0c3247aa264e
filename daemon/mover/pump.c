/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/pump.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/mover/source.h"

#define MARGIN_BYTES (2ull * SOURCE_ALIGN_BYTES)

static void *worker_main(void *argument);

void pump_init(struct pump *pump, const struct cudrv *drv, unsigned n_threads, uint64_t slot_bytes)
{
	*pump = (struct pump){
		.drv = drv,
		.slot_bytes = slot_bytes,
		.n_threads = n_threads < PUMP_MAX_THREADS ? n_threads : PUMP_MAX_THREADS,
	};
	pthread_mutex_init(&pump->lock, NULL);
	pthread_cond_init(&pump->posted, NULL);
}

static void free_worker(struct pump_worker *worker)
{
	const struct cudrv *drv = worker->pump->drv;
	for (unsigned i = 0; i < PUMP_SLOTS; i++) {
		for (unsigned d = 0; d < DEVICE_MAX; d++) {
			if (worker->slots[i].sent[d]) {
				drv->cuEventDestroy(worker->slots[i].sent[d]);
			}
		}
	}
	pinned_free(&worker->pinned, drv);
	free(worker->bounce);
}

void pump_deinit(struct pump *pump)
{
	pthread_mutex_lock(&pump->lock);
	pump->is_stopping = true;
	pthread_cond_broadcast(&pump->posted);
	pthread_mutex_unlock(&pump->lock);
	for (unsigned i = 0; i < pump->n_workers; i++) {
		pthread_join(pump->workers[i].thread, NULL);
	}
	pthread_cond_destroy(&pump->posted);
	pthread_mutex_destroy(&pump->lock);
}

/* Called with the lock held. Fewer threads than wanted will do; none will not. */
static int start_threads(struct pump *pump, struct fault *fault)
{
	while (pump->n_workers < pump->n_threads) {
		struct pump_worker *worker = &pump->workers[pump->n_workers];
		worker->pump = pump;
		int error = pthread_create(&worker->thread, NULL, worker_main, worker);
		if (error && pump->n_workers == 0) {
			return fault_set(fault, FAULT_NO_HOST_MEMORY, "no reader thread: %s",
			                 strerror(error));
		}
		if (error) {
			pump->n_threads = pump->n_workers;
			break;
		}
		pump->n_workers++;
	}
	return 0;
}

int pump_add(struct pump *pump, struct pump_job *job, struct device *device, struct fault *fault)
{
	pthread_mutex_lock(&pump->lock);
	pump->first = pump->first ? pump->first : device;
	int error = start_threads(pump, fault);
	if (!error) {
		if (pump->jobs) {
			job->next = pump->jobs;
			job->prev = pump->jobs->prev;
			job->prev->next = job;
			job->next->prev = job;
		} else {
			job->next = job->prev = job;
			pump->jobs = job;
		}
	}
	pthread_mutex_unlock(&pump->lock);
	return error;
}

void pump_remove(struct pump *pump, struct pump_job *job)
{
	pthread_mutex_lock(&pump->lock);
	job->prev->next = job->next;
	job->next->prev = job->prev;
	if (pump->jobs == job) {
		pump->jobs = job->next == job ? NULL : job->next;
	}
	pthread_mutex_unlock(&pump->lock);
}

void pump_post(struct pump *pump, struct pump_job *job, uint64_t n_units)
{
	pthread_mutex_lock(&pump->lock);
	job->n_units += n_units;
	if (n_units > 1) {
		pthread_cond_broadcast(&pump->posted);
	} else {
		pthread_cond_signal(&pump->posted);
	}
	pthread_mutex_unlock(&pump->lock);
}

/* The next job in turn that has a unit, which is taken; or NULL. Called with the lock held. */
static struct pump_job *take_unit(struct pump *pump)
{
	struct pump_job *first = pump->jobs;
	struct pump_job *job = first;
	if (!job) {
		return NULL;
	}
	do {
		if (job->n_units > 0) {
			job->n_units--;
			pump->jobs = job->next;
			return job;
		}
		job = job->next;
	} while (job != first);
	return NULL;
}

static int make_slots(struct pump_worker *worker, struct fault *fault)
{
	const struct pump *pump = worker->pump;
	const uint64_t stride = pump->slot_bytes + MARGIN_BYTES;
	CUresult result = pinned_new(&worker->pinned, pump->drv, PUMP_SLOTS * stride);
	if (result != CUDA_SUCCESS) {
		device_fault(pump->drv, result, "pinning host memory", fault);
		if (fault->kind == FAULT_NO_DEVICE_MEMORY) {
			fault->kind = FAULT_NO_HOST_MEMORY;
		}
		return MOVER_E_FAULT;
	}
	for (unsigned i = 0; i < PUMP_SLOTS; i++) {
		worker->slots[i].memory = (char *)worker->pinned.memory + i * stride;
	}
	return 0;
}

static void *worker_main(void *argument)
{
	struct pump_worker *worker = argument;
	struct pump *pump = worker->pump;
	struct fault fault;
	pthread_mutex_lock(&pump->lock);
	struct device *first = pump->first;
	pthread_mutex_unlock(&pump->lock);
	/* A slot that cannot be made here is tried again, and the failure told, when it is needed. */
	if (device_enter(first, &fault) == 0) {
		make_slots(worker, &fault);
	}
	pthread_mutex_lock(&pump->lock);
	while (!pump->is_stopping) {
		struct pump_job *job = take_unit(pump);
		if (!job) {
			pthread_cond_wait(&pump->posted, &pump->lock);
			continue;
		}
		pthread_mutex_unlock(&pump->lock);
		job->work(job, worker);
		pthread_mutex_lock(&pump->lock);
	}
	pthread_mutex_unlock(&pump->lock);
	/* Here, where a context is current if there is anything to free. */
	free_worker(worker);
	return NULL;
}

int pump_take_slot(struct pump_worker *worker, struct device *device, struct slot **slot_out,
                   struct fault *fault)
{
	const struct cudrv *drv = worker->pump->drv;
	int error = worker->pinned.memory ? 0 : make_slots(worker, fault);
	if (error) {
		return error;
	}
	struct slot *slot = &worker->slots[worker->next_slot];
	if (slot->device) {
		CUresult result = drv->cuEventSynchronize(slot->sent[slot->device->index]);
		if (result != CUDA_SUCCESS) {
			return device_fault(drv, result, "copying to the device", fault);
		}
		slot->device = NULL;
	}
	if (!slot->sent[device->index]) {
		CUresult result = drv->cuEventCreate(&slot->sent[device->index],
		                                     CU_EVENT_BLOCKING_SYNC |
		                                             CU_EVENT_DISABLE_TIMING);
		if (result != CUDA_SUCCESS) {
			return device_fault(drv, result, "cuEventCreate", fault);
		}
	}
	worker->next_slot = (worker->next_slot + 1) % PUMP_SLOTS;
	*slot_out = slot;
	return 0;
}

int pump_slot_sent(struct pump_worker *worker, struct device *device, struct slot *slot,
                   struct fault *fault)
{
	const struct cudrv *drv = worker->pump->drv;
	CUresult result = drv->cuEventRecord(slot->sent[device->index], device->copy_stream);
	if (result != CUDA_SUCCESS) {
		/* Without the event, wait here: the slot must not be filled under the copy. */
		drv->cuStreamSynchronize(device->copy_stream);
		return device_fault(drv, result, "cuEventRecord", fault);
	}
	slot->device = device;
	return 0;
}

void *pump_bounce(struct pump_worker *worker)
{
	if (!worker->bounce) {
		worker->bounce = aligned_alloc(SOURCE_ALIGN_BYTES,
		                               PUMP_BOUNCE_BYTES + MARGIN_BYTES);
	}
	return worker->bounce;
}
