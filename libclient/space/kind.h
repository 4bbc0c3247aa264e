/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GLAKE_LIBCLIENT_KIND_H
#define GLAKE_LIBCLIENT_KIND_H

/* Kinds of addresses: where one is. */
enum glake__address_kind {
	GLAKE__ELSEWHERE, /* none of ours */
	GLAKE__FREE,      /* of the window, in no range, or in one whose address nobody is told */
	GLAKE__HEAP,      /* allocations: live, or freed and kept for the next one */
	GLAKE__OWN, /* what a program has by other calls of glake.h: models, blocks, elastic ranges */
	GLAKE__OPENED,   /* another process's */
	GLAKE__PROGRAMS, /* in a reservation of the program */
};

#endif
