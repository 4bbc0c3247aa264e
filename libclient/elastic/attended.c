/* SPDX-License-Identifier: Apache-2.0 */
/* The attendant's side: each request of another process becomes the call with that name, and marks are set for it. */
#include <errno.h>

#include "libclient/elastic/attendant.h"
#include "libclient/elastic/elastic.h"
#include "proto/cleanup.h"

static int look(const struct glake_elastic *elastic, const struct glake_elastic_request *request,
                struct glake_elastic_reply *reply)
{
	uint8_t *states = (uint8_t *)(reply + 1);
	if (request->n > GLAKE_ELASTIC_LOOK_STEPS) {
		return -EINVAL;
	}
	int r = glake__elastic_check(elastic, request->first, request->n);
	for (uint32_t i = 0; r == 0 && i < request->n; i++) {
		states[i] = (uint8_t)elastic->states[request->first + i];
	}
	reply->n = r == 0 ? request->n : 0;
	return r;
}

static int call(struct glake_elastic *elastic, const struct glake_elastic_request *request,
                struct glake_elastic_reply *reply)
{
	switch (request->verb) {
	case GLAKE_ELASTIC_LOOK:
		return look(elastic, request, reply);
	case GLAKE_ELASTIC_TAKE:
		reply->n = glake_elastic_take(elastic, request->first, request->n);
		return 0;
	case GLAKE_ELASTIC_LEND:
		return glake_elastic_lend(elastic, request->first, request->n);
	case GLAKE_ELASTIC_AHEAD:
		return glake_elastic_ahead(elastic, request->first, request->n);
	case GLAKE_ELASTIC_COMMIT:
		return glake_elastic_commit(elastic, request->first, request->n, &reply->n);
	default:
		return -EOPNOTSUPP;
	}
}

static void follow(struct glake_elastic *elastic, const struct glake_elastic_request *request,
                   struct glake_elastic_reply *reply)
{
	reply->result = call(elastic, request, reply);
	/* Numbers as they are behind it. */
	reply->stats.size = sizeof(reply->stats);
	glake_elastic_stats(elastic, &reply->stats);
	reply->passed = glake__marks_passed(&elastic->marks, &elastic->session->drv);
}

int glake_elastic_attend(struct glake_elastic *elastic, int fd)
{
	int r = glake__elastic_check(elastic, 0, 0);
	r = r < 0 ? r : glake__session_check(elastic->session);
	if (r < 0) {
		return r;
	}
	cleanup_cancel int cancel = cancel_disable();
	const uint32_t n_steps = elastic->desc.n_steps;
	return glake__attendant_start(&elastic->attendants, fd,
	                              n_steps < GLAKE_ELASTIC_LOOK_STEPS ? n_steps
	                                                                 : GLAKE_ELASTIC_LOOK_STEPS,
	                              follow, elastic);
}

int glake_elastic_mark(struct glake_elastic *elastic, uint64_t number, void *stream)
{
	int r = glake__elastic_check(elastic, 0, 0);
	r = r < 0 ? r : glake__session_check(elastic->session);
	return r < 0 ? r
	             : glake__marks_set(&elastic->marks, &elastic->session->drv, number, stream);
}
