/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that both ends of a socket agree on.
 *
 * The receiver checks these bounds before it trusts a byte, so raising one is a protocol decision.
 * The socket is SOCK_SEQPACKET: one packet is one message, and the kernel keeps a packet and its
 * fds together.
 */
#ifndef GLAKE_PROTO_LIMITS_H
#define GLAKE_PROTO_LIMITS_H

#include <stdint.h>

/* The version spoken by this tree. Hello carries it; glaked refuses another major version. */
#define GLAKE_WIRE_VERSION 1u

/* A packet larger than this is malformed. Far below the default socket buffer (208 KiB). */
#define GLAKE_MAX_PACKET_BYTES (64u * 1024u)

/* SCM_MAX_FD of the kernel: more in one sendmsg is EINVAL. */
#define GLAKE_MAX_PACKET_FDS 253u

/* Lists are answered in pages that leave room for the envelope. */
#define GLAKE_PAGE_BYTES (56u * 1024u)

/*
 * Fds in one page of blocks. A client has two pages under way, and both should fit a table of 512
 * fds beside its own: each time the kernel enlarges the table of a process with threads, it waits
 * for all processors, which takes as long as mapping a hundred blocks.
 */
#define GLAKE_PAGE_FDS 128u

/* The tables of readers that glaked hands out, all of them, each with a NUL at its end. */
#define GLAKE_MAX_READERS_BYTES (32u << 20)
/* Tables of readers in a folder, and the size of each. */
#define GLAKE_MAX_READERS_FILES 256u
#define GLAKE_MAX_READERS_FILE_BYTES (16u << 20)
#define GLAKE_READERS_SUFFIX ".readers"

/* The most prints of one block: numbers by which equal content is found at other offsets (daemon/mover/layout.h). */
#define GLAKE_MAX_PRINTS 1024u

/* The operator's reason for draining glaked. */
#define GLAKE_MAX_REASON_BYTES 200u

/* The driver maps whole handles that are a multiple of this. The same on every part we know. */
#define GLAKE_CHUNK_GRANULARITY (2ull * 1024 * 1024)

/* The chunk size for @content_bytes; 0 for 0, and for sizes that do not fit 64 bits. */
static inline uint64_t glake_chunk_bytes(uint64_t content_bytes)
{
	return (content_bytes + GLAKE_CHUNK_GRANULARITY - 1) & ~(GLAKE_CHUNK_GRANULARITY - 1);
}

/* The largest chunk. No GPU has more memory, so a single allocation of a program can always be one chunk. */
#define GLAKE_MAX_CHUNK_BYTES (512ull * 1024 * 1024 * 1024)

/*
 * The largest chunk in host memory. Making one takes a third of a second for each GiB, in one call of the driver. Nobody
 * waits longer than that for a turn, or for the end of glaked.
 */
#define GLAKE_MAX_HOST_CHUNK_BYTES (4ull * 1024 * 1024 * 1024)

/* Locations that one ChunkAlloc names beside the first. */
#define GLAKE_MAX_ALSO 15u

/*
 * A tensor larger than this is cut into several blocks; every block but the last is this large.
 * docs/decisions/005 has the measurements.
 */
#define GLAKE_MAX_BLOCK_BYTES (128ull * 1024 * 1024)

/* Numbers in client reports are cut to this, so sums do not overflow. 1 PiB. */
#define GLAKE_MAX_REPORTED_BYTES (1ull << 50)

/* A session's key; and the most requests without an answer that a Hello with a key names. */
#define GLAKE_KEY_BYTES 16u
#define GLAKE_MAX_UNANSWERED 256u
/* The most chunks that such a Hello gives back. */
#define GLAKE_MAX_RELEASED 1024u

/* The most chunks that one SleepCopy names, and the most reasons for memory that stays, each of a few words. */
#define GLAKE_MAX_SLEPT 2000u
#define GLAKE_MAX_STAYS 16u
/* Models of a sleeper that are listed. */
#define GLAKE_MAX_SLEPT_MODELS 16u
#define GLAKE_MAX_STAY_BYTES 128u

/* Names of tensors, models, programs: longer ones are refused. */
#define GLAKE_MAX_NAME_BYTES 1024u
/* Other labels of a process: its name and its script. Clients cut them, and its arguments to GLAKE_MAX_NAME_BYTES. */
#define GLAKE_MAX_LABEL_BYTES 256u
#define GLAKE_MAX_TENSORS 1000000u
#define GLAKE_MAX_BLOCKS 1000000u
#define GLAKE_MAX_DIMS 32u

/* The key of a ChunkKeep, and its record, which leaves room for chunks in a packet. */
#define GLAKE_MAX_WILL_KEY_BYTES 64u
#define GLAKE_MAX_RECORD_BYTES 32768u

/* Keys of published models. */
#define GLAKE_MAX_KEY_BYTES 255u
/* The most in one WeightsPublish: blocks, which glaked counts, and tensors, which bounds.c counts as fields. */
#define GLAKE_PAGE_BLOCKS 2048u
#define GLAKE_PAGE_TENSORS 192u
#define GLAKE_PAGE_RUNS 32u

/* Chunks that one ChunkFree gives back; devices and causes (UnsealedWhy) that one UsageReport tells of. */
#define GLAKE_MAX_FREED_CHUNKS 2048u
#define GLAKE_MAX_REPORTED_DEVICES 64u
#define GLAKE_N_UNSEALED 14u

/* Kernels that one FaultReport tells of, and the bytes of a kernel's name there. */
#define GLAKE_MAX_SUSPECTS 8u
#define GLAKE_MAX_KERNEL_NAME_BYTES 512u
/* The reason in an Alone, with its NUL. */
#define GLAKE_MAX_ALONE_WHY_BYTES 320u

/* The most candidates in a SealResult that the program seals without being asked, and the most reasons why it does not. */
#define GLAKE_MAX_CANDIDATES 256u
#define GLAKE_MAX_REASONS 48u

/* Loads that glake-mover has at the same time; each is a thread there. More are refused as busy. */
#define GLAKE_MAX_LOADS 64u

/* The largest header that the real safetensors library accepts. */
#define GLAKE_MAX_SAFETENSORS_HEADER_BYTES 100000000ull

#endif
