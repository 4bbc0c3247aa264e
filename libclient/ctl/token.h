/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A secret in a file, which requests have to bring as a bearer token (RFC 6750). When the file changes, so does the token.
 *
 * The first line is the token: 16 to 512 visible characters of ASCII. Only root and the user of this process may write
 * to the file, and nobody but they and the group may read it.
 *
 * Owner: whoever has the struct. Lifetime: token_init() to token_deinit(). Threads: any, once it is initialised.
 */
#ifndef GLAKE_CTL_TOKEN_H
#define GLAKE_CTL_TOKEN_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#define TOKEN_MAX_BYTES 512u
#define TOKEN_ERROR_BYTES 512u

struct token {
	const char *path;                     /* borrowed */
	pthread_mutex_t lock;                 /* of the next */
	unsigned char bytes[TOKEN_MAX_BYTES]; /* zeros behind it */
	struct stat file; /* that was read, or looked at, last; of the thread that refreshes */
};

/* Returns 0; or -1 with one line that says what is wrong, and then there is nothing to end. */
int token_init(struct token *token, const char *path, char error_out[TOKEN_ERROR_BYTES]);
void token_deinit(struct token *token);

/*
 * Read the file again if it has changed. Returns 0; or -1 as token_init(), once for each change: then the token stays as it
 * was. Of one thread.
 */
int token_refresh(struct token *token, char error_out[TOKEN_ERROR_BYTES]);

/*
 * Does the value of an Authorization header, or NULL, have the token? How long it takes does not depend on how much of it is
 * right.
 */
bool token_is_in(struct token *token, const char *authorization);

#endif
