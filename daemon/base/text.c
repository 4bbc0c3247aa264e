/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/cleanup.h"

/* Some terminals obey those of U+0080 .. U+009F, too. */
static bool is_control(const unsigned char *text)
{
	return text[0] < 0x20 || text[0] == 0x7f || (text[0] == 0xc2 && text[1] < 0xa0);
}

/* Bytes of the valid UTF-8 character at @text, 0 if it is none. RFC 3629. */
static size_t character_bytes(const unsigned char *text)
{
	static const struct {
		unsigned char mask, lead;
		uint32_t first;
	} forms[] = {
		{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
	for (size_t n = 1; n <= n_elements(forms); n++) {
		if ((text[0] & forms[n - 1].mask) != forms[n - 1].lead) {
			continue;
		}
		uint32_t point = text[0] & (unsigned char)~forms[n - 1].mask;
		for (size_t i = 1; i < n; i++) {
			if ((text[i] & 0xc0) != 0x80) {
				return 0;
			}
			point = point << 6 | (text[i] & 0x3f);
		}
		bool is_valid = point >= forms[n - 1].first && point <= 0x10ffff &&
		                (point < 0xd800 || point > 0xdfff);
		return is_valid ? n : 0;
	}
	return 0;
}

void text_clean(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at;) {
		size_t n = character_bytes(at);
		if (n == 0 || is_control(at)) {
			*at = '?';
			n = 1;
		}
		at += n;
	}
}

char *text_clean_copy(const char *text)
{
	char *copy = strdup(text);
	if (copy) {
		text_clean(copy);
	}
	return copy;
}
