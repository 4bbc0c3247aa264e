/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why memory must stay as it is, or is private: the reasons that listings show.
 */
#ifndef GLAKE_LIBCLIENT_WHY_H
#define GLAKE_LIBCLIENT_WHY_H

#include "glake.h"

/* Reasons why a chunk must keep its place and content. */
enum glake__pin {
	GLAKE__PIN_NONE,
	GLAKE__PIN_ALIASED, /* it is mapped in too many places, or by work of ours that goes on; computed, as is the next */
	GLAKE__PIN_HANDLE,      /* the program has a handle of it */
	GLAKE__PIN_SHARED,      /* another process may map it; noted, as are the next */
	GLAKE__PIN_FOREIGN,     /* it is another process's */
	GLAKE__PIN_EXPORTED,    /* its fd was handed out */
	GLAKE__PIN_DMABUF,      /* another device may have it */
	GLAKE__PIN_SYNC_MEMOPS, /* the driver waits by its address */
	GLAKE__PIN_MULTICAST,   /* it is bound to a multicast object */
	GLAKE__N_PINS
};
const char *glake__pin_text(enum glake__pin pin);

/*
 * Why memory that was to be sealed is private: as UnsealedWhy of glake.proto. Behind GLAKE__UNSEALED_NAMED
 * come the reasons of enum glake__pin.
 */
enum glake__unsealed {
	GLAKE__UNSEALED_NOT = -1, /* no cause */
	GLAKE__UNSEALED_EDGE,     /* only a part of the page was to be sealed */
	GLAKE__UNSEALED_FAILED,   /* sealing it was an error */
	GLAKE__UNSEALED_WRITTEN,  /* the driver's API was about to write to it */
	GLAKE__UNSEALED_ASKED,    /* glake_unseal() */
	GLAKE__UNSEALED_NAMED,    /* another process or device was about to get it */
	/* Behind the pins: it was sealed without being asked, and a launch might write to it. */
	GLAKE__UNSEALED_LAUNCHED = GLAKE__UNSEALED_NAMED + GLAKE__N_PINS,
};

#endif
