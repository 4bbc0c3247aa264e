/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line is one stream with what is parked on it, oldest first. A line that is forgotten while something is parked would lose
 * memory; so only an empty line is forgotten. All of it happens with the order's lock held.
 */
#include "libclient/order/order_parts.h"

#include "libclient/space/chain.h"

/* A stream without parked memory may be forgotten when there are more. */
#define MANY_STREAMS 64u

/* 0 is no key, and may be an id. */
static uint64_t key_of(uint64_t id)
{
	return id + 1;
}

void glake__order_append(struct glake_order *order, struct glake__order_line *line,
                         struct glake__parked *parked)
{
	CHAIN_APPEND(line->oldest, line->newest, parked, previous, next);
	if (parked->n_bytes > 0) {
		parked->previous_fit = line->newest_fit;
		if (line->newest_fit) {
			line->newest_fit->next_fit = parked;
		}
		line->newest_fit = parked;
	}
	line->n_parked++;
	line->n_unmarked += !parked->mark;
	line->of->n_unmarked += !parked->mark;
	order->n_parked++;
}

void glake__order_take_out(struct glake_order *order, struct glake__order_line *line,
                           struct glake__parked *parked)
{
	CHAIN_REMOVE_OF(line->oldest, line->newest, parked, previous, next);
	if (parked->previous_fit) {
		parked->previous_fit->next_fit = parked->next_fit;
	}
	if (parked->next_fit) {
		parked->next_fit->previous_fit = parked->previous_fit;
	} else if (parked == line->newest_fit) {
		line->newest_fit = parked->previous_fit;
	}
	line->n_parked--;
	line->n_unmarked -= !parked->mark;
	line->of->n_unmarked -= !parked->mark;
	order->n_parked--;
}

struct glake__order_context *glake__order_context_of(struct glake_order *order, CUcontext ctx)
{
	struct glake__order_context *context = order->contexts;
	while (context && (context->ctx != ctx || context->is_hidden)) {
		context = context->next;
	}
	if (!context && (context = calloc(1, sizeof(*context)))) {
		context->ctx = ctx;
		context->generation = ++order->n_generations;
		context->next = order->contexts;
		order->contexts = context;
	}
	return context;
}

void glake__order_forget_line(struct glake_order *order, struct glake__order_line **link)
{
	struct glake__order_line *line = *link;
	*link = line->next;
	order->n_lines--;
	glake__ptr_table_remove(&order->by_id, key_of(line->stream.id));
	free(line);
}

static bool may_forget(const struct glake__order_line *line)
{
	return line->n_parked == 0 && line->n_marking == 0 && (!line->has_waits || line->is_ended);
}

static void forget_idle_lines(struct glake_order *order)
{
	struct glake__order_line **link = &order->lines;
	while (*link) {
		if (may_forget(*link)) {
			glake__order_forget_line(order, link);
		} else {
			link = &(*link)->next;
		}
	}
}

struct glake__order_line *glake__order_find_line(const struct glake_order *order, uint64_t id)
{
	return glake__ptr_table_get(&order->by_id, key_of(id));
}

struct glake__order_line *glake__order_line_of(struct glake_order *order,
                                               const struct glake_stream *stream)
{
	struct glake__order_line *line = glake__order_find_line(order, stream->id);
	if (line) {
		return line;
	}
	if (order->n_lines >= MANY_STREAMS) {
		forget_idle_lines(order);
	}
	struct glake__order_context *context = glake__order_context_of(order, stream->context);
	line = context ? calloc(1, sizeof(*line)) : NULL;
	if (!line || glake__ptr_table_add(&order->by_id, key_of(stream->id), line) < 0) {
		free(line);
		return NULL;
	}
	line->stream = *stream;
	line->of = context;
	line->next = order->lines;
	order->lines = line;
	order->n_lines++;
	return line;
}

void *glake__order_take_allocation(struct glake_order *order, struct glake__order_line *line,
                                   struct glake__parked *parked)
{
	void *allocation = parked->allocation;
	glake__order_take_out(order, line, parked);
	glake__order_put_mark(line->of, parked);
	parked->next = order->spares;
	order->spares = parked;
	return allocation;
}

void glake__order_free_nodes(struct glake__parked *list)
{
	while (list) {
		struct glake__parked *parked = list;
		list = parked->next;
		free(parked);
	}
}
