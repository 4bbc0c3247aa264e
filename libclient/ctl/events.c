/* SPDX-License-Identifier: Apache-2.0 */
/* Events for an operator: all that glaked keeps, and each new event as it comes. */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/text.h"
#include "glake.h"
#include "glake_admin.h"

/* An event, and the pod of the process that it is about; its names are "" where nobody knows them. */
struct event_view {
	struct glake_event_row row; /* the first member: fields of either have the same offset */
	const char *pod;
	const char *namespace;
	const char *container;
};

#define ROW struct glake_event_row

/* The text is long: it gets what a terminal has left. */
static const struct field event_fields[] = {
	FIELD(ROW, id, U64, PLAIN, NULL),
	FIELD(ROW, time_ms, U64, TIME, "TIME"),
	FIELD(ROW, kind, TEXT, PLAIN, "EVENT"),
	FIELD(ROW, realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, session, U64, PLAIN, NULL),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, text, TEXT, PLAIN, "TEXT"),
	FIELD(ROW, pod_uid, TEXT, PLAIN, NULL),
	FIELD(struct event_view, pod, TEXT, PLAIN, NULL),
	FIELD(struct event_view, namespace, TEXT, PLAIN, NULL),
	FIELD(struct event_view, container, TEXT, PLAIN, NULL),
};

/* In JSON, of refusals only. */
static const struct field refusal_fields[] = {
	FIELD(ROW, program, TEXT, PLAIN, NULL),  FIELD(ROW, tenant, TEXT, PLAIN, NULL),
	FIELD(ROW, bound, TEXT, PLAIN, NULL),    FIELD(ROW, is_host, BOOL, PLAIN, NULL),
	FIELD(ROW, location, U32, PLAIN, NULL),  FIELD(ROW, wanted, U64, PLAIN, NULL),
	FIELD(ROW, used, U64, PLAIN, NULL),      FIELD(ROW, limit, U64, PLAIN, NULL),
	FIELD(ROW, n_refused, U64, PLAIN, NULL),
};

#undef ROW

static json_t *event_object(const struct event_view *view)
{
	json_t *object = field_object(FIELDS(event_fields), view);
	json_object_set_new(object, "refusal",
	                    view->row.n_refused > 0
	                            ? field_object(FIELDS(refusal_fields), &view->row)
	                            : json_null());
	return object;
}

/* Texts are borrowed from both. */
static struct event_view view_of(struct identities *identities, const struct glake_event_row *row)
{
	const struct glake_session_row session = {
		.pod_uid = row->pod_uid,
		.container_id = row->container_id ? row->container_id : "",
	};
	const struct identity identity = identity_place(identities, &session);
	struct event_view view = {
		.row = *row,
		.pod = identity.pod,
		.namespace = identity.namespace,
		.container = identity.container,
	};
	view.row.pod_uid = row->pod_uid ? row->pod_uid : "";
	return view;
}

struct adding {
	struct ctl_list list;
	struct identities identities;
};

static int add_event(void *user, const struct glake_event_row *row)
{
	struct adding *adding = user;
	const struct event_view view = view_of(&adding->identities, row);
	return adding->list.ctl->json ? ctl_list_add_object(&adding->list, event_object(&view))
	                              : ctl_list_add(&adding->list, &view);
}

static int list_events(struct ctl *ctl)
{
	struct adding adding;
	ctl_list_begin(&adding.list, ctl, FIELDS(event_fields));
	identities_init(&adding.identities);
	int err = glake_list_events(ctl->session, add_event, &adding);
	identities_deinit(&adding.identities);
	return ctl_list_end(&adding.list, "events", err);
}

/* ---- as they come ----------------------------------------------------------------------------- */

struct following {
	struct ctl *ctl;
	uint64_t pid; /* of the glaked that the ids are of; 0 = none yet */
	uint64_t uptime_ms;
	uint64_t last;                /* the id of the last event that was shown */
	bool is_lost;                 /* it was said that glaked is away */
	struct identities identities; /* of one look: pods come and go */
};

/* Columns of a width that most fit: nobody knows yet what comes. */
#define LINE "%-19s  %-14s  %-10s"

static int show_event(void *user, const struct glake_event_row *row)
{
	struct following *following = user;
	struct ctl *ctl = following->ctl;
	following->last = row->id;
	if (ctl->json) {
		const struct event_view view = view_of(&following->identities, row);
		json_t *object = event_object(&view);
		int err = object ? json_dumpf(object, ctl->out, JSON_COMPACT | JSON_ENSURE_ASCII)
		                 : -1;
		json_decref(object);
		return err < 0 || fputc('\n', ctl->out) == EOF ? CTL_E_OUTPUT : 0;
	}
	char time[TEXT_NUMBER_BYTES];
	text_time(row->time_ms, time);
	char *realm = text_escape(row->realm);
	char *text = text_escape(row->text);
	if (realm && text) {
		fprintf(ctl->out, LINE, time, row->kind, realm);
		fprintf(ctl->out, "%7" PRIu32 "  %s\n", row->pid, text);
	}
	bool is_lost = !realm || !text;
	free(realm);
	free(text);
	return is_lost ? CTL_E_OUTPUT : 0;
}

static int see_daemon(void *user, const struct glake_status *status)
{
	struct following *following = user;
	/* In a container the next glaked may have the same pid. */
	bool is_next = status->pid != following->pid || status->uptime_ms < following->uptime_ms;
	following->uptime_ms = status->uptime_ms;
	if (is_next) {
		/* The ids of another glaked begin anew. */
		following->pid = status->pid;
		following->last = 0;
	}
	return 0;
}

static int show_new(struct following *following)
{
	struct glake_session *session = following->ctl->session;
	int err = glake_get_status(session, see_daemon, following);
	identities_init(&following->identities);
	err = err ? err : glake_list_events_after(session, following->last, show_event, following);
	identities_deinit(&following->identities);
	return err;
}

/* glaked may be away for a while: it is asked again each second. */
static int wait_for_daemon(struct following *following, int err)
{
	struct ctl *ctl = following->ctl;
	if (ctl_exit_code(err) != CTL_UNREACHABLE) {
		return err;
	}
	if (!following->is_lost) {
		fprintf(ctl->err, "glakectl: events: %s; trying again\n", glake_strerror(err));
	}
	following->is_lost = true;
	ctl_disconnect(ctl);
	return 0;
}

static int follow(struct ctl *ctl)
{
	struct following following = {.ctl = ctl};
	uint32_t n_seconds = ctl->values.given & CTL_OPTION_SECONDS ? ctl->values.seconds
	                                                            : UINT32_MAX;
	int err = 0;
	if (!ctl->json) {
		fprintf(ctl->out, LINE "    PID  TEXT\n", "TIME", "EVENT", "REALM");
	}
	for (uint32_t i = 0; err == 0 && i <= n_seconds; i++) {
		if (i > 0) {
			sleep(1);
		}
		err = ctl->session ? 0 : ctl_connect(ctl);
		err = err ? err : show_new(&following);
		if (err < 0) {
			err = wait_for_daemon(&following, err);
		} else {
			following.is_lost = false;
		}
		if (err == 0 && fflush(ctl->out) != 0) {
			err = CTL_E_OUTPUT;
		}
	}
	return err;
}

static int check_events(struct ctl *ctl)
{
	unsigned given = ctl->values.given;
	if (given & CTL_OPTION_SECONDS && !(given & CTL_OPTION_FOLLOW)) {
		return ctl_usage(ctl, "--seconds: of --follow only");
	}
	return 0;
}

static int run_events(struct ctl *ctl)
{
	return ctl->values.given & CTL_OPTION_FOLLOW ? follow(ctl) : list_events(ctl);
}

const struct ctl_command ctl_events = {
	.name = "events",
	.operands = "",
	.summary = "Refused memory, damaged blocks, faults of GPUs, movers that ended",
	.options = CTL_OPTION_FOLLOW | CTL_OPTION_SECONDS,
	.check = check_events,
	.run = run_events,
};
