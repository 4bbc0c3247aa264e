/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/books/books.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/journal.h"
#include "daemon/base/log.h"
#include "daemon/base/parking.h"
#include "daemon/books/adopt.h"
#include "daemon/books/write.h"
#include "proto/cleanup.h"

#define MARK "books"

struct books {
	struct books_parts parts;
	struct journal *journal; /* owned */
	struct parking *parking; /* owned */
	bool is_left;
};

/* ---- the beginning --------------------------------------------------------------------------- */

static const char *const why_not[] = {
	[JOURNAL_OTHER_BOOT] = "they are of another boot",
	[JOURNAL_NEWER] = "they are of a newer version of glaked",
	[JOURNAL_DAMAGED] = "they are damaged",
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
		log_info("%" PRIu64 " sessions have ended while there was no glaked",
		         report->n_ended);
	}
	if (lost->n > 0 || report->n_lost_models > 0) {
		log_warning("not adopted: %" PRIu64 " blocks (%" PRIu64
		            " bytes) whose fd was not kept or whose device is gone, and %" PRIu64
		            " models",
		            lost->n, lost->bytes, report->n_lost_models);
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

static void adopt(struct books *books, const char *path, struct journal_image *image)
{
	struct adopt_report report;
	if (image->state != JOURNAL_GOOD) {
		if (image->state != JOURNAL_ABSENT) {
			log_warning("nothing is adopted from %s: %s", path, why_not[image->state]);
		}
		return;
	}
	adopt_all(&books->parts, image, &report);
	delete_others(books, image);
	log_adopted(path, &report, image->is_torn);
}

static void watch(struct books *books)
{
	const struct books_parts *parts = &books->parts;
	parts->store->watch = &write_store_watch;
	parts->store->watcher = books->journal;
	parts->store->parking = books->parking;
	parts->holders->watch = &write_holder_watch;
	parts->holders->watcher = books->journal;
}

/* The file is of a glaked whose fds are gone: of what it says nothing can be given to anybody. */
static void drop_old(const char *path)
{
	if (unlink(path) == 0) {
		log_warning("nothing is adopted from %s: nobody has kept the fds", path);
	}
}

static void mark(struct books *books)
{
	cleanup_fd int fd = memfd_create(MARK, MFD_CLOEXEC);
	int r = fd < 0 ? -errno : fdstore_put(books->parts.fdstore, MARK, fd);
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
	if (marked < 0) {
		drop_old(path);
	}
	int r = journal_boot(boot);
	if (r == 0) {
		r = journal_open(books->parts.loop, path, boot, &books->journal, &image);
	}
	if (r < 0) {
		log_error("cannot keep the books %s: %s", path, strerror(-r));
		return r;
	}
	adopt(books, path, &image);
	journal_image_free(&image);
	for (uint32_t i = 0; i < books->parts.n_devices; i++) {
		write_device(books->journal, &books->parts.devices[i]);
	}
	if (marked < 0) {
		mark(books);
	}
	return 0;
}

struct books *books_open(const struct books_parts *parts, const char *path)
{
	if (!fdstore_is_kept(parts->fdstore)) {
		log_info("nobody keeps fds: a restart of glaked will lose the store");
		return NULL;
	}
	struct books *books = calloc(1, sizeof(*books));
	if (!books) {
		return NULL;
	}
	books->parts = *parts;
	books->parking = parking_new(parts->fdstore);
	parts->chunk_books->parking = books->parking;
	if (!books->parking || open_journal(books, path) < 0) {
		books_free(books);
		return NULL;
	}
	watch(books);
	store_settle_adopted(parts->store);
	return books;
}

/* ---- limits ---------------------------------------------------------------------------------- */

void books_set_limit(struct books *books, const struct tenant *tenant, enum books_limit limit,
                     uint32_t device, uint64_t value)
{
	if (books) {
		write_limit(books->journal, tenant, limit, device, value);
	}
}

void books_forget_limits(struct books *books)
{
	struct tenant *tenant = NULL;
	while (books && (tenant = tenant_next(books->parts.tenants, tenant ? tenant->id : 0))) {
		write_no_limit(books->journal, tenant, BOOKS_SESSIONS, 0);
		write_no_limit(books->journal, tenant, BOOKS_MANIFESTS, 0);
		for (uint32_t i = 0; i < books->parts.n_devices; i++) {
			write_no_limit(books->journal, tenant, BOOKS_BYTES, i);
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
