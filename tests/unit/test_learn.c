/* SPDX-License-Identifier: Apache-2.0 */
/* `glake learn` from what programs were seen to do: its state, who is blamed for a fault, and its table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "shim/learned.h"
#include "shim/run/learn_merge.h"
#include "tests/check_glake.h"

#define IMAGE "build-id 00ff offset 0x10"
#define KERNEL "kernel 7 0 " IMAGE " gemm\n"

static struct learned learned;

static void begin(void)
{
	learned = (struct learned){.n_functions = 0};
}

static void end(void)
{
	learned_deinit(&learned);
}

BEGIN_EACH(begin)
END_EACH(end)

static struct learn_found merge(const char *facts)
{
	struct learn_found found;
	char *copy = strdup(facts);
	ck_assert_int_eq(0, learn_merge(&learned, copy, &found));
	free(copy);
	return found;
}

static const char *text_of(void (*write)(const struct learned *learned, FILE *file))
{
	static char text[8192];
	FILE *file = fmemopen(text, sizeof(text), "w");
	ck_assert_ptr_nonnull(file);
	write(&learned, file);
	fclose(file);
	return text;
}

static void write_table(const struct learned *from, FILE *file)
{
	learn_write_table(from, "x", 2, file);
}

static struct learned_function *gemm(void)
{
	struct image_id image = {.kind = IMAGE_IN_FILE, .n_bytes = 2, .at = 16, .bytes = {0, 0xff}};
	struct learned_function *function = learned_find(&learned, &image, "gemm");
	ck_assert_ptr_nonnull(function);
	return function;
}

static enum learned_writing writing(uint16_t at)
{
	const struct learned_word *word = learned_word(gemm(), at);
	return word ? word->writing : LEARNED_NOT;
}

/* ---- the state -------------------------------------------------------------------------------- */

static const char state_text[] = "glake-learned 1\n"
				 "ran 3 python3 app.py --some thing\n"
				 "on 2 a GPU, driver of CUDA 13.0\n"
				 "graphs open\n"
				 "image unknown\n"
				 "function nobody's\n"
				 "image " IMAGE "\n"
				 "function gemm\n"
				 "  alone 40\n"
				 "  read 0 12\n"
				 "  trying 8\n"
				 "  tried 16\n"
				 "  read 24 1\n"
				 "  wrote 24\n"
				 "function scatter\n"
				 "  open it touches what it does not name\n"
				 "image digest 000102030405060708090a0b0c0d0e0f bytes 5\n"
				 "function gemm\n";

START_TEST(a_state_is_what_was_written)
{
	struct readers_error error;
	char *copy = strdup(state_text);
	ck_assert_msg(learned_parse(&learned, copy, &error) == 0, "%u: %s", error.line, error.text);
	free(copy);
	ck_assert_str_eq(text_of(learned_write), state_text);
	ck_assert_uint_eq(gemm()->n_alone, 40);
	ck_assert_int_eq(writing(8), LEARNED_TRYING);
}
END_TEST

static const struct {
	const char *text;
	unsigned line;
} bad_states[] = {
	{"", 1},
	{"glake-learned 2\n", 1},
	{"glake-readers 1\n", 1},
	{"glake-learned 1\nfunction f\n", 2},
	{"glake-learned 1\nimage build-id xyz offset 0\n", 2},
	{"glake-learned 1\nimage unknown\n  alone 3\n", 3},
	{"glake-learned 1\nimage unknown\nfunction f\n  read 8\n", 4},
	{"glake-learned 1\nimage unknown\nfunction f\n  wrote x\n", 4},
	{"glake-learned 1\nimage unknown\nfunction f\n  wrote 40000\n", 4},
	{"glake-learned 1\nimage unknown\nfunction f\n  wrote 12\n", 4},
	{"glake-learned 1\nimage unknown\nfunction f g\n", 3},
	{"glake-learned 1\nimage unknown\nfunction #f\n", 3},
	{"glake-learned 1\nran often\n", 2},
	{"glake-learned 1\nsomething\n", 2},
};

START_TEST_WITH(a_state_that_is_none_is_refused, .n = n_elements(bad_states))
{
	struct readers_error error;
	char *copy = strdup(bad_states[_i].text);
	ck_assert_int_eq(learned_parse(&learned, copy, &error), -EINVAL);
	ck_assert_uint_eq(error.line, bad_states[_i].line);
	free(copy);
}
END_TEST

/* ---- who is blamed ---------------------------------------------------------------------------- */

START_TEST(one_word_is_the_one)
{
	struct learn_found found = merge("machine 7 a GPU\n" KERNEL "fault 7 0 8 -\n");
	ck_assert_uint_eq(found.n_processes, 1);
	ck_assert_uint_eq(found.n_faults, 1);
	ck_assert_str_eq(found.fault, "gemm, given words 8");
	ck_assert_int_eq(writing(8), LEARNED_WROTE);
	/* And if that was not it, it touches something else. */
	merge(KERNEL "fault 7 0 8 8\n");
	ck_assert_ptr_nonnull(gemm()->open);
}
END_TEST

START_TEST(no_word_is_named)
{
	merge(KERNEL "fault 7 0 - -\n");
	ck_assert_str_eq(gemm()->open, "it touches what it does not name");
}
END_TEST

/* A word that was seen to read, in this run or before, comes last; and is no reader if nothing else helps. */
START_TEST(words_that_were_seen_to_read_come_last)
{
	merge(KERNEL "read 7 0 0 4\n");
	merge(KERNEL "fault 7 0 0,8,16 -\nread 7 0 16 1\n");
	ck_assert_int_eq(writing(0), LEARNED_NOT);
	ck_assert_int_eq(writing(8), LEARNED_WROTE);
	ck_assert_int_eq(writing(16), LEARNED_NOT);
	merge(KERNEL "fault 7 0 0,8,16 8\n");
	ck_assert_int_eq(writing(0), LEARNED_WROTE);
	ck_assert_int_eq(writing(16), LEARNED_WROTE);
	ck_assert_ptr_null(gemm()->open);
}
END_TEST

START_TEST(one_of_several_is_found_by_trying)
{
	merge(KERNEL "fault 7 0 0,8,16 -\n");
	ck_assert_int_eq(writing(0), LEARNED_TRYING);
	/* In another run it has not come so far. */
	merge(KERNEL "alone 7 0 1\n");
	ck_assert_int_eq(writing(0), LEARNED_TRYING);
	merge(KERNEL "granted 7 0 0\nfault 7 0 0,8,16 0\n");
	ck_assert_int_eq(writing(0), LEARNED_TRIED);
	ck_assert_int_eq(writing(8), LEARNED_TRYING);
	merge(KERNEL "granted 7 0 8\nread 7 0 0 1\nread 7 0 16 2\n");
	ck_assert_int_eq(writing(0), LEARNED_NOT);
	ck_assert_int_eq(writing(8), LEARNED_WROTE);
	ck_assert_int_eq(writing(16), LEARNED_NOT);
}
END_TEST

START_TEST(several_write)
{
	merge(KERNEL "fault 7 0 0,8,16 -\n");
	merge(KERNEL "fault 7 0 0,8,16 0\n");
	merge(KERNEL "fault 7 0 0,8,16 8\n");
	ck_assert_int_eq(writing(16), LEARNED_TRYING);
	/* None of them alone. */
	merge(KERNEL "fault 7 0 0,8,16 16\n");
	ck_assert_int_eq(writing(0), LEARNED_WROTE);
	ck_assert_int_eq(writing(8), LEARNED_WROTE);
	merge(KERNEL "fault 7 0 0,8,16 0,8\n");
	ck_assert_int_eq(writing(16), LEARNED_WROTE);
	ck_assert_ptr_null(gemm()->open);
	merge(KERNEL "fault 7 0 0,8,16 0,8,16\n");
	ck_assert_ptr_nonnull(gemm()->open);
}
END_TEST

START_TEST(other_ends)
{
	struct learn_found found = merge(KERNEL "stuck 7 0\n");
	ck_assert_uint_eq(found.n_faults, 1);
	ck_assert_str_eq(gemm()->open, "it did not end alone");
	found = merge("graph 7\n");
	ck_assert_uint_eq(found.n_faults, 1);
	ck_assert(learned.are_graphs_open);
	found = merge("kernel 8 3 unknown f\nuntold 8 3\n");
	ck_assert_uint_eq(found.n_faults, 0);
	ck_assert_str_eq(learned.functions[0]->open, "the driver does not tell its parameters");
}
END_TEST

/* Counts are of each process, the last one tells; and runs add up. */
START_TEST(counts_add_up)
{
	merge(KERNEL "alone 7 0 1\nalone 7 0 2\nread 7 0 8 4\n"
	             "kernel 8 0 " IMAGE " gemm\nalone 8 0 8\nread 8 0 8 1\n");
	ck_assert_uint_eq(gemm()->n_alone, 10);
	ck_assert_uint_eq(learned_word(gemm(), 8)->n_read, 5);
	merge(KERNEL "alone 7 0 1\n");
	ck_assert_uint_eq(gemm()->n_alone, 11);
}
END_TEST

/* A program may die while it writes, and may write what is not so. */
START_TEST(lines_that_make_no_sense_are_passed_over)
{
	merge(KERNEL
	      "alone 7 0 4\nalone 7 1 4\nalone\n\nread 7 0 99999999 3\nread 7 0\nread 7 0 x y\n"
	      "kernel 7 5\nkernel 7 6 build-id 0 offset f\nfault 7 0\nfault 9 9 0 -\nalone 7 0 8");
	ck_assert_uint_eq(gemm()->n_alone, 4);
	ck_assert_uint_eq(gemm()->n_words, 0);
}
END_TEST

/* ---- the table -------------------------------------------------------------------------------- */

START_TEST(a_table_has_what_is_known)
{
	struct readers_error error;
	struct readers *readers;
	merge("machine 7 a GPU\n" KERNEL "alone 7 0 8\nread 7 0 0 4\nread 7 0 8 2\n"
	      "kernel 7 1 " IMAGE " hidden\nfault 7 1 - -\n"
	      "kernel 7 2 " IMAGE " seldom\nalone 7 2 1\nread 7 2 0 1\n"
	      "kernel 7 3 unknown nobody's\nalone 7 3 9\n");
	merge(KERNEL "fault 7 0 8,16 -\n");
	ck_assert(learned_count(&learned.ran, "python3 app.py", 2));
	const char *text = text_of(write_table);
	ck_assert_str_eq(text, "glake-readers 1\n"
	                       "# What was seen by glake learn.\n"
	                       "# ran, 2 times: python3 app.py\n"
	                       "# on, 1 times: a GPU\n"
	                       "for \"x\"\n"
	                       "# code that no table can name: nobody's\n"
	                       "image " IMAGE "\n"
	                       "function gemm # 8 launches\n"
	                       "  reads 0 # 4\n"
	                       "  reads 8 # 2\n"
	                       "  # writes 16\n"
	                       "opaque hidden # it touches what it does not name\n"
	                       "# 1 launches are too few: seldom\n");
	ck_assert_int_eq(0, readers_parse(text, strlen(text), &readers, &error));
	ck_assert_uint_eq(readers->n_functions, 2);
	readers_free(readers);
	struct learn_sum sum = learn_sum(&learned, 2);
	ck_assert_uint_eq(sum.n_functions, 1);
	ck_assert_uint_eq(sum.n_words, 2);
	ck_assert_uint_eq(sum.n_open, 1);
	ck_assert_uint_eq(sum.n_rare, 1);
	ck_assert_uint_eq(sum.n_nameless, 1);
	ck_assert_uint_eq(sum.n_writing, 1);
}
END_TEST
