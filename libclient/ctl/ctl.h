/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glakectl: one run is one command over one connection.
 *
 * A command first checks its operands (no connection yet), then runs and either prints what it
 * found or returns an error, which ctl_run() reports in the form asked for. Its result is 0, a
 * negative code of glake.h, or one of CTL_E_*. A command that works without a daemon (is_offline)
 * reports its own errors; its code is only for the exit status.
 *
 * Owner: main(), or a test; ctl_run() leaves nothing behind.
 * Threads: one (getopt_long() has its state in globals).
 */
#ifndef GLAKE_CTL_CTL_H
#define GLAKE_CTL_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "ctl/table.h"

struct ctl;
struct field;
struct glake_device_status;
struct glake_model_row;
struct glake_session;
struct glake_session_row;
struct glake_sleeper_row;
struct glake_status;
struct glake_tenant_row;
struct identities;

/* Exit codes; glakectl.1 documents them. */
enum ctl_exit {
	CTL_OK = 0,
	CTL_FAILED = 1,      /* refused, or failed */
	CTL_USAGE = 2,       /* the command line makes no sense */
	CTL_UNREACHABLE = 3, /* no daemon, or none that speaks our protocol */
	CTL_NO_PERMISSION = 4,
	CTL_NOT_FOUND = 5,
	CTL_BUSY = 6,     /* in use; later it may work */
	CTL_LIMIT = 7,    /* a quota, or memory or descriptors used up */
	CTL_BAD_FILE = 8, /* not a valid model, or changed or unreadable while it was loaded */
};

enum {
	CTL_E_USAGE = 1,
	CTL_E_OUTPUT, /* nothing can be written, or no memory to say it */
	CTL_E_SAID,   /* another failure; its cause is said already */
};

/* Options of commands; a command lists those it takes. */
enum ctl_option {
	CTL_OPTION_DEVICE = 1 << 0,
	CTL_OPTION_NAME = 1 << 1,
	CTL_OPTION_PIN = 1 << 2,
	CTL_OPTION_ALL = 1 << 3,
	CTL_OPTION_QUOTA_BYTES = 1 << 4,
	CTL_OPTION_SESSIONS = 1 << 5,
	CTL_OPTION_EXACT = 1 << 6,
	CTL_OPTION_MANIFESTS = 1 << 7,
	CTL_OPTION_DRY_RUN = 1 << 8,
	CTL_OPTION_WATCH = 1 << 9,
	CTL_OPTION_HTML = 1 << 10,
	CTL_OPTION_SECONDS = 1 << 11,
	CTL_OPTION_FOLLOW = 1 << 12,
	CTL_OPTION_SERVE = 1 << 13,
	CTL_OPTION_ONCE = 1 << 14,
	CTL_OPTION_FORCE = 1 << 15,
	CTL_OPTION_VERBOSE = 1 << 16,
	CTL_OPTION_MODELS = 1 << 17,
	CTL_OPTION_TOKEN_FILE = 1 << 18,
	CTL_OPTION_UNDO = 1 << 19,
	CTL_OPTION_WAIT = 1 << 20,
	CTL_OPTION_REASON = 1 << 21,
	CTL_OPTION_FORGIVE = 1 << 22,
};

struct ctl_values {
	unsigned given; /* enum ctl_option */
	uint32_t device;
	const char *name;
	uint64_t quota_bytes;
	uint32_t max_sessions;
	uint64_t quota_manifest_bytes;
	const char *html; /* NULL: the default */
	uint32_t seconds;
	const char *serve;      /* NULL: not given */
	const char *token_file; /* the same */
	const char *reason;     /* the same */
	uint32_t mistake;       /* 0: all */
};

struct ctl_command {
	const char *name;
	const char *operands; /* as usage shows them */
	const char *summary;
	unsigned options; /* enum ctl_option */
	int min_operands;
	int max_operands;
	bool is_offline;               /* runs without a connection */
	bool takes;                    /* it asks for memory or a model, as a program does */
	bool has_no_json;              /* it prints a page, or what has a format of its own */
	int (*check)(struct ctl *ctl); /* may be NULL: nothing more to check */
	int (*run)(struct ctl *ctl);
	/* glaked cannot be reached, which is said already: say what may help. NULL: nothing more. Not with --json. */
	void (*unreachable)(struct ctl *ctl, int error, const char *cause);
};

struct ctl {
	FILE *out; /* borrowed */
	FILE *err; /* borrowed */
	bool json;
	bool exact;              /* bytes as plain numbers */
	const char *socket_path; /* NULL: the library's choice */
	const struct ctl_command *command;
	struct ctl_values values;
	char **arguments; /* borrowed: those of main() */
	int n_operands;
	char **operands;               /* borrowed */
	struct glake_session *session; /* owned; NULL until connected */
	char cause[128];               /* of the error that run() returns; "": the library has it */
};

/* An option of commands. */
struct ctl_option_text {
	enum ctl_option bit;
	const char *name;
	const char *argument; /* NULL: takes none; [=...]: may be left out */
	const char *help;
};

/* Print on stderr what the doctor finds wrong with the driver, and with the connection that failed with @error. (doctor.c) */
void ctl_diagnose(struct ctl *ctl, int error, const char *cause);

/* Every command, and every option of one, as help and completions have them. Both end with a zeroed entry. */
extern const struct ctl_command *const ctl_commands[];
extern const struct ctl_option_text ctl_options[];

/* Everything between main()'s arguments and its exit code. */
int ctl_run(int argc, char **argv, FILE *out, FILE *err);

/* The time of a clock that never jumps. */
uint64_t ctl_now_ms(void);

/* Connect, as ctl_run() does before most commands. Returns 0 or a code of glake.h. */
int ctl_connect(struct ctl *ctl);
/* The session ends, if there is one. */
void ctl_disconnect(struct ctl *ctl);

/* Report a command line that makes no sense. Returns CTL_E_USAGE. */
int ctl_usage(struct ctl *ctl, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A check() of a command whose operand, if there is one, is a pid or a session. */
int ctl_check_number(struct ctl *ctl);
/* The operand of such a command; 0: there is none. */
uint64_t ctl_number(const struct ctl *ctl);

/* A command found nobody with this pid or session. Returns the error for its run() to return. */
int ctl_nobody(struct ctl *ctl, uint64_t pid_or_session);

/* Report @error, a code of glake.h; @cause may be NULL. */
void ctl_report(struct ctl *ctl, int error, const char *cause);
/* Report that the file @path cannot be written, and why: errno. Returns CTL_E_SAID. */
int ctl_cannot_write(struct ctl *ctl, const char *path);
int ctl_exit_code(int error);
/* "GLAKE_E_BUSY", "ENOENT"; "UNKNOWN" for a number that is neither. Static. */
const char *ctl_error_name(int error);

/* Print a document, which is released. NULL (no memory when it was made) is CTL_E_OUTPUT. */
int ctl_print_json(struct ctl *ctl, json_t *document);

/* How documents are written: names are foreign, and plain ASCII keeps a terminal safe from them. */
#define CTL_JSON_COMPACT (JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6))

/*
 * Things as --json has them, for all documents. New objects, the caller's. NULL: no memory. A session has its devices in it,
 * and a sleeper what stays; the status has no lists.
 */
json_t *ctl_device_object(const struct glake_device_status *device);
json_t *ctl_host_list(const struct glake_status *status);
json_t *ctl_status_object(const struct glake_status *status);
/* ", drained", ", ends", or "". Static. */
const char *ctl_state_text(const struct glake_status *status);
json_t *ctl_session_object(struct identities *identities, const struct glake_session_row *row);
json_t *ctl_tenant_object(const struct glake_tenant_row *row);
json_t *ctl_model_object(const struct glake_model_row *row);
json_t *ctl_sleeper_object(const struct glake_sleeper_row *row);

/* ---- lists: rows that become a table, or {"KEY": [row, ...]} ---- */

struct ctl_list {
	struct ctl *ctl; /* borrowed */
	const struct field *fields;
	size_t n_fields;
	struct table table;
	json_t *rows; /* owned until printed; NULL without --json */
};

void ctl_list_begin(struct ctl_list *list, struct ctl *ctl, const struct field *fields,
                    size_t n_fields);
/* End the list, which is printed unless there is the error @err. @key is its name in JSON. Returns the error. */
int ctl_list_end(struct ctl_list *list, const char *key, int err);
/* Add a row that is an object already, which is taken over; only with --json. */
int ctl_list_add_object(struct ctl_list *list, json_t *object);
/* A callback of glake_admin.h's lists: @list is a struct ctl_list, @row matches its fields. */
int ctl_list_add(void *list, const void *row);

/* ---- the commands, by file ---- */

extern const struct ctl_command ctl_status, ctl_stats;  /* look.c */
extern const struct ctl_command ctl_top;                /* top.c */
extern const struct ctl_command ctl_events;             /* events.c */
extern const struct ctl_command ctl_doctor;             /* doctor.c */
extern const struct ctl_command ctl_tiers;              /* tiers.c */
extern const struct ctl_command ctl_map;                /* map_command.c */
extern const struct ctl_command ctl_metrics;            /* metrics_command.c */
extern const struct ctl_command ctl_completion;         /* completion.c */
extern const struct ctl_command ctl_names;              /* names.c */
extern const struct ctl_command ctl_sessions;           /* sessions.c */
extern const struct ctl_command ctl_fragmentation;      /* fragmentation.c */
extern const struct ctl_command ctl_dedup;              /* dedup.c */
extern const struct ctl_command ctl_tenants, ctl_quota; /* tenants.c */
extern const struct ctl_command ctl_drain;              /* drain.c */
extern const struct ctl_command ctl_models, ctl_blocks, ctl_pin, ctl_unpin, ctl_evict; /* store.c */
extern const struct ctl_command ctl_load;                                              /* load.c */
extern const struct ctl_command ctl_seal;                                              /* seal.c */
extern const struct ctl_command ctl_sleep, ctl_wake, ctl_sleepers;                     /* sleep.c */

#endif
