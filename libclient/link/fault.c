/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/report.h"
#include "libclient/link/call.h"
#include "libclient/link/session.h"

int glake__report_fault(struct glake_session *session, const struct glake__fault *fault)
{
	Glake__Wire__FaultSuspect rows[GLAKE_MAX_SUSPECTS];
	Glake__Wire__FaultSuspect *list[GLAKE_MAX_SUSPECTS];
	Glake__Wire__FaultReport report = GLAKE__WIRE__FAULT_REPORT__INIT;
	struct glake__call call;
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	report.error = (uint32_t)fault->error;
	report.name = (char *)fault->name;
	report.sealed_bytes = fault->sealed_bytes;
	report.is_alone = fault->is_alone;
	report.suspects = list;
	for (; report.n_suspects < fault->n_suspects; report.n_suspects++) {
		const struct glake__suspect *from = &fault->suspects[report.n_suspects];
		Glake__Wire__FaultSuspect *row = &rows[report.n_suspects];
		glake__wire__fault_suspect__init(row);
		row->kernel = (char *)from->kernel;
		row->address = from->ptr;
		row->range = from->range;
		row->range_bytes = from->range_bytes;
		row->word = from->word;
		list[report.n_suspects] = row;
	}
	r = glake__call(&session->link, &call, REQUEST_OF(FAULT_REPORT, fault_report, &report),
	                GLAKE__WIRE__ANSWER__BODY__NOT_SET, NULL, 0);
	if (r == 0) {
		glake__call_end(&session->link, &call);
	}
	return r;
}
