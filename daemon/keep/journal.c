/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/journal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "daemon/base/log.h"
#include "daemon/keep/lockfile.h"
#include "proto/array.h"
#include "proto/cleanup.h"

/*
 * Room. Records come from the loop, which never waits; room comes from a thread, which may be late, and which the file
 * system may refuse. So the loop needs to know early that room ends, and what it cannot refuse must always fit:
 *
 *     0         n_used    3/2 n_used + LEAST        n_allocated           MAX_BYTES
 *     | records | deletions of all of them | records of requests | no room |
 *
 * A deletion is 24 bytes, and no record that the books put is shorter than 48. So half of the records' bytes holds
 * the deletion of each of them. journal_has_room() is false when only that half and LEAST_BYTES are left; then
 * requests that would add records are refused, and those that end things go on.
 *
 * A thread makes room in proportion to the file, because a compaction takes as long as the file is long, and there is no
 * growth meanwhile.
 */
#define MAX_BYTES (1024ull * 1024 * 1024)
#define LEAST_BYTES (3u * 1024 * 1024)
/* The thread makes room for twice the records and AHEAD, as soon as there is none for 7/4 of them and LOW. */
#define AHEAD_BYTES (8u * 1024 * 1024)
#define LOW_BYTES (6u * 1024 * 1024)
/* A compaction waits for at least this many bytes that are not valid, unless room is short. */
#define MIN_COMPACT_BYTES (1024u * 1024)
/* Threads copy the records that came during a compaction until so little is left; the loop copies that. */
#define CATCH_UP_BYTES (256u * 1024)
/* The loop allocates this much at once if the thread is late; the thread does if it cannot get more. */
#define STEP_BYTES (1024u * 1024)
/* The time between compactions that only make room. */
#define RETRY_MS 10000

static const char magic[8] = "glake\r\n\1";

struct header {
	char magic[8];
	uint32_t version;
	uint32_t n_bytes; /* of the header */
	char boot[JOURNAL_BOOT_BYTES];
	uint64_t serial;
	uint64_t checksum; /* of all before it */
	uint64_t end;      /* records go at least that far, or the file was cut */
};

enum verb {
	VERB_PUT = 1,
	VERB_MORE,
	VERB_DELETE,
};

/* The body follows, and zeros up to a multiple of 8 bytes. */
struct record {
	union {
		struct {
			uint32_t n_bytes; /* of the body */
			uint16_t kind;
			uint16_t verb;
		};
		uint64_t first; /* 0: there is no record here */
	};
	uint64_t id;
	uint64_t checksum;
};

_Static_assert(sizeof(struct header) % 8 == 0 && sizeof(struct record) == 24, "no padding");

#define MAX_RECORD_BYTES (sizeof(struct record) + JOURNAL_MAX_BODY)

static size_t record_bytes(size_t n_body)
{
	return sizeof(struct record) + ((n_body + 7) & ~(size_t)7);
}

static uint64_t checksum_of(unsigned verb, unsigned kind, uint64_t id, const void *body,
                            size_t n_bytes)
{
	const uint64_t seed[2] = {(uint64_t)verb << 48 | (uint64_t)kind << 32 | n_bytes, id};
	return XXH3_64bits_withSeed(body, n_bytes, XXH3_64bits(seed, sizeof(seed)));
}

static uint64_t header_checksum(const struct header *header)
{
	return XXH3_64bits(header, offsetof(struct header, checksum));
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct journal_entry *find_entry(const struct journal_image *image,
                                        const struct journal_key *key)
{
	struct journal_entry *entry;
	HASH_FIND(hh, image->entries, key, sizeof(*key), entry);
	return entry;
}

static void drop_entry(struct journal_image *image, struct journal_entry *entry)
{
	HASH_DEL(image->entries, entry);
	free(entry->pieces);
	free(entry);
}

static struct journal_entry *add_entry(struct journal_image *image, const struct journal_key *key)
{
	struct journal_entry *entry = calloc(1, sizeof(*entry));
	if (!entry) {
		return NULL;
	}
	entry->key = *key;
	HASH_ADD(hh, image->entries, key, sizeof(entry->key), entry);
	if (!hash_has(entry)) {
		free(entry);
		return NULL;
	}
	return entry;
}

static int add_piece(struct journal_entry *entry, const uint8_t *body, size_t n_bytes)
{
	if (array_grow_counted(entry->pieces, entry->n_pieces) < 0) {
		return -ENOMEM;
	}
	entry->pieces[entry->n_pieces++] = (struct journal_piece){.body = body, .n_bytes = n_bytes};
	return 0;
}

/* Apply a record to the image. Returns 0 or -ENOMEM. */
static int take_record(struct journal_image *image, const struct record *record)
{
	const struct journal_key key = {.kind = record->kind, .id = record->id};
	struct journal_entry *entry = find_entry(image, &key);
	if (image->max_ids[key.kind] < key.id) {
		image->max_ids[key.kind] = key.id;
	}
	if (record->verb == VERB_DELETE) {
		if (entry) {
			drop_entry(image, entry);
		}
		return 0;
	}
	if (entry && record->verb == VERB_PUT) {
		entry->n_pieces = 0;
		free(entry->pieces);
		entry->pieces = NULL;
	}
	if (!entry) {
		entry = add_entry(image, &key);
	}
	return entry ? add_piece(entry, (const uint8_t *)(record + 1), record->n_bytes) : -ENOMEM;
}

static bool is_record(const struct record *record, size_t n_left)
{
	return record->n_bytes <= JOURNAL_MAX_BODY && record_bytes(record->n_bytes) <= n_left &&
	       record->kind > 0 && record->kind < JOURNAL_MAX_KINDS && record->verb >= VERB_PUT &&
	       record->verb <= VERB_DELETE &&
	       record->checksum == checksum_of(record->verb, record->kind, record->id, record + 1,
	                                       record->n_bytes);
}

static bool is_zero(const uint8_t *bytes, size_t n_bytes)
{
	return n_bytes == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n_bytes - 1) == 0);
}

/* Whether the records end here. A process that was killed has not written the first word of its last record. */
static bool is_end(const struct record *record, size_t n_left)
{
	return record->first == 0 &&
	       (n_left <= MAX_RECORD_BYTES ||
	        is_zero((const uint8_t *)record + MAX_RECORD_BYTES, n_left - MAX_RECORD_BYTES));
}

static enum journal_state judge_header(const void *bytes, size_t n_bytes, const char *boot)
{
	const struct header *header = bytes;
	if (is_zero(bytes, n_bytes < sizeof(*header) ? n_bytes : sizeof(*header))) {
		return JOURNAL_ABSENT;
	}
	if (n_bytes < sizeof(*header) || memcmp(header->magic, magic, sizeof(magic)) != 0) {
		return JOURNAL_DAMAGED;
	}
	/* The header of a newer version may be longer: nothing else of it is checked. */
	if (header->version > JOURNAL_VERSION) {
		return JOURNAL_NEWER;
	}
	if (header->version != JOURNAL_VERSION || header->n_bytes != sizeof(*header) ||
	    header->checksum != header_checksum(header)) {
		return JOURNAL_DAMAGED;
	}
	return boot && strncmp(header->boot, boot, sizeof(header->boot)) != 0 ? JOURNAL_OTHER_BOOT
	                                                                      : JOURNAL_GOOD;
}

static void drop_entries(struct journal_image *image)
{
	struct journal_entry *entry;
	struct journal_entry *spare;
	HASH_ITER(hh, image->entries, entry, spare)
	{
		drop_entry(image, entry);
	}
}

/* Sets the state; @image_out has no entries unless it is GOOD. Returns 0 or -ENOMEM. */
static int read_records(const uint8_t *bytes, size_t n_bytes, struct journal_image *image)
{
	size_t end = sizeof(struct header);
	int r = 0;
	while (r == 0 && n_bytes - end >= sizeof(struct record)) {
		const struct record *record = (const void *)(bytes + end);
		if (!is_record(record, n_bytes - end)) {
			image->state = is_end(record, n_bytes - end) ? JOURNAL_GOOD
			                                             : JOURNAL_DAMAGED;
			break;
		}
		r = take_record(image, record);
		end += record_bytes(record->n_bytes);
	}
	image->end = end;
	if (r < 0 || image->state != JOURNAL_GOOD) {
		drop_entries(image);
	}
	return r;
}

int journal_read(const void *bytes, size_t n_bytes, const char *boot,
                 struct journal_image *image_out)
{
	const struct header *header = bytes;
	struct journal_image image = {.state = judge_header(bytes, n_bytes, boot)};
	int r = image.state == JOURNAL_GOOD ? read_records(bytes, n_bytes, &image) : 0;
	if (r == 0 && image.state == JOURNAL_GOOD) {
		image.serial = header->serial;
		image.is_torn = !is_zero((const uint8_t *)bytes + image.end, n_bytes - image.end);
	}
	if (r == 0 && image.state == JOURNAL_GOOD && image.end < header->end) {
		drop_entries(&image);
		image.state = JOURNAL_DAMAGED;
	}
	if (r == 0) {
		*image_out = image;
	}
	return r;
}

void journal_image_free(struct journal_image *image)
{
	drop_entries(image);
	*image = (struct journal_image){.state = JOURNAL_ABSENT};
}

struct journal_entry *journal_find(const struct journal_image *image, unsigned kind, uint64_t id)
{
	const struct journal_key key = {.kind = kind, .id = id};
	return find_entry(image, &key);
}

static int by_key(const struct journal_entry *a, const struct journal_entry *b)
{
	if (a->key.kind != b->key.kind) {
		return a->key.kind < b->key.kind ? -1 : 1;
	}
	return a->key.id < b->key.id ? -1 : a->key.id > b->key.id;
}

void journal_sort(struct journal_image *image)
{
	HASH_SORT(image->entries, by_key);
}

/* ---- one file -------------------------------------------------------------------------------- */

struct file {
	int fd;         /* owned; -1: none */
	uint8_t *bytes; /* mapped, MAX_BYTES of addresses */
	size_t n_used;
	size_t n_allocated;
};

static void file_close(struct file *file)
{
	if (file->bytes) {
		munmap(file->bytes, MAX_BYTES);
	}
	fd_close(&file->fd);
	*file = (struct file){.fd = -1};
}

static int file_map(struct file *file)
{
	void *bytes = mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
	                   file->fd, 0);
	if (bytes == MAP_FAILED) {
		return -errno;
	}
	file->bytes = bytes;
	return 0;
}

/*
 * Allocate up to @n_bytes of the file, of which @n_allocated are there. Returns the bytes that the file has then, or -errno.
 * Any thread.
 */
static int64_t allocate(const struct file *file, size_t n_allocated, size_t n_bytes)
{
	if (n_bytes > MAX_BYTES) {
		return -EFBIG;
	}
	if (n_bytes <= n_allocated) {
		return (int64_t)n_allocated;
	}
	int error = posix_fallocate(file->fd, (off_t)n_allocated, (off_t)(n_bytes - n_allocated));
	return error ? -error : (int64_t)n_bytes;
}

/* Allocate, and have the pages made, so that the loop need not wait for them. */
static int64_t allocate_pages(const struct file *file, size_t n_allocated, size_t n_wanted)
{
	int64_t n_bytes = allocate(file, n_allocated, n_wanted);
#ifdef MADV_POPULATE_WRITE
	size_t begin = n_allocated & ~(size_t)4095;
	if (n_bytes > (int64_t)begin) {
		madvise(file->bytes + begin, (size_t)n_bytes - begin, MADV_POPULATE_WRITE);
	}
#endif
	return n_bytes;
}

static size_t least_of(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Whether the file may grow: a compaction will still have room beside it. Any thread. */
static bool may_grow(const struct file *file, size_t n_allocated, size_t n_bytes)
{
	struct statvfs status;
	return fstatvfs(file->fd, &status) == 0 &&
	       (uint64_t)status.f_bavail * status.f_frsize >= 2 * n_bytes - n_allocated;
}

static int64_t allocate_ahead(const struct file *file, size_t n_used, size_t n_allocated)
{
	return allocate_pages(file, n_allocated, least_of(2 * n_used + AHEAD_BYTES, MAX_BYTES));
}

static bool is_low(const struct file *file)
{
	size_t n_wanted = file->n_used + file->n_used / 4 * 3 + LOW_BYTES;
	return file->n_allocated < least_of(n_wanted, MAX_BYTES);
}

/* The records before @end are whole. */
static void file_set_end(struct file *file, size_t end)
{
	file->n_used = end;
	__atomic_store_n(&((struct header *)(void *)file->bytes)->end, end, __ATOMIC_RELEASE);
}

static void file_begin(struct file *file, const char *boot, uint64_t serial)
{
	struct header header = {
		.version = JOURNAL_VERSION, .n_bytes = sizeof(header), .serial = serial};
	memcpy(header.magic, magic, sizeof(magic));
	snprintf(header.boot, sizeof(header.boot), "%s", boot);
	header.checksum = header_checksum(&header);
	memcpy(file->bytes, &header, sizeof(header));
	file_set_end(file, sizeof(header));
}

/* The caller has made room for the record. */
static void file_append(struct file *file, enum verb verb, unsigned kind, uint64_t id,
                        const void *body, size_t n_bytes)
{
	struct record *record = (void *)(file->bytes + file->n_used);
	const struct record head = {
		.n_bytes = (uint32_t)n_bytes, .kind = (uint16_t)kind, .verb = (uint16_t)verb};
	record->id = id;
	record->checksum = checksum_of(verb, kind, id, body, n_bytes);
	if (n_bytes > 0) {
		memcpy(record + 1, body, n_bytes);
	}
	__atomic_store_n(&record->first, head.first, __ATOMIC_RELEASE);
	file_set_end(file, file->n_used + record_bytes(n_bytes));
}

/*
 * The thread is late: the loop waits for the file system here, for as long as a MiB takes, instead of refusing requests
 * or losing the books. Returns 0 or -errno.
 */
static int file_make_room(struct file *file, size_t n_bytes)
{
	if (n_bytes <= file->n_allocated - file->n_used) {
		return 0;
	}
	int64_t n_allocated = allocate(file, file->n_allocated,
	                               file->n_used + n_bytes + STEP_BYTES);
	if (n_allocated < 0) {
		n_allocated = allocate(file, file->n_allocated, file->n_used + n_bytes);
	}
	if (n_allocated < 0) {
		return (int)n_allocated;
	}
	file->n_allocated = (size_t)n_allocated;
	return 0;
}

static int open_new(const char *path, struct file *file_out)
{
	struct file file = {.fd = -1};
	unlink(path);
	file.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = file.fd < 0 ? -errno : file_map(&file);
	if (r < 0) {
		file_close(&file);
		return r;
	}
	*file_out = file;
	return 0;
}

/* ---- the journal ----------------------------------------------------------------------------- */

enum job {
	JOB_NONE,
	JOB_GROW,
	JOB_COMPACT,  /* writes the new file */
	JOB_CATCH_UP, /* and what has come meanwhile */
	JOB_RENAME,   /* both files are appended to */
	JOB_CLOSE,    /* the old file */
};

struct journal {
	uv_loop_t *loop;
	char *path;     /* owned */
	char *new_path; /* owned; of the file that takes the name */
	int lock_fd;    /* owned */
	char boot[JOURNAL_BOOT_BYTES];
	uint64_t serial;
	struct file file;
	struct file next; /* of JOB_COMPACT to JOB_RENAME, or the old one of JOB_CLOSE */
	size_t n_valid;   /* n_used after the last compaction, or at its failure */
	bool must_compact;
	int error;
	bool is_renewing; /* the file has no name yet */
	bool is_closed;
	bool is_stuck;     /* the file cannot grow; journal_tick() tries again */
	uint64_t tried_ms; /* the last compaction for the sake of room alone */
	struct log_limit log_limit;

	uv_work_t work;
	enum job job;
	size_t job_begin; /* of JOB_CATCH_UP: so far the next file has all */
	size_t job_end;   /* the file's n_used and n_allocated at its start */
	size_t job_allocated;
	int64_t job_result; /* of the job: bytes, or -errno */
};

int journal_boot(char boot_out[JOURNAL_BOOT_BYTES])
{
	cleanup_fd int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, boot_out, JOURNAL_BOOT_BYTES - 1);
	if (n <= 0) {
		return n < 0 ? -errno : -ENODATA;
	}
	boot_out[n] = '\0';
	boot_out[strcspn(boot_out, "\n")] = '\0';
	return 0;
}

static void fail(struct journal *journal, int error)
{
	/* A failure that lasts was logged before. */
	if (!journal->error && !journal->is_renewing) {
		log_error("%s: %s: the books of glaked end here, and a restart will lose what "
		          "there is; glaked tries again every minute",
		          journal->path, strerror(-error));
	}
	journal->error = -error;
	unlink(journal->is_renewing ? journal->new_path : journal->path);
}

static size_t limit_of(const struct journal *journal)
{
	return journal->is_stuck ? journal->file.n_allocated : MAX_BYTES;
}

/*
 * The n_used from which on the valid records get a new file: twice the valid bytes, so that each record is copied twice at
 * most, on average. When the file has a limit, it is half of that, because journal_has_room() ends at two thirds; or some more
 * than the valid bytes, or one compaction would follow the other.
 */
static size_t compact_at(const struct journal *journal)
{
	size_t n_valid = journal->n_valid;
	size_t n_garbage = n_valid > MIN_COMPACT_BYTES ? n_valid : MIN_COMPACT_BYTES;
	size_t latest = limit_of(journal) / 2;
	size_t earliest = n_valid + limit_of(journal) / 16;
	return least_of(n_valid + n_garbage, latest > earliest ? latest : earliest);
}

static void start(struct journal *journal, enum job job);
static void look_ahead(struct journal *journal);

/* ---- jobs: on a thread ----------------------------------------------------------------------- */

static void write_entry(struct file *file, const struct journal_entry *entry)
{
	for (size_t i = 0; i < entry->n_pieces; i++) {
		file_append(file, i ? VERB_MORE : VERB_PUT, (unsigned)entry->key.kind,
		            entry->key.id, entry->pieces[i].body, entry->pieces[i].n_bytes);
	}
}

/* Ids are never used again, so the highest is remembered. */
static void write_max_ids(struct file *file, struct journal_image *image)
{
	for (unsigned kind = 1; kind < JOURNAL_MAX_KINDS; kind++) {
		const struct journal_key key = {.kind = kind, .id = image->max_ids[kind]};
		if (key.id > 0 && !find_entry(image, &key)) {
			file_append(file, VERB_DELETE, kind, key.id, NULL, 0);
		}
	}
}

static size_t valid_bytes(const struct journal_image *image)
{
	size_t n_bytes = sizeof(struct header) + JOURNAL_MAX_KINDS * sizeof(struct record);
	for (const struct journal_entry *entry = image->entries; entry; entry = entry->hh.next) {
		for (size_t i = 0; i < entry->n_pieces; i++) {
			n_bytes += record_bytes(entry->pieces[i].n_bytes);
		}
	}
	return n_bytes;
}

/*
 * Allocate as much room behind the valid records as the old file has behind all of its records: then whatever fits into the old
 * file fits into the new one, which is never longer.
 */
static int64_t allocate_next(const struct journal *journal, const struct file *next, size_t n_valid)
{
	size_t n_left = journal->job_allocated - journal->job_end;
	size_t n_least = least_of(n_valid, journal->job_end) + n_left;
	size_t n_ahead = least_of(2 * n_valid + AHEAD_BYTES, MAX_BYTES);
	int64_t n_bytes = allocate_pages(next, 0, n_ahead > n_least ? n_ahead : n_least);
	return n_bytes < 0 ? allocate_pages(next, 0, n_least) : n_bytes;
}

static void write_valid(struct journal *journal, struct file *next, struct journal_image *image)
{
	file_begin(next, journal->boot, journal->serial);
	for (const struct journal_entry *entry = image->entries; entry; entry = entry->hh.next) {
		write_entry(next, entry);
	}
	write_max_ids(next, image);
}

static int64_t compact(struct journal *journal)
{
	struct journal_image image = {.state = JOURNAL_GOOD};
	struct file next;
	int r = read_records(journal->file.bytes, journal->job_end, &image);
	if (r < 0 || image.state != JOURNAL_GOOD) {
		/* Somebody else has written there: the next start says so. */
		return r < 0 ? r : -EIO;
	}
	r = open_new(journal->new_path, &next);
	int64_t n_allocated = r < 0 ? r : allocate_next(journal, &next, valid_bytes(&image));
	if (n_allocated < 0) {
		if (r == 0) {
			unlink(journal->new_path);
			file_close(&next);
		}
	} else {
		next.n_allocated = (size_t)n_allocated;
		write_valid(journal, &next, &image);
		journal->next = next;
	}
	journal_image_free(&image);
	return n_allocated;
}

static void copy_records(struct file *next, const struct file *file, size_t begin, size_t end)
{
	memcpy(next->bytes + next->n_used, file->bytes + begin, end - begin);
	file_set_end(next, next->n_used + end - begin);
}

static int64_t grow_to(const struct journal *journal, size_t n_bytes)
{
	return may_grow(&journal->file, journal->job_allocated, n_bytes)
	               ? allocate_pages(&journal->file, journal->job_allocated, n_bytes)
	               : -ENOSPC;
}

/* If the file system has too little for a large step, the file grows by a small one. */
static int64_t grow(const struct journal *journal)
{
	size_t n_bytes = least_of(2 * journal->job_end + AHEAD_BYTES, MAX_BYTES);
	size_t n_step = least_of(journal->job_allocated + STEP_BYTES, MAX_BYTES);
	int64_t r = grow_to(journal, n_bytes);
	return r < 0 ? grow_to(journal, n_step) : r;
}

static void run_job(uv_work_t *work)
{
	struct journal *journal = container_of(work, struct journal, work);
	switch (journal->job) {
	case JOB_GROW:
		journal->job_result = grow(journal);
		break;
	case JOB_COMPACT:
		journal->job_result = compact(journal);
		break;
	case JOB_CATCH_UP:
		copy_records(&journal->next, &journal->file, journal->job_begin, journal->job_end);
		journal->job_result = 0;
		break;
	case JOB_RENAME:
		journal->job_result = rename(journal->new_path, journal->path) < 0 ? -errno : 0;
		break;
	default:
		file_close(&journal->next);
		journal->job_result = 0;
	}
}

/* ---- jobs: on the loop ----------------------------------------------------------------------- */

static void warn_compaction(struct journal *journal)
{
	log_limited(&journal->log_limit, LOG_LEVEL_WARNING, "%s: cannot be written anew: %s",
	            journal->path, strerror((int)-journal->job_result));
	journal->n_valid = journal->file.n_used;
}

static void end_grow(struct journal *journal)
{
	if (journal->job_result > (int64_t)journal->file.n_allocated) {
		journal->file.n_allocated = (size_t)journal->job_result;
	}
	journal->is_stuck = journal->job_result < 0;
}

static void give_up_next(struct journal *journal, int error)
{
	unlink(journal->new_path);
	journal->job_result = error;
	warn_compaction(journal);
	start(journal, JOB_CLOSE);
}

/* Records that were put meanwhile are appended to the new file; then it has all. */
static void catch_up(struct journal *journal)
{
	size_t begin = journal->job_end;
	size_t n_more = journal->file.n_used - begin;
	int r = journal->error ? -journal->error : file_make_room(&journal->next, n_more);
	if (r < 0) {
		give_up_next(journal, r);
	} else if (n_more > CATCH_UP_BYTES) {
		journal->job_begin = begin;
		start(journal, JOB_CATCH_UP);
	} else {
		copy_records(&journal->next, &journal->file, begin, journal->file.n_used);
		start(journal, JOB_RENAME);
	}
}

static void end_compact(struct journal *journal)
{
	if (journal->job_result < 0) {
		warn_compaction(journal);
		return;
	}
	journal->n_valid = journal->next.n_used;
	catch_up(journal);
}

static void end_rename(struct journal *journal)
{
	if (journal->job_result < 0) {
		warn_compaction(journal);
	} else {
		struct file old = journal->file;
		journal->file = journal->next;
		journal->next = old;
		journal->is_stuck = false;
	}
	if (journal->error) {
		unlink(journal->path);
	}
	start(journal, JOB_CLOSE);
}

static void on_job_done(uv_work_t *work, int status)
{
	struct journal *journal = container_of(work, struct journal, work);
	enum job job = journal->job;
	journal->job = JOB_NONE;
	if (job == JOB_GROW) {
		end_grow(journal);
	} else if (job == JOB_COMPACT) {
		end_compact(journal);
	} else if (job == JOB_CATCH_UP) {
		catch_up(journal);
	} else if (job == JOB_RENAME) {
		end_rename(journal);
	}
	look_ahead(journal);
}

static void start(struct journal *journal, enum job job)
{
	assert(journal->job == JOB_NONE);
	journal->job = job;
	journal->job_end = journal->file.n_used;
	journal->job_allocated = journal->file.n_allocated;
	uv_queue_work(journal->loop, &journal->work, run_job, on_job_done);
}

/* ---- from above ------------------------------------------------------------------------------ */

/* Whether only we, or root, may write to the file with @status. In a sticky folder nobody replaces files of others. */
static bool is_ours(const struct stat *status)
{
	bool is_sticky = S_ISDIR(status->st_mode) && status->st_mode & S_ISVTX;
	return (status->st_uid == geteuid() || status->st_uid == 0) &&
	       (is_sticky || !(status->st_mode & (S_IWGRP | S_IWOTH)));
}

static bool is_in_our_folder(const char *path)
{
	struct stat status;
	cleanup_free char *copy = strdup(path);
	return copy && stat(dirname(copy), &status) == 0 && is_ours(&status);
}

static int read_old(struct journal *journal, size_t n_bytes, uint64_t serial,
                    struct journal_image *image_out)
{
	int r = file_map(&journal->file);
	if (r == 0) {
		r = journal_read(journal->file.bytes, n_bytes, journal->boot, image_out);
	}
	if (r == 0 && image_out->state == JOURNAL_GOOD &&
	    (serial == 0 || image_out->serial != serial)) {
		journal_image_free(image_out);
		image_out->state = JOURNAL_FOREIGN;
	}
	return r;
}

static int take_old(struct journal *journal, uint64_t serial, struct journal_image *image_out)
{
	struct file *file = &journal->file;
	struct stat status;
	*image_out = (struct journal_image){.state = JOURNAL_ABSENT};
	file->fd = open(journal->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (file->fd < 0 && errno != ELOOP && errno != EACCES) {
		return errno == ENOENT ? 0 : -errno;
	}
	if (file->fd < 0 || fstat(file->fd, &status) < 0 || !S_ISREG(status.st_mode) ||
	    !is_ours(&status) || !is_in_our_folder(journal->path)) {
		image_out->state = JOURNAL_STRANGE;
		return 0;
	}
	if ((uint64_t)status.st_size > MAX_BYTES) {
		image_out->state = JOURNAL_DAMAGED;
		return 0;
	}
	size_t n_bytes = (size_t)status.st_size;
	int r = read_old(journal, n_bytes, serial, image_out);
	if (r < 0 || image_out->state != JOURNAL_GOOD) {
		return r;
	}
	/* The file has keys of sessions: nobody else may read it, whatever its mode was. */
	fchmod(file->fd, 0600);
	journal->serial = serial;
	file_set_end(file, image_out->end);
	memset(file->bytes + image_out->end, 0, n_bytes - image_out->end);
	int64_t n_allocated = allocate_ahead(file, file->n_used, n_bytes);
	file->n_allocated = n_allocated < 0 ? n_bytes : (size_t)n_allocated;
	return 0;
}

/* Make an empty file under the new name. */
static int begin_new(struct journal *journal)
{
	int r = open_new(journal->new_path, &journal->file);
	if (r < 0) {
		return r;
	}
	int64_t n_allocated = allocate_ahead(&journal->file, 0, 0);
	if (n_allocated < 0) {
		return (int)n_allocated;
	}
	journal->file.n_allocated = (size_t)n_allocated;
	file_begin(&journal->file, journal->boot, journal->serial);
	return 0;
}

static void write_nothing(void *user)
{
}

int journal_renew(struct journal *journal, void (*write)(void *user), void *user)
{
	int error = journal->error;
	if (journal->job != JOB_NONE) {
		return -EBUSY;
	}
	file_close(&journal->file);
	journal->is_renewing = true;
	int r = begin_new(journal);
	if (r == 0) {
		journal->error = 0;
		write(user);
		r = -journal->error;
	}
	/* Whatever has the name is replaced. */
	if (r == 0 && rename(journal->new_path, journal->path) < 0) {
		r = -errno;
	}
	if (r < 0) {
		unlink(journal->new_path);
	}
	journal->is_renewing = false;
	if (r < 0) {
		file_close(&journal->file);
		journal->error = error;
		fail(journal, r);
	}
	journal->n_valid = journal->file.n_used;
	return r;
}

static int lock(struct journal *journal)
{
	pid_t owner = 0;
	journal->lock_fd = lockfile_take(journal->path, &owner);
	if (journal->lock_fd == -EADDRINUSE) {
		log_error("another glaked (pid %d) keeps its books in %s", (int)owner,
		          journal->path);
	}
	return journal->lock_fd < 0 ? journal->lock_fd : 0;
}

int journal_open(uv_loop_t *loop, const char *path, const char *boot, uint64_t serial,
                 struct journal **journal_out, struct journal_image *image_out)
{
	struct journal *journal = calloc(1, sizeof(*journal));
	if (!journal) {
		return -ENOMEM;
	}
	journal->loop = loop;
	journal->file.fd = journal->next.fd = journal->lock_fd = -1;
	snprintf(journal->boot, sizeof(journal->boot), "%s", boot);
	journal->path = strdup(path);
	int r = journal->path && asprintf(&journal->new_path, "%s.new", path) > 0 ? 0 : -ENOMEM;
	if (r == 0) {
		r = lock(journal);
	}
	if (r == 0 && getrandom(&journal->serial, sizeof(journal->serial), 0) < 0) {
		r = -errno;
	}
	if (r < 0) {
		journal->is_closed = true;
		journal_free(journal);
		return r;
	}
	r = take_old(journal, serial, image_out);
	journal->n_valid = least_of(valid_bytes(image_out), journal->file.n_used);
	if (r < 0) {
		fail(journal, r);
	} else if (image_out->state != JOURNAL_GOOD) {
		journal_renew(journal, write_nothing, NULL);
	}
	*journal_out = journal;
	return 0;
}

uint64_t journal_serial(const struct journal *journal)
{
	return journal->serial;
}

void journal_close(struct journal *journal)
{
	if (journal) {
		journal->is_closed = true;
	}
}

bool journal_is_busy(const struct journal *journal)
{
	return journal && journal->job != JOB_NONE;
}

void journal_free(struct journal *journal)
{
	if (!journal) {
		return;
	}
	assert(journal->is_closed && journal->job == JOB_NONE);
	file_close(&journal->file);
	file_close(&journal->next);
	fd_close(&journal->lock_fd);
	free(journal->path);
	free(journal->new_path);
	free(journal);
}

/* Start a job if one is due. Room comes before a compaction, which keeps the file from growing. */
static void look_ahead(struct journal *journal)
{
	const struct file *file = &journal->file;
	if (journal->job != JOB_NONE || journal->is_closed || journal->is_renewing ||
	    journal->error) {
		return;
	}
	if (is_low(file) && !journal->is_stuck) {
		start(journal, JOB_GROW);
	} else if (file->n_used >= compact_at(journal) || journal->must_compact) {
		journal->must_compact = false;
		start(journal, JOB_COMPACT);
	}
}

/* Whether the file has room for the deletions of all records, and a little more. */
static bool has_reserve(const struct file *file)
{
	return file->n_used + file->n_used / 2 + LEAST_BYTES <= file->n_allocated;
}

bool journal_has_room(struct journal *journal)
{
	struct file *file = &journal->file;
	if (!journal->error && !has_reserve(file) && !journal->is_stuck) {
		size_t n_more = file->n_used / 2 + LEAST_BYTES;
		journal->is_stuck = !may_grow(file, file->n_allocated, file->n_used + n_more) ||
		                    file_make_room(file, n_more) < 0;
		look_ahead(journal);
	}
	return journal->error || has_reserve(file);
}

/* Whether a compaction makes room: a little of the file is not valid. */
static bool is_worth_compacting(const struct journal *journal)
{
	size_t n_more = journal->file.n_used - journal->n_valid;
	bool is_time = uv_now(journal->loop) - journal->tried_ms >= RETRY_MS;
	return n_more >= limit_of(journal) / 64 || (n_more > 0 && is_time);
}

void journal_tick(struct journal *journal)
{
	if (!journal_has_room(journal) && is_worth_compacting(journal)) {
		journal->tried_ms = uv_now(journal->loop);
		journal->must_compact = true;
	}
	journal->is_stuck = false;
	look_ahead(journal);
}

static void append(struct journal *journal, enum verb verb, unsigned kind, uint64_t id,
                   const void *body, size_t n_bytes)
{
	assert(n_bytes <= JOURNAL_MAX_BODY && kind > 0 && kind < JOURNAL_MAX_KINDS);
	if (journal->error || journal->is_closed) {
		return;
	}
	bool is_renaming = journal->job == JOB_RENAME;
	int r = file_make_room(&journal->file, record_bytes(n_bytes));
	if (r == 0 && is_renaming) {
		r = file_make_room(&journal->next, record_bytes(n_bytes));
	}
	if (r < 0) {
		fail(journal, r);
		return;
	}
	file_append(&journal->file, verb, kind, id, body, n_bytes);
	if (is_renaming) {
		file_append(&journal->next, verb, kind, id, body, n_bytes);
	}
	look_ahead(journal);
}

void journal_put(struct journal *journal, unsigned kind, uint64_t id, const void *body,
                 size_t n_bytes)
{
	append(journal, VERB_PUT, kind, id, body, n_bytes);
}

void journal_more(struct journal *journal, unsigned kind, uint64_t id, const void *body,
                  size_t n_bytes)
{
	append(journal, VERB_MORE, kind, id, body, n_bytes);
}

void journal_delete(struct journal *journal, unsigned kind, uint64_t id)
{
	append(journal, VERB_DELETE, kind, id, NULL, 0);
}

int journal_error(const struct journal *journal)
{
	return journal->error;
}

size_t journal_n_bytes(const struct journal *journal)
{
	return journal->file.n_used;
}
