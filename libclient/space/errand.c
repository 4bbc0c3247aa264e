/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/errand.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/context.h"
#include "libclient/space/reback.h"
#include "proto/cleanup.h"

/* Memory of others, for work of our own. */
static const struct glake__use use_mirror = {
	.name = "mirror", .kind = GLAKE__FREE, .is_ours = true, .is_worked_on = true};

/* The GPU is known to be idle, and the program is held back. */
#define HELD_PATIENCE_NS 2000000000u
/* Work of the program may be under way. */
#define PATIENCE_NS 10000000000u

/* One that is under way. */
struct glake__errand {
	struct glake_session *session; /* one reference */
	int device;                    /* CUDA's */
	struct glake__range *to;       /* owned */
	struct glake__range *from;     /* owned; NULL: zeroes are written */
	struct glake__left left;       /* if there is no gate */
	uint64_t number;               /* in the order in which they were given up */
	bool is_over;
	struct glake__errand *next; /* link: space.errands */
};

/* ---- those whose time is over ----------------------------------------------------------------- */

static void add(struct glake__errand *errand)
{
	glake__lock();
	errand->number = errand->number ? errand->number : ++glake__space.n_errands;
	errand->next = glake__space.errands;
	glake__space.errands = errand;
	glake__unlock();
}

static struct glake__errand *take_all(void)
{
	glake__lock();
	struct glake__errand *all = glake__space.errands;
	glake__space.errands = NULL;
	glake__unlock();
	return all;
}

#define ANY_DEVICE (-1)

static bool is_under_way(int device)
{
	glake__lock();
	const struct glake__errand *at = glake__space.errands;
	while (at && (at->is_over || (device != ANY_DEVICE && at->device != device))) {
		at = at->next;
	}
	glake__unlock();
	return at != NULL;
}

bool glake__errands_go_on(void)
{
	return is_under_way(ANY_DEVICE);
}

uint64_t glake__errands_last(void)
{
	glake__lock();
	uint64_t number = glake__space.n_errands;
	glake__unlock();
	return number;
}

void glake__errands_drained(uint64_t last, uint64_t readers)
{
	bool is_drained = glake__gate_holds();
	glake__lock();
	for (struct glake__errand *at = glake__space.errands; at; at = at->next) {
		at->is_over |= is_drained && at->number <= last && readers >> at->device & 1;
	}
	glake__unlock();
}

int glake__errands_wait(uint64_t readers)
{
	uint64_t last = glake__errands_last();
	int r = glake__gate_wait_soon(readers);
	if (r == 0 && glake__space.gate.wait) {
		glake__errands_drained(last, readers);
	}
	return r;
}

void glake__errand_end(struct glake_session *session, struct glake__range **range)
{
	struct glake__chunk *dead = NULL;
	struct glake__range *ended = *range;
	*range = NULL;
	if (ended) {
		char *text = glake__error_save();
		/* Twice, if need be: what stays mapped here is charged until the session ends. */
		glake__range_clear(ended, 0, ended->n_bytes, &dead);
		glake__range_end(ended, &dead);
		glake__grant_return(session, dead);
		glake__error_restore(text);
	}
}

void glake__errands_collect(void)
{
	struct glake__errand *all = take_all();
	while (all) {
		struct glake__errand *errand = all;
		all = errand->next;
		if (errand->is_over ||
		    glake__context_is_over(&errand->session->drv, &errand->left)) {
			glake__errand_end(errand->session, &errand->to);
			glake__errand_end(errand->session, &errand->from);
			glake__session_unref(errand->session);
			free(errand);
		} else {
			add(errand);
		}
	}
}

/* ---- mirrors ---------------------------------------------------------------------------------- */

/* 0: some of them are holes, because the driver has lost their memory. */
static size_t count_pieces(const struct glake__range *range, uint64_t offset, uint64_t n_bytes)
{
	bool is_whole = true;
	size_t n = 0;
	glake__lock();
	const struct glake__piece *at = glake__range_piece_locked(range, offset);
	for (; at && at->offset < offset + n_bytes; at = at->next) {
		is_whole &= at->chunk != NULL;
		n++;
	}
	glake__unlock();
	return is_whole ? n : 0;
}

/* With a use of each chunk, the caller's. Whoever holds the pieces knows that there are as many still. */
static void list_pieces(const struct glake__range *range, uint64_t offset, size_t n,
                        enum glake__access access, struct glake__part *parts)
{
	glake__lock();
	const struct glake__piece *at = glake__range_piece_locked(range, offset);
	for (size_t i = 0; i < n; i++, at = at->next) {
		at->chunk->n_uses++;
		parts[i] = (struct glake__part){
			.chunk = at->chunk,
			.n_bytes = at->n_bytes,
			.access = access,
			.fd = -1,
		};
	}
	glake__unlock();
}

static int fill_mirror(struct glake__range *mirror, const struct glake__range *range,
                       uint64_t offset, enum glake__access access)
{
	size_t n = count_pieces(range, offset, mirror->n_bytes);
	if (n == 0) {
		return glake__fail(GLAKE_E_CUDA, "the driver has lost memory at 0x%llx",
		                   (unsigned long long)(range->ptr + offset));
	}
	cleanup_free struct glake__part *parts = calloc(n, sizeof(*parts));
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	list_pieces(range, offset, n, access, parts);
	int r = glake__range_fill(mirror, 0, parts, n);
	for (size_t i = 0; i < n; i++) {
		glake__chunk_put(parts[i].chunk);
	}
	return r;
}

int glake__errand_mirror(const struct glake__device *device, struct glake__range *range,
                         uint64_t offset, uint64_t n_bytes, enum glake__access access,
                         struct glake__range **mirror_out)
{
	/* Errands that have ended stand in nobody's way. */
	glake__errands_collect();
	int r = glake__range_reserve(&use_mirror, NULL, device->handle, n_bytes, 0, 0, mirror_out);
	if (r < 0) {
		*mirror_out = NULL;
		return r;
	}
	r = fill_mirror(*mirror_out, range, offset, access);
	if (r < 0) {
		glake__errand_end(device->session, mirror_out);
	}
	return r;
}

/* ---- running ---------------------------------------------------------------------------------- */

/* The ranges are the errand's from here on. */
static void give_up(struct glake__errand *errand, const struct glake__device *device,
                    struct glake__range **to, struct glake__range **from)
{
	glake__session_ref(device->session);
	errand->session = device->session;
	errand->device = device->handle;
	errand->to = *to;
	errand->from = *from;
	*to = NULL;
	*from = NULL;
	add(errand);
	if (glake__space.gate.left) {
		glake__space.gate.left(glake__space.gate.user);
	}
}

/* Without @from zeroes, to what lies behind the first @n_kept bytes. */
static int run(const struct glake__device *device, struct glake__range **to,
               struct glake__range **from, uint64_t n_kept)
{
	bool has_gate = glake__space.gate.close;
	uint64_t patience_ns = glake__gate_holds() ? HELD_PATIENCE_NS : PATIENCE_NS;
	if (is_under_way(device->handle)) {
		return glake__fail(-EBUSY, "earlier work on the GPU goes on");
	}
	struct glake__errand *errand = calloc(1, sizeof(*errand));
	if (!errand) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__context_work(device, (*to)->ptr + n_kept, *from ? (*from)->ptr : 0,
	                            (*to)->n_bytes - n_kept, patience_ns,
	                            has_gate ? NULL : &errand->left);
	if (r == -EBUSY) {
		give_up(errand, device, to, from);
	} else {
		free(errand);
	}
	return r;
}

int glake__errand_copy(const struct glake__device *device, struct glake__range **to,
                       struct glake__range **from)
{
	return run(device, to, from, 0);
}

int glake__errand_zero(const struct glake__device *device, glake_ptr ptr, uint64_t n_bytes,
                       uint64_t n_kept)
{
	struct glake__range *mirror;
	struct glake__range *none = NULL;
	glake__lock();
	struct glake__range *range = glake__piece_at_locked(ptr)->range;
	glake__unlock();
	int r = glake__errand_mirror(device, range, ptr - range->ptr, n_bytes, GLAKE__ACCESS_WRITE,
	                             &mirror);
	if (r < 0) {
		return r;
	}
	r = run(device, &mirror, &none, n_kept);
	glake__errand_end(device->session, &mirror);
	return r;
}
