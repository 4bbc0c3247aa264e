/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: what a script sees of them (exit code, name, JSON) and what a person reads.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/ctl.h"
#include "ctl/field.h"
#include "ctl/text.h"
#include "glake.h"

static const struct {
	int code;
	const char *name;
	enum ctl_exit exit;
} errors[] = {
#define ERROR(name, number, text, exit) {GLAKE_E_##name, "GLAKE_E_" #name, CTL_##exit},
#include "libclient/errors.def"
};

#define N_ERRORS (sizeof(errors) / sizeof(errors[0]))

int ctl_exit_code(int error)
{
	for (size_t i = 0; i < N_ERRORS; i++) {
		if (errors[i].code == error) {
			return errors[i].exit;
		}
	}
	switch (-error) {
	case 0:
		return CTL_OK;
	case EACCES:
	case EPERM:
		return CTL_NO_PERMISSION;
	case ENOENT:
		return CTL_NOT_FOUND;
	case EBUSY:
		return CTL_BUSY;
	case ENOMEM:
	case EMFILE:
	case ENFILE:
		return CTL_LIMIT;
	default:
		return CTL_FAILED;
	}
}

const char *ctl_error_name(int error)
{
	for (size_t i = 0; i < N_ERRORS; i++) {
		if (errors[i].code == error) {
			return errors[i].name;
		}
	}
	const char *name = strerrorname_np(-error);
	return name ? name : "UNKNOWN";
}

/* One line for people, or one document for programs. The text may quote foreign names. */
static void report(struct ctl *ctl, int code, const char *name, const char *text)
{
	if (ctl->json) {
		ctl_print_json(ctl, json_pack("{s:{s:i, s:s, s:o}}", "error", "code", code, "name",
		                              name, "text", field_string(text)));
		return;
	}
	char *escaped = text_escape(text);
	const char *command = ctl->command ? ctl->command->name : NULL;
	fprintf(ctl->err, "glakectl: %s%s%s\n", command ? command : "", command ? ": " : "",
	        escaped ? escaped : name);
	free(escaped);
}

void ctl_report(struct ctl *ctl, int error, const char *cause)
{
	const char *text = glake_strerror(error);
	cause = cause && *cause ? cause : text;
	if (strstr(cause, text)) {
		/* The cause says it already: "/some/file: No such file or directory". */
		report(ctl, error, ctl_error_name(error), cause);
		return;
	}
	char *both = NULL;
	if (asprintf(&both, "%s: %s", text, cause) < 0) {
		both = NULL;
	}
	report(ctl, error, ctl_error_name(error), both ? both : text);
	free(both);
}

int ctl_nobody(struct ctl *ctl, uint64_t pid_or_session)
{
	snprintf(ctl->cause, sizeof(ctl->cause),
	         "there is no session %" PRIu64 ", and no process %" PRIu64 " that has one",
	         pid_or_session, pid_or_session);
	return GLAKE_E_NOT_FOUND;
}

int ctl_cannot_write(struct ctl *ctl, const char *path)
{
	char cause[512];
	int error = -errno;
	snprintf(cause, sizeof(cause), "%s: %s", path, strerror(-error));
	ctl_report(ctl, error, cause);
	return CTL_E_SAID;
}

int ctl_usage(struct ctl *ctl, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	report(ctl, -EINVAL, "USAGE", text);
	if (!ctl->json) {
		fprintf(ctl->err, "Try 'glakectl %s%s--help'.\n",
		        ctl->command ? ctl->command->name : "", ctl->command ? " " : "");
	}
	return CTL_E_USAGE;
}
