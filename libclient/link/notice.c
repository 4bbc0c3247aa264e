/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/notice.h"

#include <stdlib.h>

void glake__notices_init(struct glake__notices *notices)
{
	notices->first = NULL;
	notices->last = &notices->first;
	notices->n_notices = 0;
}

void glake__notices_deinit(struct glake__notices *notices)
{
	struct glake__notice *notice;
	while ((notice = glake__notices_pop(notices))) {
		glake__notice_free(notice);
	}
}

struct glake__notice *glake__notices_add(struct glake__notices *notices,
                                         enum glake_notice_kind kind)
{
	struct glake__notice *notice = calloc(1, sizeof(*notice));
	if (notice) {
		notice->public.size = sizeof(notice->public);
		notice->public.kind = kind;
		*notices->last = notice;
		notices->last = &notice->next;
		notices->n_notices++;
	}
	return notice;
}

struct glake__notice *glake__notices_pop(struct glake__notices *notices)
{
	struct glake__notice *notice = notices->first;
	if (notice) {
		notices->first = notice->next;
		if (!notices->first) {
			notices->last = &notices->first;
		}
		notices->n_notices--;
	}
	return notice;
}

void glake__notice_free(struct glake__notice *notice)
{
	free((char *)notice->public.name);
	free(notice);
}
