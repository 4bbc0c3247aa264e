/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Books of every shape, and fds that are kept or not, for the adoption: whatever a record says, what has an fd is
 * adopted or released, nothing crosses realms, charges are level, and in the end everything is back.
 *
 * The input is a program that writes records: each byte chooses one, the next ones its fields, from what matters; one
 * choice takes the body as it is. Whose process a holder is, is this one. The fd store is here.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/memory/reserve.h"
#include "daemon/base/log.h"
#include "daemon/books/adopt.h"
#include "daemon/books/kinds.h"
#include "daemon/config/config.h"
#include "daemon/keep/parking.h"
#include "daemon/net/peer.h"
#include "daemon/holders/kept_step.h"
#include "daemon/holders/sleeper.h"
#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/state.pb-c.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/must.h"

#define N_DEVICES 2u
#define N_IDS 16u
#define MAX_RECORDS 128u
#define MAX_PROMISES 3u
#define MIB (1024ull * 1024)
/* The memory of each device: some promises fit, and others do not. */
#define USABLE_BYTES (256 * MIB)

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* Closing one twice may close somebody else's. */
int close(int fd)
{
	int result = (int)syscall(SYS_close, fd);
	must(result == 0 || errno != EBADF);
	return result;
}

/* ---- the fd store ---------------------------------------------------------------------------- */

/* All that fdstore.c has and a start asks: the linker takes none of it then. */

struct kept {
	bool is_kept, is_taken, is_removed;
};
static struct kept kept_blocks[N_IDS];
static struct kept kept_chunks[N_IDS];
static struct kept kept_hosts[N_IDS];
static fdstore_fn barrier_fn;
static void *barrier_user;

/* NULL: of no small number. */
static struct kept *find_kept(const char *name)
{
	struct kept *all = name[0] == 'b' ? kept_blocks : name[0] == 'h' ? kept_hosts : kept_chunks;
	must(all != kept_chunks || name[0] == 'c');
	uint64_t number = strtoull(name + 1, NULL, all == kept_chunks ? 16 : 10);
	return number >= N_IDS ? NULL : &all[number];
}

int fdstore_take(struct fdstore *store, const char *name)
{
	struct kept *kept = find_kept(name);
	if (!kept || !kept->is_kept || kept->is_taken) {
		return -ENOENT;
	}
	kept->is_taken = true;
	int fd = memfd_create(name, MFD_CLOEXEC);
	must(fd >= 0);
	return fd;
}

int fdstore_put(struct fdstore *store, const char *name, int fd)
{
	abort(); /* nothing is new */
}

bool fdstore_remove(struct fdstore *store, const char *name)
{
	struct kept *kept = find_kept(name);
	must(kept && kept->is_taken && !kept->is_removed);
	kept->is_removed = true;
	return true;
}

const char *fdstore_passed(const struct fdstore *store, size_t index)
{
	return NULL;
}

bool fdstore_is_kept(const struct fdstore *store)
{
	return true;
}

uint32_t fdstore_max(const struct fdstore *store)
{
	return 8192;
}

bool fdstore_is_full(const struct fdstore *store)
{
	return false;
}

bool fdstore_is_lost(const struct fdstore *store)
{
	return false;
}

int fdstore_barrier(struct fdstore *store, fdstore_fn fn, void *user)
{
	must(!barrier_fn);
	barrier_fn = fn;
	barrier_user = user;
	return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t take_id(struct input *input)
{
	uint8_t choice = take_byte(input);
	return choice < 240 ? choice % N_IDS : take_raw(input);
}

static uint64_t take_size(struct input *input)
{
	static const uint64_t sizes[] = {2 * MIB,
	                                 4 * MIB,
	                                 GLAKE_MAX_BLOCK_BYTES,
	                                 GLAKE_MAX_CHUNK_BYTES,
	                                 GLAKE_MAX_CHUNK_BYTES + 2 * MIB,
	                                 1,
	                                 0,
	                                 2 * MIB + 1,
	                                 1ull << 63,
	                                 UINT64_MAX};
	uint8_t choice = take_byte(input);
	return choice < 240 ? sizes[choice % n_elements(sizes)] : take_raw(input);
}

static uint32_t take_device(struct input *input)
{
	uint8_t choice = take_byte(input);
	return choice < 240 ? choice % (N_DEVICES + 2) : (uint32_t)take_raw(input);
}

/* As written: a number + 1. Mostly none. */
static uint32_t take_node(struct input *input)
{
	uint8_t choice = take_byte(input);
	return choice < 192 ? 0 : choice < 240 ? choice % 3 : (uint32_t)take_raw(input);
}

static char *take_name(struct input *input)
{
	static char long_name[2000];
	static const char *const names[] = {"one",  "two", "default", "cache",
	                                    "gone", "",    "\xff\n:"};
	uint8_t choice = take_byte(input);
	memset(long_name, 'n', sizeof(long_name) - 1);
	return choice < 250 ? (char *)names[choice % n_elements(names)] : long_name;
}

/* ---- records --------------------------------------------------------------------------------- */

static uint8_t arena[1 << 20];
static size_t n_arena;
static struct journal_image image;

static void put_body(unsigned kind, uint64_t id, size_t n_bytes, bool is_more)
{
	const struct journal_key key = {.kind = kind, .id = id};
	struct journal_entry *entry;
	HASH_FIND(hh, image.entries, &key, sizeof(key), entry);
	if (!entry) {
		entry = calloc(1, sizeof(*entry));
		entry->key = key;
		entry->pieces = calloc(MAX_RECORDS, sizeof(entry->pieces[0]));
		HASH_ADD(hh, image.entries, key, sizeof(entry->key), entry);
	}
	entry->n_pieces = is_more ? entry->n_pieces : 0;
	entry->pieces[entry->n_pieces++] = (struct journal_piece){.body = arena + n_arena,
	                                                          .n_bytes = n_bytes};
	n_arena += n_bytes;
	if (image.max_ids[kind] < id) {
		image.max_ids[kind] = id;
	}
}

static void put(unsigned kind, uint64_t id, const ProtobufCMessage *message)
{
	size_t n_bytes = protobuf_c_message_get_packed_size(message);
	if (n_bytes <= sizeof(arena) - n_arena) {
		protobuf_c_message_pack(message, arena + n_arena);
		put_body(kind, id, n_bytes, kind == BOOKS_MANIFEST);
	}
}

static struct device devices[N_DEVICES];
/* A GPU each, and behind them a node of the host. */
#define N_LOCATIONS (N_DEVICES + 1u)
static struct location node;
static struct location *locations[N_LOCATIONS];

static void device_record(struct input *input)
{
	Glake__State__Device body = GLAKE__STATE__DEVICE__INIT;
	uint64_t id = take_id(input);
	uint8_t choice = take_byte(input);
	body.uuid.data = (uint8_t *)devices[choice % N_DEVICES].uuid;
	body.uuid.len = choice < 250 ? sizeof(devices[0].uuid) : 5u;
	put(BOOKS_DEVICE, id, &body.base);
}

static void block_record(struct input *input)
{
	Glake__State__Block body = GLAKE__STATE__BLOCK__INIT;
	uint8_t digest[DIGEST_BYTES] = {0};
	uint64_t id = take_id(input);
	body.realm = take_name(input);
	body.device = take_device(input);
	digest[0] = take_byte(input) % 8;
	body.digest.data = digest;
	body.digest.len = take_byte(input) < 250 ? sizeof(digest) : 3;
	body.bytes = take_size(input);
	body.content_bytes = take_size(input);
	body.payer = take_name(input);
	uint8_t flags = take_byte(input);
	body.is_published = flags & 1;
	body.is_collision = flags & 2;
	body.is_suspect = flags & 4;
	body.is_damaged = flags & 8;
	body.priority = (int32_t)take_byte(input) - 128;
	body.since_ms = take_id(input);
	put(BOOKS_BLOCK, id, &body.base);
}

static void model_record(struct input *input)
{
	Glake__State__Model body = GLAKE__STATE__MODEL__INIT;
	uint64_t id = take_id(input);
	body.realm = take_name(input);
	body.device = take_device(input);
	body.name = take_name(input);
	body.payer = take_name(input);
	uint8_t flags = take_byte(input);
	body.is_pinned = flags & 1;
	body.is_published = flags & 2;
	body.is_hidden = flags & 4;
	body.is_in_log = flags & 8;
	body.has_reload_reason = flags & 16;
	body.reload_reason = take_name(input);
	body.content_bytes = take_size(input);
	body.n_tensors = take_id(input);
	body.n_blocks = take_id(input);
	body.manifest = take_id(input);
	body.priority = (int32_t)take_byte(input) - 128;
	body.since_ms = take_id(input);
	put(BOOKS_MODEL, id, &body.base);
}

static void manifest_record(struct input *input)
{
	Glake__State__Manifest body = GLAKE__STATE__MANIFEST__INIT;
	Glake__State__Tensor tensor = GLAKE__STATE__TENSOR__INIT;
	Glake__State__Place place = GLAKE__STATE__PLACE__INIT;
	Glake__State__Tensor *tensors = &tensor;
	Glake__State__Place *places = &place;
	static uint8_t file_bytes[sizeof(struct file_id) + 1];
	ProtobufCBinaryData file = {.data = file_bytes};
	static uint64_t numbers[GLAKE_MAX_DIMS + 2];
	uint64_t id = take_id(input);
	uint8_t what = take_byte(input);
	place.block = take_id(input);
	place.content_bytes = take_size(input);
	tensor.name = take_name(input);
	tensor.dtype = take_byte(input);
	tensor.offset = take_size(input);
	tensor.bytes = take_size(input);
	tensor.shape = tensor.strides = numbers;
	tensor.n_shape = take_byte(input) % n_elements(numbers);
	tensor.n_strides = take_byte(input) & 1 ? tensor.n_shape : take_byte(input) % 3;
	file_bytes[0] = take_byte(input) % 4;
	file.len = sizeof(struct file_id) + (take_byte(input) > 250);
	body.places = &places;
	body.n_places = what & 1;
	body.tensors = &tensors;
	body.n_tensors = what >> 1 & 1;
	body.files = &file;
	body.n_files = what >> 2 & 1;
	put(BOOKS_MANIFEST, id, &body.base);
}

static uint64_t own_start;

static void put_holder(struct input *input, size_t max_promises)
{
	Glake__State__Holder body = GLAKE__STATE__HOLDER__INIT;
	Glake__State__Promise promises[MAX_PROMISES];
	Glake__State__Promise *list[MAX_PROMISES];
	static uint8_t key[GLAKE_KEY_BYTES];
	uint32_t gids[] = {0, 5, UINT32_MAX};
	uint64_t id = take_id(input);
	uint8_t choice = take_byte(input);
	body.key.data = key;
	body.key.len = choice < 250 ? sizeof(key) : 5;
	body.image = take_byte(input);
	body.pid = take_byte(input) < 230 ? getpid() : (int32_t)take_raw(input);
	body.started = take_byte(input) < 230 ? own_start : take_raw(input);
	body.uid = take_byte(input);
	body.owner = take_byte(input);
	body.gids = gids;
	body.n_gids = take_byte(input) % (n_elements(gids) + 1);
	body.has_cgroup = choice & 1;
	body.cgroup = take_name(input);
	body.realm = take_name(input);
	body.tenant = take_name(input);
	body.has_program = choice & 2;
	body.program = take_name(input);
	body.name = take_name(input);
	body.script = take_name(input);
	body.promises = list;
	body.n_promises = max_promises ? take_byte(input) % (max_promises + 1) : 0;
	for (size_t i = 0; i < body.n_promises; i++) {
		glake__state__promise__init(&promises[i]);
		promises[i].device = take_device(input);
		promises[i].bytes = take_size(input);
		list[i] = &promises[i];
	}
	put(BOOKS_HOLDER, id, &body.base);
}

static void holder_record(struct input *input)
{
	put_holder(input, 0);
}

static void promised_holder_record(struct input *input)
{
	put_holder(input, MAX_PROMISES);
}

static void held_record(struct input *input)
{
	Glake__State__Held body = GLAKE__STATE__HELD__INIT;
	uint64_t id = take_id(input);
	body.holder = take_id(input);
	body.kind = (Glake__State__HeldKind)(take_byte(input) % 4);
	body.request = take_id(input);
	body.ticket = take_id(input);
	body.device = take_device(input);
	body.bytes = take_size(input);
	body.thing = take_id(input);
	uint8_t flags = take_byte(input);
	body.was_chunk = flags & 1;
	body.was_known = flags & 2;
	body.was_alone = flags & 4;
	body.node = take_node(input);
	put(BOOKS_HELD, id, &body.base);
}

static void quota_record(struct input *input)
{
	Glake__State__Quota body = GLAKE__STATE__QUOTA__INIT;
	uint64_t id = take_id(input);
	body.tenant = take_name(input);
	body.limit = (Glake__State__Limit)(take_byte(input) % 5);
	body.device = take_device(input);
	body.value = take_size(input);
	body.node = take_node(input);
	put(BOOKS_QUOTA, id, &body.base);
}

static void host_chunk_record(struct input *input)
{
	Glake__State__HostChunk body = GLAKE__STATE__HOST_CHUNK__INIT;
	uint64_t id = take_id(input);
	body.node = take_byte(input) < 192 ? 1 : take_node(input);
	body.bytes = take_byte(input) < 128 ? 32 * MIB : take_size(input);
	body.has_user = take_byte(input) & 1;
	body.user = take_byte(input);
	put(BOOKS_HOST_CHUNK, id, &body.base);
}

static void copy_record(struct input *input)
{
	Glake__State__Copy body = GLAKE__STATE__COPY__INIT;
	uint8_t digest[DIGEST_BYTES] = {0};
	uint64_t id = take_id(input);
	body.realm = take_name(input);
	digest[0] = take_byte(input) % 8;
	body.digest.data = digest;
	body.digest.len = take_byte(input) < 250 ? sizeof(digest) : 3;
	body.content_bytes = take_size(input);
	body.chunk = take_id(input);
	body.offset = take_byte(input) < 192 ? take_byte(input) % 16 * 2 * MIB : take_raw(input);
	body.bytes = take_size(input);
	body.is_found = take_byte(input) & 1;
	body.payer = take_name(input);
	put(BOOKS_COPY, id, &body.base);
}

static void slept_record(struct input *input)
{
	Glake__State__Slept body = GLAKE__STATE__SLEPT__INIT;
	uint64_t id = take_id(input);
	body.holder = take_id(input);
	body.request = take_id(input);
	body.copy = take_id(input);
	body.device = take_device(input);
	body.bytes = take_size(input);
	body.is_block = take_byte(input) & 1;
	uint8_t flags = take_byte(input);
	body.was_chunk = flags & 1;
	body.was_known = flags & 2;
	body.was_alone = flags & 4;
	put(BOOKS_SLEPT, id, &body.base);
}

static void slept_model_record(struct input *input)
{
	Glake__State__SleptModel body = GLAKE__STATE__SLEPT_MODEL__INIT;
	uint64_t copies[6];
	uint64_t id = take_id(input);
	body.holder = take_id(input);
	body.request = take_id(input);
	body.device = take_device(input);
	body.model = take_id(input);
	body.name = take_name(input);
	body.n_copies = take_byte(input) % (n_elements(copies) + 1);
	body.total = take_byte(input) < 250 ? body.n_copies : take_raw(input);
	body.copies = copies;
	for (size_t i = 0; i < body.n_copies; i++) {
		copies[i] = take_id(input);
	}
	put(BOOKS_SLEPT_MODEL, id, &body.base);
}

static void sleeper_record(struct input *input)
{
	Glake__State__Sleeper body = GLAKE__STATE__SLEEPER__INIT;
	Glake__State__Stay stay = GLAKE__STATE__STAY__INIT;
	Glake__State__Stay *stays[GLAKE_MAX_STAYS + 2];
	uint64_t id = take_id(input);
	body.why = take_byte(input);
	body.since_ms = take_id(input);
	stay.why = take_name(input);
	for (size_t i = 0; i < n_elements(stays); i++) {
		stays[i] = &stay;
	}
	body.stays = stays;
	body.n_stays = take_byte(input) % (n_elements(stays) + 1);
	put(BOOKS_SLEEPER, id, &body.base);
}

static void kept_step_record(struct input *input)
{
	Glake__State__KeptStep body = GLAKE__STATE__KEPT_STEP__INIT;
	uint8_t text[GLAKE_MAX_WILL_KEY_BYTES + 1] = {1};
	uint64_t id = take_id(input);
	body.realm = take_name(input);
	body.user = take_byte(input);
	body.device = take_device(input);
	body.bytes = take_size(input);
	body.n_chunks = take_byte(input) < 240 ? take_byte(input) % 5 : (uint32_t)take_raw(input);
	body.key.data = body.record.data = text;
	body.key.len = take_byte(input) % (sizeof(text) + 1);
	body.record.len = take_byte(input) % sizeof(text);
	body.payer = take_name(input);
	body.since_ms = take_id(input);
	put(BOOKS_KEPT_STEP, id, &body.base);
}

static void raw_record(struct input *input)
{
	unsigned kind = take_byte(input) % (JOURNAL_MAX_KINDS - 1) + 1;
	uint64_t id = take_id(input);
	size_t n_bytes = take_byte(input);
	bool is_more = take_byte(input) & 1;
	size_t n_left = (size_t)(input->end - input->at);
	n_bytes = n_bytes < n_left ? n_bytes : n_left;
	if (n_bytes <= sizeof(arena) - n_arena) {
		if (n_bytes > 0) {
			memcpy(arena + n_arena, input->at, n_bytes);
		}
		put_body(kind, id, n_bytes, is_more);
	}
	input->at += n_bytes;
}

static void write_records(struct input *input)
{
	static void (*const records[])(struct input *) = {
		device_record,      block_record,      block_record,
		model_record,       manifest_record,   holder_record,
		held_record,        held_record,       quota_record,
		raw_record,         host_chunk_record, copy_record,
		copy_record,        slept_record,      sleeper_record,
		slept_model_record, kept_step_record,  promised_holder_record};
	image = (struct journal_image){.state = JOURNAL_GOOD};
	n_arena = 0;
	for (unsigned i = 0; input->at < input->end && i < MAX_RECORDS; i++) {
		records[take_byte(input) % n_elements(records)](input);
	}
}

/* ---- a glaked without its ends --------------------------------------------------------------- */

static uv_loop_t loop;
static struct config *config;
static struct tenant_table *tenants;
static struct stats stats;
static struct store store;
static struct holders holders;
static struct kept_steps kept_steps;
static struct chunk_books chunk_books;
static struct mover_link mover;    /* none runs */
static struct allocator allocator; /* nothing is new */
static struct copies copies;
static struct parking *parking;
static struct promises promises;

static size_t n_own_fds(void)
{
	size_t n = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (readdir(dir)) {
		n++;
	}
	closedir(dir);
	return n;
}

static void begin(void)
{
	memset(kept_blocks, 0, sizeof(kept_blocks));
	memset(kept_chunks, 0, sizeof(kept_chunks));
	memset(kept_hosts, 0, sizeof(kept_hosts));
	must(uv_loop_init(&loop) == 0);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		devices[i] = (struct device){
			.index = i,
			.at = {.number = i, .slot = i, .usable_bytes = USABLE_BYTES},
		};
		locations[i] = &devices[i].at;
		memset(devices[i].uuid, (int)i + 1, sizeof(devices[i].uuid));
		must(location_start(&devices[i].at, &loop) == 0);
	}
	node = (struct location){.kind = LOCATION_HOST, .slot = N_DEVICES};
	locations[N_DEVICES] = &node;
	must(tenant_table_new(config, N_DEVICES, 1, &tenants) == 0);
	stats = (struct stats){0};
	chunk_books = (struct chunk_books){.max_fds = UINT64_MAX, .stats = &stats};
	store_init(&store, &loop, tenant_table_cache(tenants), &stats);
	must(copies_init(&copies, &store, &mover, &allocator, &node, 1) == 0);
	store.copies = &copies;
	holders_init(&holders, &loop, locations, N_LOCATIONS, &store, 0);
	kept_steps_init(&kept_steps, &loop, store.cache, &stats, UINT64_MAX, UINT64_MAX);
	kept_steps.holders = &holders;
	holders.kept = &kept_steps;
	list_init(&promises.all);
	parking = parking_new(&loop, NULL);
	must(parking != NULL);
	store.parking = chunk_books.parking = parking;
}

static void run_barriers(void)
{
	while (barrier_fn) {
		fdstore_fn fn = barrier_fn;
		barrier_fn = NULL;
		fn(barrier_user);
	}
}

static void end(void)
{
	while (holders.n > 0) {
		holder_end(list_first(&holders.list, struct holder, link));
	}
	must(list_is_empty(&promises.all));
	kept_steps_deinit(&kept_steps);
	must(kept_steps.n_parked == 0);
	store_deinit(&store);
	copies_close(&copies);
	copies_deinit(&copies);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		while (devices[i].at.worker.n_pending > 0) {
			run_barriers();
			uv_run(&loop, UV_RUN_ONCE);
		}
		must(devices[i].at.leaving_bytes == 0 && devices[i].at.logical_block_bytes == 0);
		must(devices[i].at.promised_bytes == 0);
		must(devices[i].at.saved_alone_bytes == 0 && devices[i].at.unsealing_bytes == 0);
		location_close(&devices[i].at);
	}
	while (node.is_started && node.worker.n_pending > 0) {
		run_barriers();
		uv_run(&loop, UV_RUN_ONCE);
	}
	must(node.leaving_bytes == 0);
	location_close(&node);
	run_barriers();
	must(chunk_books.n_fds == 0 && chunk_books.unparked_bytes == 0);
	must(list_is_empty(&holders.realms));
	tenant_table_free(tenants);
	parking_free(parking);
	orders_deinit(&holders.orders);
	mistakes_deinit(&holders.mistakes);
	uv_run(&loop, UV_RUN_DEFAULT);
	must(uv_loop_close(&loop) == 0);
}

/* ---- what must hold -------------------------------------------------------------------------- */

/* @kept was taken, and is in use. */
static bool is_in_use(const struct kept *kept)
{
	return kept->is_taken && !kept->is_removed;
}

/* Returns how many blocks and chunks have an fd. Adds to @n_bytes what all have. */
static size_t check_chunks(uint64_t *n_bytes)
{
	size_t n = 0;
	struct block *block;
	struct holder *holder;
	struct kept_step *step;
	list_for_each (block, &store.block_list, link) {
		*n_bytes += block->chunk.bytes;
		must((block->state == BLOCK_LOST) == block->chunk.is_unparked);
		if (block->state == BLOCK_LOST) {
			/* Only who has it mapped has it: nobody finds it. */
			must(block->n_users > 0 && block->chunk.fd < 0);
			must(store_find_block(&store, block->realm, block->chunk.at,
			                      &block->key.digest) != block);
			continue;
		}
		must(block->id < N_IDS && is_in_use(&kept_blocks[block->id]));
		n++;
	}
	list_for_each (step, &kept_steps.list, link) {
		for (size_t i = 0; i < step->will->n_chunks; i++) {
			uint64_t id = step->id - step->will->n_chunks + 1 + i;
			*n_bytes += step->chunks[i].bytes;
			must(id < N_IDS && is_in_use(&kept_chunks[id]));
			n++;
		}
	}
	list_for_each (holder, &holders.list, link) {
		for (const struct held *held = holder->held; held; held = held->hh.next) {
			if (held->kind != HELD_CHUNK) {
				continue;
			}
			*n_bytes += held->chunk.bytes;
			must(held->chunk.is_unparked == (held->chunk.fd < 0));
			if (!held->chunk.is_unparked) {
				must(held->id < N_IDS && is_in_use(&kept_chunks[held->id]));
				n++;
			}
		}
	}
	return n;
}

static void check_charges(void)
{
	uint64_t n_bytes = 0;
	size_t n = check_chunks(&n_bytes);
	size_t n_fds = n;
	n_bytes += node.use_bytes[CHUNK_COPIES];
	for (unsigned i = 0; i < N_DEVICES; i++) {
		n_bytes += devices[i].at.promised_bytes;
	}
	for (unsigned i = 0; i < N_IDS; i++) {
		n -= is_in_use(&kept_blocks[i]);
		n -= is_in_use(&kept_chunks[i]);
	}
	must(n == 0);
	for (unsigned i = 0; i < N_IDS; i++) {
		n_fds += is_in_use(&kept_hosts[i]);
	}
	/* A chunk whose copies are cache has its fd as well, which is not kept any more. */
	must(n_fds <= chunk_books.n_fds);
	struct tenant *tenant = NULL;
	while ((tenant = tenant_next(tenants, tenant ? tenant->id : 0))) {
		for (uint32_t i = 0; i < N_LOCATIONS; i++) {
			n_bytes -= tenant->at[i].used_bytes;
		}
	}
	must(n_bytes == 0);
}

static void check_realms(void)
{
	struct model *model;
	struct holder *holder;
	list_for_each (model, &store.model_list, link) {
		uint64_t span_bytes = 0;
		must(!store_has_unparked(model) ||
		     (model->state == MODEL_HIDDEN && model->n_holders > 0));
		for (size_t i = 0; i < model->n_blocks; i++) {
			const struct block *block = model->blocks[i].block;
			must(block->realm == model->realm && block->chunk.at == &model->device->at);
			span_bytes += block->chunk.bytes;
		}
		must(span_bytes == model->span_bytes && model->end_bytes <= span_bytes);
	}
	list_for_each (holder, &holders.list, link) {
		must(holder->state == HOLDER_DETACHED && holder->peer.pid == getpid());
		for (const struct held *held = holder->held; held; held = held->hh.next) {
			must(held->kind != HELD_MODEL || held->model->realm == holder->realm);
			must(held->kind != HELD_BLOCK || held->block->realm == holder->realm);
		}
	}
}

/* Adds what the sessions in @promise have to *used_bytes. Returns how many they are. */
static unsigned add_promised(const struct promise *promise, uint64_t *used_bytes)
{
	unsigned n = 0;
	const struct holder *holder;
	list_for_each (holder, &holders.list, link) {
		const struct holder_location *at = &holder->at[promise->at->slot];
		if (at->promise == promise) {
			n++;
			*used_bytes += at->reserved_bytes + at->shared_bytes;
			must(holder->tenant == promise->charge.tenant);
			must(holder_find_promise(holder, promise->at->slot) == promise);
		}
	}
	return n;
}

/* One for each process and device, of what its sessions have there; the rest is reserved and paid for, if there was room. */
static void check_promises(void)
{
	uint64_t reserved_bytes[N_DEVICES] = {0};
	const struct promise *promise;
	list_for_each (promise, &promises.all, link) {
		uint64_t used_bytes = 0;
		unsigned n_users = add_promised(promise, &used_bytes);
		must(n_users > 0 && n_users == promise->n_users && n_users == promise->n_refs);
		must(promise->used_bytes == used_bytes && promise->drawn_bytes == 0);
		must(promise->reserved_bytes <= promise_left_bytes(promise));
		must(promise->charge.bytes == promise->reserved_bytes);
		must(promise->at->slot < N_DEVICES);
		reserved_bytes[promise->at->slot] += promise->reserved_bytes;
	}
	for (unsigned i = 0; i < N_DEVICES; i++) {
		must(devices[i].at.promised_bytes == reserved_bytes[i]);
		must(reserved_bytes[i] <= USABLE_BYTES);
	}
}

/* All of it sleeps, or nothing. */
static void check_sleepers(void)
{
	struct holder *holder;
	const struct slept *slept;
	list_for_each (holder, &holders.list, link) {
		const struct sleeper *sleeper = holder->sleeper;
		must(sleeper || holder->n_held[HELD_SLEPT] == 0);
		if (!sleeper) {
			continue;
		}
		must(!list_is_empty(&sleeper->slept) && sleeper->state != SLEEPER_WAKING);
		list_for_each (slept, &sleeper->slept, link) {
			must((slept->held->kind == HELD_SLEPT) ==
			     (sleeper->state == SLEEPER_ASLEEP));
			uint64_t bytes = 0;
			for (size_t i = 0; i < slept->n_copies; i++) {
				const struct copy *copy = slept->copies[i];
				must(copy->realm == holder->realm && copy->n_parked > 0);
				bytes += copy->bytes;
			}
			must(slept->bytes == bytes && slept->n_copies > 0);
			must(slept->kind == HELD_MODEL || slept->n_copies == 1);
		}
	}
}

static void adopt(void)
{
	struct adopt_report report;
	/* Sleepers keep it. */
	static const struct sleep_context sleep = {.copies = &copies};
	const struct books_parts parts = {.loop = &loop,
	                                  .config = config,
	                                  .devices = devices,
	                                  .n_devices = N_DEVICES,
	                                  .locations = locations,
	                                  .n_locations = N_LOCATIONS,
	                                  .chunk_books = &chunk_books,
	                                  .promises = &promises,
	                                  .tenants = tenants,
	                                  .store = &store,
	                                  .holders = &holders,
	                                  .sleep = &sleep};
	adopt_all(&parts, &image, &report);
	must(report.n_models <= store.n_models && report.n_holders == holders.n);
	store_settle_adopted(&store);
	for (uint32_t i = 0; i < N_DEVICES; i++) {
		const struct location *at = &devices[i].at;
		reserve_set_part(&devices[i].at, 0.5);
		must(at->unsealing_bytes <= reserve_wanted_bytes(at));
		must(reserve_wanted_bytes(at) <= at->saved_alone_bytes);
		must(at->saved_alone_bytes <= at->logical_block_bytes);
	}
	sleepers_settle_adopted(&holders);
	copies_settle_adopted(&copies);
	check_sleepers();
	check_promises();
	check_charges();
	check_realms();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char text[] =
		"tenants = ({ name = \"one\"; uids = [1]; device_bytes = \"4MiB\"; },"
		"{ name = \"two\"; uids = [2]; max_sessions = 1; manifest_bytes = \"16KiB\"; });";
	char path[64];
	char error[256];
	int ends[2];
	int fd = memfd_create("config", MFD_CLOEXEC);
	log_set_level(LOG_LEVEL_ERROR);
	must(fd >= 0 && write(fd, text, sizeof(text) - 1) == sizeof(text) - 1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	must(config_load(path, &config, error, sizeof(error)) == 0);
	close(fd);
	struct peer peer = {0};
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
	must(peer_init(&peer, ends[0], false) == 0);
	own_start = peer_start_time(&peer, ends[0]);
	must(own_start != 0);
	peer_deinit(&peer);
	close(ends[0]);
	close(ends[1]);
	/* The first loop opens what stays. */
	begin();
	end();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	struct input input = {.at = bytes, .end = bytes + n_bytes};
	size_t n_fds = n_own_fds();
	begin();
	unsigned mask = take_byte(&input) << 8 | take_byte(&input);
	for (unsigned i = 1; i < N_IDS; i++) {
		kept_blocks[i].is_kept = kept_chunks[i].is_kept = mask >> i & 1;
		kept_hosts[i].is_kept = kept_chunks[i].is_kept;
	}
	write_records(&input);
	adopt();
	journal_image_free(&image);
	end();
	must(n_own_fds() == n_fds);
	return 0;
}
