/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that pass the gate, each with a body that enters, makes the driver's call, and leaves; and some whose
 * body does not pass it: it looks at what they do, or wakes the process first.
 * Generated from the toolkit's prototypes and the list shim/gen/gates.txt.
 *
 * Owner: resolve.c gives each body what it calls before a program can call it: the driver's function, or the hook of one
 * that wakes.
 */
#ifndef GLAKE_SHIM_GATES_H
#define GLAKE_SHIM_GATES_H

#include <stddef.h>

enum gates_kind {
	GATES_PASSES,
	GATES_LOOKS,
	GATES_WAKES, /* around its hook, if it has one: others are within their hook */
};

struct gated_call {
	const char *symbol;
	void *body;  /* of the prototype of the symbol */
	void **real; /* what the body calls */
	enum gates_kind kind;
};

extern const struct gated_call gated_calls[] __attribute__((visibility("hidden")));
extern const size_t n_gated_calls __attribute__((visibility("hidden")));

#endif
