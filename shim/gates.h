/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that pass the gate. The body of each enters, makes the driver's call, and leaves. Some calls have a body that
 * does not pass the gate: it looks at the call's result or effect, or wakes the process first.
 * The bodies are generated from the toolkit's prototypes and the list shim/gen/gates.txt.
 *
 * Owner: before a program can call a body, resolve.c stores the function that the body calls: the driver's, or the hook if
 * the body wakes the process.
 */
#ifndef GLAKE_SHIM_GATES_H
#define GLAKE_SHIM_GATES_H

#include <stddef.h>

enum gates_kind {
	GATES_PASSES,
	GATES_LOOKS,
	GATES_WAKES, /* the body calls the hook, if there is one; in all other kinds the hook calls the body */
};

struct gated_call {
	const char *symbol;
	void *body;  /* has the prototype of the symbol */
	void **real; /* the function that the body calls */
	enum gates_kind kind;
};

extern const struct gated_call gated_calls[] __attribute__((visibility("hidden")));
extern const size_t n_gated_calls __attribute__((visibility("hidden")));

#endif
