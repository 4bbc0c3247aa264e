/* SPDX-License-Identifier: Apache-2.0 */
/* A program has lost its context, and says which kernels may have written to sealed memory. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/events.h"
#include "daemon/rpc/rpc_handlers.h"
#include "daemon/rpc/rpc_mistakes.h"

/* An event shows at most this much of a name: names of C++ are long, and begin with what tells most. */
#define SHOWN_BYTES 128
#define ILLEGAL_ADDRESS 700u /* CUDA_ERROR_ILLEGAL_ADDRESS */
#define KIB 1024u
#define MIB (1024u * KIB)

static void describe_suspect(const Glake__Wire__FaultSuspect *suspect, char *text_out,
                             size_t text_bytes)
{
	if (!suspect->address) {
		snprintf(text_out, text_bytes, "%.*s", SHOWN_BYTES, suspect->kernel);
		return;
	}
	bool is_small = suspect->range_bytes < MIB;
	snprintf(text_out, text_bytes, "%.*s at 0x%" PRIx64 " (%" PRIu64 " %s at 0x%" PRIx64 ")",
	         SHOWN_BYTES, suspect->kernel, suspect->address,
	         suspect->range_bytes / (is_small ? KIB : MIB), is_small ? "KiB" : "MiB",
	         suspect->range);
}

static const char title[] = "; given sealed memory last: ";

/* Describe as many suspects as fit. Each is a client's word. */
static void describe_suspects(const Glake__Wire__FaultReport *report, char *text_out,
                              size_t text_bytes)
{
	size_t n_written = 0;
	text_out[0] = '\0';
	for (size_t i = 0; i < report->n_suspects; i++) {
		const char *before = i == 0 ? title : ", ";
		char text[SHOWN_BYTES + 80];
		describe_suspect(report->suspects[i], text, sizeof(text));
		if (n_written + strlen(before) + strlen(text) >= text_bytes) {
			return;
		}
		n_written += (size_t)sprintf(text_out + n_written, "%s%s", before, text);
	}
}

/* The illegal access of a kernel. A process has one. */
static bool is_mistake(const struct holder *holder, const Glake__Wire__FaultReport *report)
{
	return report->is_alone && report->error == ILLEGAL_ADDRESS && !holder->has_faulted;
}

void rpc_fault_report(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__FaultReport *report = request->fault_report;
	struct holder *holder = session->holder;
	struct event_subject subject = holder_subject(holder);
	subject.limit = &holder->tenant->log_limit;
	char suspects[EVENT_TEXT_BYTES - 128];
	if (report->n_suspects > GLAKE_MAX_SUSPECTS) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "more than %u suspects",
		           GLAKE_MAX_SUSPECTS);
		return;
	}
	describe_suspects(report, suspects, sizeof(suspects));
	char mistake[80] = "";
	if (is_mistake(holder, report)) {
		uint64_t id = rpc_note_mistake(rpc_of(session), holder, report,
		                               suspects[0] ? suspects + sizeof(title) - 1 : "");
		snprintf(mistake, sizeof(mistake),
		         ", some by itself, which it is not again (mistake %" PRIu64 ")", id);
	}
	holder->has_faulted = true;
	events_add(rpc_of(session)->events, EVENT_DEVICE_FAULT, &subject,
	           "CUDA error %" PRIu32 " (%.*s), %" PRIu64 " MiB sealed%s%s", report->error,
	           SHOWN_BYTES, report->name, report->sealed_bytes / MIB, mistake, suspects);
	rpc_answer_ok(session, request->id);
}
