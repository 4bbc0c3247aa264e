/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sharing saves, and what it misses: of devices, realms, models and sessions, from their lists.
 *
 * Logical and physical bytes are those of blocks in use. Private memory has its own column: nothing of it is
 * shared. A session's or a model's physical bytes are its part of the blocks, so that the parts add up.
 *
 * Texts of rows are kept by struct dedup.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/identity.h"
#include "ctl/rows.h"
#include "glake_admin.h"

#define ROW struct realm_row

/* A realm on a device, or all that one may see of a device. */
struct realm_row {
	uint32_t device;
	const char *realm; /* "all": of the device */
	uint64_t private_bytes;
	uint64_t logical_bytes;
	uint64_t physical_bytes;
	double ratio;
	uint64_t saved_bytes;
	uint64_t cached_bytes; /* of blocks that nobody uses */
	uint64_t
		unsealing_bytes; /* the reserve for unsealing, of the device; FIELD_NONE for a realm */
};

static const struct field place_fields[] = {
	FIELD(ROW, device, U32, PLAIN, "DEVICE"),
	FIELD(ROW, realm, TEXT, PLAIN, "REALM"),
	FIELD(ROW, private_bytes, U64, BYTES, "PRIVATE"),
	FIELD(ROW, logical_bytes, U64, BYTES, "LOGICAL"),
	FIELD(ROW, physical_bytes, U64, BYTES, "PHYSICAL"),
	FIELD(ROW, ratio, RATIO, PLAIN, "RATIO"),
	FIELD(ROW, saved_bytes, U64, BYTES, "SAVED"),
	FIELD(ROW, cached_bytes, U64, BYTES, "CACHED"),
	FIELD(ROW, unsealing_bytes, MAYBE, BYTES, "RESERVE"),
};

#undef ROW
#define ROW struct model

struct model {
	struct glake_model_row row;
	uint64_t logical_bytes;
	uint64_t physical_bytes;
	double ratio;
};

static const struct field model_fields[] = {
	FIELD_IN(ROW, row, id, U64, PLAIN, "ID"),
	FIELD_IN(ROW, row, device, U32, PLAIN, "DEVICE"),
	FIELD_IN(ROW, row, realm, TEXT, PLAIN, NULL),
	FIELD_IN(ROW, row, n_open, U32, PLAIN, "OPEN"),
	FIELD(ROW, logical_bytes, U64, BYTES, "LOGICAL"),
	FIELD(ROW, physical_bytes, U64, BYTES, "PHYSICAL"),
	FIELD(ROW, ratio, RATIO, PLAIN, "RATIO"),
	FIELD_IN(ROW, row, name, TEXT, PLAIN, "MODEL"),
};

#undef ROW
#define ROW struct session

struct session {
	struct glake_session_row row; /* without its lists */
	const char *label;            /* identity_label() */
	uint64_t private_bytes;
	uint64_t logical_bytes;
	uint64_t physical_bytes;
	double ratio;
	uint64_t common_bytes;
	uint64_t seal_ms;
	uint64_t held_ms;
};

static const struct field session_fields[] = {
	FIELD_IN(ROW, row, session, U64, PLAIN, NULL),
	FIELD_IN(ROW, row, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, row, realm, TEXT, PLAIN, NULL),
	FIELD(ROW, label, TEXT, NAME, "PROGRAM"),
	FIELD_IN(ROW, row, program, TEXT, PLAIN, NULL),
	FIELD(ROW, private_bytes, U64, BYTES, "PRIVATE"),
	FIELD(ROW, logical_bytes, U64, BYTES, "LOGICAL"),
	FIELD(ROW, physical_bytes, U64, BYTES, "PHYSICAL"),
	FIELD(ROW, ratio, RATIO, PLAIN, "RATIO"),
};

/* In a table of its own: all of it would not fit a terminal. */
static const struct field seal_fields[] = {
	FIELD_IN(ROW, row, pid, U32, PLAIN, "PID"),
	FIELD_IN(ROW, row, sealed_bytes, U64, BYTES, "SEALED"),
	FIELD(ROW, common_bytes, U64, BYTES, "SHARED"),
	FIELD_IN(ROW, row, n_seals, U64, PLAIN, "SEALS"),
	FIELD(ROW, seal_ms, U64, MS, "TOOK"),
	FIELD(ROW, held_ms, U64, MS, "HELD BACK"),
};

#undef ROW
#define ROW struct glake_session_row

/* What a session seals without being asked, by state. */
static const struct field alone_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, filling_bytes, U64, BYTES, "FILLING"),
	FIELD(ROW, quiet_bytes, U64, BYTES, "QUIET"),
	FIELD(ROW, alone_bytes, U64, BYTES, "SEALED BY ITSELF"),
	FIELD(ROW, refused_bytes, U64, BYTES, "REFUSED"),
	FIELD(ROW, refused_why, TEXT, PLAIN, "WHY"),
};

#undef ROW
#define ROW struct unsealed

struct unsealed {
	uint64_t session;
	uint32_t pid;
	uint64_t bytes;
	const char *why;
};

static const struct field unsealed_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, bytes, U64, BYTES, "UNSEALED"),
	FIELD(ROW, why, TEXT, PLAIN, "WHY"),
};

/* The reasons in a session's object. */
static const struct field why_fields[] = {
	FIELD(ROW, bytes, U64, BYTES, NULL),
	FIELD(ROW, why, TEXT, PLAIN, NULL),
};

#undef ROW
#define ROW struct glake_layout_row

/* Layouts of all sessions; and behind it those of one, beside each other. */
static const struct field layout_fields[] = {
	FIELD(ROW, session, U64, PLAIN, NULL),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, unshared_bytes, U64, BYTES, "SEALED ALONE"),
	FIELD(ROW, looked_bytes, U64, BYTES, "LOOKED AT"),
	FIELD(ROW, equal_bytes, U64, BYTES, "EQUAL AT OTHER OFFSETS"),
};

static const struct field beside_fields[] = {
	FIELD(ROW, session, U64, PLAIN, NULL),
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, with, U64, PLAIN, NULL),
	FIELD(ROW, with_pid, U32, PLAIN, "WITH"),
	FIELD(ROW, looked_bytes, U64, BYTES, "LOOKED AT"),
	FIELD(ROW, equal_bytes, U64, BYTES, "EQUAL AT OTHER OFFSETS"),
};

#undef ROW
#define ROW struct candidate

/* A candidate of one process. */
struct candidate {
	struct glake_candidate_row row;
	uint32_t pid;
	const char *address;
};

static const struct field candidate_fields[] = {
	FIELD(ROW, pid, U32, PLAIN, "PID"),
	FIELD(ROW, address, TEXT, PLAIN, "ALLOCATION"),
	FIELD_IN(ROW, row, bytes, U64, BYTES, "BYTES"),
	FIELD_IN(ROW, row, filled_bytes, U64, BYTES, "FILLED"),
	FIELD_IN(ROW, row, state, TEXT, PLAIN, "STATE"),
	FIELD_IN(ROW, row, n_unsealed, U32, PLAIN, "UNSEALED"),
	FIELD_IN(ROW, row, refused_why, TEXT, PLAIN, "WHY"),
};

#undef ROW
#define ROW struct glake_mistake_row

/* Programs that are not sealed by themselves, after a fault. Their texts are kept by struct dedup. */
static const struct field mistake_fields[] = {
	FIELD(ROW, id, U64, PLAIN, "MISTAKE"),        FIELD(ROW, uid, U32, PLAIN, "UID"),
	FIELD(ROW, program, TEXT, NAME, "PROGRAM"),   FIELD(ROW, script, TEXT, NAME, "SCRIPT"),
	FIELD(ROW, executable, TEXT, PLAIN, NULL),    FIELD(ROW, n_faults, U64, PLAIN, "FAULTS"),
	FIELD(ROW, time_ms, U64, TIME, "LAST"),       FIELD(ROW, n_words, U32, PLAIN, NULL),
	FIELD(ROW, kernels, TEXT, PLAIN, "SUSPECTS"),
};

#undef ROW

/* ---- gathering -------------------------------------------------------------------------------- */

struct dedup {
	uint64_t number;        /* of the process or session that it is about; 0: of all */
	struct rows devices;    /* struct realm_row */
	struct rows realms;     /* struct realm_row */
	struct rows models;     /* struct model */
	struct rows sessions;   /* struct session */
	struct rows sealers;    /* struct session: again those that have sealed */
	struct rows alones;     /* struct glake_session_row: of sessions that have candidates */
	struct rows unsealed;   /* struct unsealed */
	struct rows candidates; /* struct candidate: of one process */
	uint64_t n_left_out;    /* of them */
	struct rows layouts;  /* struct glake_layout_row: of all, or of one process beside others */
	struct rows mistakes; /* struct glake_mistake_row */
	struct rows texts;    /* char *, owned */
};

/* A copy that lives as long as @dedup; "" without memory. */
static const char *keep(struct dedup *dedup, const char *text)
{
	char **place = rows_add(&dedup->texts, sizeof(*place));
	if (place) {
		*place = strdup(text ? text : "");
	}
	return place && *place ? *place : "";
}

static struct realm_row *place_of(struct dedup *dedup, struct rows *places, uint32_t device,
                                  const char *realm)
{
	for (size_t i = 0; i < places->n; i++) {
		struct realm_row *place = rows_at(places, i);
		if (place->device == device && strcmp(place->realm, realm) == 0) {
			return place;
		}
	}
	struct realm_row *place = rows_add(places, sizeof(*place));
	if (place) {
		place->device = device;
		place->realm = keep(dedup, realm);
		place->unsealing_bytes = FIELD_NONE;
	}
	return place;
}

static double ratio_of(uint64_t logical, uint64_t physical)
{
	return logical > 0 && physical > 0 ? (double)logical / (double)physical : -1;
}

static int add_block(void *user, const struct glake_block_row *row)
{
	struct dedup *dedup = user;
	struct realm_row *place = place_of(dedup, &dedup->realms, row->device, row->realm);
	if (!place) {
		return -ENOMEM;
	}
	if (row->n_mappings > 0) {
		place->physical_bytes += row->chunk_bytes;
	} else {
		place->cached_bytes += row->chunk_bytes;
	}
	place->logical_bytes += row->chunk_bytes * row->n_mappings;
	return 0;
}

static int add_model(void *user, const struct glake_model_row *row)
{
	struct dedup *dedup = user;
	struct model model = {
		.row = *row,
		.logical_bytes = row->span_bytes * row->n_open,
		.physical_bytes = row->part_bytes,
		.ratio = ratio_of(row->span_bytes * row->n_open, row->part_bytes),
	};
	model.row.name = keep(dedup, row->name);
	model.row.realm = keep(dedup, row->realm);
	return rows_append(&dedup->models, &model, sizeof(model));
}

static int add_private(struct dedup *dedup, const struct glake_session_row *row)
{
	for (uint32_t i = 0; i < row->n_devices; i++) {
		const struct glake_session_device *device = &row->devices[i];
		if (device->reserved_bytes > 0) {
			struct realm_row *place = place_of(dedup, &dedup->realms, device->device,
			                                   row->realm);
			if (!place) {
				return -ENOMEM;
			}
			place->private_bytes += device->reserved_bytes;
		}
	}
	return 0;
}

static int add_unsealed(struct dedup *dedup, const struct glake_session_row *row)
{
	for (uint32_t i = 0; i < row->n_unsealed; i++) {
		const struct unsealed unsealed = {
			.session = row->session,
			.pid = row->pid,
			.bytes = row->unsealed[i].bytes,
			.why = keep(dedup, row->unsealed[i].why),
		};
		if (rows_append(&dedup->unsealed, &unsealed, sizeof(unsealed)) < 0) {
			return -ENOMEM;
		}
	}
	return 0;
}

static int add_alone(struct dedup *dedup, const struct glake_session_row *row)
{
	bool has_any = row->filling_bytes || row->quiet_bytes || row->alone_bytes ||
	               row->refused_bytes || (row->refused_why && row->refused_why[0]);
	if (!has_any) {
		return 0;
	}
	struct glake_session_row alone = *row;
	alone.refused_why = keep(dedup, row->refused_why);
	return rows_append(&dedup->alones, &alone, sizeof(alone));
}

/* Sessions without memory, as glakectl's own, are left out. */
static int add_session(void *user, const struct glake_session_row *row)
{
	struct dedup *dedup = user;
	bool is_meant = dedup->number == 0 || dedup->number == row->session ||
	                dedup->number == row->pid;
	bool has_any = row->reserved_bytes > 0 || row->shared_bytes > 0 || row->n_seals > 0;
	if (!is_meant || !has_any) {
		return 0;
	}
	struct session session = {
		.row = *row,
		.label = keep(dedup, identity_label(row->name, row->script, row->program)),
		.private_bytes = row->reserved_bytes,
		.logical_bytes = row->shared_bytes,
		.physical_bytes = row->part_bytes,
		.ratio = ratio_of(row->shared_bytes, row->part_bytes),
		.common_bytes = row->sealed_common_bytes,
		.seal_ms = row->seal_ns / 1000000,
		.held_ms = row->held_ns / 1000000,
	};
	session.row.program = keep(dedup, row->program);
	session.row.realm = keep(dedup, row->realm);
	int err = rows_append(&dedup->sessions, &session, sizeof(session));
	if (err == 0 && (row->sealed_bytes > 0 || row->n_seals > 0)) {
		err = rows_append(&dedup->sealers, &session, sizeof(session));
	}
	err = err ? err : add_private(dedup, row);
	err = err ? err : add_alone(dedup, row);
	return err ? err : add_unsealed(dedup, row);
}

static int add_mistake(void *user, const struct glake_mistake_row *row)
{
	struct dedup *dedup = user;
	struct glake_mistake_row mistake = *row;
	mistake.program = keep(dedup, row->program);
	mistake.script = keep(dedup, row->script);
	mistake.executable = keep(dedup, row->executable);
	mistake.kernels = keep(dedup, row->kernels);
	return rows_append(&dedup->mistakes, &mistake, sizeof(mistake));
}

static int add_layout(void *user, const struct glake_layout_row *row)
{
	struct dedup *dedup = user;
	return row->equal_bytes > 0 ? rows_append(&dedup->layouts, row, sizeof(*row)) : 0;
}

/* An older glaked tells none. */
static int gather_layout(struct ctl *ctl, struct dedup *dedup, uint64_t session)
{
	int err = glake_list_layout(ctl->session, session, add_layout, dedup);
	return err == GLAKE_E_BAD_REQUEST || err == GLAKE_E_NOT_FOUND ? 0 : err;
}

struct asked {
	struct dedup *dedup;
	uint32_t pid;
	uint64_t n;
};

static int add_candidate(void *user, const struct glake_candidate_row *row)
{
	struct asked *asked = user;
	char address[24];
	snprintf(address, sizeof(address), "0x%llx", (unsigned long long)row->address);
	struct candidate candidate = {
		.row = *row,
		.pid = asked->pid,
		.address = keep(asked->dedup, address),
	};
	candidate.row.refused_why = keep(asked->dedup, row->refused_why);
	asked->n++;
	return rows_append(&asked->dedup->candidates, &candidate, sizeof(candidate));
}

/* A process may have a session beside the shim's, which has none. */
static int gather_candidates(struct ctl *ctl, struct dedup *dedup)
{
	int err = dedup->sessions.n == 0 ? ctl_nobody(ctl, dedup->number) : 0;
	for (size_t i = 0; err == 0 && i < dedup->sessions.n; i++) {
		const struct session *session = rows_at(&dedup->sessions, i);
		struct asked asked = {.dedup = dedup, .pid = session->row.pid};
		uint64_t n_all = 0;
		err = glake_list_candidates(ctl->session, session->row.session, add_candidate,
		                            &asked, &n_all);
		dedup->n_left_out += n_all > asked.n ? n_all - asked.n : 0;
		err = err == GLAKE_E_BAD_REQUEST || err == -ENOTSUP ? 0 : err;
		err = err ? err : gather_layout(ctl, dedup, session->row.session);
	}
	return err;
}

/* Gather the sessions of one process, and what it seals without being asked. */
static int gather_one(struct ctl *ctl, struct dedup *dedup)
{
	int err = glake_list_sessions(ctl->session, add_session, dedup);
	return err ? err : gather_candidates(ctl, dedup);
}

static void add_up(struct realm_row *to, const struct realm_row *from)
{
	to->private_bytes += from->private_bytes;
	to->logical_bytes += from->logical_bytes;
	to->physical_bytes += from->physical_bytes;
	to->cached_bytes += from->cached_bytes;
}

static void finish(const struct rows *places)
{
	for (size_t i = 0; i < places->n; i++) {
		struct realm_row *place = rows_at(places, i);
		place->ratio = ratio_of(place->logical_bytes, place->physical_bytes);
		place->saved_bytes = place->logical_bytes - place->physical_bytes;
	}
}

static int add_reserves(void *user, const struct glake_status *status)
{
	struct dedup *dedup = user;
	for (size_t i = 0; i < dedup->devices.n; i++) {
		struct realm_row *place = rows_at(&dedup->devices, i);
		for (uint32_t k = 0; k < status->n_devices; k++) {
			if (status->devices[k].index == place->device) {
				place->unsealing_bytes = status->devices[k].unsealing_bytes;
			}
		}
	}
	return 0;
}

static int gather(struct ctl *ctl, struct dedup *dedup)
{
	int err = glake_list_blocks(ctl->session, add_block, dedup);
	if (err == 0) {
		err = glake_list_models(ctl->session, add_model, dedup);
	}
	if (err == 0) {
		err = glake_list_sessions(ctl->session, add_session, dedup);
	}
	if (err == 0) {
		err = glake_list_mistakes(ctl->session, add_mistake, dedup);
		/* An older glaked has none. */
		err = err == GLAKE_E_BAD_REQUEST ? 0 : err;
		err = err ? err : gather_layout(ctl, dedup, 0);
	}
	for (size_t i = 0; err == 0 && i < dedup->realms.n; i++) {
		const struct realm_row *realm = rows_at(&dedup->realms, i);
		struct realm_row *device = place_of(dedup, &dedup->devices, realm->device, "all");
		if (!device) {
			return -ENOMEM;
		}
		add_up(device, realm);
	}
	finish(&dedup->devices);
	finish(&dedup->realms);
	return err ? err : glake_get_status(ctl->session, add_reserves, dedup);
}

static void dedup_deinit(struct dedup *dedup)
{
	for (size_t i = 0; i < dedup->texts.n; i++) {
		free(*(char **)rows_at(&dedup->texts, i));
	}
	rows_deinit(&dedup->texts);
	rows_deinit(&dedup->devices);
	rows_deinit(&dedup->realms);
	rows_deinit(&dedup->models);
	rows_deinit(&dedup->sessions);
	rows_deinit(&dedup->sealers);
	rows_deinit(&dedup->alones);
	rows_deinit(&dedup->unsealed);
	rows_deinit(&dedup->candidates);
	rows_deinit(&dedup->layouts);
	rows_deinit(&dedup->mistakes);
}

/* ---- showing ---------------------------------------------------------------------------------- */

static json_t *candidates_of(const struct dedup *dedup, const struct session *session)
{
	json_t *list = json_array();
	for (size_t i = 0; i < dedup->candidates.n; i++) {
		const struct candidate *row = rows_at(&dedup->candidates, i);
		if (row->row.session == session->row.session) {
			json_array_append_new(list, field_object(FIELDS(candidate_fields), row));
		}
	}
	return list;
}

static json_t *session_object(const struct dedup *dedup, const struct session *session)
{
	json_t *object = field_object(FIELDS(session_fields), session);
	json_t *seals = field_object(FIELDS(seal_fields), session);
	json_t *list = json_array();
	json_object_update(object, seals);
	json_decref(seals);
	for (size_t i = 0; i < dedup->unsealed.n; i++) {
		const struct unsealed *row = rows_at(&dedup->unsealed, i);
		if (row->session == session->row.session) {
			json_array_append_new(list, field_object(FIELDS(why_fields), row));
		}
	}
	for (size_t i = 0; i < dedup->alones.n; i++) {
		const struct glake_session_row *row = rows_at(&dedup->alones, i);
		if (row->session == session->row.session) {
			json_t *alone = field_object(FIELDS(alone_fields), row);
			json_object_update(object, alone);
			json_decref(alone);
		}
	}
	json_object_set_new(object, "unsealed", list);
	if (dedup->number) {
		json_object_set_new(object, "candidates", candidates_of(dedup, session));
	}
	return object;
}

static int print_json(struct ctl *ctl, const struct dedup *dedup)
{
	json_t *sessions = json_array();
	for (size_t i = 0; i < dedup->sessions.n; i++) {
		json_array_append_new(sessions,
		                      session_object(dedup, rows_at(&dedup->sessions, i)));
	}
	if (dedup->number) {
		json_t *beside = rows_json(&dedup->layouts, FIELDS(beside_fields));
		return ctl_print_json(
			ctl, json_pack("{s:o, s:o}", "sessions", sessions, "layout", beside));
	}
	json_t *layouts = rows_json(&dedup->layouts, FIELDS(layout_fields));
	json_t *devices = rows_json(&dedup->devices, FIELDS(place_fields));
	json_t *realms = rows_json(&dedup->realms, FIELDS(place_fields));
	json_t *models = rows_json(&dedup->models, FIELDS(model_fields));
	json_t *mistakes = rows_json(&dedup->mistakes, FIELDS(mistake_fields));
	return ctl_print_json(ctl, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "devices", devices,
	                                     "realms", realms, "models", models, "sessions",
	                                     sessions, "layout", layouts, "mistakes", mistakes));
}

static int print_text(struct ctl *ctl, const struct dedup *dedup)
{
	int err = 0;
	if (dedup->number) {
		err = rows_show(ctl, &dedup->sessions, NULL, FIELDS(session_fields));
	} else {
		err = rows_show(ctl, &dedup->devices, &dedup->realms, FIELDS(place_fields));
		err = err ? err : rows_show_next(ctl, &dedup->models, FIELDS(model_fields));
		err = err ? err : rows_show_next(ctl, &dedup->sessions, FIELDS(session_fields));
	}
	err = err ? err : rows_show_next(ctl, &dedup->sealers, FIELDS(seal_fields));
	err = err ? err : rows_show_next(ctl, &dedup->alones, FIELDS(alone_fields));
	err = err ? err : rows_show_next(ctl, &dedup->candidates, FIELDS(candidate_fields));
	if (err == 0 && dedup->n_left_out > 0) {
		fprintf(ctl->out, "and %llu smaller ones\n", (unsigned long long)dedup->n_left_out);
	}
	err = err ? err : rows_show_next(ctl, &dedup->unsealed, FIELDS(unsealed_fields));
	if (dedup->number) {
		err = err ? err : rows_show_next(ctl, &dedup->layouts, FIELDS(beside_fields));
	} else {
		err = err ? err : rows_show_next(ctl, &dedup->layouts, FIELDS(layout_fields));
	}
	return err ? err : rows_show_next(ctl, &dedup->mistakes, FIELDS(mistake_fields));
}

static int run_dedup(struct ctl *ctl)
{
	struct dedup dedup = {.number = ctl_number(ctl)};
	int err = ctl->values.given & CTL_OPTION_FORGIVE
	                  ? glake_forgive(ctl->session, ctl->values.mistake)
	                  : 0;
	err = err ? err : dedup.number ? gather_one(ctl, &dedup) : gather(ctl, &dedup);
	if (err == 0) {
		err = ctl->json ? print_json(ctl, &dedup) : print_text(ctl, &dedup);
	}
	dedup_deinit(&dedup);
	return err;
}

const struct ctl_command ctl_dedup = {
	.name = "dedup",
	.operands = "[PID | SESSION]",
	.summary = "What sharing saves, and what it misses and why",
	.max_operands = 1,
	.check = ctl_check_number,
	.options = CTL_OPTION_EXACT | CTL_OPTION_FORGIVE,
	.run = run_dedup,
};
