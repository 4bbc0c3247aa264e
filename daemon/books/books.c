/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/books/books.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/books/adopt.h"
#include "daemon/books/write.h"
#include "daemon/holders/kept_step.h"
#include "daemon/keep/journal.h"
#include "daemon/keep/parking.h"
#include "proto/cleanup.h"

#define MARK "books"
/* The pause between attempts to begin books anew that could not be written. */
#define RETRY_MS 60000

struct books {
	struct books_parts parts;
	struct journal *journal; /* owned */
	struct parking *parking; /* owned */
	uint64_t retry_ms;       /* the next attempt, by the loop's clock; 0: they are good */
};

/* ---- the beginning --------------------------------------------------------------------------- */

static const char *const why_not[] = {
	[JOURNAL_ABSENT] = "the file is gone or empty",
	[JOURNAL_OTHER_BOOT] = "they are of another boot",
	[JOURNAL_NEWER] = "they are of a newer version of glaked",
	[JOURNAL_DAMAGED] = "they are damaged",
	[JOURNAL_STRANGE] = "others may write to them or to their folder",
	[JOURNAL_FOREIGN] = "they do not describe the fds that were kept",
};

static void log_adopted(const char *path, const struct adopt_report *report, bool is_torn)
{
	const struct adopt_count *lost = &report->lost_blocks;
	log_info("adopted from %s: %" PRIu64 " blocks (%" PRIu64 " bytes), %" PRIu64
	         " models, %" PRIu64 " sessions, %" PRIu64 " private chunks (%" PRIu64 " bytes)%s",
	         path, report->blocks.n, report->blocks.bytes, report->n_models, report->n_holders,
	         report->chunks.n, report->chunks.bytes,
	         is_torn ? "; the last record was not complete" : "");
	if (report->n_ended > 0) {
		log_info("%" PRIu64 " sessions have ended while there was no glaked: %" PRIu64
		         " private chunks (%" PRIu64 " bytes) came back",
		         report->n_ended, report->ended_chunks.n, report->ended_chunks.bytes);
	}
	if (lost->n > 0 || report->n_lost_models > 0) {
		log_warning("not adopted: %" PRIu64 " blocks (%" PRIu64
		            " bytes) whose fd was not kept or whose device is gone, and %" PRIu64
		            " models, but for processes that have them",
		            lost->n, lost->bytes, report->n_lost_models);
	}
	if (report->slept.n > 0) {
		log_info("adopted from host memory: %" PRIu64 " chunks and blocks of programs "
		         "that sleep (%" PRIu64 " bytes)",
		         report->slept.n, report->slept.bytes);
	}
	if (report->kept.n > 0) {
		log_info("adopted: %" PRIu64 " steps that outlived their processes (%" PRIu64
		         " bytes)",
		         report->kept.n, report->kept.bytes);
	}
	if (report->lost_slept.n > 0) {
		log_error("lost: %" PRIu64 " chunks and blocks of programs that sleep (%" PRIu64
		          " bytes): their copies were not kept, or their device is gone",
		          report->lost_slept.n, report->lost_slept.bytes);
	}
	if (report->lost_chunks.n > 0) {
		log_warning("not adopted: %" PRIu64 " private chunks (%" PRIu64
		            " bytes) whose device or node is gone: their processes have them, and "
		            "nobody pays for them",
		            report->lost_chunks.n, report->lost_chunks.bytes);
	}
}

/* The image lies in the journal, which may be written to, but the loop must not run. */
static void delete_others(struct books *books, const struct journal_image *image)
{
	for (const struct journal_entry *entry = image->entries; entry; entry = entry->hh.next) {
		if (!entry->user) {
			journal_delete(books->journal, (unsigned)entry->key.kind, entry->key.id);
		}
	}
}

/*
 * @serial: of the books that describe the kept fds; 0: there are none. Returns whether records that stay name other
 * devices by their numbers.
 */
static bool adopt(struct books *books, const char *path, uint64_t serial,
                  struct journal_image *image)
{
	struct adopt_report report;
	if (image->state != JOURNAL_GOOD) {
		bool is_unkept = image->state == JOURNAL_FOREIGN && serial == 0;
		if (image->state != JOURNAL_ABSENT || serial != 0) {
			log_warning("nothing is adopted from %s: %s", path,
			            is_unkept ? "nobody has kept the fds" : why_not[image->state]);
		}
		return false;
	}
	adopt_all(&books->parts, image, &report);
	if (!report.is_renumbered) {
		delete_others(books, image);
	}
	log_adopted(path, &report, image->is_torn);
	return report.is_renumbered;
}

/* ---- anew ------------------------------------------------------------------------------------ */

static const struct config_tenant *rule_of(const struct config *config, const struct tenant *tenant)
{
	for (size_t i = 0; i < config->n_tenants; i++) {
		if (strcmp(config->tenants[i].name, tenant->name) == 0) {
			return &config->tenants[i];
		}
	}
	return NULL;
}

static void write_limit_if_set(struct books *books, const struct tenant *tenant,
                               enum books_limit limit, const struct location *at, uint64_t is,
                               uint64_t configured)
{
	if (is != configured) {
		write_limit(books->journal, tenant, limit, at, is);
	}
}

/* Write the limits that were set since the configuration was read: those that differ from it. */
static void write_limits(struct books *books, const struct tenant *tenant)
{
	const struct config_tenant *rule = rule_of(books->parts.config, tenant);
	if (!rule) {
		return;
	}
	write_limit_if_set(books, tenant, BOOKS_SESSIONS, NULL, tenant->max_sessions,
	                   rule->max_sessions);
	write_limit_if_set(books, tenant, BOOKS_MANIFESTS, NULL, tenant->quota_manifest_bytes,
	                   rule->manifest_bytes);
	for (uint32_t i = 0; i < books->parts.n_locations; i++) {
		write_limit_if_set(books, tenant, BOOKS_BYTES, books->parts.locations[i],
		                   tenant->at[i].quota_bytes,
		                   tenant_configured_quota(books->parts.tenants, rule, i));
	}
}

static void write_devices(struct books *books)
{
	for (uint32_t i = 0; i < books->parts.n_devices; i++) {
		write_device(books->journal, &books->parts.devices[i]);
	}
}

static void write_all(void *user)
{
	struct books *books = user;
	struct tenant *tenant = NULL;
	write_devices(books);
	while ((tenant = tenant_next(books->parts.tenants, tenant ? tenant->id : 0))) {
		write_limits(books, tenant);
	}
	store_note_all(books->parts.store);
	holders_note_all(books->parts.holders);
	if (books->parts.holders->kept) {
		kept_steps_note_all(books->parts.holders->kept);
	}
}

void books_tick(struct books *books, const struct config *config)
{
	uint64_t now_ms = books ? uv_now(books->parts.loop) : 0;
	if (books) {
		journal_tick(books->journal);
	}
	if (!books || !journal_error(books->journal)) {
		return;
	}
	if (books->retry_ms == 0) {
		books->retry_ms = now_ms + RETRY_MS;
	}
	if (now_ms < books->retry_ms) {
		return;
	}
	books->parts.config = config;
	books->retry_ms = now_ms + RETRY_MS;
	if (journal_renew(books->journal, write_all, books) == 0) {
		books->retry_ms = 0;
		log_info("the books of glaked are whole again: a restart loses nothing");
	}
}

bool books_are_good(const struct books *books)
{
	return !books || !journal_error(books->journal);
}

/* ---- the file -------------------------------------------------------------------------------- */

static void watch(struct books *books)
{
	const struct books_parts *parts = &books->parts;
	parts->store->watch = &write_store_watch;
	parts->store->watcher = books->journal;
	parts->store->parking = books->parking;
	parts->holders->watch = &write_holder_watch;
	parts->holders->watcher = books->journal;
}

/* The mark has the serial of the books that describe the fds kept with it. 0: @fd is none. */
static uint64_t read_mark(int fd)
{
	uint64_t serial = 0;
	return fd >= 0 && pread(fd, &serial, sizeof(serial), 0) == (ssize_t)sizeof(serial) ? serial
	                                                                                   : 0;
}

/* @kept: the mark of an earlier glaked, or -1. */
static void mark(struct books *books, int kept, uint64_t serial)
{
	int r = 0;
	cleanup_fd int made = kept < 0 ? memfd_create(MARK, MFD_CLOEXEC) : -1;
	int fd = kept < 0 ? made : kept;
	if (fd < 0 || pwrite(fd, &serial, sizeof(serial), 0) != (ssize_t)sizeof(serial)) {
		r = -errno;
	} else if (kept < 0) {
		r = fdstore_put(books->parts.fdstore, MARK, fd);
	}
	if (r < 0) {
		log_error("a restart of glaked will lose the store: cannot mark the books: %s",
		          strerror(-r));
	}
}

static int open_journal(struct books *books, const char *path)
{
	char boot[JOURNAL_BOOT_BYTES];
	struct journal_image image;
	cleanup_fd int marked = fdstore_take(books->parts.fdstore, MARK);
	uint64_t serial = read_mark(marked);
	int r = journal_boot(boot);
	if (r == 0) {
		r = journal_open(books->parts.loop, path, boot, serial, &books->journal, &image);
	}
	if (r == -EADDRINUSE) {
		return r;
	}
	if (r < 0) {
		log_error("cannot keep the books %s: %s", path, strerror(-r));
		/* Nobody keeps these books up to date. */
		fdstore_remove(books->parts.fdstore, MARK);
		return r;
	}
	bool is_renumbered = adopt(books, path, serial, &image);
	journal_image_free(&image);
	watch(books);
	if (is_renumbered) {
		/* The file is renewed at once: half of the records would be wrong. */
		journal_renew(books->journal, write_all, books);
	} else {
		write_devices(books);
	}
	if (journal_serial(books->journal) != serial) {
		mark(books, marked, journal_serial(books->journal));
	}
	return 0;
}

int books_open(const struct books_parts *parts, const char *path, struct books **books_out)
{
	*books_out = NULL;
	if (!fdstore_is_kept(parts->fdstore)) {
		log_info("nobody keeps fds: a restart of glaked will lose the store");
		return 0;
	}
	struct books *books = calloc(1, sizeof(*books));
	if (!books) {
		return 0;
	}
	books->parts = *parts;
	books->parking = parking_new(parts->loop, parts->fdstore);
	parts->chunk_books->parking = books->parking;
	int r = books->parking ? open_journal(books, path) : -ENOMEM;
	if (r < 0) {
		books_free(books);
		return r == -EADDRINUSE ? r : 0;
	}
	store_settle_adopted(parts->store);
	if (parts->sleep) {
		sleepers_settle_adopted(parts->holders);
		copies_settle_adopted(parts->sleep->copies);
	}
	*books_out = books;
	return 0;
}

/* ---- limits ---------------------------------------------------------------------------------- */

void books_set_limit(struct books *books, const struct tenant *tenant, enum books_limit limit,
                     const struct location *at, uint64_t value)
{
	if (books) {
		write_limit(books->journal, tenant, limit, at, value);
	}
}

void books_forget_limits(struct books *books)
{
	struct tenant *tenant = NULL;
	while (books && (tenant = tenant_next(books->parts.tenants, tenant ? tenant->id : 0))) {
		write_no_limit(books->journal, tenant, BOOKS_SESSIONS, NULL);
		write_no_limit(books->journal, tenant, BOOKS_MANIFESTS, NULL);
		for (uint32_t i = 0; i < books->parts.n_locations; i++) {
			write_no_limit(books->journal, tenant, BOOKS_BYTES,
			               books->parts.locations[i]);
		}
	}
}

/* ---- the end --------------------------------------------------------------------------------- */

void books_leave(struct books *books)
{
	if (books) {
		books->parts.store->watch = NULL;
		books->parts.store->parking = NULL;
		books->parts.holders->watch = NULL;
	}
}

void books_close(struct books *books)
{
	if (books) {
		books_leave(books);
		journal_close(books->journal);
	}
}

bool books_is_busy(const struct books *books)
{
	return books && journal_is_busy(books->journal);
}

void books_free(struct books *books)
{
	if (books) {
		books->parts.chunk_books->parking = NULL;
		journal_free(books->journal);
		parking_free(books->parking);
		free(books);
	}
}
