/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between glaked and glake-keeper: one struct per packet on a SEQPACKET pair. The
 * keeper's end is fd 3. Both are of the same release, on the same machine.
 *
 *   glaked                         glake-keeper
 *     START child, fd, text ------->  starts the program
 *                           <-------  STARTED pid and a pidfd (Linux 5.3), or FAILED errno
 *     KILL child            ------->  SIGKILL, unless it has ended
 *                           <-------  DYING: killed or crashed, and a thread is stuck in the kernel
 *                           <-------  ENDED status: nothing of the process is left
 *
 * The end of the stream ends the keeper.
 */
#ifndef GLAKE_PROTO_KEEPER_H
#define GLAKE_PROTO_KEEPER_H

#include <stdint.h>

/* The keeper's socket; and in each child, the fd that came with its START. */
#define KEEPER_FD 3

enum keeper_verb {
	KEEPER_START = 1,
	KEEPER_KILL,
};

struct keeper_order {
	uint64_t child; /* a number that glaked chooses and never uses again */
	uint64_t verb;  /* enum keeper_verb */
	/* START: the program's path, then "NAME=value" for its environment, each ended by a NUL. */
	char text[];
};

enum keeper_event {
	KEEPER_STARTED = 1, /* value: the pid */
	KEEPER_FAILED,      /* value: errno; the last event of the child */
	KEEPER_DYING,
	KEEPER_ENDED, /* value: the status, as waitpid() gives it; the last event of the child */
	/* The rest is never sent; glaked tells it to its own parts. */
	KEEPER_READY,    /* there is a keeper again: the child can be ordered */
	KEEPER_ORPHANED, /* the keeper has died, and the child is killed; LOST follows at its end */
	KEEPER_LOST,     /* there is no keeper, and nothing of the child; its last event */
};

struct keeper_news {
	uint64_t child;
	uint32_t event; /* enum keeper_event */
	int32_t value;
};

#endif
