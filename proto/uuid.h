/* SPDX-License-Identifier: Apache-2.0 */
/* The 16 bytes that the driver has for a GPU, as NVML writes them. */
#ifndef GLAKE_PROTO_UUID_H
#define GLAKE_PROTO_UUID_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* "GPU-", 32 digits, 4 dashes, NUL. */
#define UUID_TEXT_BYTES 41

/* A whole GPU's: GPU-8-4-4-4-12 digits. */
static inline void uuid_name_gpu(const uint8_t uuid[16], char text_out[UUID_TEXT_BYTES])
{
	char *at = text_out + sprintf(text_out, "GPU");
	for (size_t i = 0; i < 16; i++) {
		int begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
		at += sprintf(at, "%s%02x", begins_group ? "-" : "", uuid[i]);
	}
}

#endif
