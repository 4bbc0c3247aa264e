/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's allocator functions. */
#include "libclient/glake_torch.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "libclient/link/report.h"
#include "libclient/heap/claim.h"
#include "libclient/heap/async.h"
#include "libclient/space/space.h"
#include "libclient/api/torch_uses.h"

static _Atomic(struct glake_session *) current;
static _Atomic(CUcontext) primaries[GLAKE__MAX_DEVICES]; /* retained; NULL: not asked for yet */
static _Atomic(glake_torch_raise_fn *) raise_error;

/* Memory whose stream is captured, to be freed later. */
struct postponed {
	void *ptr;
	int device;
	void *stream;
	struct postponed *next;
};
static _Atomic(struct postponed *) postponed; /* owned list */

/* ---- the session ------------------------------------------------------------------------------ */

/* NULL: there is none in this process yet. */
static struct glake_session *session_here(void)
{
	struct glake_session *session = current;
	return session && glake__session_check(session) == 0 ? session : NULL;
}

/*
 * In place of @before. No lock, since a child of fork() would inherit it locked: of two that are made at a
 * time, one stays.
 */
static int make_session(struct glake_session *before, struct glake_session **session_out)
{
	const struct glake_connect_options options = {.size = sizeof(options), .stitch = 1};
	int r = glake_connect(&options, session_out);
	if (r == 0 && !atomic_compare_exchange_strong(&current, &before, *session_out)) {
		glake_disconnect(*session_out);
		*session_out = before;
	}
	return r;
}

static void trim(struct glake_session *session)
{
	for (uint32_t i = 0; i < session->n_devices; i++) {
		glake_trim(session, session->devices[i].public.index, 0);
	}
}

struct glake_session *glake_torch_session(void)
{
	return session_here();
}

/* ---- the context ------------------------------------------------------------------------------ */

static int primary_of(const struct glake_session *session, int device, CUcontext *context_out)
{
	const struct cudrv *drv = &session->drv;
	const struct glake__device *found = glake__session_at_ordinal(session, device);
	if (!found || found->handle >= GLAKE__MAX_DEVICES) {
		return glake__fail(-ENOENT, "the daemon does not own CUDA device %d", device);
	}
	*context_out = primaries[found->handle];
	if (!*context_out) {
		CUresult result = drv->cuDevicePrimaryCtxRetain(context_out, found->handle);
		if (result != CUDA_SUCCESS) {
			return glake__fail(GLAKE_E_CUDA, "cuDevicePrimaryCtxRetain: %s",
			                   cudrv_error(drv, result));
		}
		primaries[found->handle] = *context_out;
	}
	return 0;
}

/* For leave(). */
struct entered {
	CUcontext previous;
	bool is_other; /* than the device's */
};

/*
 * The default stream is that of the current context, and PyTorch frees on any thread, with any device
 * current.
 */
static int enter(const struct glake_session *session, int device, struct entered *entered_out)
{
	const struct cudrv *drv = &session->drv;
	CUcontext primary = NULL;
	int r = primary_of(session, device, &primary);
	if (r < 0) {
		return r;
	}
	CUresult result = drv->cuCtxGetCurrent(&entered_out->previous);
	entered_out->is_other = entered_out->previous != primary;
	if (result == CUDA_SUCCESS && entered_out->is_other) {
		result = drv->cuCtxSetCurrent(primary);
	}
	return result == CUDA_SUCCESS
	               ? 0
	               : glake__fail(GLAKE_E_CUDA, "cuCtxSetCurrent: %s", cudrv_error(drv, result));
}

static void leave(const struct glake_session *session, const struct entered *entered)
{
	if (entered->is_other) {
		session->drv.cuCtxSetCurrent(entered->previous);
	}
}

/* ---- freeing ---------------------------------------------------------------------------------- */

static int free_of(struct glake_session *session, glake_ptr address, int device, void *stream)
{
	struct entered entered;
	int r = enter(session, device, &entered);
	if (r < 0) {
		return r;
	}
	r = glake__torch_uses_join(session, address, stream);
	if (r == 0) {
		r = glake_free_async(session, stream, address, 0);
	}
	leave(session, &entered);
	return r;
}

static int free_in_order(void *ptr, int device, void *stream)
{
	glake_ptr address = (glake_ptr)(uintptr_t)ptr;
	struct glake_session *session = current;
	struct glake__facts facts;
	int r = free_of(session, address, device, stream);
	if ((r == -EINVAL || r == -ENOENT) && glake__heap_find(address, &facts) &&
	    facts.session != session) {
		r = free_of(facts.session, address, device, stream);
		if (r == 0) {
			/* Nobody allocates from a session whose glaked has ended. */
			trim(facts.session);
		}
	}
	return r;
}

/* After any other error than -EBUSY nobody knows what uses the memory: it stays for good. */
static void free_or_postpone(const struct postponed *wanted)
{
	struct postponed *kept = NULL;
	if (free_in_order(wanted->ptr, wanted->device, wanted->stream) == -EBUSY) {
		kept = malloc(sizeof(*kept));
	}
	if (kept) {
		*kept = *wanted;
		kept->next = postponed;
		while (!atomic_compare_exchange_weak(&postponed, &kept->next, kept)) {
		}
	}
}

static void free_postponed(void)
{
	struct postponed *list = postponed ? atomic_exchange(&postponed, NULL) : NULL;
	while (list) {
		struct postponed *wanted = list;
		list = wanted->next;
		free_or_postpone(wanted);
		free(wanted);
	}
}

void glake_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
	(void)size;
	const struct postponed wanted = {.ptr = ptr, .device = device, .stream = stream};
	if (session_here() && ptr) {
		free_or_postpone(&wanted);
	}
}

void glake_torch_record_stream(void *ptr, void *stream)
{
	if (session_here() && ptr) {
		glake__torch_uses_add((glake_ptr)(uintptr_t)ptr, stream);
	}
}

void glake_torch_empty_cache(void)
{
	struct glake_session *session = session_here();
	if (session) {
		free_postponed();
		trim(session);
	}
}

void glake_torch_tend(int timeout_ms)
{
	struct glake_session *session = session_here();
	/* Without a socket it is a pause. */
	struct pollfd ready = {.fd = session ? glake_fd(session) : -1, .events = POLLIN};
	poll(&ready, 1, timeout_ms);
	if (session && glake_dispatch(session) < 0) {
		poll(NULL, 0, timeout_ms);
	}
	if (session) {
		glake__async_collect(session);
	}
}

/* ---- allocating ------------------------------------------------------------------------------- */

static int alloc_from(struct glake_session *session, ssize_t size, int device, void *stream,
                      bool for_pool, glake_ptr *ptr_out)
{
	struct entered entered;
	int r = enter(session, device, &entered);
	if (r < 0) {
		return r;
	}
	r = glake_alloc_async(session, stream, (uint64_t)size, 0, ptr_out);
	if (r == -EBUSY && for_pool) {
		/* A graph's replays are in no order that is known now: memory that nobody uses. */
		uint32_t index = glake__session_at_ordinal(session, device)->public.index;
		r = glake_alloc(session, index, (uint64_t)size, 0, ptr_out);
	} else if (r == -EBUSY) {
		r = glake__fail(-EBUSY, "the stream is being captured, and graphs need memory of "
		                        "a MemPool: glake.torch.mem_pool()");
	}
	leave(session, &entered);
	return r;
}

static int alloc(ssize_t size, int device, void *stream, bool for_pool, glake_ptr *ptr_out)
{
	struct glake_session *session = session_here();
	int r = session ? 0 : make_session(current, &session);
	if (r < 0) {
		return r;
	}
	free_postponed();
	r = alloc_from(session, size, device, stream, for_pool, ptr_out);
	if (r < 0 && glake__session_is_gone(session)) {
		/* The session's glaked has ended. Its free memory is of no use to the next session. */
		struct glake_session *gone = session;
		r = make_session(gone, &session);
		if (r == 0) {
			trim(gone);
			r = alloc_from(session, size, device, stream, for_pool, ptr_out);
		}
	}
	return r;
}

static void raise_failure(glake_torch_raise_fn *raise, ssize_t size, int device, int error)
{
	char text[640];
	bool is_full = error == GLAKE_E_OVER_QUOTA || error == GLAKE_E_NO_DEVICE_MEMORY;
	/* Programs look for the first words, which are PyTorch's, to try again with less. */
	snprintf(text, sizeof(text), "%s %zd bytes on device %d from glaked: %s",
	         is_full ? "CUDA out of memory. Tried to allocate" : "Cannot allocate", size,
	         device, glake_error());
	raise("glake_torch_alloc", __FILE__, __LINE__, text);
}

void *glake_torch_alloc(ssize_t size, int device, void *stream)
{
	glake_ptr ptr = 0;
	int r = size > 0 ? alloc(size, device, stream, false, &ptr) : 0;
	glake_torch_raise_fn *raise = raise_error;
	if (r < 0 && raise) {
		raise_failure(raise, size, device, r);
	}
	return (void *)(uintptr_t)ptr;
}

void *glake_torch_pool_alloc(ssize_t size, int device, void *stream)
{
	glake_ptr ptr = 0;
	if (size > 0) {
		alloc(size, device, stream, true, &ptr);
	}
	return (void *)(uintptr_t)ptr;
}

void glake_torch_set_raise(glake_torch_raise_fn *raise)
{
	raise_error = raise;
}
