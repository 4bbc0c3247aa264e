/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context takes its events along when it ends, and another context can get its handle. So a context is hidden while it is
 * ending, its lines and marks are dropped when it has ended, and their memory is released without asking an event.
 */
#include "libclient/order/order_parts.h"

void glake__order_hold_contexts(struct glake_order *order)
{
	pthread_mutex_lock(&order->context_lock);
}

bool glake__order_try_hold_contexts(struct glake_order *order)
{
	return pthread_mutex_trylock(&order->context_lock) == 0;
}

static void set_hidden(struct glake_order *order, CUcontext ctx, bool is_hidden)
{
	pthread_mutex_lock(&order->lock);
	for (struct glake__order_context *context = order->contexts; context;
	     context = context->next) {
		if (context->ctx == ctx) {
			context->is_hidden = is_hidden;
		}
	}
	pthread_mutex_unlock(&order->lock);
}

void glake__order_hide_context(struct glake_order *order, void *context)
{
	set_hidden(order, context, true);
}

void glake__order_show_context(struct glake_order *order, void *context)
{
	set_hidden(order, context, false);
}

/* Called with the lock held, when no line is of them. Their events are gone. */
static void drop_hidden(struct glake_order *order)
{
	struct glake__order_context **link = &order->contexts;
	while (*link) {
		struct glake__order_context *context = *link;
		if (context->is_hidden) {
			*link = context->next;
			glake__order_free_marks(context->spares);
			free(context);
		} else {
			link = &context->next;
		}
	}
}

/* The events are gone with the context. The nodes keep the allocations until they are released. */
void glake__order_drop_context(struct glake_order *order)
{
	struct glake__parked *list = NULL;
	pthread_mutex_lock(&order->lock);
	struct glake__order_line **link = &order->lines;
	while (*link) {
		struct glake__order_line *line = *link;
		if (!line->of->is_hidden) {
			link = &line->next;
			continue;
		}
		while (line->oldest) {
			struct glake__parked *parked = line->oldest;
			glake__order_take_out(order, line, parked);
			glake__order_put_mark(line->of, parked);
			parked->next = list;
			list = parked;
		}
		glake__order_forget_line(order, link);
	}
	drop_hidden(order);
	glake__order_forget_streams(order);
	pthread_mutex_unlock(&order->lock);
	while (list) {
		struct glake__parked *parked = list;
		list = parked->next;
		parked->next = order->dropped;
		order->dropped = parked;
	}
}

/* The lock is let go first: releases may take long, and other contexts may end meanwhile. */
void glake__order_let_contexts(struct glake_order *order)
{
	struct glake__parked *list = order->dropped;
	order->dropped = NULL;
	pthread_mutex_unlock(&order->context_lock);
	for (const struct glake__parked *parked = list; parked; parked = parked->next) {
		order->options.release(order->options.user, parked->allocation);
	}
	glake__order_free_nodes(list);
}
