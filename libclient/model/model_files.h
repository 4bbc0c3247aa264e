/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a program names (a file, a folder, a list) to the open files that ModelOpen carries.
 *
 * Every file is opened without blocking, FIFOs and devices are refused, and the names sent are base
 * names: glaked opens nothing on our behalf.
 *
 * Owner: the caller of one of the three openers; glake__model_files_deinit() always,
 * also after a failure.
 * Lifetime: one call of glake_model_open*().
 * Threads: none of its own.
 */
#ifndef GLAKE_LIBCLIENT_MODEL_FILES_H
#define GLAKE_LIBCLIENT_MODEL_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/limits.h"

/* One place is left for the index. */
#define MODEL_MAX_FILES (GLAKE_MAX_PACKET_FDS - 1)

struct glake__model_files {
	bool is_ours;                  /* we opened them and close them */
	size_t n_files;                /* the index not counted */
	int fds[GLAKE_MAX_PACKET_FDS]; /* [n_files] is the index's if index_name */
	bool has_index_fd;
	char *names[MODEL_MAX_FILES]; /* owned base names */
	char *index_name;             /* owned; NULL = no index */
	char *name;                   /* owned; of the whole, for listings */
};

/* A .safetensors file, an index file, or a folder with either. -errno or GLAKE_E_BAD_FILE. */
int glake__model_files_open(struct glake__model_files *files, const char *path);

int glake__model_files_open_shards(struct glake__model_files *files, const char *const *paths,
                                   size_t n_paths);

/* @names may be NULL. The fds stay the caller's. */
int glake__model_files_borrow(struct glake__model_files *files, const int *fds,
                              const char *const *names, size_t n_fds);

void glake__model_files_deinit(struct glake__model_files *files);

#endif
