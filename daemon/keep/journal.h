/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal: a file of records that survives the end of this process, however it ends.
 *
 *     header | record | record | ... | zeros, allocated ahead
 *
 * The file is mapped and shared, so appending is a copy into memory: nothing on the loop makes a system
 * call, and the kernel has each record when journal_put() returns. A record counts once its first word is
 * written, which is last. So a process that is killed leaves whole records, and perhaps bytes behind them
 * that do not count. The header says how far the records go, so that a file that was cut is seen. The file does not survive the machine, and need not: its header names the boot.
 *
 * Each journal has a serial, a random number. Who keeps things that its records describe keeps the serial with
 * them, and so does not take another journal's records for theirs. While a journal is open, no other process can
 * open it (lockfile.h). It is believed only if nobody else could write it.
 *
 * A record puts a body under a kind and an id, in place of an earlier one; or appends to that body (more);
 * or deletes it. Bodies in protobuf may be cut in pieces, because messages behind each other are one.
 *
 * Threads of libuv's pool allocate space ahead. They also write what is still valid into a new file, which
 * then takes the name, when the file has doubled, or before it gets too long. Meanwhile records go on into the old one,
 * and into both until the new one has the name.
 *
 * A file has 1 GiB at most, and what its file system gives. Who asks journal_has_room() before it adds something
 * never comes to that end: room stays for the deletions of all that is there.
 *
 * Owner: books. Threads: loop thread; journal_read() any.
 */
#ifndef GLAKE_DAEMON_JOURNAL_H
#define GLAKE_DAEMON_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/hash.h"

#define JOURNAL_VERSION 2u
/* Kinds are 1 .. JOURNAL_MAX_KINDS - 1. */
#define JOURNAL_MAX_KINDS 16u
/* Of a body; longer ones are cut by the caller: journal_more(). */
#define JOURNAL_MAX_BODY (64u * 1024u)
#define JOURNAL_BOOT_BYTES 40u

/* ---- reading --------------------------------------------------------------------------------- */

enum journal_state {
	JOURNAL_GOOD,
	JOURNAL_ABSENT,     /* no file, or an empty one */
	JOURNAL_OTHER_BOOT, /* the machine was started since */
	JOURNAL_NEWER,      /* of a version that this program does not know */
	JOURNAL_DAMAGED, /* no journal, a record in the middle is wrong, or the last ones are missing */
	JOURNAL_STRANGE, /* another user may have written it */
	JOURNAL_FOREIGN, /* it has another serial */
};

struct journal_piece {
	const uint8_t *body; /* in the bytes that were read */
	size_t n_bytes;
};

/* No padding: hashed as bytes. */
struct journal_key {
	uint64_t kind;
	uint64_t id;
};

struct journal_entry {
	UT_hash_handle hh; /* journal_image.entries */
	struct journal_key key;
	struct journal_piece *pieces; /* owned */
	size_t n_pieces;
	void *user; /* the reader's; NULL at first */
};

/* What is valid in a journal. */
struct journal_image {
	enum journal_state state;
	uint64_t serial;                     /* if GOOD */
	struct journal_entry *entries;       /* a table, in the order of their first records */
	uint64_t max_ids[JOURNAL_MAX_KINDS]; /* the highest ever used, deleted or not */
	size_t end;                          /* of the records */
	bool is_torn;                        /* bytes behind them do not count */
};

/*
 * Read @n_bytes at @bytes, which stay until journal_image_free(). @boot: the current boot; NULL: any.
 * Returns 0, or -ENOMEM: nothing is to be freed. Without JOURNAL_GOOD there are no entries.
 */
int journal_read(const void *bytes, size_t n_bytes, const char *boot,
                 struct journal_image *image_out);
void journal_image_free(struct journal_image *image);
/* NULL: there is none. */
struct journal_entry *journal_find(const struct journal_image *image, unsigned kind, uint64_t id);
/* Entries come by kind, and then by id. */
void journal_sort(struct journal_image *image);

/* ---- writing --------------------------------------------------------------------------------- */

struct journal;

/* This boot's name, with the NUL. Returns 0 or -errno. */
int journal_boot(char boot_out[JOURNAL_BOOT_BYTES]);

/*
 * Open or make the file @path, of mode 0600, and read it. Blocks: start-up only. If it is not JOURNAL_GOOD, the
 * journal is new and empty, with a new serial, and the old content is gone. That is so, too, if the old one has not
 * @serial; none has 0. If the file cannot be read or written, the journal has failed: journal_put(). @image_out points
 * into the journal: free it before anything is put or renewed. Returns 0; -EADDRINUSE after a line in the log: another
 * process has it open; or another -errno: there is no such folder, or no memory.
 */
int journal_open(uv_loop_t *loop, const char *path, const char *boot, uint64_t serial,
                 struct journal **journal_out, struct journal_image *image_out);
uint64_t journal_serial(const struct journal *journal);

/* For journal_is_busy(): the loop runs until it says no. The file stays. */
void journal_close(struct journal *journal);
/* After journal_close(): a thread has it still. NULL is fine. */
bool journal_is_busy(const struct journal *journal);
/* Closed and not busy. NULL is fine. */
void journal_free(struct journal *journal);

/*
 * @body has at most JOURNAL_MAX_BODY bytes. If the file cannot grow, the journal fails, with a line in the log: it is
 * not complete any more, so its file goes, and what is put later is ignored, until it is renewed. journal_error()
 * says so.
 */
void journal_put(struct journal *journal, unsigned kind, uint64_t id, const void *body,
                 size_t n_bytes);
void journal_more(struct journal *journal, unsigned kind, uint64_t id, const void *body,
                  size_t n_bytes);
void journal_delete(struct journal *journal, unsigned kind, uint64_t id);
/*
 * What others ask for may be put: afterwards all that is there can still be deleted. If not, what is valid fills the
 * file, or a compaction is under way that makes room, or the file system has none. A journal that has failed has room.
 */
bool journal_has_room(struct journal *journal);
/* Once a second: room that was not to be had may be there now. */
void journal_tick(struct journal *journal);
/*
 * A new file, with what @write puts, takes the place of the file, whole and at once. Blocks for the file system.
 * Returns 0: the journal is good, also if it had failed; -EBUSY: a thread is at work, nothing has changed; or another
 * -errno: the journal has failed.
 */
int journal_renew(struct journal *journal, void (*write)(void *user), void *user);
/* The errno, or 0. */
int journal_error(const struct journal *journal);

/* Of the file: records so far. */
size_t journal_n_bytes(const struct journal *journal);

#endif
