/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Books that an earlier version has written are read by this one. They are a file of that time; what is put into it is
 * the boot, and the process that lives: this one. Its memory is made anew, and kept under the names of then.
 */
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <xxhash.h>

#include "proto/limits.h"
#include "proto/state.pb-c.h"
#include "proto/wire.h"
#include "tests/harness/connection.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"
#include "tests/integration/books_3bf2aad.h"

/* ---- the file, as keep/journal.c has it -------------------------------------------------------- */

struct header {
	char magic[8];
	uint32_t version;
	uint32_t n_bytes;
	char boot[40];
	uint64_t serial;
	uint64_t checksum; /* of all before it */
	uint64_t end;
};

struct record {
	uint32_t n_bytes; /* of the body */
	uint16_t kind;
	uint16_t verb;
	uint64_t id;
	uint64_t checksum;
};

#define HOLDER 2u

/* The ids of the program, and of what it had. */
static const uint64_t engine = 0x63adc3dc3e066;
static const uint64_t private_chunk = 0x63adc3dc3e067;
static const uint64_t named_chunk = 0x63adc3dc3e068;
static const uint64_t published_block = 0x63adc3dc3e069;

static uint64_t checksum_of(const struct record *record, const void *body)
{
	const uint64_t seed[2] = {(uint64_t)record->verb << 48 | (uint64_t)record->kind << 32 |
	                                  record->n_bytes,
	                          record->id};
	return XXH3_64bits_withSeed(body, record->n_bytes, XXH3_64bits(seed, sizeof(seed)));
}

static size_t padded(size_t n_bytes)
{
	return (n_bytes + 7) & ~(size_t)7;
}

/* Field 22 of /proc/self/stat. */
static uint64_t start_time(void)
{
	unsigned long long started = 0;
	FILE *file = fopen("/proc/self/stat", "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file,
	                        "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u "
	                        "%*d %*d %*d %*d %*d %*d %llu",
	                        &started),
	                 1);
	fclose(file);
	return started;
}

/* The holder is this process. Returns the bytes of the new body. */
static uint32_t be_engine(const void *body, uint32_t n_bytes, uint8_t *body_out,
                          uint8_t key_out[GLAKE_KEY_BYTES])
{
	Glake__State__Holder *holder = glake__state__holder__unpack(NULL, n_bytes, body);
	ck_assert_ptr_nonnull(holder);
	ck_assert_uint_eq(holder->key.len, GLAKE_KEY_BYTES);
	memcpy(key_out, holder->key.data, GLAKE_KEY_BYTES);
	holder->pid = getpid();
	holder->started = start_time();
	holder->uid = holder->owner = getuid();
	holder->image = 0; /* not another program's, which the next session would end */
	n_bytes = (uint32_t)glake__state__holder__pack(holder, body_out);
	glake__state__holder__free_unpacked(holder, NULL);
	return n_bytes;
}

static void write_books(const char *path, uint8_t key_out[GLAKE_KEY_BYTES])
{
	static uint8_t bytes[sizeof(books_3bf2aad) + 256];
	struct header header;
	memcpy(&header, books_3bf2aad, sizeof(header));
	uint64_t end = sizeof(header);
	for (size_t at = sizeof(header); at < sizeof(books_3bf2aad);) {
		struct record record;
		memcpy(&record, books_3bf2aad + at, sizeof(record));
		const uint8_t *body = books_3bf2aad + at + sizeof(record);
		uint8_t *body_out = bytes + end + sizeof(record);
		ck_assert_uint_eq(record.checksum, checksum_of(&record, body));
		at += sizeof(record) + padded(record.n_bytes);
		if (record.kind == HOLDER && record.id == engine) {
			record.n_bytes = be_engine(body, record.n_bytes, body_out, key_out);
			record.checksum = checksum_of(&record, body_out);
		} else {
			memcpy(body_out, body, record.n_bytes);
		}
		memcpy(bytes + end, &record, sizeof(record));
		end += sizeof(record) + padded(record.n_bytes);
		ck_assert_uint_lt(end, sizeof(bytes));
	}
	cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pread(fd, header.boot, sizeof(header.boot), 16), sizeof(header.boot));
	header.checksum = XXH3_64bits(&header, offsetof(struct header, checksum));
	header.end = end;
	memcpy(bytes, &header, sizeof(header));
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq(pwrite(fd, bytes, end, 0), (ssize_t)end);
}

/* ---- what was kept ----------------------------------------------------------------------------- */

static void keep(const char *name, int fd)
{
	char text[128];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	cleanup_fd int to = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_uint_lt(strlen(harness.notify_path), sizeof(address.sun_path));
	strcpy(address.sun_path, harness.notify_path);
	ck_assert_int_eq(connect(to, (struct sockaddr *)&address, sizeof(address)), 0);
	snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
	ck_assert_int_eq(wire_send(to, text, strlen(text), &fd, 1, 0), 0);
}

static void keep_chunk(const char *name, uint64_t n_bytes, uint64_t content)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
	const CUmemAccessDesc access = {.location = prop.location,
	                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	cleanup_fd int fd = -1;
	ck_assert_int_eq(drv.cuMemCreate(&handle, n_bytes, &prop, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemAddressReserve(&ptr, n_bytes, 0, 0, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemMap(ptr, n_bytes, 0, handle, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuMemSetAccess(ptr, n_bytes, &access, 1), CUDA_SUCCESS);
	words_write(ptr, n_bytes, content);
	ck_assert_int_eq(drv.cuMemExportToShareableHandle(
				 &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	                 CUDA_SUCCESS);
	keep(name, fd);
}

static void keep_all(void *user)
{
	struct header header;
	memcpy(&header, books_3bf2aad, sizeof(header));
	words_open_driver();
	keep_chunk("b1", 4 * MIB, 5);
	keep_chunk("b2", 4 * MIB, 7);
	keep_chunk("b6", 2 * MIB, 9);
	keep_chunk("c63adc3dc3e068", 6 * MIB, 2);
	cleanup_fd int mark = memfd_create("books", MFD_CLOEXEC);
	ck_assert_int_eq(write(mark, &header.serial, sizeof(header.serial)), sizeof(header.serial));
	keep("books", mark);
}

static void wait_kept(size_t n_kept)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (fdkeeper_n_kept(&harness.fdkeeper) != n_kept) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
	}
}

/* ---- what there is ----------------------------------------------------------------------------- */

static int copy_default(void *user, const struct glake_tenant_row *row)
{
	uint64_t *limits = user;
	if (strcmp(row->name, "default") == 0) {
		limits[0] = row->max_sessions;
		limits[1] = row->devices[0].quota_bytes;
		limits[2] = row->quota_manifest_bytes;
	}
	return 0;
}

static int count_pinned(void *user, const struct glake_model_row *row)
{
	if (row->pinned) {
		ck_assert_str_eq(row->name, "/tmp/model.safetensors");
		ck_assert_uint_eq(row->n_tensors, 2);
		ck_assert_uint_eq(row->content_bytes, 3400);
		++*(unsigned *)user;
	}
	return 0;
}

/* Other sessions find what was published, by its key and by its bytes. */
static void find_all(void *user)
{
	enum { N = 4 * MIB / sizeof(uint64_t) };
	static uint64_t words[N];
	struct glake_model *model;
	struct glake_block *block;
	struct glake_digest digest;
	struct glake_block_info info = {.size = sizeof(info)};
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_weights_attach(session, "engine", NULL, &model));
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	assert_ok(glake_model_tensor(model, "w", &tensor));
	words_check(tensor.ptr, 4 * MIB, 7);
	for (uint64_t i = 0; i < N; i++) {
		words[i] = 5ull << 48 | i;
	}
	glake_digest_bytes(words, sizeof(words), &digest);
	assert_ok(glake_block_lookup(session, 0, &digest, &block));
	assert_ok(glake_block_info(block, &info));
	words_check(info.ptr, 4 * MIB, 5);
	glake_block_release(block);
	glake_model_close(model);
	world_disconnect(session);
}

/* The program goes on: it opens what it has named, frees a chunk and a block, asks for more, and ends. */
static void go_on(const uint8_t key[GLAKE_KEY_BYTES])
{
	uint64_t chunk;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	struct connection_identity identity = {.version = GLAKE_WIRE_VERSION, .has_key = true};
	memcpy(identity.key, key, GLAKE_KEY_BYTES);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(identity.session, engine);
	Glake__Wire__Answer *answer = connection_call(connection,
	                                              REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
	                                                      .ids = (uint64_t *)&named_chunk,
	                                                      .n_ids = 1),
	                                              NULL, 0, &fds);
	ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s", answer->error);
	ck_assert_uint_eq(answer->chunk_open->chunk_bytes[0], 6 * MIB);
	ck_assert_uint_eq(fds.n_fds, 1);
	connection_free(answer);
	ck_assert_int_eq(connection_free_chunks(connection, (uint64_t *)&private_chunk, 1),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_release(connection, published_block), GLAKE__WIRE__STATUS__OK);
	fdlist_deinit(&fds);
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 0, 2 * MIB, 1, &chunk, &fds), 0);
	ck_assert_uint_gt(chunk, named_chunk);
	ck_assert_uint_eq(world_books().private_bytes, 8 * MIB);
	ck_assert_uint_eq(world_books().used_block_bytes, 4 * MIB);
	connection_goodbye(connection);
	connection_close(&connection);
}

/* Evicted as well; what a model takes beside its blocks is not of interest. */
static void wait_for(const struct books *want)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	struct books now;
	do {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
		now = world_books();
		now.fds_used = want->fds_used;
		now.charged_fds = want->charged_fds;
		now.charged_manifest_bytes = want->charged_manifest_bytes;
	} while (memcmp(&now, want, sizeof(now)) != 0);
}

START_TEST(books_of_3bf2aad_are_adopted)
{
	uint8_t key[GLAKE_KEY_BYTES] = {0};
	static char config[512];
	snprintf(config, sizeof(config),
	         WORLD_CONFIG "realms = ( { name = \"engines\"; uids = [ %u ]; } ); "
	                      "tenants = ( { name = \"default\"; device_bytes = \"768MiB\"; } );",
	         (unsigned)getuid());
	world_begin(.config = config, .devices = "1x1GiB", .is_activated = true, .keeps_fds = true);
	harness_kill(&harness);
	fdkeeper_forget(&harness.fdkeeper, "");
	world_join(world_client(keep_all, NULL));
	wait_kept(5);
	write_books(world_path("glaked.sock.state"), key);
	harness_restart(&harness);
	harness_wait_log(&harness, "3 blocks (10485760 bytes), 2 models, 1 sessions, 2 private "
	                           "chunks (10485760 bytes)");
	harness_wait_log(&harness, "1 sessions have ended while there was no glaked: 1 private "
	                           "chunks (2097152 bytes) came back");
	ck_assert_uint_eq(harness_n_log_lines(&harness, "not adopted"), 0);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "nothing describes"), 0);
	world_look_again();
	struct books books = world_books();
	ck_assert_uint_eq(books.n_models, 2);
	ck_assert_uint_eq(books.n_blocks, 3);
	ck_assert_uint_eq(books.private_bytes, 10 * MIB);
	ck_assert_uint_eq(books.used_block_bytes, 8 * MIB);
	ck_assert_uint_eq(books.charged_bytes, 20 * MIB);
	uint64_t limits[3] = {0};
	assert_ok(glake_list_tenants(eye, copy_default, limits));
	ck_assert_uint_eq(limits[0], 77);
	ck_assert_uint_eq(limits[1], 512 * MIB);
	ck_assert_uint_eq(limits[2], MIB);
	unsigned n_pinned = 0;
	assert_ok(glake_list_models(eye, count_pinned, &n_pinned));
	ck_assert_uint_eq(n_pinned, 1);
	world_join(world_client(find_all, NULL));
	go_on(key);
	/* And nothing but what is pinned is left, of the books either. */
	struct books left = books_before;
	left.n_models = left.n_blocks = 1;
	left.physical_bytes += 2 * MIB;
	left.block_bytes += 2 * MIB;
	left.charged_bytes += 2 * MIB;
	wait_for(&left);
	harness_kill(&harness);
	harness_restart(&harness);
	world_look_again();
	wait_for(&left);
	assert_ok(glake_pin(eye, "5", 0));
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	world_wait_books(&books_before);
	wait_kept(1);
}
END_TEST
