/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes from which a fuzzer takes its choices; zeros behind the last. */
#ifndef GLAKE_TESTS_FUZZ_INPUT_H
#define GLAKE_TESTS_FUZZ_INPUT_H

#include <stdint.h>

struct input {
	const uint8_t *at;
	const uint8_t *end;
};

static inline uint8_t take_byte(struct input *input)
{
	return input->at < input->end ? *input->at++ : 0;
}

static inline uint64_t take_raw(struct input *input)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < 8; i++) {
		value = value << 8 | take_byte(input);
	}
	return value;
}

#endif
