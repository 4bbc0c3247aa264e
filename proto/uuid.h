/* SPDX-License-Identifier: Apache-2.0 */
/* The text that NVML has for the 16 bytes of a GPU's UUID. */
#ifndef GLAKE_PROTO_UUID_H
#define GLAKE_PROTO_UUID_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The text's bytes: "GPU-", 32 digits, 4 dashes, NUL. */
#define UUID_TEXT_BYTES 41

/* The name of a whole GPU: "GPU-" and 8-4-4-4-12 digits. */
static inline void uuid_name_gpu(const uint8_t uuid[16], char text_out[UUID_TEXT_BYTES])
{
	char *at = text_out + sprintf(text_out, "GPU");
	for (size_t i = 0; i < 16; i++) {
		int begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
		at += sprintf(at, "%s%02x", begins_group ? "-" : "", uuid[i]);
	}
}

#endif
