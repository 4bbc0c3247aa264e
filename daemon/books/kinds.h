/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of records, whose bodies are in proto/state.proto, and of limits. */
#ifndef GLAKE_DAEMON_BOOKS_KINDS_H
#define GLAKE_DAEMON_BOOKS_KINDS_H

enum books_kind {
	BOOKS_DEVICE = 1,
	BOOKS_HOLDER,
	BOOKS_HELD,
	BOOKS_BLOCK,
	BOOKS_MODEL,
	BOOKS_MANIFEST,
	BOOKS_QUOTA,
	BOOKS_HOST_CHUNK,
	BOOKS_COPY,
	BOOKS_SLEPT,
	BOOKS_SLEEPER,
	BOOKS_SLEPT_MODEL,
	BOOKS_MISTAKE,
	BOOKS_KEPT_STEP,
};

enum books_limit {
	BOOKS_BYTES, /* at a location */
	BOOKS_SESSIONS,
	BOOKS_MANIFESTS,
};

#endif
