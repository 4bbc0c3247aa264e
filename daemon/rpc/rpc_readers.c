/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config.h"
#include "daemon/rpc/rpc_handlers.h"

/* All get the same sealed file: its content is no secret of a realm. */
void rpc_readers_get(struct session *session, const request_t *request, struct fdlist *fds)
{
	const struct reader_tables *tables = &rpc_of(session)->config->reader_tables;
	Glake__Wire__ReadersAnswer body = GLAKE__WIRE__READERS_ANSWER__INIT;
	body.bytes = tables->n_bytes;
	rpc_answer(session, request->id, ANSWER_OF(READERS, readers, &body), &tables->fd,
	           tables->n_bytes > 0);
}
