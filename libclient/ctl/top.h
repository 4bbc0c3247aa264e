/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `glakectl top`: what happens now, without a screen. glakectl prints it as lines and as JSON. On a terminal another program
 * shows it, glake-top (libclient/top/), so that glakectl needs no library for screens.
 *
 * Owner: run_top(). Lifetime: while the command runs. Threads: one; looks are taken by the looker's own.
 */
#ifndef GLAKE_CTL_TOP_H
#define GLAKE_CTL_TOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/looker.h"
#include "ctl/memory.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"

#define TOP_PERIOD_MS 1000
#define TOP_N_PARTS MEMORY_N_USES
#define TOP_ALL_GPUS UINT32_MAX
#define TOP_LINE_BYTES 1024u

enum top_view {
	TOP_SESSIONS,
	TOP_MODELS,
	TOP_TENANTS,
	TOP_N_VIEWS,
};

struct top {
	struct ctl *ctl;
	struct looker *looker; /* owned */
	bool is_looking;       /* and began: */
	uint64_t began_ms;
	struct snapshot before; /* empty at first */
	struct snapshot now;    /* the same; stays while glaked is away */
	struct identities identities;
	int err; /* of the last look */
	enum top_view view;
	size_t order[TOP_N_VIEWS];
	bool is_reverse[TOP_N_VIEWS];
	bool by_gpu;     /* a session has a row for each of its GPUs */
	uint32_t gpu;    /* only what is on this one; or TOP_ALL_GPUS */
	char filter[64]; /* only rows with this text somewhere, whatever its case; "": all */
};

/* A part of a GPU's memory, in the order in which bars have them. */
struct top_part {
	char letter;
	const char *name;
	uint64_t bytes;
};

/* Shows it until the user ends it, and returns 0 or an error of the command. NULL: in glakectl. */
extern int (*top_screen)(struct top *top);

void top_begin_look(struct top *top);
/* Take over what the look under way has found, waiting for it until it is @ms old, or for ever (-1). */
void top_see(struct top *top, int ms);
/* Why what is shown is old; NULL: it is not. */
const char *top_trouble(const struct top *top);

/* Rows of the view, filtered and in its order, in @rows, which is {0}. They are valid until the next top_see(). Returns 0 or an error. */
int top_list(struct top *top, struct rows *rows);
const struct field *top_fields(const struct top *top, size_t *n_out);
/* The tenant of such a row; "": a model's. */
const char *top_tenant_of(const struct top *top, const void *row);
const char *top_view_name(enum top_view view);

const char *top_order_name(const struct top *top);
void top_next_order(struct top *top);

/* Write two lines about glaked: when, and what it has; and what it does in a second. */
void top_numbers(const struct top *top, char daemon_out[TOP_LINE_BYTES],
                 char rates_out[TOP_LINE_BYTES]);

void top_parts(const struct glake_device_status *device, struct top_part parts_out[TOP_N_PARTS]);
/* Write where each part ends in a bar of @n_columns. A part that is there has a column as long as there are any. */
void top_ends(const struct top_part parts[TOP_N_PARTS], uint64_t total_bytes, unsigned n_columns,
              unsigned ends_out[TOP_N_PARTS]);
/* "81.4 GiB of 139.8 GiB"; ">= 1.0 GiB of 24.0 GiB" if only glaked's own is known. */
void top_used(const struct glake_device_status *device, char *text_out, size_t n_bytes);

#endif
