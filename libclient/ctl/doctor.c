/* SPDX-License-Identifier: Apache-2.0 */
/* `glakectl doctor`: what is wrong on this host, and what helps; also where glaked does not run. */
#include "ctl/doctor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "ctl/field.h"
#include "ctl/text.h"

#define ROW struct finding

static const struct field finding_fields[] = {
	FIELD(ROW, check, TEXT, PLAIN, NULL),
	FIELD(ROW, level, TEXT, PLAIN, NULL),
	FIELD(ROW, text, TEXT, PLAIN, NULL),
	FIELD(ROW, remedy, TEXT, PLAIN, NULL),
};

#undef ROW

static const char *const levels[] = {"ok", "note", "warning", "error"};

void findings_deinit(struct findings *findings)
{
	for (size_t i = 0; i < findings->list.n; i++) {
		free(((struct finding *)rows_at(&findings->list, i))->text);
	}
	rows_deinit(&findings->list);
}

void finding_add(struct findings *findings, const char *check, enum finding_level level,
                 const char *remedy, const char *format, ...)
{
	struct finding *finding = rows_add(&findings->list, sizeof(*finding));
	if (!finding) {
		findings->is_lost = true;
		return;
	}
	finding->check = check;
	finding->level = levels[level];
	finding->remedy = remedy ? remedy : "";
	va_list arguments;
	va_start(arguments, format);
	if (vasprintf(&finding->text, format, arguments) < 0) {
		finding->text = NULL;
		findings->is_lost = true;
	}
	va_end(arguments);
	findings->n_warnings += level == FINDING_WARNING;
	findings->n_errors += level == FINDING_ERROR;
}

static void print_finding(const struct finding *finding, FILE *out)
{
	/* The text may quote what others have written. */
	char *text = text_escape(finding->text);
	fprintf(out, "%-8s %-8s %s\n", finding->level, finding->check, text ? text : "");
	free(text);
	if (*finding->remedy) {
		fprintf(out, "%17s -> %s\n", "", finding->remedy);
	}
}

void findings_print_wrong(const struct findings *findings, FILE *out)
{
	for (size_t i = 0; i < findings->list.n; i++) {
		const struct finding *finding = rows_at(&findings->list, i);
		if (finding->level == levels[FINDING_WARNING] ||
		    finding->level == levels[FINDING_ERROR]) {
			print_finding(finding, out);
		}
	}
	if (findings->n_warnings + findings->n_errors == 0) {
		fputs("Nothing is wrong that glaked knows of.\n", out);
	}
}

bool doctor_read_line(const char *path, const char *begin, char *line_out, int n_bytes)
{
	FILE *file = fopen(path, "re");
	bool is_found = false;
	while (file && !is_found && fgets(line_out, n_bytes, file)) {
		line_out[strcspn(line_out, "\n")] = '\0';
		is_found = strncmp(line_out, begin, strlen(begin)) == 0;
	}
	if (file) {
		fclose(file);
	}
	if (!is_found) {
		line_out[0] = '\0';
	}
	return is_found;
}

static void print_text(const struct ctl *ctl, const struct findings *findings)
{
	for (size_t i = 0; i < findings->list.n; i++) {
		print_finding(rows_at(&findings->list, i), ctl->out);
	}
	fprintf(ctl->out, "\n%" PRIu32 " error%s, %" PRIu32 " warning%s\n", findings->n_errors,
	        findings->n_errors == 1 ? "" : "s", findings->n_warnings,
	        findings->n_warnings == 1 ? "" : "s");
}

static int print(struct ctl *ctl, const struct findings *findings)
{
	if (findings->is_lost) {
		return CTL_E_OUTPUT;
	}
	if (!ctl->json) {
		print_text(ctl, findings);
		return 0;
	}
	return ctl_print_json(ctl, json_pack("{s:o, s:i, s:i}", "findings",
	                                     rows_json(&findings->list, FIELDS(finding_fields)),
	                                     "n_errors", (int)findings->n_errors, "n_warnings",
	                                     (int)findings->n_warnings));
}

static int run_doctor(struct ctl *ctl)
{
	struct findings findings = {.n_errors = 0};
	doctor_check_driver(&findings);
	doctor_check_mps(&findings);
	doctor_check_kernel(&findings);
	doctor_check_limits(&findings);
	doctor_check_cgroup(&findings, "/proc/self/cgroup");
	doctor_check_subuids(&findings, "/etc/subuid");
	int unreachable = doctor_check_daemon(ctl, &findings);
	int err = print(ctl, &findings);
	err = err ? err : unreachable;
	if (err == 0 && findings.n_errors > 0) {
		err = CTL_E_SAID;
	}
	findings_deinit(&findings);
	return err;
}

void ctl_diagnose(struct ctl *ctl, int error, const char *cause)
{
	struct findings findings = {.n_errors = 0};
	doctor_check_driver(&findings);
	doctor_add_unreachable(ctl, error, cause, &findings);
	if (!findings.is_lost) {
		fputc('\n', ctl->err);
		findings_print_wrong(&findings, ctl->err);
	}
	findings_deinit(&findings);
}

const struct ctl_command ctl_doctor = {
	.name = "doctor",
	.operands = "",
	.summary = "What is wrong with the driver, this host or the daemon, and what helps",
	.is_offline = true,
	.run = run_doctor,
};
