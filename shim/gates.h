/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that pass the gate, each with a body that enters, makes the driver's call, and leaves; and some whose
 * body looks at what they do and does not pass it.
 * Generated from the toolkit's prototypes and the list shim/gen/gates.txt.
 *
 * Owner: resolve.c gives each body the driver's function before a program can call it.
 */
#ifndef GLAKE_SHIM_GATES_H
#define GLAKE_SHIM_GATES_H

#include <stdbool.h>
#include <stddef.h>

struct gated_call {
	const char *symbol;
	void *body;  /* of the prototype of the symbol */
	void **real; /* the driver's function, which the body calls */
	bool is_gated;
};

extern const struct gated_call gated_calls[] __attribute__((visibility("hidden")));
extern const size_t n_gated_calls __attribute__((visibility("hidden")));

#endif
