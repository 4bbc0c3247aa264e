/* SPDX-License-Identifier: Apache-2.0 */
/* These requests list blocks that sessions have sealed alone, and others have at other offsets (prints.h). */
#include <inttypes.h>

#include "daemon/rpc/rpc_handlers.h"

#define PAGE_ROWS 64
/* Prints that are looked for, and blocks, for one page: a millisecond or two. */
#define PAGE_STEPS 16384u
/* A program may have a model open again and again: then not all of them count. */
#define MARK_STEPS (4 * PAGE_STEPS)

struct walk {
	struct prints *prints;
	uint64_t n_steps;
	uint64_t place; /* blocks of the session are looked at from this one on */
};

static void mark(struct block *block, uint64_t with)
{
	if (block) {
		block->layout.mark = with;
	}
}

/* All blocks that it has open. */
static void mark_all(struct walk *walk, const struct holder *holder, uint64_t with)
{
	const struct held *held;
	for (held = holder->held; held; held = held->hh.next) {
		if (held->kind == HELD_BLOCK) {
			mark(held->block, with);
			walk->n_steps++;
		}
		for (size_t i = 0; held->kind == HELD_MODEL && i < held->model->n_blocks &&
		                   walk->n_steps < MARK_STEPS;
		     i++) {
			mark(held->model->blocks[i].block, with);
			walk->n_steps++;
		}
	}
}

static void add_block(struct walk *walk, Glake__Wire__LayoutInfo *row, const struct block *block,
                      uint64_t with, bool marked)
{
	const struct block_layout *layout = &block->layout;
	row->unshared_bytes += block->chunk.bytes;
	if (layout->state != LAYOUT_SEEN) {
		return;
	}
	row->looked_bytes += block->chunk.bytes;
	if (layout->n_prints > 0) {
		const uint64_t n = prints_count(walk->prints, block, with, marked);
		row->equal_bytes += layout->varied_bytes / layout->n_prints * n;
		walk->n_steps += layout->n_prints;
	}
}

/* Beside @other; NULL: beside all others. Returns whether all of it was looked at. */
static bool look(struct walk *walk, Glake__Wire__LayoutInfo *row, const struct holder *holder,
                 const struct holder *other)
{
	const uint64_t with = prints_mark(walk->prints);
	const struct held *held;
	uint64_t place = 0;
	mark_all(walk, other ? other : holder, with);
	for (held = holder->held; held; held = held->hh.next) {
		if (held->kind != HELD_BLOCK || place++ < walk->place) {
			continue;
		}
		if (walk->n_steps >= PAGE_STEPS && place > walk->place + 1) {
			walk->place = place - 1;
			return false;
		}
		if (held->block->n_mappings <= 1) {
			add_block(walk, row, held->block, with, other != NULL);
		}
	}
	walk->place = 0;
	return true;
}

static bool is_meant(const struct session *session, const struct holder *holder,
                     const struct holder *about)
{
	return about ? holder != about && holder->realm == about->realm
	             : holder->n_held[HELD_BLOCK] > 0 && rpc_may_act(session, holder->realm);
}

static void describe(Glake__Wire__LayoutInfo *row, const struct holder *holder,
                     const struct holder *other)
{
	glake__wire__layout_info__init(row);
	row->session = holder->id;
	row->pid = (uint32_t)holder->peer.pid;
	row->with = other ? other->id : 0;
	row->with_pid = other ? (uint32_t)other->peer.pid : 0;
}

/* The next ones from body->from on, as long as there is time. */
static void list(struct session *session, const struct holder *about, struct walk *walk,
                 Glake__Wire__LayoutListAnswer *body, Glake__Wire__LayoutInfo *rows)
{
	const uint64_t from = body->from;
	struct holder *holder;
	list_for_each (holder, &rpc_of(session)->holders.list, link) {
		if (holder->id < from || holder->state == HOLDER_NEW ||
		    !is_meant(session, holder, about)) {
			continue;
		}
		body->from = holder->id;
		if (walk->n_steps >= PAGE_STEPS || body->n_rows == PAGE_ROWS) {
			body->more = true;
			return;
		}
		Glake__Wire__LayoutInfo *row = &rows[body->n_rows];
		walk->place = holder->id == from ? walk->place : 0;
		describe(row, about ? about : holder, about ? holder : NULL);
		body->more = !look(walk, row, about ? about : holder, about ? holder : NULL);
		/* Every session is a row; compared with the session @about, only those with equal bytes are. */
		body->n_rows += !about || row->equal_bytes > 0;
		if (body->more) {
			return;
		}
	}
}

static struct holder *find(const struct session *session, uint64_t id)
{
	struct holder *holder = holder_by_id(&rpc_of(session)->holders, id);
	return holder && rpc_may_act(session, holder->realm) ? holder : NULL;
}

void rpc_layout_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	static Glake__Wire__LayoutInfo rows[PAGE_ROWS];
	static Glake__Wire__LayoutInfo *pointers[PAGE_ROWS];
	const Glake__Wire__LayoutList *wanted = request->layout_list;
	struct walk walk = {.prints = &rpc_of(session)->store->prints, .place = wanted->place};
	const struct holder *about = wanted->session ? find(session, wanted->session) : NULL;
	Glake__Wire__LayoutListAnswer body = GLAKE__WIRE__LAYOUT_LIST_ANSWER__INIT;
	if (wanted->session && !about) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND, "there is no session %" PRIu64,
		           wanted->session);
		return;
	}
	body.from = wanted->from;
	list(session, about, &walk, &body, rows);
	body.place = walk.place;
	for (size_t i = 0; i < body.n_rows; i++) {
		pointers[i] = &rows[i];
	}
	body.rows = pointers;
	rpc_answer(session, request->id, ANSWER_OF(LAYOUT_LIST, layout_list, &body), NULL, 0);
}
