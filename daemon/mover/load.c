/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/load.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/mover/safetensors.h"
#include "daemon/mover/weight_index.h"
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/limits.h"

/*
 * One byte of a header can become this many, beside itself: a tensor's entry is 55 bytes of text at least and 136 in the catalog,
 * the plan and a sort; with 32 dimensions it is 115 of text and 384.
 */
#define BYTES_PER_HEADER_BYTE 4

void load_fail(struct load *load, const struct fault *fault)
{
	pthread_mutex_lock(&load->lock);
	if (load->fault.kind == FAULT_NONE) {
		load->fault = *fault;
		atomic_store(&load->windows.has_failed, true);
		pthread_cond_signal(&load->changed);
		budget_look(load->host->budget);
	}
	pthread_mutex_unlock(&load->lock);
}

/* ---- the plan ------------------------------------------------------------------------------- */

/* The first that is found is told. */
static void note_unsettled(struct load *load, const struct source *source)
{
	if (source->unsettled && !load->reload_reason[0]) {
		snprintf(load->reload_reason, sizeof(load->reload_reason), "%s: %s",
		         source->unsettled, quote(source->name).text);
	}
}

static int open_sources(struct load *load, struct fault *fault)
{
	load->sources = calloc(load->n_files, sizeof(*load->sources));
	if (!load->sources) {
		return fault_no_memory(fault);
	}
	for (size_t i = 0; i < load->n_files; i++) {
		load->sources[i] = SOURCE_NULL;
	}
	for (size_t i = 0; i < load->n_files; i++) {
		int error = source_open(&load->sources[i], fd_steal(&load->fds[i]), load->names[i],
		                        fault);
		if (error) {
			return error;
		}
		note_unsettled(load, &load->sources[i]);
	}
	return 0;
}

/* Read all of [offset, offset + n_bytes) into new memory. */
static int read_text(struct source *source, uint64_t offset, uint64_t n_bytes, char **text_out,
                     struct fault *fault)
{
	cleanup_free char *text = malloc(n_bytes ? n_bytes : 1);
	if (!text) {
		return fault_no_memory(fault);
	}
	int error = source_read(source, offset, n_bytes, text);
	if (error > 0) {
		return fault_set(fault, FAULT_FILE_CHANGED, "%s: was cut short while it was read",
		                 quote(source->name).text);
	}
	if (error < 0) {
		return fault_set(fault, FAULT_READ, "%s: at byte %llu: %s",
		                 quote(source->name).text, (unsigned long long)offset,
		                 strerror(-error));
	}
	*text_out = ptr_steal(text);
	return 0;
}

static struct safetensors_file file_of(const struct load *load, size_t number)
{
	const struct source *source = &load->sources[number];
	return (struct safetensors_file){
		.name = source->name,
		.number = (uint32_t)number,
		.bytes = (uint64_t)source->before.st_size,
	};
}

static int read_length(struct load *load, size_t number, uint64_t *header_bytes_out,
                       struct fault *fault)
{
	struct safetensors_file file = file_of(load, number);
	cleanup_free char *prefix = NULL;
	size_t n_prefix = file.bytes < SAFETENSORS_PREFIX_BYTES ? (size_t)file.bytes
	                                                        : SAFETENSORS_PREFIX_BYTES;
	int error = read_text(&load->sources[number], 0, n_prefix, &prefix, fault);
	return error ? error
	             : safetensors_header_bytes(&file, (const uint8_t *)prefix, n_prefix,
	                                        header_bytes_out, fault);
}

static int read_header(struct load *load, size_t number, uint64_t header_bytes, struct fault *fault)
{
	struct safetensors_file file = file_of(load, number);
	cleanup_free char *header = NULL;
	int error = read_text(&load->sources[number], SAFETENSORS_PREFIX_BYTES, header_bytes,
	                      &header, fault);
	return error ? error
	             : safetensors_parse(&file, header, (size_t)header_bytes, &load->catalog,
	                                 fault);
}

/* ---- memory for the plan -------------------------------------------------------------------- */

static uint64_t max_bytes(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The bytes of each block, in the plan and in the load. */
static const size_t block_bytes = sizeof(struct plan_block) + sizeof(struct plan_piece) +
                                  sizeof(struct load_block) + sizeof(int);

/* The most that the load needs until the plan is made. One header is in memory at a time, or the index. */
static uint64_t wanted_bytes(struct load *load, const uint64_t *header_bytes)
{
	uint64_t all_bytes = 0;
	uint64_t text_bytes = 0;
	uint64_t n_blocks = load->n_files;
	struct stat index;
	for (size_t i = 0; i < load->n_files; i++) {
		all_bytes += header_bytes[i];
		text_bytes = max_bytes(text_bytes, header_bytes[i]);
		n_blocks += (uint64_t)load->sources[i].before.st_size / GLAKE_MAX_BLOCK_BYTES;
	}
	if (load->index && fstat(load->fds[load->n_files], &index) == 0 &&
	    (uint64_t)index.st_size <= WEIGHT_INDEX_MAX_BYTES) {
		load->index_bytes = (uint64_t)index.st_size;
		text_bytes = max_bytes(text_bytes, load->index_bytes);
	}
	n_blocks = n_blocks < GLAKE_MAX_BLOCKS ? n_blocks : GLAKE_MAX_BLOCKS;
	return text_bytes + BYTES_PER_HEADER_BYTE * all_bytes + n_blocks * block_bytes;
}

static uint64_t kept_bytes(const struct load *load)
{
	const struct catalog *catalog = &load->catalog;
	return catalog->arena_bytes +
	       catalog->n_tensors * (sizeof(*catalog->tensors) + sizeof(*load->plan.offsets)) +
	       load->plan.n_pieces * sizeof(*load->plan.pieces) + load->plan.n_blocks * block_bytes;
}

static int claim_memory(struct load *load, const uint64_t *header_bytes, struct fault *fault)
{
	struct budget *budget = load->host->budget;
	uint64_t bytes = wanted_bytes(load, header_bytes);
	int error = budget_take(budget, &load->claim, bytes, &load->windows.has_failed);
	if (error == BUDGET_E_NEVER) {
		return fault_set(fault, FAULT_BAD_FILE,
		                 "%s: to read its headers%s can take %llu MiB of glake-mover's "
		                 "memory, of which a user may have %llu",
		                 quote(load->names[0]).text,
		                 load->n_files > 1 ? " and those of the files with it" : "",
		                 (unsigned long long)(bytes >> 20),
		                 (unsigned long long)(budget_share(budget) >> 20));
	}
	return error ? MOVER_E_FAULT : 0;
}

/* ---- the plan, made ------------------------------------------------------------------------- */

static int check_index(struct load *load, struct fault *fault)
{
	struct source source;
	cleanup_free char *text = NULL;
	int error = source_open(&source, fd_steal(&load->fds[load->n_files]), load->index, fault);
	uint64_t n_bytes = (uint64_t)source.before.st_size;
	note_unsettled(load, &source);
	if (!error && n_bytes > WEIGHT_INDEX_MAX_BYTES) {
		error = fault_set(
			fault, FAULT_BAD_FILE,
			"%s: an index of %llu bytes is too large, at most %llu are allowed",
			quote(load->index).text, (unsigned long long)n_bytes,
			WEIGHT_INDEX_MAX_BYTES);
	}
	if (!error && n_bytes > load->index_bytes) {
		error = fault_set(fault, FAULT_FILE_CHANGED, "%s: grew while it was loaded",
		                  quote(load->index).text);
	}
	if (!error) {
		error = read_text(&source, 0, n_bytes, &text, fault);
	}
	if (!error) {
		error = weight_index_check(load->index, text, (size_t)n_bytes, &load->catalog,
		                           (const char *const *)load->names, load->n_files, fault);
	}
	source_close(&source);
	return error;
}

static int read_headers(struct load *load, struct fault *fault)
{
	uint64_t header_bytes[GLAKE_MAX_PACKET_FDS];
	int error = 0;
	for (size_t i = 0; i < load->n_files && !error; i++) {
		error = read_length(load, i, &header_bytes[i], fault);
	}
	if (!error) {
		error = claim_memory(load, header_bytes, fault);
	}
	for (size_t i = 0; i < load->n_files && !error; i++) {
		if (atomic_load(&load->windows.has_failed)) {
			return MOVER_E_FAULT;
		}
		error = read_header(load, i, header_bytes[i], fault);
	}
	return error;
}

static int make_plan(struct load *load, struct fault *fault)
{
	int error = open_sources(load, fault);
	if (!error) {
		error = read_headers(load, fault);
	}
	if (!error) {
		error = catalog_finish(&load->catalog, (const char *const *)load->names, fault);
	}
	if (!error && load->index) {
		error = check_index(load, fault);
	}
	if (!error) {
		error = plan_make(&load->plan, &load->catalog, fault);
	}
	if (!error) {
		budget_keep(load->host->budget, &load->claim, kept_bytes(load));
	}
	return error;
}

/* Everything up to the plan's report. */
static int prepare(struct load *load, struct fault *fault)
{
	int error = devices_find(load->host->devices, load->device_uuid, load->n_uuid_bytes,
	                         &load->windows.device, fault);
	if (!error) {
		error = device_need_digester(load->host->devices, load->windows.device, fault);
	}
	if (!error) {
		/* Early, so that threads get ready while the headers are parsed. */
		error = pump_add(load->host->pump, &load->windows.pump_job, load->windows.device,
		                 fault);
		load->is_pumped = !error;
	}
	if (!error) {
		error = make_plan(load, fault);
	}
	if (error) {
		return error;
	}
	size_t n_blocks = load->plan.n_blocks ? load->plan.n_blocks : 1;
	load->windows.sources = load->sources;
	load->windows.blocks = calloc(n_blocks, sizeof(*load->windows.blocks));
	load->grants = malloc(n_blocks * sizeof(*load->grants));
	if (!load->windows.blocks || !load->grants) {
		return fault_no_memory(fault);
	}
	for (size_t i = 0; i < load->n_files; i++) {
		source_choose(&load->sources[i], load->may_direct);
	}
	if (load->plan.span_bytes > 0) {
		error = chunk_reserve(load->host->drv, load->plan.span_bytes, &load->windows.span,
		                      fault);
	}
	if (error) {
		return error;
	}
	/* Before the plan is out: a grant may follow it at once. */
	pthread_mutex_lock(&load->lock);
	load->is_planned = true;
	pthread_mutex_unlock(&load->lock);
	return report_plan(load->host->report, load->job, &load->plan, load->reload_reason, fault);
}

/* ---- chunks --------------------------------------------------------------------------------- */

/* Called with the lock held. */
static int check_grant(const struct load *load, uint64_t first, const struct fdlist *fds,
                       struct fault *fault)
{
	if (!load->is_planned) {
		return fault_set(fault, FAULT_INTERNAL, "chunks were granted before the plan");
	}
	if (fds->n_fds == 0) {
		return fault_set(fault, FAULT_INTERNAL, "a grant without chunks");
	}
	if (first != load->n_granted || fds->n_fds > load->plan.n_blocks - load->n_granted) {
		return fault_set(
			fault, FAULT_INTERNAL,
			"%zu chunks from block %llu were granted, expected block %zu of %zu",
			fds->n_fds, (unsigned long long)first, load->n_granted,
			load->plan.n_blocks);
	}
	return 0;
}

void load_grant(struct load *load, uint64_t first, struct fdlist *fds)
{
	struct fault fault;
	int error = 0;
	pthread_mutex_lock(&load->lock);
	if (load->fault.kind == FAULT_NONE) {
		error = check_grant(load, first, fds, &fault);
		for (size_t i = 0; i < fds->n_fds && !error; i++) {
			load->grants[load->n_granted++] = fdlist_take(fds, i);
		}
		pthread_cond_signal(&load->changed);
	}
	pthread_mutex_unlock(&load->lock);
	if (error) {
		load_fail(load, &fault);
	}
	fdlist_deinit(fds);
}

static int map_block(struct load *load, size_t number, int fd, struct fault *fault)
{
	int error = load_window_map(&load->windows, number, fd, fault);
	if (error) {
		return error;
	}
	pthread_mutex_lock(&load->lock);
	load->n_mapped++;
	pthread_mutex_unlock(&load->lock);
	load_window_post(&load->windows, number);
	return 0;
}

/* Map what is granted until every block has come to its end. */
static void run(struct load *load)
{
	struct fault fault;
	pthread_mutex_lock(&load->lock);
	for (;;) {
		bool has_failed = load->fault.kind != FAULT_NONE;
		if (load->n_ended == (has_failed ? load->n_mapped : load->plan.n_blocks)) {
			break;
		}
		if (has_failed || load->n_mapped == load->n_granted) {
			pthread_cond_wait(&load->changed, &load->lock);
			continue;
		}
		size_t number = load->n_mapped;
		int fd = fd_steal(&load->grants[number]);
		pthread_mutex_unlock(&load->lock);
		if (map_block(load, number, fd, &fault)) {
			load_fail(load, &fault);
		}
		pthread_mutex_lock(&load->lock);
	}
	pthread_mutex_unlock(&load->lock);
}

/* ---- from start to end ---------------------------------------------------------------------- */

static int check_files(struct load *load, struct fault *fault)
{
	int error = 0;
	for (size_t i = 0; i < load->n_files && !error; i++) {
		error = source_check(&load->sources[i], fault);
	}
	return error;
}

static void load_free(struct load *load)
{
	if (load->is_pumped) {
		pump_remove(load->host->pump, &load->windows.pump_job);
	}
	if (load->windows.span) {
		chunk_unreserve(load->host->drv, load->windows.span, load->plan.span_bytes);
	}
	for (size_t i = 0; i < load->n_granted; i++) {
		fd_close(&load->grants[i]);
	}
	for (size_t i = 0; i < load->n_files && load->sources; i++) {
		source_close(&load->sources[i]);
	}
	for (size_t i = 0; i <= load->n_files && load->fds; i++) {
		fd_close(&load->fds[i]);
	}
	for (size_t i = 0; i < load->n_files && load->names; i++) {
		free(load->names[i]);
	}
	plan_deinit(&load->plan);
	catalog_deinit(&load->catalog);
	free(load->sources);
	load_window_deinit(&load->windows);
	free(load->grants);
	free(load->fds);
	free(load->names);
	free(load->index);
	budget_keep(load->host->budget, &load->claim, 0);
	pthread_cond_destroy(&load->changed);
	pthread_mutex_destroy(&load->lock);
	free(load);
}

static void *load_main(void *argument)
{
	struct load *load = argument;
	const struct load_host *host = load->host;
	const uint64_t job = load->job;
	struct fault fault = {0};
	int error = prepare(load, &fault);
	if (!error) {
		run(load);
		error = check_files(load, &fault);
	}
	if (error) {
		load_fail(load, &fault);
	}
	host->ended(host->user, load);
	/* Nobody else knows the load any more. What it holds is gone before the answer is out. */
	fault = load->fault;
	uint64_t read_bytes = atomic_load(&load->windows.read_bytes);
	uint64_t direct_bytes = atomic_load(&load->windows.direct_bytes);
	uint64_t ns = clock_now_ns() - load->started_ns;
	load_free(load);
	if (fault.kind == FAULT_NONE) {
		report_load_done(host->report, job, read_bytes, direct_bytes, ns);
	} else {
		report_failed(host->report, job, &fault);
	}
	host->freed(host->user);
	return NULL;
}

static void on_window_fault(struct load_windows *windows, const struct fault *fault)
{
	load_fail(container_of(windows, struct load, windows), fault);
}

static void on_block_done(struct load_windows *windows, size_t number, const struct digest *digest)
{
	struct load *load = container_of(windows, struct load, windows);
	if (!atomic_load(&windows->has_failed)) {
		report_block_loaded(load->host->report, load->job, number, digest);
	}
	/* The load may be gone once the lock is. */
	pthread_mutex_lock(&load->lock);
	load->n_ended++;
	pthread_cond_signal(&load->changed);
	pthread_mutex_unlock(&load->lock);
}

static const struct load_window_ops window_ops = {
	.fail = on_window_fault,
	.block_done = on_block_done,
};

static int copy_order(struct load *load, const struct load_order *order)
{
	load->fds = malloc((order->n_files + 1) * sizeof(*load->fds));
	load->names = calloc(order->n_files, sizeof(*load->names));
	if (!load->fds || !load->names) {
		return -ENOMEM;
	}
	load->n_files = order->n_files;
	for (size_t i = 0; i <= load->n_files; i++) {
		load->fds[i] = -1;
	}
	for (size_t i = 0; i < load->n_files; i++) {
		load->names[i] = strdup(order->names[i]);
		if (!load->names[i]) {
			return -ENOMEM;
		}
	}
	if (order->index && !(load->index = strdup(order->index))) {
		return -ENOMEM;
	}
	load->n_uuid_bytes = order->n_uuid_bytes;
	if (order->n_uuid_bytes == sizeof(load->device_uuid)) {
		memcpy(load->device_uuid, order->device_uuid, sizeof(load->device_uuid));
	}
	return 0;
}

static int start_thread(struct load *load)
{
	pthread_t thread;
	int error = pthread_create(&thread, NULL, load_main, load);
	if (!error) {
		pthread_detach(thread);
	}
	return -error;
}

int load_launch(const struct load_host *host, const struct load_order *order, struct fdlist *fds,
                struct load **load_out, struct fault *fault)
{
	size_t n_fds = order->n_files + (order->index ? 1 : 0);
	if (order->n_files == 0 || fds->n_fds != n_fds) {
		return fault_set(fault, FAULT_BAD_REQUEST, "%zu files were named and %zu given",
		                 n_fds, fds->n_fds);
	}
	struct load *load = calloc(1, sizeof(*load));
	if (!load) {
		return fault_no_memory(fault);
	}
	load_window_init(&load->windows, &window_ops);
	load->windows.pump = host->pump;
	load->windows.catalog = &load->catalog;
	load->windows.plan = &load->plan;
	load->host = host;
	load->job = order->job;
	load->may_direct = order->may_direct;
	load->claim.uid = order->uid;
	load->started_ns = clock_now_ns();
	pthread_mutex_init(&load->lock, NULL);
	pthread_cond_init(&load->changed, NULL);
	catalog_init(&load->catalog);
	if (copy_order(load, order) < 0) {
		load_free(load);
		return fault_no_memory(fault);
	}
	for (size_t i = 0; i < n_fds; i++) {
		load->fds[i] = fdlist_take(fds, i);
	}
	/* Set before the thread runs, which may end before this returns. */
	*load_out = load;
	int error = start_thread(load);
	if (error < 0) {
		*load_out = NULL;
		for (size_t i = 0; i < n_fds; i++) {
			fds->fds[i] = fd_steal(&load->fds[i]);
		}
		load_free(load);
		return fault_set(fault, FAULT_NO_HOST_MEMORY, "no thread for a load: %s",
		                 strerror(-error));
	}
	return 0;
}
