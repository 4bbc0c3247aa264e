/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A journal is a file of records that survives the end of this process, however it ends.
 *
 *     header | record | record | ... | zeros, allocated ahead
 *
 * The process may be killed at any instruction. The file is mapped and shared, so appending is a copy into memory without a
 * system call, and the kernel has each record when journal_put() returns. A record counts once its first word is written, which
 * is last: a process that is killed leaves whole records, and perhaps bytes behind them that do not count. Each record has a
 * checksum, and the header says how far the records go, so damage and a file that was cut are seen. The file need not survive
 * the machine: its header names the boot.
 *
 * The file may be another one than expected. Each journal has a serial, a random number. Whoever keeps things that its records
 * describe keeps the serial with them, so records of another journal are refused. While a journal is open, no other process can
 * open it (lockfile.h). It is believed only if nobody else could write it.
 *
 * Space may run out: a file has 1 GiB at most, and what its file system gives. Whoever asks journal_has_room() before adding
 * something never meets that limit: room stays for the deletions of all that is there.
 *
 * The loop must not wait: threads of libuv's pool allocate space ahead. They also write what is still valid into a new file,
 * which then takes the name, when the file has doubled, or before it gets too long. Meanwhile records go on into the old one,
 * and into both until the new one has the name.
 *
 * A record puts a body under a kind and an id, in place of an earlier one; or appends to that body (more); or deletes it.
 * Bodies in protobuf may be cut in pieces, because messages behind each other are one.
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
/* The longest body; the caller cuts longer ones: journal_more(). */
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

/* The valid records of a journal. */
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
/* Returns the entry of that kind and id; NULL: there is none. */
struct journal_entry *journal_find(const struct journal_image *image, unsigned kind, uint64_t id);
/* Entries come by kind, and then by id. */
void journal_sort(struct journal_image *image);

/* ---- writing --------------------------------------------------------------------------------- */

struct journal;

/* Returns 0, with the name of this boot and a NUL in @boot_out, or -errno. */
int journal_boot(char boot_out[JOURNAL_BOOT_BYTES]);

/*
 * Open or make the file @path, of mode 0600, and read it. Blocks: start-up only. If it is not JOURNAL_GOOD, or has another
 * serial than @serial (no journal has 0), the journal is new and empty, with a new serial, and the old content is gone. If the
 * file cannot be read or written, the journal has failed: journal_put(). @image_out points into the journal: free it before
 * anything is put or renewed. Returns 0; -EADDRINUSE after a line in the log: another process has it open; or another -errno:
 * there is no such folder, or no memory.
 */
int journal_open(uv_loop_t *loop, const char *path, const char *boot, uint64_t serial,
                 struct journal **journal_out, struct journal_image *image_out);
uint64_t journal_serial(const struct journal *journal);

/* Close the journal. The loop runs on until journal_is_busy() says no. The file stays. */
void journal_close(struct journal *journal);
/* Whether a thread still has the closed journal. NULL is fine. */
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
 * Whether records that others ask for may be put: afterwards all that is there can still be deleted. False: valid records fill
 * the file, or a compaction is under way that makes room, or the file system has none. A journal that has failed has room.
 */
bool journal_has_room(struct journal *journal);
/* To be called once a second: room that was missing may be there now. */
void journal_tick(struct journal *journal);
/*
 * Replace the file, whole and at once, by a new one with the records that @write puts. Blocks for the file system. Returns 0:
 * the journal is good, also if it had failed; -EBUSY: a thread is at work, nothing has changed; or another -errno: the journal
 * has failed.
 */
int journal_renew(struct journal *journal, void (*write)(void *user), void *user);
/* The errno, or 0. */
int journal_error(const struct journal *journal);

/* The bytes of the file up to the end of its records. */
size_t journal_n_bytes(const struct journal *journal);

#endif
