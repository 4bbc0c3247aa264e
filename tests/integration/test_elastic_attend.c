/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges of which another process keeps the books: requests over a socket, and marks behind work. */
#include <dirent.h>
#include <sys/socket.h>

#include "tests/harness/gate.h"
#include "tests/integration/elastic.h"

BEGIN_EACH(elastic_begin)

static int socket_fd = -1; /* our end */
static struct {
	struct glake_elastic_reply head;
	uint8_t states[N_STEPS + 1];
} reply;

/* Returns our end of a socket that is attended. */
static int attend(void)
{
	int fds[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	assert_ok(glake_elastic_attend(elastic, fds[1]));
	/* Nothing here waits without an end. */
	const struct timeval patience = {.tv_sec = 30};
	setsockopt(fds[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return fds[0];
}

static void open_attended(uint32_t floor_steps)
{
	open_range(floor_steps, 0);
	socket_fd = attend();
}

static void tell(int fd, uint32_t verb, uint32_t first, uint32_t n)
{
	static uint64_t number;
	const struct glake_elastic_request request = {
		.number = ++number,
		.verb = verb,
		.first = first,
		.n = n,
	};
	ck_assert_int_eq(send(fd, &request, sizeof(request), 0), sizeof(request));
}

/* Returns the result. */
static int hear(int fd)
{
	ssize_t n = recv(fd, &reply, sizeof(reply), 0);
	ck_assert_int_ge(n, (ssize_t)sizeof(reply.head));
	return reply.head.result;
}

static int ask(uint32_t verb, uint32_t first, uint32_t n)
{
	tell(socket_fd, verb, first, n);
	return hear(socket_fd);
}

static void assert_closed(int fd)
{
	uint8_t byte;
	ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
	ck_assert_int_ne(errno, EAGAIN);
}

START_TEST(requests_are_the_calls)
{
	open_attended(1);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 3), 0);
	ck_assert_uint_eq(reply.head.n, 3);
	expect_states("HHHH----");
	write_step(2, 5);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LEND, 2, 2), 0);
	ck_assert_uint_eq(reply.head.stats.n_lent, 2);
	expect_states("HHLL----");
	/* Up to the first that is not there. */
	ck_assert_int_eq(ask(GLAKE_ELASTIC_TAKE, 2, 3), 0);
	ck_assert_uint_eq(reply.head.n, 2);
	check_step(2, 5);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LEND, 3, 1), 0);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 1, 4), 0);
	ck_assert_uint_eq(reply.head.n, 4);
	const uint8_t states[] = {GLAKE_ELASTIC_HELD, GLAKE_ELASTIC_HELD, GLAKE_ELASTIC_LENT,
	                          GLAKE_ELASTIC_HOLE};
	ck_assert_mem_eq(reply.states, states, sizeof(states));
	ck_assert_uint_eq(reply.head.stats.n_held, 3);
	ck_assert_uint_eq(reply.head.stats.n_commits, 4);
	ck_assert_uint_eq(reply.head.stats.step_bytes, STEP);
	while (!are_states("HHHLL---")) {
		ck_assert_int_eq(ask(GLAKE_ELASTIC_AHEAD, 4, 1), 0);
		usleep(1000);
	}
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 0, 0), 0);
	ck_assert_uint_eq(reply.head.n, 0);
	ck_assert_uint_eq(reply.head.stats.n_ahead, 1);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_close(elastic));
	assert_closed(socket_fd);
	close(socket_fd);
}
END_TEST

START_TEST(a_wrong_request_has_an_answer)
{
	open_attended(1);
	ck_assert_int_eq(ask(99, 0, 1), -EOPNOTSUPP);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 7, 2), -EINVAL);
	ck_assert_uint_eq(reply.head.n, 0);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 0, UINT32_MAX), -EINVAL);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, UINT32_MAX, 2), -EINVAL);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LEND, 0, 1), -EINVAL);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_TAKE, 9, 1), 0);
	ck_assert_uint_eq(reply.head.n, 0);
	/* There is not so much memory: as many as there is for. */
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, 96 * MIB - 3 * STEP, 0, &ptr));
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 1), 0);
	ck_assert_int_lt(ask(GLAKE_ELASTIC_COMMIT, 1, 5), 0);
	ck_assert_uint_eq(reply.head.n, 1);
	expect_states("HH------");
	close(socket_fd);
}
END_TEST

/* Steps that are held stay, and others are attended as before. */
START_TEST_WITH(who_sends_no_request_is_left, .n = 4)
{
	const struct glake_elastic_request requests[2] = {
		{.verb = GLAKE_ELASTIC_COMMIT, .first = 1, .n = 1}, {.zero = 1}};
	open_attended(1);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 1), 0);
	int bad = attend();
	if (_i < 3) {
		const size_t sizes[] = {1, sizeof(requests[0]) + 1, sizeof(requests[0])};
		const void *what = _i == 2 ? &requests[1] : &requests[0];
		ck_assert_int_eq(send(bad, what, sizes[_i], 0), (ssize_t)sizes[_i]);
		assert_closed(bad);
	} else {
		/* Its answers are not read. */
		const struct glake_elastic_request look = {.verb = GLAKE_ELASTIC_LOOK,
		                                           .n = N_STEPS};
		signal(SIGPIPE, SIG_IGN);
		while (send(bad, &look, sizeof(look), 0) == (ssize_t)sizeof(look)) {
		}
		ck_assert(errno == EPIPE || errno == ECONNRESET);
	}
	close(bad);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 0, 2), 0);
	expect_states("HH------");
	close(socket_fd);
}
END_TEST

START_TEST(who_goes_leaves_all_as_it_is)
{
	open_attended(1);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 1), 0);
	/* Its answer is for nobody. */
	tell(socket_fd, GLAKE_ELASTIC_COMMIT, 2, 1);
	close(socket_fd);
	while (!are_states("HHH-----")) {
		usleep(1000);
	}
	socket_fd = attend();
	ck_assert_int_eq(ask(GLAKE_ELASTIC_TAKE, 0, 3), 0);
	ck_assert_uint_eq(reply.head.n, 3);
	/* The session ends with it. */
	world_disconnect(session);
	assert_closed(socket_fd);
	close(socket_fd);
}
END_TEST

START_TEST(a_commit_that_takes_long_holds_nobody_up)
{
	open_attended(1);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 2), 0);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LEND, 1, 1), 0);
	int slow = attend();
	world_set_own_faults("cuMemMap:1:slow=2000");
	tell(slow, GLAKE_ELASTIC_COMMIT, 3, 1);
	while (state_of(3) != GLAKE_ELASTIC_COMING) {
		usleep(1000);
	}
	ck_assert_int_eq(ask(GLAKE_ELASTIC_TAKE, 1, 1), 0);
	ck_assert_uint_eq(reply.head.n, 1);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_TAKE, 3, 1), 0);
	ck_assert_uint_eq(reply.head.n, 0);
	ck_assert_int_eq(hear(slow), 0);
	ck_assert_uint_eq(reply.head.n, 1);
	world_set_own_faults("");
	expect_states("HHHH----");
	close(slow);
	close(socket_fd);
}
END_TEST

static unsigned count_fds(void)
{
	unsigned n = 0;
	DIR *folder = opendir("/proc/self/fd");
	ck_assert_ptr_nonnull(folder);
	while (readdir(folder)) {
		n++;
	}
	closedir(folder);
	return n;
}

START_TEST(those_who_have_gone_leave_nothing)
{
	open_attended(0);
	const unsigned n_before = count_fds();
	for (int i = 0; i < 40; i++) {
		int fd = attend();
		tell(fd, GLAKE_ELASTIC_LOOK, 0, 0);
		ck_assert_int_eq(hear(fd), 0);
		/* No request: the other end closes, and its thread ends. */
		ck_assert_int_eq(send(fd, "?", 1, 0), 1);
		assert_closed(fd);
		close(fd);
	}
	/* There are fds of the last one, and of some whose threads took long to end. */
	ck_assert_uint_lt(count_fds(), n_before + 20);
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 0, 0), 0);
	close(socket_fd);
}
END_TEST

static uint64_t passed(void)
{
	ck_assert_int_eq(ask(GLAKE_ELASTIC_LOOK, 0, 0), 0);
	return reply.head.passed;
}

START_TEST(a_mark_passes_when_the_work_before_it_has_ended)
{
	CUstream stream;
	open_attended(1);
	ck_assert_int_eq(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	ck_assert_uint_eq(passed(), 0);
	assert_ok(glake_elastic_mark(elastic, 3, stream));
	while (passed() != 3) {
		usleep(1000);
	}
	gate_close(stream);
	/* More than are told apart. */
	for (uint64_t number = 4; number < 30; number++) {
		assert_ok(glake_elastic_mark(elastic, number, stream));
	}
	ck_assert_uint_eq(passed(), 3);
	assert_fails(-EINVAL, "behind mark 29", glake_elastic_mark(elastic, 29, stream));
	gate_open();
	while (passed() != 29) {
		usleep(1000);
	}
	/* One that is under way ends with the range. */
	assert_ok(glake_elastic_mark(elastic, 30, stream));
	assert_ok(glake_elastic_close(elastic));
	close(socket_fd);
}
END_TEST

static void leave(void *user)
{
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_attend(elastic, socket_fd));
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_mark(elastic, 1, NULL));
	glake_disconnect(session);
}

START_TEST(a_child_leaves_it_alone)
{
	open_attended(1);
	world_join(world_client(leave, NULL));
	ck_assert_int_eq(ask(GLAKE_ELASTIC_COMMIT, 1, 1), 0);
	close(socket_fd);
}
END_TEST

START_TEST(nonsense_is_refused)
{
	int fds[2];
	open_range(0, 0);
	assert_fails(-EINVAL, "NULL", glake_elastic_attend(NULL, 0));
	assert_fails(-EINVAL, "NULL", glake_elastic_mark(NULL, 1, NULL));
	assert_fails(-EINVAL, "mark 0", glake_elastic_mark(elastic, 0, NULL));
	assert_fails(-EINVAL, "no socket", glake_elastic_attend(elastic, -1));
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	assert_fails(-EINVAL, "no socket", glake_elastic_attend(elastic, fds[0]));
	close(fds[0]);
	close(fds[1]);
	fds[0] = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_fails(-EINVAL, "not connected", glake_elastic_attend(elastic, fds[0]));
	close(fds[0]);
}
END_TEST
