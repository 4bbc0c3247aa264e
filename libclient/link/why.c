/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/why.h"

const char *glake__pin_text(enum glake__pin pin)
{
	static const char *const texts[GLAKE__N_PINS] = {
		[GLAKE__PIN_NONE] = "not pinned",
		[GLAKE__PIN_ALIASED] = "mapped in too many places",
		[GLAKE__PIN_HANDLE] = "the program has a handle of it",
		[GLAKE__PIN_SHARED] = "named for other processes",
		[GLAKE__PIN_FOREIGN] = "another process's",
		[GLAKE__PIN_EXPORTED] = "its descriptor was handed out",
		[GLAKE__PIN_DMABUF] = "a dma-buf of it was handed out",
		[GLAKE__PIN_SYNC_MEMOPS] = "its memory operations are synchronous",
		[GLAKE__PIN_MULTICAST] = "bound to a multicast object",
	};
	return texts[pin];
}
