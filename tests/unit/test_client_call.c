/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, notices and broken peers: what the client makes of anything a daemon may say. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "libclient/link/call.h"
#include "libclient/link/rpc.h"
#include "libclient/link/socket.h"
#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "tests/unit/fake_daemon.h"

#define assert_ok(call) \
	do { \
		int assert_ok_r = (call); \
		ck_assert_msg(assert_ok_r == 0, #call " = %d: %s", assert_ok_r, glake_error()); \
	} while (0)

/* One at a time. */
static struct fake_daemon glaked;
static struct glake_session *session;

static int try_connect(void)
{
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	session = NULL;
	return glake_connect(&options, &session);
}

/* A daemon that does what @script says, and a session with it. */
static void begin(fake_script_fn script, void *user)
{
	glaked = (struct fake_daemon){.script = script, .user = user};
	fake_start(&glaked);
	assert_ok(try_connect());
}

static void end(void)
{
	glake_disconnect(session);
	fake_stop(&glaked);
}

static int n_open_fds(void)
{
	int n_fds = 0;
	for (int fd = 0; fd < 1024; fd++) {
		n_fds += fcntl(fd, F_GETFD) >= 0;
	}
	return n_fds;
}

/* ---- greeting --------------------------------------------------------------------------------- */

static bool refuse_hello(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	fake_refuse(fake, request->id, *(Glake__Wire__Status *)fake->user, "because");
	fake_hang_up(fake);
	return true;
}

START_TEST(a_refused_greeting_says_why)
{
	static const struct {
		Glake__Wire__Status status;
		int code;
	} refusals[] = {
		{GLAKE__WIRE__STATUS__VERSION, GLAKE_E_VERSION},
		{GLAKE__WIRE__STATUS__OVER_QUOTA, GLAKE_E_OVER_QUOTA},
		{GLAKE__WIRE__STATUS__SHUTTING_DOWN, GLAKE_E_SHUTTING_DOWN},
		{(Glake__Wire__Status)77, GLAKE_E_INTERNAL},
	};
	int n_fds = n_open_fds();
	for (size_t i = 0; i < n_elements(refusals); i++) {
		struct fake_daemon fake = {.script = refuse_hello,
		                           .user = (void *)&refusals[i].status};
		fake_start(&fake);
		ck_assert_int_eq(try_connect(), refusals[i].code);
		ck_assert_str_eq(glake_error(), "because");
		ck_assert_ptr_null(session);
		fake_stop(&fake);
		ck_assert_int_eq(n_open_fds(), n_fds);
	}
}
END_TEST

#define WAIT_MS 30

static _Atomic uint64_t waited_ms[2];

/* No memory, after a while. */
static bool refuse_late(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	static unsigned n;
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC) {
		return false;
	}
	waited_ms[n++ % 2] = request->chunk_alloc->waited_ms;
	usleep(WAIT_MS * 1000);
	fake_refuse(fake, request->id, GLAKE__WIRE__STATUS__OVER_QUOTA, "none");
	return true;
}

START_TEST(who_asks_again_says_how_long_it_has_waited)
{
	struct glake__wait wait = {0};
	struct fdlist fds;
	uint64_t id;
	fdlist_init(&fds);
	begin(refuse_late, NULL);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(
			glake__rpc_chunk_alloc(session, 0, 2u << 20, 1, 2u << 20, &wait, &id, &fds),
			GLAKE_E_OVER_QUOTA);
	}
	ck_assert_uint_eq(waited_ms[0], 0);
	ck_assert_uint_ge(waited_ms[1], WAIT_MS);
	/* Another allocation begins anew. */
	wait = (struct glake__wait){0};
	ck_assert_int_eq(
		glake__rpc_chunk_alloc(session, 0, 2u << 20, 1, 2u << 20, &wait, &id, &fds),
		GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(waited_ms[0], 0);
	end();
}
END_TEST

static bool hang_up(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	fake_hang_up(fake);
	return true;
}

static bool talk_garbage(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	wire_send(fake->socket, "\xff\xff\xff garbage", 11, NULL, 0, 0);
	return true;
}

START_TEST(no_daemon_or_a_strange_one)
{
	setenv("GLAKE_SOCKET", "/nonexistent/socket", 1);
	ck_assert_int_eq(try_connect(), GLAKE_E_GONE);
	ck_assert_ptr_nonnull(strstr(glake_error(), "/nonexistent/socket"));
	char path[200];
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	setenv("GLAKE_SOCKET", path, 1);
	ck_assert_int_eq(try_connect(), -ENAMETOOLONG);
	struct {
		fake_script_fn script;
		bool is_bad_hello;
		int code;
	} strange[] = {
		{hang_up, false, GLAKE_E_GONE},
		{talk_garbage, false, GLAKE_E_PROTOCOL},
		{NULL, true, GLAKE_E_VERSION},
	};
	for (size_t i = 0; i < n_elements(strange); i++) {
		struct fake_daemon fake = {.script = strange[i].script,
		                           .is_bad_hello = strange[i].is_bad_hello};
		fake_start(&fake);
		ck_assert_int_eq(try_connect(), strange[i].code);
		fake_stop(&fake);
	}
}
END_TEST

/* ---- calls ------------------------------------------------------------------------------------ */

/* The first ping is answered after the second: see two_threads(). */
static bool answer_backwards(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	static uint64_t kept;
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_PING) {
		return false;
	}
	if (kept == 0) {
		kept = request->id;
		return true;
	}
	fake_answer_ok(fake, request->id);
	usleep(50000);
	fake_refuse(fake, kept, GLAKE__WIRE__STATUS__BUSY, "late");
	kept = 0;
	return true;
}

static void *ping(void *argument)
{
	return (void *)(intptr_t)glake_ping(argument);
}

START_TEST(answers_find_their_calls_in_any_order)
{
	begin(answer_backwards, NULL);
	for (int round = 0; round < 5; round++) {
		pthread_t thread;
		void *result;
		pthread_create(&thread, NULL, ping, session);
		while (glaked.n_requests[GLAKE__WIRE__REQUEST__BODY_PING] <
		       2u * (unsigned)round + 1) {
			usleep(1000);
		}
		/* The other thread reads the socket, for both of us. */
		ck_assert_int_eq(glake_ping(session), 0);
		pthread_join(thread, &result);
		ck_assert_int_eq((int)(intptr_t)result, GLAKE_E_BUSY);
	}
	end();
}
END_TEST

static bool answer_another_id(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_PING) {
		fake_answer_ok(fake, request->id + 1000);
	}
	return request->body_case == GLAKE__WIRE__REQUEST__BODY_PING;
}

static bool answer_another_body(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_PING) {
		fake_hello(fake, request->id);
	}
	return request->body_case == GLAKE__WIRE__REQUEST__BODY_PING;
}

static bool hang_up_on_ping(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	return request->body_case == GLAKE__WIRE__REQUEST__BODY_PING && hang_up(fake, request);
}

static bool garble_ping(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	return request->body_case == GLAKE__WIRE__REQUEST__BODY_PING && talk_garbage(fake, request);
}

static void count_gone(void *user, const struct glake_notice *notice)
{
	*(int *)user += notice->kind == GLAKE_NOTICE_GONE ? 1 : 1000;
}

START_TEST(a_broken_connection_stays_broken)
{
	struct {
		fake_script_fn script;
		int code;
	} breaks[] = {
		{answer_another_id, GLAKE_E_PROTOCOL},
		{answer_another_body, GLAKE_E_PROTOCOL},
		{garble_ping, GLAKE_E_PROTOCOL},
		{hang_up_on_ping, GLAKE_E_GONE},
	};
	int n_fds = n_open_fds();
	for (size_t i = 0; i < n_elements(breaks); i++) {
		begin(breaks[i].script, NULL);
		int n_gone = 0;
		glake_set_notice_handler(session, count_gone, &n_gone);
		ck_assert_int_eq(glake_ping(session), breaks[i].code);
		ck_assert_uint_gt(strlen(glake_error()), 0);
		ck_assert_int_eq(n_gone, 1);
		ck_assert_int_eq(glake_ping(session), breaks[i].code);
		ck_assert_int_eq(glake_dispatch(session), breaks[i].code);
		ck_assert_int_eq(glake_fd(session), -1);
		ck_assert_int_eq(n_gone, 1);
		end();
		ck_assert_int_eq(n_open_fds(), n_fds);
	}
}
END_TEST

#define N_WAITERS 6

static bool hang_up_when_all_wait(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_PING) {
		return false;
	}
	if (fake->n_requests[GLAKE__WIRE__REQUEST__BODY_PING] == N_WAITERS) {
		fake_hang_up(fake);
	}
	return true;
}

START_TEST(everybody_who_waits_learns_of_the_end)
{
	begin(hang_up_when_all_wait, NULL);
	pthread_t threads[N_WAITERS];
	for (int i = 0; i < N_WAITERS; i++) {
		pthread_create(&threads[i], NULL, ping, session);
	}
	for (int i = 0; i < N_WAITERS; i++) {
		void *result;
		pthread_join(threads[i], &result);
		ck_assert_int_eq((int)(intptr_t)result, GLAKE_E_GONE);
	}
	end();
}
END_TEST

/* ---- cancelled, taken, silent ----------------------------------------------------------------- */

static bool answer_when_three_wait(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	static uint64_t kept[2];
	unsigned n = fake->n_requests[GLAKE__WIRE__REQUEST__BODY_PING];
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_PING || n > 3) {
		return false;
	}
	if (n < 3) {
		kept[n - 1] = request->id;
		return true;
	}
	fake_answer_ok(fake, request->id);
	fake_answer_ok(fake, kept[0]);
	fake_answer_ok(fake, kept[1]);
	return true;
}

static bool say_nothing(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	return true;
}

static bool say_hello_only(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	return request->body_case != GLAKE__WIRE__REQUEST__BODY_HELLO;
}

static bool answer_after_two_pings(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	uint64_t *evict = fake->user;
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_EVICT) {
		*evict = request->id;
		return true;
	}
	if (fake->n_requests[GLAKE__WIRE__REQUEST__BODY_PING] == 2) {
		fake_refuse(fake, *evict, GLAKE__WIRE__STATUS__BUSY, "at last");
	}
	return false;
}

/* One thread reads the socket, the other waits for it; the third must not. */
START_TEST(a_cancelled_thread_holds_up_nobody)
{
	begin(answer_when_three_wait, NULL);
	pthread_t threads[2];
	for (unsigned i = 0; i < 2; i++) {
		pthread_create(&threads[i], NULL, ping, session);
		while (glaked.n_requests[GLAKE__WIRE__REQUEST__BODY_PING] <= i) {
			usleep(1000);
		}
		pthread_cancel(threads[i]);
	}
	assert_ok(glake_ping(session));
	for (unsigned i = 0; i < 2; i++) {
		void *result;
		pthread_join(threads[i], &result);
		ck_assert_ptr_null(result);
	}
	end();
}
END_TEST

/* The file that has come to the socket's number is somebody else's: nothing is done to it. */
START_TEST(a_file_in_our_place_is_left_alone)
{
	for (int uses_dispatch = 0; uses_dispatch < 2; uses_dispatch++) {
		int ends[2];
		char bytes[8];
		begin(NULL, NULL);
		int fd = glake_fd(session);
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
		ck_assert_int_eq(dup2(ends[0], fd), fd);
		ck_assert_int_eq(send(ends[1], "theirs", 6, 0), 6);
		ck_assert_int_eq(glake_fd(session), -1);
		if (uses_dispatch) {
			/* The notice of it. */
			ck_assert_int_eq(glake_dispatch(session), 1);
		}
		ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
		ck_assert_ptr_nonnull(strstr(glake_error(), "descriptor"));
		glake_disconnect(session);
		ck_assert_int_eq(recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT), 6);
		ck_assert_int_eq(recv(ends[1], bytes, sizeof(bytes), MSG_DONTWAIT), -1);
		ck_assert_int_eq(errno, EAGAIN);
		ck_assert_int_eq(send(fd, "theirs", 6, 0), 6);
		close(fd);
		close(ends[0]);
		close(ends[1]);
		fake_stop(&glaked);
	}
}
END_TEST

/* Long enough for a thread of a busy machine. */
#define PATIENCE_MS 400u

static void be_impatient(void)
{
	glake__patience = (struct glake__patience){PATIENCE_MS, PATIENCE_MS};
}

START_TEST(a_silent_greeting_is_given_up)
{
	be_impatient();
	struct fake_daemon fake = {.script = say_nothing};
	fake_start(&fake);
	ck_assert_int_eq(try_connect(), GLAKE_E_GONE);
	ck_assert_ptr_nonnull(strstr(glake_error(), "does not answer"));
	fake_stop(&fake);
}
END_TEST

START_TEST(a_silent_daemon_is_given_up)
{
	be_impatient();
	begin(say_hello_only, NULL);
	ck_assert_int_eq(glake_evict(session, "m", NULL, NULL), GLAKE_E_GONE);
	ck_assert_ptr_nonnull(strstr(glake_error(), "does not answer"));
	ck_assert_uint_eq(glaked.n_requests[GLAKE__WIRE__REQUEST__BODY_PING], 1);
	ck_assert_int_eq(glake_ping(session), GLAKE_E_GONE);
	end();
}
END_TEST

/* The daemon says that it is there, and answers when it can. */
START_TEST(a_slow_daemon_is_waited_for)
{
	be_impatient();
	uint64_t evict = 0;
	begin(answer_after_two_pings, &evict);
	ck_assert_int_eq(glake_evict(session, "m", NULL, NULL), GLAKE_E_BUSY);
	assert_ok(glake_ping(session));
	end();
}
END_TEST

/* ---- notices ---------------------------------------------------------------------------------- */

static bool notify_on_ping(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_PING) {
		return false;
	}
	/* Once: the handler pings, too. */
	if (fake->n_requests[GLAKE__WIRE__REQUEST__BODY_PING] == 1) {
		Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
		Glake__Wire__ShuttingDown shutting_down = GLAKE__WIRE__SHUTTING_DOWN__INIT;
		Glake__Wire__ModelEvicted evicted = GLAKE__WIRE__MODEL_EVICTED__INIT;
		fake_reclaim(fake, 1234, 1);
		evicted.name = (char *)"a model";
		answer.body_case = GLAKE__WIRE__ANSWER__BODY_MODEL_EVICTED;
		answer.model_evicted = &evicted;
		fake_send(fake, &answer, NULL, 0);
		answer.body_case = GLAKE__WIRE__ANSWER__BODY_SHUTTING_DOWN;
		answer.shutting_down = &shutting_down;
		fake_send(fake, &answer, NULL, 0);
	}
	fake_answer_ok(fake, request->id);
	if (fake->n_requests[GLAKE__WIRE__REQUEST__BODY_PING] == 1) {
		/* Behind the answer: for glake_dispatch(). */
		fake_reclaim(fake, 99, 2);
	}
	return true;
}

struct heard {
	int depth;
	size_t n_notices;
	struct glake_notice notices[8];
	char names[8][32];
};

static void hear(void *user, const struct glake_notice *notice)
{
	struct heard *heard = user;
	ck_assert_int_eq(heard->depth, 0);
	heard->depth++;
	heard->notices[heard->n_notices] = *notice;
	strcpy(heard->names[heard->n_notices++], notice->name ? notice->name : "");
	if (heard->n_notices == 1) {
		assert_ok(glake_ping(session));
	}
	heard->depth--;
}

START_TEST(notices_are_delivered_in_order_after_the_call)
{
	struct heard heard = {0};
	begin(notify_on_ping, NULL);
	glake_set_notice_handler(session, hear, &heard);
	assert_ok(glake_ping(session));
	/* The handler's own ping may have read the one behind the answer. */
	struct pollfd waiting = {.fd = glake_fd(session), .events = POLLIN};
	if (heard.n_notices == 3) {
		ck_assert_int_eq(poll(&waiting, 1, 2000), 1);
		ck_assert_int_eq(glake_dispatch(session), 1);
	}
	ck_assert_uint_eq(heard.n_notices, 4);
	ck_assert_int_eq(heard.notices[0].kind, GLAKE_NOTICE_RECLAIM);
	ck_assert_uint_eq(heard.notices[0].bytes, 1234);
	ck_assert_int_eq(heard.notices[1].kind, GLAKE_NOTICE_MODEL_EVICTED);
	ck_assert_str_eq(heard.names[1], "a model");
	ck_assert_int_eq(heard.notices[2].kind, GLAKE_NOTICE_SHUTTING_DOWN);
	ck_assert_int_eq(heard.notices[3].kind, GLAKE_NOTICE_RECLAIM);
	ck_assert_uint_eq(heard.notices[3].bytes, 99);
	/* Only answers still come: to the reports that a Reclaim is answered with. */
	do {
		ck_assert_int_eq(glake_dispatch(session), 0);
	} while (poll(&waiting, 1, 50) > 0);
	ck_assert_uint_eq(heard.n_notices, 4);
	end();
}
END_TEST

static bool refuse_and_notify(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_EVICT) {
		return false;
	}
	fake_reclaim(fake, 1, 1);
	fake_refuse(fake, request->id, GLAKE__WIRE__STATUS__BUSY, "the cause");
	return true;
}

static void fail_inside(void *user, const struct glake_notice *notice)
{
	struct glake_device device;
	ck_assert_int_eq(glake_device_at(user, 77, &device), -ENOENT);
}

START_TEST(a_handler_does_not_change_the_callers_error)
{
	begin(refuse_and_notify, NULL);
	glake_set_notice_handler(session, fail_inside, session);
	ck_assert_int_eq(glake_evict(session, "m", NULL, NULL), GLAKE_E_BUSY);
	ck_assert_str_eq(glake_error(), "the cause");
	end();
}
END_TEST

/* ---- models, with nothing mapped -------------------------------------------------------------- */

enum model_flaw { SOUND, SHORT_LIST, TWINS, ENDLESS, OUTSIDE, TOO_MANY };

static void answer_opened(struct fake_daemon *fake, uint64_t id)
{
	Glake__Wire__ModelOpenAnswer opened = GLAKE__WIRE__MODEL_OPEN_ANSWER__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	for (uint64_t done = 25; done <= 75; done += 25) {
		fake_progress(fake, id, done);
	}
	fake_progress(fake, id + 50, 1);
	opened.model = 3;
	opened.span_bytes = GLAKE_CHUNK_GRANULARITY;
	opened.n_tensors = 5;
	opened.n_blocks = 1;
	opened.name = (char *)"name";
	answer.id = id;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_MODEL_OPEN;
	answer.model_open = &opened;
	fake_send(fake, &answer, NULL, 0);
}

static void answer_tensors(struct fake_daemon *fake, uint64_t id, uint64_t first)
{
	enum model_flaw flaw = *(enum model_flaw *)fake->user;
	static const char *const names[] = {"e", "d", "c", "b", "a", "f"};
	uint64_t shape[] = {2, 3};
	Glake__Wire__Tensor tensors[2];
	Glake__Wire__Tensor *list[2];
	Glake__Wire__ModelTensorsAnswer page = GLAKE__WIRE__MODEL_TENSORS_ANSWER__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	uint64_t n_all = flaw == TOO_MANY ? 6 : flaw == SHORT_LIST ? 4 : 5;
	for (uint64_t i = first; i < n_all && page.n_tensors < 2; i++) {
		Glake__Wire__Tensor *tensor = &tensors[page.n_tensors];
		glake__wire__tensor__init(tensor);
		tensor->name = (char *)(flaw == TWINS ? "twin" : names[i]);
		tensor->dtype = GLAKE_F32;
		tensor->shape = shape;
		tensor->n_shape = 2;
		tensor->offset = flaw == OUTSIDE ? UINT64_MAX - 8 : i * 24;
		tensor->bytes = 24;
		list[page.n_tensors++] = tensor;
	}
	page.tensors = list;
	page.next = first + page.n_tensors < n_all ? first + page.n_tensors : 0;
	if (flaw == ENDLESS && first > 0) {
		page.n_tensors = 0;
		page.next = first;
	}
	answer.id = id;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_MODEL_TENSORS;
	answer.model_tensors = &page;
	fake_send(fake, &answer, NULL, 0);
}

static bool serve_model(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	switch (request->body_case) {
	case GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN:
		answer_opened(fake, request->id);
		return true;
	case GLAKE__WIRE__REQUEST__BODY_MODEL_TENSORS:
		answer_tensors(fake, request->id, request->model_tensors->first);
		return true;
	default:
		return false;
	}
}

static void count_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	*(uint64_t *)user = done_bytes;
	ck_assert_uint_eq(total_bytes, 100);
}

static int open_no_map(struct glake_model **model_out, uint64_t *done_bytes)
{
	struct glake_model_options options = {
		.size = sizeof(options),
		.no_map = 1,
		.progress = done_bytes ? count_progress : NULL,
		.progress_user = done_bytes,
	};
	return glake_model_open(session, "/proc/self/exe", &options, model_out);
}

START_TEST(tensor_lists_are_paged_and_sorted)
{
	enum model_flaw flaw = SOUND;
	begin(serve_model, &flaw);
	struct glake_model *model;
	uint64_t done_bytes = 0;
	assert_ok(open_no_map(&model, &done_bytes));
	ck_assert_uint_gt(done_bytes, 0);
	ck_assert_uint_le(done_bytes, 75);
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	static const char *const in_order[] = {"a", "b", "c", "d", "e"};
	for (uint64_t i = 0; i < 5; i++) {
		assert_ok(glake_model_tensor_at(model, i, &tensor));
		ck_assert_str_eq(tensor.name, in_order[i]);
		ck_assert_uint_eq(tensor.n_dims, 2);
		ck_assert_uint_eq(tensor.shape[1], 3);
		ck_assert_uint_eq(tensor.ptr, 0);
	}
	ck_assert_uint_eq(glaked.n_requests[GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS], 0);
	glake_model_close(model);
	ck_assert_uint_eq(glaked.n_requests[GLAKE__WIRE__REQUEST__BODY_MODEL_CLOSE], 1);
	end();
}
END_TEST

START_TEST(flawed_lists_end_the_session)
{
	for (enum model_flaw flaw = SHORT_LIST; flaw <= TOO_MANY; flaw++) {
		begin(serve_model, &flaw);
		struct glake_model *model;
		ck_assert_msg(open_no_map(&model, NULL) == GLAKE_E_PROTOCOL, "flaw %d", flaw);
		ck_assert_int_eq(glake_ping(session), GLAKE_E_PROTOCOL);
		end();
	}
}
END_TEST

/* Each Reclaim is answered by its id, the second one only when the first has been. */
static bool reclaim_from_who_waits(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	uint64_t *open_request = fake->user;
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN) {
		*open_request = request->id;
		fake_progress(fake, request->id, 25);
		fake_reclaim(fake, 1234, 7);
		return true;
	}
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT) {
		if (request->usage_report->reclaim == 7) {
			fake_reclaim(fake, 99, 8);
		} else if (request->usage_report->reclaim == 8) {
			fake_refuse(fake, *open_request, GLAKE__WIRE__STATUS__OVER_QUOTA, "full");
		}
	}
	return false;
}

static void count_notice(void *user, const struct glake_notice *notice)
{
	ck_assert_int_eq(notice->kind, GLAKE_NOTICE_RECLAIM);
	++*(unsigned *)user;
}

START_TEST(who_waits_for_memory_gives_his_own_back)
{
	for (int with_progress = 0; with_progress < 2; with_progress++) {
		uint64_t open_request = 0;
		uint64_t done_bytes = 0;
		unsigned n_notices = 0;
		struct glake_model *model;
		begin(reclaim_from_who_waits, &open_request);
		glake_set_notice_handler(session, count_notice, &n_notices);
		ck_assert_int_eq(open_no_map(&model, with_progress ? &done_bytes : NULL),
		                 GLAKE_E_OVER_QUOTA);
		ck_assert_str_eq(glake_error(), "full");
		ck_assert_uint_eq(n_notices, 2);
		ck_assert_uint_eq(done_bytes, with_progress ? 25 : 0);
		end();
	}
}
END_TEST

/* ---- fds -------------------------------------------------------------------------------------- */

static bool send_many_fds(struct fake_daemon *fake, const Glake__Wire__Request *request)
{
	if (request->body_case != GLAKE__WIRE__REQUEST__BODY_BLOCK_LOOKUP) {
		return false;
	}
	int fds[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_elements(fds); i++) {
		fds[i] = 0;
	}
	Glake__Wire__BlockAnswer block = GLAKE__WIRE__BLOCK_ANSWER__INIT;
	Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
	answer.id = request->id;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_BLOCK;
	answer.block = &block;
	fake_send(fake, &answer, fds, n_elements(fds));
	return true;
}

/* The call itself, since a session without a driver maps nothing. */
static int look_up(void)
{
	Glake__Wire__BlockLookup lookup = GLAKE__WIRE__BLOCK_LOOKUP__INIT;
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_BLOCK_LOOKUP;
	request.block_lookup = &lookup;
	struct glake__call call;
	int r = glake__call(&session->link, &call, &request, GLAKE__WIRE__ANSWER__BODY_BLOCK, NULL,
	                    0);
	if (r == 0) {
		r = call.fds.is_cut ? glake__call_cut() : (int)call.fds.n_fds;
		glake__call_end(&session->link, &call);
	}
	return r;
}

START_TEST(fds_lost_to_our_own_limit_end_nothing)
{
	begin(send_many_fds, NULL);
	int n_fds = n_open_fds();
	ck_assert_int_eq(look_up(), GLAKE_MAX_PACKET_FDS);
	ck_assert_int_eq(n_open_fds(), n_fds);
	/* No room for all of them. */
	int fillers[1024];
	size_t n_fillers = 0;
	struct rlimit limit = {.rlim_cur = 300, .rlim_max = 1024};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int fd = dup(0); fd >= 0 && n_fillers < 100; fd = dup(0)) {
		fillers[n_fillers++] = fd;
	}
	n_fds = n_open_fds();
	ck_assert_int_eq(look_up(), -EMFILE);
	ck_assert_int_eq(n_open_fds(), n_fds);
	assert_ok(glake_ping(session));
	while (n_fillers > 0) {
		close(fillers[--n_fillers]);
	}
	ck_assert_int_eq(look_up(), GLAKE_MAX_PACKET_FDS);
	end();
}
END_TEST
