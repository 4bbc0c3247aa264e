/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much glaked's memory grows per block of the store.
 *
 * In this process, with the daemon's own objects: BLOCKS chunks of 2 MiB are made and exported as
 * far as the limit on fds goes (the rest have no fd), sealed by store_seal(), and the growth of
 * the heap is read with mallinfo2(). They become cache, half of them of a higher priority, and
 * are evicted for as many bytes. Then once more as models, each block with its place in a
 * manifest and one tensor that has a name of 64 bytes and two dimensions. What the kernel and the
 * driver keep for an fd is not in it.
 *
 * In a real glaked: PUBLISHED chunks of 2 MiB become blocks by glake_block_publish(), and the
 * growth of its private pages is read from /proc.
 *
 *   bench_store [BLOCKS] [PUBLISHED]
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "daemon/store/store.h"
#include "glake.h"
#include "proto/limits.h"
#include "tests/bench/bench.h"

#define BLOCKS_OF_MODEL 500u
/* Fds that this process needs for itself, the driver's among them. */
#define SPARE_FDS 1000u
/* Pages that the daemon touches for the first time are not the blocks'. */
#define PUBLISH_WARMUP 200u

/* ---- the daemon's objects, here -------------------------------------------------------------- */

struct parts {
	uv_loop_t loop;
	struct cudrv drv;
	struct device device;
	struct config *config;
	struct tenant_table *tenants;
	struct tenant *payer;
	struct list realms;
	struct realm *realm;
	struct stats stats;
	struct store store;
	struct chunk_books books;
};

static void open_parts(struct parts *parts)
{
	char error[512] = "";
	if (cudrv_open(&parts->drv, NULL, error, sizeof(error)) < 0 ||
	    config_load(NULL, &parts->config, error, sizeof(error)) < 0) {
		bench_fail("%s", error);
	}
	bench_check_cuda(&parts->drv, parts->drv.cuInit(0), "cuInit");
	log_set_level(LOG_LEVEL_WARNING);
	list_init(&parts->realms);
	parts->realm = realm_get(&parts->realms, "bench");
	parts->books = (struct chunk_books){.max_fds = UINT64_MAX, .stats = &parts->stats};
	if (uv_loop_init(&parts->loop) < 0 ||
	    device_open(&parts->device, &parts->loop, &parts->drv, 0, 0, 0) < 0 ||
	    tenant_table_new(parts->config, 1, 0, &parts->tenants) < 0 || !parts->realm) {
		bench_fail("the daemon's parts do not start");
	}
	parts->payer = tenant_find(parts->tenants, CONFIG_DEFAULT_TENANT);
	store_init(&parts->store, &parts->loop, tenant_table_cache(parts->tenants), &parts->stats);
}

static void finish_work(struct parts *parts)
{
	while (parts->device.at.worker.n_pending > 0) {
		uv_run(&parts->loop, UV_RUN_ONCE);
	}
}

static void close_parts(struct parts *parts)
{
	store_deinit(&parts->store);
	finish_work(parts);
	tenant_table_free(parts->tenants);
	realm_unref(parts->realm);
	device_close(&parts->device);
	uv_run(&parts->loop, UV_RUN_DEFAULT);
	uv_loop_close(&parts->loop);
	config_free(parts->config);
}

static uint64_t heap_bytes(void)
{
	struct mallinfo2 info = mallinfo2();
	return info.uordblks + info.hblkhd;
}

/* Returns how many of the chunks have an fd. */
static unsigned make_chunks(struct parts *parts, struct chunk *chunks, unsigned n)
{
	struct rlimit limit;
	unsigned n_fds = 0;
	bool can = getrlimit(RLIMIT_NOFILE, &limit) == 0;
	for (unsigned i = 0; i < n; i++) {
		struct charge charge = {0};
		int fd = -1;
		can = can && n_fds + SPARE_FDS < limit.rlim_cur &&
		      location_make_chunk(&parts->device.at, GLAKE_CHUNK_GRANULARITY, &fd, NULL) ==
		              CUDA_SUCCESS;
		n_fds += can;
		if (tenant_charge(parts->payer, 0, GLAKE_CHUNK_GRANULARITY, 1, &charge) != 0) {
			bench_fail("the tenant cannot pay");
		}
		chunk_init(&chunks[i], &parts->device.at, &parts->books, GLAKE_CHUNK_GRANULARITY,
		           fd, 0, CHUNK_BLOCK, &charge);
	}
	return n_fds;
}

static struct block *seal(struct parts *parts, struct chunk *chunk, unsigned i)
{
	/* As spread as digests are. */
	uint64_t state = i;
	struct digest digest = {.low = bench_random(&state), .high = bench_random(&state)};
	struct block *block = store_seal(&parts->store, parts->realm, NULL, &digest,
	                                 GLAKE_CHUNK_GRANULARITY - 1, chunk, false);
	if (!block) {
		bench_fail("no memory for a block");
	}
	return block;
}

static void run_blocks(struct parts *parts, unsigned n)
{
	struct chunk *chunks = calloc(n, sizeof(*chunks));
	struct block **blocks = calloc(n, sizeof(*blocks));
	if (!chunks || !blocks) {
		bench_fail("no memory");
	}
	unsigned n_fds = make_chunks(parts, chunks, n);
	uint64_t before = heap_bytes();
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		blocks[i] = seal(parts, &chunks[i], i);
	}
	uint64_t ns = bench_now_ns() - begin_ns;
	uint64_t after = heap_bytes();
	bench_print("blocks", "%u, of them %u with an fd", n, n_fds);
	bench_print("heap per block (target 300)",
	            "%.1f bytes; struct block %zu, sealed in %.2f us", (double)(after - before) / n,
	            sizeof(struct block), (double)ns / 1e3 / n);
	for (unsigned i = 0; i < n; i++) {
		blocks[i]->is_published = true;
		store_unuse_block(&parts->store, blocks[i], i % 2);
	}
	begin_ns = bench_now_ns();
	store_evict(&parts->store, &parts->device.at, n * GLAKE_CHUNK_GRANULARITY);
	ns = bench_now_ns() - begin_ns;
	bench_print("evicted for as many bytes", "in %.1f ms", (double)ns / 1e6);
	finish_work(parts);
	bench_print("left in the heap without blocks", "%lld bytes",
	            (long long)(heap_bytes() - before));
	free(chunks);
	free(blocks);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void add_model(struct parts *parts, struct chunk *chunks, unsigned first, unsigned n)
{
	static const uint64_t shape[] = {1024, 1024};
	char name[80];
	struct file_id file = {.inode = first + 1};
	snprintf(name, sizeof(name), "model-%u", first);
	struct model *model = store_add_model(&parts->store, parts->realm, &parts->device,
	                                      payer_alone(parts->payer), name, &file, 1);
	for (unsigned i = 0; model && i < n; i++) {
		snprintf(name, sizeof(name),
		         "model.layers.%08u.self_attention.query_projection."
		         "weight.0000",
		         first + i);
		if (model_add_tensor(model, name, 1, shape, NULL, 2, i * GLAKE_CHUNK_GRANULARITY,
		                     GLAKE_CHUNK_GRANULARITY - 1) < 0 ||
		    model_add_block(model, GLAKE_CHUNK_GRANULARITY - 1) < 0) {
			bench_fail("no memory for a model");
		}
	}
	for (unsigned i = 0; model && i < n; i++) {
		store_place_block(&parts->store, model, i, seal(parts, &chunks[i], first + i));
	}
	if (!model) {
		bench_fail("no memory for a model");
	}
	/* As load.c does when all blocks are there: the model is then cache. */
	store_ready(&parts->store, model);
	store_unhold_model(&parts->store, model, 0);
}

static void run_models(struct parts *parts, unsigned n)
{
	struct chunk *chunks = calloc(n, sizeof(*chunks));
	if (!chunks) {
		bench_fail("no memory");
	}
	make_chunks(parts, chunks, n);
	uint64_t before = heap_bytes();
	for (unsigned i = 0; i < n; i += BLOCKS_OF_MODEL) {
		add_model(parts, &chunks[i], i, n - i < BLOCKS_OF_MODEL ? n - i : BLOCKS_OF_MODEL);
	}
	uint64_t after = heap_bytes();
	bench_print("with its manifest entry and tensor", "%.1f bytes",
	            (double)(after - before) / n);
	uint64_t begin_ns = bench_now_ns();
	store_evict_all(&parts->store, NULL, NULL);
	uint64_t ns = bench_now_ns() - begin_ns;
	finish_work(parts);
	bench_print("all evicted", "in %.1f ms, %lld bytes left", (double)ns / 1e6,
	            (long long)(heap_bytes() - before));
	free(chunks);
}

/* ---- a real daemon --------------------------------------------------------------------------- */

static void publish(struct glake_session *session, const struct cudrv *drv, uint64_t mark)
{
	glake_ptr ptr;
	struct glake_block *block;
	bench_check(glake_alloc(session, 0, GLAKE_CHUNK_GRANULARITY, GLAKE_ZERO, &ptr),
	            "glake_alloc");
	bench_check_cuda(drv, drv->cuMemcpyHtoD(ptr, &mark, sizeof(mark)), "cuMemcpyHtoD");
	bench_check(glake_block_publish(session, ptr, GLAKE_CHUNK_GRANULARITY, &block),
	            "glake_block_publish");
	glake_block_release(block);
}

static void run_daemon(unsigned n)
{
	struct bench_daemon daemon;
	struct cudrv drv;
	struct glake_session *session;
	bench_daemon_start(&daemon, "");
	bench_check(glake_connect(NULL, &session), "glake_connect");
	bench_open_cuda(&drv);
	for (unsigned i = 0; i < PUBLISH_WARMUP; i++) {
		publish(session, &drv, i + 1);
	}
	struct bench_process before = bench_process_calm(daemon.pid);
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		publish(session, &drv, PUBLISH_WARMUP + i + 1);
	}
	uint64_t ns = bench_now_ns() - begin_ns;
	struct bench_process after = bench_process_now(daemon.pid);
	bench_print("glaked's private pages per published block",
	            "%.0f bytes (%u blocks, fds %llu -> %llu)",
	            ((double)after.private_bytes - (double)before.private_bytes) / n, n,
	            (unsigned long long)before.n_fds, (unsigned long long)after.n_fds);
	bench_print("  alloc, write, publish, release", "%.0f us each", (double)ns / 1e3 / n);
	glake_disconnect(session);
	bench_daemon_stop(&daemon);
}

int main(int argc, char **argv)
{
	static struct parts parts;
	unsigned n_blocks = (unsigned)bench_number(argc, argv, 1, 50000);
	unsigned n_published = (unsigned)bench_number(argc, argv, 2, 1000);
	bench_begin("bench_store", "256GiB");
	if (n_blocks > 0) {
		open_parts(&parts);
		run_blocks(&parts, n_blocks);
		run_models(&parts, n_blocks);
		close_parts(&parts);
	}
	if (n_published > 0) {
		run_daemon(n_published);
	}
	return 0;
}
