/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that lose their context, mostly by writing to sealed memory (tests/shim/fault.c): what is told of it. */
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x1GiB");
}

BEGIN_EACH(begin)

/* ---- events ---- */

struct faults {
	unsigned n;
	struct glake_event_row last;
	char text[512];
};

static int add(void *user, const struct glake_event_row *row)
{
	struct faults *faults = user;
	if (strcmp(row->kind, "device_fault") == 0) {
		faults->n++;
		faults->last = *row;
		snprintf(faults->text, sizeof(faults->text), "%s", row->text);
	}
	return 0;
}

static struct faults list_faults(void)
{
	struct faults faults = {.n = 0};
	assert_ok(glake_list_events(eye, add, &faults));
	return faults;
}

/* ---- programs ---- */

static void start(struct run *run, const char *form, const char *seen_by, const char *end)
{
	run_until_ready(run, NULL, run_in_build("tests/shim/fault"), form, seen_by, end, NULL);
}

static void run_through(struct run *run, const char *form, const char *seen_by, const char *end)
{
	start(run, form, seen_by, end);
	run_finish(run);
}

/* The n-th event is of this program: it names the kernel, where it has written, and what begins there. */
static void expect_event(const struct run *run, unsigned n, const char *kernel)
{
	char where[64];
	char want[128];
	char range[64];
	const char *said = strstr(run->text, "written at 0x");
	ck_assert_msg(said && sscanf(said, "written at %63s", where) == 1, "%s", run->text);
	struct faults faults = list_faults();
	ck_assert_msg(faults.n == n, "%u events, not %u, after:\n%s", faults.n, n, run->text);
	ck_assert_uint_eq(faults.last.pid, (uint32_t)run->pid);
	snprintf(want, sizeof(want), "%s at %s", kernel, where);
	snprintf(range, sizeof(range), "(2 MiB at 0x%llx)", strtoull(where, NULL, 16) - 4096);
	ck_assert_msg(strstr(faults.text, "700 (CUDA_ERROR_ILLEGAL_ADDRESS), 2 MiB sealed"), "%s",
	              faults.text);
	const char *last = strstr(faults.text, "given sealed memory last: ");
	ck_assert_msg(last && strstr(last, want) && strstr(last, range), "no \"%s\", \"%s\" in: %s",
	              want, range, faults.text);
	ck_assert_msg(strncmp(last + strlen("given sealed memory last: "), want, strlen(want)) == 0,
	              "%s is not the first: %s", want, faults.text);
	run_expect(run, want);
	run_expect(run, "glake_unseal()");
}

static void run_guilty(const char *form, const char *seen_by, const char *kernel)
{
	struct run run;
	run_through(&run, form, seen_by, "end_at_once");
	expect_event(&run, 1, kernel);
}

static const struct {
	const char *form;
	const char *kernel;
} forms[] = {
	{"plain", "guilty_plain"},      {"nested", "guilty_nested"},
	{"packed", "guilty_nested"},    {"cooperative", "guilty_plain"},
	{"extended", "guilty_plain"},   {"extended_own", "guilty_plain"},
	{"own", "guilty_plain"},        {"thread", "guilty_plain"},
	{"fork_first", "guilty_plain"},
};

START_TEST_WITH(the_kernel_and_the_range_are_named, .n = n_elements(forms))
{
	run_guilty(forms[_i].form, "by_stream", forms[_i].kernel);
}
END_TEST

static const char *const seers[] = {"by_context", "by_query",  "by_event", "by_event_query",
                                    "by_copy",    "by_launch", "by_free"};

START_TEST_WITH(whichever_call_is_told_first, .n = n_elements(seers))
{
	run_guilty("plain", seers[_i], "guilty_plain");
}
END_TEST

START_TEST(a_program_that_ends_badly_was_heard)
{
	struct run run;
	start(&run, "plain", "by_stream", "end_badly");
	run_continue(&run);
	int status = run_end(&run);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	expect_event(&run, 1, "guilty_plain");
	run_through(&run, "plain", "by_stream", "end_well");
	expect_event(&run, 2, "guilty_plain");
}
END_TEST

/* A graph that was captured while memory was sealed is told by its kernel, others only as a graph. */
START_TEST(graphs_are_named)
{
	struct run run;
	run_through(&run, "replayed", "by_stream", "end_at_once");
	struct faults faults = list_faults();
	ck_assert_uint_eq(faults.n, 1);
	ck_assert_ptr_nonnull(strstr(faults.text, "last: a CUDA graph, reader at 0x"));
	run_expect(&run, "  a CUDA graph\n");
	run_through(&run, "captured", "by_stream", "end_at_once");
	faults = list_faults();
	ck_assert_uint_eq(faults.n, 2);
	ck_assert_ptr_nonnull(strstr(faults.text, "last: a CUDA graph, guilty_plain at 0x"));
}
END_TEST

/* The driver is asked for each function once, however often memory is sealed. */
START_TEST(functions_are_asked_for_once)
{
	struct run run;
	world_set_own_faults("fault/cuFuncGetName:5+:die");
	run_through(&run, "resealed", "by_stream", "end_at_once");
	world_set_own_faults(NULL);
	run_expect(&run, "guilty_plain at 0x");
}
END_TEST

/* A pointer that lies in device memory is not seen, and halves of an address are none. */
START_TEST(a_hidden_pointer_is_not_seen)
{
	struct run run;
	run_through(&run, "hidden", "by_stream", "end_at_once");
	struct faults faults = list_faults();
	ck_assert_uint_eq(faults.n, 1);
	ck_assert_ptr_null(strstr(faults.text, "guilty"));
	ck_assert_ptr_nonnull(strstr(faults.text, "reader at 0x"));
}
END_TEST

START_TEST(unsealed_memory_is_written)
{
	struct run run;
	run_through(&run, "unsealed", "by_stream", "end_well");
	ck_assert_uint_eq(list_faults().n, 0);
	ck_assert_ptr_null(strstr(run.text, "glake:"));
}
END_TEST

START_TEST(others_keep_their_bytes)
{
	struct run one;
	struct run two;
	start(&one, "plain", "by_stream", "end_at_once");
	start(&two, "look", "by_context", "end_well");
	run_finish(&one);
	run_finish(&two);
	ck_assert_uint_eq(list_faults().n, 1);
}
END_TEST

/* Nothing is sealed: the program says itself what has happened, and operators see it. */
START_TEST(other_faults_are_events)
{
	struct run run;
	run_through(&run, "elsewhere", "by_stream", "end_at_once");
	struct faults faults = list_faults();
	ck_assert_uint_eq(faults.n, 1);
	ck_assert_str_eq(faults.text, "CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS), 0 MiB sealed");
	ck_assert_ptr_null(strstr(run.text, "glake:"));
}
END_TEST

START_TEST(without_glaked_the_program_ends_as_any)
{
	struct run run;
	start(&run, "plain", "by_stream", "end_at_once");
	world_stop();
	run_finish(&run);
	run_expect(&run, "guilty_plain at 0x");
}
END_TEST

START_TEST(a_glaked_that_hangs_holds_nobody_up)
{
	struct run run;
	start(&run, "plain", "by_stream", "end_well");
	ck_assert_int_eq(kill(harness.pid, SIGSTOP), 0);
	run_finish(&run);
	ck_assert_int_eq(kill(harness.pid, SIGCONT), 0);
	run_expect(&run, "guilty_plain at 0x");
}
END_TEST
