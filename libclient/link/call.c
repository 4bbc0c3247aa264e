/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/call.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/bounds.h"
#include "proto/cleanup.h"
#include "proto/clock.h"
#include "proto/wire.h"
#include "libclient/link/deliver.h"
#include "libclient/link/error.h"
#include "libclient/link/report.h"
#include "libclient/link/resume.h"
#include "libclient/link/socket.h"

/* Set in ids of requests whose answers no call waits for. */
#define FORGOTTEN (1ull << 63)

#define CLOSED "the daemon has closed the connection"
#define TAKEN "the program has closed the connection's descriptor"
#define SILENT "the daemon does not answer"
#define BROKEN "the connection was given up because the daemon broke the protocol"

/* ---- the socket ------------------------------------------------------------------------------- */

/* Wait until @events can be, or for something that the next use will meet. False: in vain. */
static bool await(const struct glake__link *link, short events, unsigned timeout_ms)
{
	uint64_t end_ns = clock_now_ns() + timeout_ms * 1000000ull;
	struct pollfd ready = {.fd = link->socket, .events = events};
	int n;
	do {
		uint64_t now_ns = clock_now_ns();
		uint64_t left_ns = now_ns < end_ns ? end_ns - now_ns : 0;
		n = poll(&ready, 1, (int)((left_ns + 999999) / 1000000));
	} while (n < 0 && errno == EINTR);
	return n != 0;
}

/* ---- receiving -------------------------------------------------------------------------------- */

static struct glake__call **find_pending(struct glake__link *link, uint64_t id)
{
	struct glake__call **at = &link->pending;
	while (*at && (*at)->id != id) {
		at = &(*at)->next;
	}
	return at;
}

static void take_progress(struct glake__link *link, const Glake__Wire__LoadProgress *progress)
{
	struct glake__call *call = *find_pending(link, progress->request);
	/* Notices and answers may cross: news of a call that is over are no error. */
	if (call) {
		call->has_progress = true;
		call->done_bytes = progress->done_bytes;
		call->total_bytes = progress->total_bytes;
		call->place = progress->place;
		call->waiting_ms = progress->waiting_ms;
	}
}

static void take_reclaim(struct glake__link *link, const Glake__Wire__Reclaim *reclaim)
{
	struct glake__notice *notice = glake__notices_add(&link->notices, GLAKE_NOTICE_RECLAIM);
	if (notice) {
		notice->public.device = reclaim->device;
		notice->public.bytes = reclaim->bytes;
		notice->reclaim = reclaim->id;
	}
}

static void take_evicted(struct glake__link *link, const Glake__Wire__ModelEvicted *evicted)
{
	struct glake__notice *notice = glake__notices_add(&link->notices,
	                                                  GLAKE_NOTICE_MODEL_EVICTED);
	if (notice) {
		notice->public.name = strdup(evicted->name);
	}
}

/* glaked sends it only to sessions that follow it. */
static void take_seal(struct glake__link *link, const Glake__Wire__Seal *seal)
{
	struct glake__notice *notice = link->seal ? glake__notices_add(&link->notices, 0) : NULL;
	if (notice) {
		notice->seal = seal->id;
		notice->what = seal->candidates ? GLAKE__SEAL_CANDIDATES
		               : seal->dry_run  ? GLAKE__SEAL_DRY_RUN
		                                : GLAKE__SEAL;
	}
}

static void take_sleep(struct glake__link *link, const Glake__Wire__Sleep *sleep)
{
	struct glake__notice *notice = link->sleep ? glake__notices_add(&link->notices, 0) : NULL;
	if (notice) {
		notice->sleep = sleep->id;
		notice->wakes = sleep->wakes;
		notice->why = (uint32_t)sleep->why;
	}
}

static void take_doubt(struct glake__link *link, Glake__Wire__Doubt *doubt)
{
	char *why = link->doubt ? strdup(doubt->why) : NULL;
	struct glake__notice *notice = why ? glake__notices_add(&link->notices, 0) : NULL;
	if (notice) {
		notice->is_doubt = true;
		notice->public.name = why;
	} else {
		free(why);
	}
}

static void take_notice(struct glake__link *link, const Glake__Wire__Answer *answer)
{
	switch (answer->body_case) {
	case GLAKE__WIRE__ANSWER__BODY_PROGRESS:
		take_progress(link, answer->progress);
		break;
	case GLAKE__WIRE__ANSWER__BODY_RECLAIM:
		take_reclaim(link, answer->reclaim);
		break;
	case GLAKE__WIRE__ANSWER__BODY_SHUTTING_DOWN:
		glake__state_move(&link->state, GLAKE__LINK_DRAINING);
		glake__notices_add(&link->notices, GLAKE_NOTICE_SHUTTING_DOWN);
		break;
	case GLAKE__WIRE__ANSWER__BODY_MODEL_EVICTED:
		take_evicted(link, answer->model_evicted);
		break;
	case GLAKE__WIRE__ANSWER__BODY_SEAL:
		take_seal(link, answer->seal);
		break;
	case GLAKE__WIRE__ANSWER__BODY_SLEEP:
		take_sleep(link, answer->sleep);
		break;
	case GLAKE__WIRE__ANSWER__BODY_DOUBT:
		take_doubt(link, answer->doubt);
		break;
	default:
		/* A kind that a newer daemon knows. */
		break;
	}
}

/* Takes @answer over. Called with link->lock held. */
static void take_answer(struct glake__link *link, Glake__Wire__Answer *answer)
{
	struct glake__call **at = find_pending(link, answer->id);
	struct glake__call *call = *at;
	if (!call) {
		glake__wire__answer__free_unpacked(answer, NULL);
		glake__link_fail(link, GLAKE_E_PROTOCOL, BROKEN);
		return;
	}
	*at = call->next;
	call->answer = answer;
	call->fds = link->receive_fds;
	fdlist_init(&link->receive_fds);
	call->state = GLAKE__CALL_DONE;
}

static void take_packet(struct glake__link *link, size_t n_bytes)
{
	Glake__Wire__Answer *answer = glake__wire__answer__unpack(NULL, n_bytes,
	                                                          link->receive_buffer);
	if (!answer) {
		glake__link_fail(link, GLAKE_E_PROTOCOL, BROKEN);
	} else if (answer->id != 0 && !(answer->id & FORGOTTEN)) {
		take_answer(link, answer);
	} else {
		if (answer->id == 0) {
			take_notice(link, answer);
		}
		glake__wire__answer__free_unpacked(answer, NULL);
	}
	fdlist_deinit(&link->receive_fds);
}

/*
 * Returns 0, -EAGAIN when none is there, or an error of wire_recv(); *why_out explains WIRE_E_EOF.
 */
static int receive(struct glake__link *link, size_t *n_bytes_out, const char **why_out)
{
	if (!glake__link_has_socket(link)) {
		*why_out = TAKEN;
		return WIRE_E_EOF;
	}
	int r = wire_recv(link->socket, link->receive_buffer, GLAKE_MAX_PACKET_BYTES, n_bytes_out,
	                  &link->receive_fds, MSG_DONTWAIT);
	*why_out = CLOSED;
	return r;
}

static int forget(struct glake__link *link, Glake__Wire__Request *request);

/* Receives the next packet, and waits for it. */
static int receive_next(struct glake__link *link, size_t *n_bytes_out, const char **why_out)
{
	bool is_greeting = link->state == GLAKE__LINK_GREETING;
	unsigned timeout_ms = is_greeting ? link->hello_ms : glake__patience.silence_ms;
	bool is_asked = is_greeting;
	int r;
	do {
		if (!await(link, POLLIN, timeout_ms)) {
			Glake__Wire__Request *request = REQUEST(PING, Ping, ping);
			if (is_asked || forget(link, request) < 0) {
				*why_out = SILENT;
				return WIRE_E_EOF;
			}
			is_asked = true;
		}
		r = receive(link, n_bytes_out, why_out);
	} while (r == -EAGAIN);
	return r;
}

/*
 * Read one packet, if @waits one that is still to come, and hand it on. Called with link->lock
 * held, which is let go while the socket is read; link->is_reading keeps others away from the
 * buffers meanwhile. Returns 0, -EAGAIN (only without @waits), or the connection's error.
 */
static int read_one(struct glake__link *link, bool waits)
{
	link->is_reading = true;
	pthread_mutex_unlock(&link->lock);
	size_t n_bytes = 0;
	const char *why = CLOSED;
	int r = waits ? receive_next(link, &n_bytes, &why) : receive(link, &n_bytes, &why);
	pthread_mutex_lock(&link->lock);
	link->is_reading = false;
	if (r == 0) {
		take_packet(link, n_bytes);
	} else if (r == WIRE_E_MALFORMED) {
		fdlist_deinit(&link->receive_fds);
		glake__link_fail(link, GLAKE_E_PROTOCOL, BROKEN);
	} else if (r != -EAGAIN) {
		glake__link_fail(link, GLAKE_E_GONE, why);
	}
	pthread_cond_broadcast(&link->changed);
	return r == -EAGAIN ? r : link->error;
}

int glake__link_poll(struct glake__link *link)
{
	cleanup_cancel int cancel = cancel_disable();
	int r = 0;
	pthread_mutex_lock(&link->lock);
	/* A thread that already reads takes the packets in. */
	while (r == 0 && glake__state_is_up(link->state) && !link->is_reading) {
		r = read_one(link, false);
	}
	r = link->error;
	pthread_mutex_unlock(&link->lock);
	return r ? glake__resume(link, false) : 0;
}

bool glake__link_is_awaited(struct glake__link *link)
{
	pthread_mutex_lock(&link->lock);
	bool is_awaited = link->pending != NULL;
	pthread_mutex_unlock(&link->lock);
	return is_awaited;
}

/* ---- calls ------------------------------------------------------------------------------------ */

/* Waits until it is sent. Returns 0 or an error of wire_send(); *why_out explains WIRE_E_EOF. */
static int send_bytes(struct glake__link *link, size_t n_bytes, const int *fds, size_t n_fds,
                      const char **why_out)
{
	int r;
	do {
		if (!glake__link_has_socket(link)) {
			*why_out = TAKEN;
			return WIRE_E_EOF;
		}
		r = wire_send(link->socket, link->send_buffer, n_bytes, fds, n_fds, MSG_DONTWAIT);
	} while (r == -EAGAIN && await(link, POLLOUT, glake__patience.silence_ms));
	*why_out = r == -EAGAIN ? SILENT : CLOSED;
	return r == -EAGAIN ? WIRE_E_EOF : r;
}

/* Called with link->send_lock held. Returns 0, or an error with its text set; GONE: *why_out. */
static int send_packed(struct glake__link *link, const Glake__Wire__Request *request,
                       const int *fds, size_t n_fds, const char **why_out)
{
	size_t n_bytes = glake__wire__request__get_packed_size(request);
	if (n_bytes > GLAKE_MAX_PACKET_BYTES) {
		return glake__fail(GLAKE_E_BAD_REQUEST, "the request takes %zu bytes, more than %u",
		                   n_bytes, GLAKE_MAX_PACKET_BYTES);
	}
	glake__wire__request__pack(request, link->send_buffer);
	/* glaked would close the session for it. */
	const char *error = bounds_check_request(link->send_buffer, n_bytes);
	if (error) {
		return glake__fail(GLAKE_E_BAD_REQUEST, "a request of %zu bytes: %s", n_bytes,
		                   error);
	}
	int r = send_bytes(link, n_bytes, fds, n_fds, why_out);
	if (r == WIRE_E_EOF) {
		return glake__fail(GLAKE_E_GONE, "%s", *why_out);
	}
	if (r == -ETOOMANYREFS) {
		return glake__fail(GLAKE_E_NO_FDS, "too many file descriptors of this user are in "
		                                   "flight between processes");
	}
	return r ? glake__fail(r, "cannot send to the daemon: %s", glake_strerror(r)) : 0;
}

/* Sends one packet; one thread at a time does. Notes that the connection is gone. */
static int send_one(struct glake__link *link, uint64_t connection,
                    const Glake__Wire__Request *request, const int *fds, size_t n_fds)
{
	const char *why = CLOSED;
	pthread_mutex_lock(&link->send_lock);
	bool is_same = link->n_connections == connection;
	int r = is_same ? send_packed(link, request, fds, n_fds, &why)
	                : glake__fail(GLAKE_E_GONE, "%s", why);
	if (r == GLAKE_E_GONE && is_same) {
		pthread_mutex_lock(&link->lock);
		glake__link_fail(link, r, why);
		pthread_mutex_unlock(&link->lock);
	}
	pthread_mutex_unlock(&link->send_lock);
	return r;
}

/* *is_owed_out: it is OWED already. Whoever sees the connection end may set that from now on. */
static int add_pending(struct glake__link *link, struct glake__call *call, bool *is_owed_out)
{
	pthread_mutex_lock(&link->lock);
	/* Whoever connects tells glaked what was given back until then. */
	while (call->n_released > 0 && link->state == GLAKE__LINK_RESUMING) {
		pthread_cond_wait(&link->changed, &link->lock);
	}
	int error = link->error;
	if (!error && call->wants_hosts && !link->has_hosts) {
		error = -ENOTSUP;
	}
	call->id = link->next_id++;
	call->connection = link->n_connections;
	if (!error) {
		call->next = link->pending;
		link->pending = call;
	} else if (glake__link_owe(link, call)) {
		call->error = error;
		call->state = GLAKE__CALL_OWED;
		error = 0;
	}
	*is_owed_out = call->state == GLAKE__CALL_OWED;
	pthread_mutex_unlock(&link->lock);
	return error == -ENOTSUP
	               ? glake__fail(error, "the daemon has no chunks in host memory any more")
	       : error ? glake__fail(error, "%s", link->why)
	               : 0;
}

static void remove_pending(struct glake__link *link, struct glake__call *call)
{
	pthread_mutex_lock(&link->lock);
	struct glake__call **at = find_pending(link, call->id);
	if (*at) {
		*at = call->next;
	}
	pthread_mutex_unlock(&link->lock);
}

static void note_released(struct glake__call *call, const Glake__Wire__Request *request)
{
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE) {
		call->released = request->chunk_free->ids;
		call->n_released = request->chunk_free->n_ids;
	} else if (request->body_case == GLAKE__WIRE__REQUEST__BODY_MODEL_CLOSE) {
		call->released = &request->model_close->model;
		call->n_released = 1;
	} else if (request->body_case == GLAKE__WIRE__REQUEST__BODY_BLOCK_RELEASE) {
		call->released = &request->block_release->block;
		call->n_released = 1;
	}
}

static bool wants_hosts(const Glake__Wire__Request *request)
{
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_QUOTA_SET) {
		return request->quota_set->at != GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
	}
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC) {
		return false;
	}
	const Glake__Wire__ChunkAlloc *alloc = request->chunk_alloc;
	bool wants = alloc->at != GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
	for (size_t i = 0; !wants && i < alloc->n_also; i++) {
		wants = alloc->also[i]->at != GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU;
	}
	return wants;
}

static int start(struct glake__link *link, struct glake__call *call, Glake__Wire__Request *request,
                 Glake__Wire__Answer__BodyCase expected, const int *fds, size_t n_fds)
{
	*call = (struct glake__call){.expected = expected};
	fdlist_init(&call->fds);
	note_released(call, request);
	call->wants_hosts = wants_hosts(request);
	/* A spare request is answered at once. */
	call->wants_memory = (expected == GLAKE__WIRE__ANSWER__BODY_CHUNK_ALLOC &&
	                      !request->chunk_alloc->is_spare) ||
	                     expected == GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN;
	bool is_owed;
	int r = add_pending(link, call, &is_owed);
	if (r == 0 && !is_owed) {
		request->id = call->id;
		r = send_one(link, call->connection, request, fds, n_fds);
		if (r < 0) {
			remove_pending(link, call);
			r = call->state == GLAKE__CALL_OWED ? 0 : r;
		}
	}
	if (r < 0) {
		call->id = 0;
	}
	return r;
}

int glake__call_start(struct glake__link *link, struct glake__call *call,
                      Glake__Wire__Request *request, Glake__Wire__Answer__BodyCase expected,
                      const int *fds, size_t n_fds)
{
	int r = start(link, call, request, expected, fds, n_fds);
	/* Nobody may have seen yet that its glaked has ended. */
	if (r == -ENOTSUP) {
		glake__link_poll(link);
		r = start(link, call, request, expected, fds, n_fds);
	}
	if (r == GLAKE_E_GONE && glake__resume(link, true) == 0) {
		r = start(link, call, request, expected, fds, n_fds);
	}
	return r;
}

/*
 * Is there work for the waiting thread? A thread that waits for memory must still follow a Reclaim:
 * glaked may need exactly this memory for it, or sessions may wait for each other's.
 */
static bool has_news(const struct glake__link *link, const struct glake__call *call)
{
	return (call->wants_progress && call->has_progress) ||
	       (call->wants_memory && link->notices.first && !link->is_delivering);
}

/* Called with link->lock held, until the call is done or, if asked, has news. */
static void wait_locked(struct glake__link *link, struct glake__call *call, bool for_news)
{
	while (call->state == GLAKE__CALL_UNDER_WAY && !(for_news && has_news(link, call))) {
		if (link->is_reading) {
			pthread_cond_wait(&link->changed, &link->lock);
		} else {
			read_one(link, true);
		}
	}
}

static int judge(struct glake__link *link, struct glake__call *call)
{
	if (call->state == GLAKE__CALL_OWED) {
		return 0;
	}
	if (call->error) {
		return glake__fail(call->error, "%s", link->why);
	}
	const Glake__Wire__Answer *answer = call->answer;
	if (answer->status != GLAKE__WIRE__STATUS__OK) {
		int code = glake__code_of_status(answer->status);
		const char *text = answer->error && *answer->error ? answer->error
		                                                   : glake_strerror(code);
		return glake__fail(code, "%s", text);
	}
	if (answer->body_case != call->expected) {
		return glake__link_kill(link, GLAKE_E_PROTOCOL,
		                        "the daemon's answer does not match the request");
	}
	return 0;
}

static void tell(const struct glake__news *news, const struct glake__call *seen)
{
	if (seen->place > 0 && news->waiting) {
		news->waiting(news->user, seen->place, seen->waiting_ms);
	} else if (seen->place == 0 && news->progress) {
		news->progress(news->user, seen->done_bytes, seen->total_bytes);
	}
}

int glake__call_wait_news(struct glake__link *link, struct glake__call *call,
                          const struct glake__news *news)
{
	call->wants_progress = news->progress || news->waiting;
	pthread_mutex_lock(&link->lock);
	for (;;) {
		wait_locked(link, call, true);
		if (call->state != GLAKE__CALL_UNDER_WAY) {
			break;
		}
		const struct glake__call seen = {.has_progress = call->has_progress,
		                                 .done_bytes = call->done_bytes,
		                                 .total_bytes = call->total_bytes,
		                                 .place = call->place,
		                                 .waiting_ms = call->waiting_ms};
		call->has_progress = false;
		pthread_mutex_unlock(&link->lock);
		if (seen.has_progress) {
			tell(news, &seen);
		}
		glake__deliver(link);
		pthread_mutex_lock(&link->lock);
	}
	pthread_mutex_unlock(&link->lock);
	return judge(link, call);
}

int glake__call_wait(struct glake__link *link, struct glake__call *call, glake_progress_fn progress,
                     void *progress_user)
{
	const struct glake__news news = {.progress = progress, .user = progress_user};
	return glake__call_wait_news(link, call, &news);
}

bool glake__call_is_done(struct glake__link *link, const struct glake__call *call)
{
	pthread_mutex_lock(&link->lock);
	bool is_done = call->state != GLAKE__CALL_UNDER_WAY;
	pthread_mutex_unlock(&link->lock);
	return is_done;
}

/* Another thread may read the answer meanwhile: then it is found at the next look. */
bool glake__call_await(struct glake__link *link, const struct glake__call *call, unsigned ms)
{
	cleanup_cancel int cancel = cancel_disable();
	glake__link_poll(link);
	if (!glake__call_is_done(link, call)) {
		await(link, POLLIN, ms);
		glake__link_poll(link);
	}
	return glake__call_is_done(link, call);
}

void glake__call_end(struct glake__link *link, struct glake__call *call)
{
	if (call->id == 0) {
		return;
	}
	pthread_mutex_lock(&link->lock);
	wait_locked(link, call, false);
	pthread_mutex_unlock(&link->lock);
	if (call->answer) {
		glake__wire__answer__free_unpacked(call->answer, NULL);
		call->answer = NULL;
	}
	fdlist_deinit(&call->fds);
	call->id = 0;
}

static int call_once(struct glake__link *link, struct glake__call *call,
                     Glake__Wire__Request *request, Glake__Wire__Answer__BodyCase expected,
                     const int *fds, size_t n_fds)
{
	int r = glake__call_start(link, call, request, expected, fds, n_fds);
	if (r < 0) {
		return r;
	}
	r = glake__call_wait(link, call, NULL, NULL);
	if (r < 0) {
		glake__call_end(link, call);
	}
	return r;
}

/* glaked takes back the grants of a lost answer, and finds a chunk that became a block again. */
static bool may_repeat(const Glake__Wire__Request *request)
{
	return request->body_case != GLAKE__WIRE__REQUEST__BODY_HELLO;
}

int glake__call(struct glake__link *link, struct glake__call *call, Glake__Wire__Request *request,
                Glake__Wire__Answer__BodyCase expected, const int *fds, size_t n_fds)
{
	cleanup_cancel int cancel = cancel_disable();
	int r = call_once(link, call, request, expected, fds, n_fds);
	if (call->state == GLAKE__CALL_OWED) {
		glake__resume(link, false);
	} else if (r == GLAKE_E_GONE && may_repeat(request) && glake__resume(link, true) == 0) {
		r = call_once(link, call, request, expected, fds, n_fds);
	}
	return r;
}

int glake__call_cut(void)
{
	return glake__fail(-EMFILE, "an answer lost its file descriptors: this process is at its "
	                            "limit of open files");
}

static int forget(struct glake__link *link, Glake__Wire__Request *request)
{
	pthread_mutex_lock(&link->lock);
	request->id = link->next_id++ | FORGOTTEN;
	int error = link->error;
	uint64_t connection = link->n_connections;
	pthread_mutex_unlock(&link->lock);
	return error ? error : send_one(link, connection, request, NULL, 0);
}

void glake__call_forget(struct glake__link *link, Glake__Wire__Request *request)
{
	cleanup_cancel int cancel = cancel_disable();
	forget(link, request);
}

void glake__link_leave(struct glake__link *link)
{
	cleanup_cancel int cancel = cancel_disable();
	Glake__Wire__Request *request = REQUEST(GOODBYE, Goodbye, goodbye);
	/* A lost connection is made anew for it: else glaked would keep our memory. */
	if (link->state != GLAKE__LINK_GREETING && forget(link, request) == GLAKE_E_GONE &&
	    glake__resume(link, false) == 0) {
		forget(link, request);
	}
	pthread_mutex_lock(&link->lock);
	glake__link_shut_down(link);
	pthread_mutex_unlock(&link->lock);
}
