/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "tests/check_glake.h"

static const struct {
	const char *text;
	const char *clean;
} cases[] = {
	{"", ""},
	{"/srv/models/llama.safetensors", "/srv/models/llama.safetensors"},
	{"K\xc3\xb6ln \xe2\x82\xac \xf0\x9f\x8c\x8a", "K\xc3\xb6ln \xe2\x82\xac \xf0\x9f\x8c\x8a"},
	{"a\nb\x1b[31mc\x7f", "a?b?[31mc?"},
	/* Control characters of two bytes: terminals take the first for ESC [. */
	{"a\xc2\x9b"
         "31mb\xc2\x80\xc2\xa0",
         "a??31mb??\xc2\xa0"},
	/* Alone, cut short, longer than need be, a surrogate, beyond the last. */
	{"\x80x", "?x"},
	{"x\xe2\x82", "x??"},
	{"\xc0\xaf", "??"},
	{"\xed\xa0\x80", "???"},
	{"\xf4\x90\x80\x80", "????"},
	{"\xff\xfe", "??"},
};

START_TEST_WITH(text_becomes_fit_to_be_shown, .n = (int)(sizeof(cases) / sizeof(cases[0])))
{
	char *copy = text_clean_copy(cases[_i].text);
	ck_assert_ptr_nonnull(copy);
	ck_assert_str_eq(copy, cases[_i].clean);
	text_clean(copy);
	ck_assert_str_eq(copy, cases[_i].clean);
	free(copy);
}
END_TEST
