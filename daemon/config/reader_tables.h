/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of readers that glaked hands out (glake-readers(5)): files NAME.readers of the folder that the configuration
 * names, in the order of their names. glaked does not know their format: programs under the shim read them.
 *
 * A table that is wrong ends programs, and here those of all users. So a file counts only if nobody but root and glaked's own
 * user can have written it: neither to it, nor to its folder, nor to one above. One that does not count is told in the log, and
 * the others do.
 *
 * They are read once, into one sealed file in memory. Who has it reads what all others read, and nobody can change it.
 *
 * Owner: the config. Lifetime: the config's; a program may have the file for longer.
 * Threads: any. reader_tables_load() blocks, on the file system.
 */
#ifndef GLAKE_DAEMON_READER_TABLES_H
#define GLAKE_DAEMON_READER_TABLES_H

#include <stdint.h>

/* Each text ends with a NUL, and has none. At most GLAKE_MAX_READERS_BYTES. */
struct reader_tables {
	int fd; /* owned; -1: there are none */
	uint64_t n_bytes;
};

/*
 * Load the tables. Returns 0, with or without tables, or -errno: glaked itself has no memory or fd for them. *tables_out is set
 * in any case.
 */
int reader_tables_load(const char *folder, struct reader_tables *tables_out);
void reader_tables_close(struct reader_tables *tables);

#endif
