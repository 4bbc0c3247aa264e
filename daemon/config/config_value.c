/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_value.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/base/log.h"
#include "proto/size.h"
#include "daemon/config/config_types.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

/* ---- words for errors ---- */

static const char *kind_of(const config_setting_t *at)
{
	switch (config_setting_type(at)) {
	case CONFIG_TYPE_GROUP:
		return "a group";
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64:
		return "a number";
	case CONFIG_TYPE_FLOAT:
		return "a fraction";
	case CONFIG_TYPE_STRING:
		return "a text";
	case CONFIG_TYPE_ARRAY:
		return "an array [ ... ]";
	case CONFIG_TYPE_BOOL:
		return "true or false";
	default:
		return "a list";
	}
}

struct label {
	char text[96];
};

/* "drain_ms", or "an entry of devices". */
static struct label label_of(const config_setting_t *at)
{
	struct label label;
	if (config_setting_name(at)) {
		snprintf(label.text, sizeof(label.text), "%s", config_setting_name(at));
	} else {
		snprintf(label.text, sizeof(label.text), "an entry of %s",
		         config_setting_name(config_setting_parent(at)));
	}
	return label;
}

int config_value_wrong_type(struct config_file *file, const config_setting_t *at,
                            const char *expected)
{
	return config_file_wrong(file, at, "%s must be %s, not %s", label_of(at).text, expected,
	                         kind_of(at));
}

static int no_memory(struct config_file *file)
{
	snprintf(file->error_out, file->error_bytes, "out of memory");
	return -ENOMEM;
}

/* ---- texts ---- */

static int read_text(struct config_file *file, const config_setting_t *at, const char **text_out)
{
	if (config_setting_type(at) != CONFIG_TYPE_STRING) {
		return config_value_wrong_type(file, at, "a text");
	}
	const char *text = config_setting_get_string(at);
	if (!*text) {
		return config_file_wrong(file, at, "%s is empty", label_of(at).text);
	}
	*text_out = text;
	return 0;
}

static int replace_text(struct config_file *file, void *field, const char *text, size_t n_bytes)
{
	char *copy = strndup(text, n_bytes);
	if (!copy) {
		return no_memory(file);
	}
	char **owned = field;
	free(*owned);
	*owned = copy;
	return 0;
}

CONFIG_VALUE(text)
{
	const char *text = NULL;
	int result = read_text(file, at, &text);
	return result < 0 ? result : replace_text(file, field, text, strlen(text));
}

static int read_path(struct config_file *file, const config_setting_t *at, const char **path_out)
{
	int result = read_text(file, at, path_out);
	if (result == 0 && (*path_out)[0] != '/') {
		return config_file_wrong(file, at, "%s must begin with a slash", label_of(at).text);
	}
	return result;
}

CONFIG_VALUE(absolute_path)
{
	const char *path = NULL;
	int result = read_path(file, at, &path);
	return result < 0 ? result : replace_text(file, field, path, strlen(path));
}

CONFIG_VALUE(socket_path)
{
	const char *path = NULL;
	const size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
	int result = read_path(file, at, &path);
	if (result < 0) {
		return result;
	}
	if (strlen(path) > room) {
		return config_file_wrong(file, at, "%s is longer than %zu bytes", label_of(at).text,
		                         room);
	}
	return replace_text(file, field, path, strlen(path));
}

CONFIG_VALUE(cgroup)
{
	const char *path = NULL;
	int result = read_path(file, at, &path);
	if (result < 0) {
		return result;
	}
	size_t n_bytes = strlen(path);
	while (n_bytes > 0 && path[n_bytes - 1] == '/') {
		n_bytes--;
	}
	return replace_text(file, field, path, n_bytes);
}

CONFIG_VALUE(name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789._-";
	const char *name = NULL;
	int result = read_text(file, at, &name);
	if (result < 0) {
		return result;
	}
	if (strlen(name) >= CONFIG_NAME_BYTES) {
		return config_file_wrong(file, at, "name is longer than %u bytes",
		                         CONFIG_NAME_BYTES - 1);
	}
	if (name[strspn(name, allowed)]) {
		return config_file_wrong(
			file, at, "name \"%s\" may have letters, digits, '.', '_', '-' only", name);
	}
	strcpy(field, name);
	return 0;
}

CONFIG_VALUE(mode)
{
	/* A number would be read as decimal: 0666 is not what it looks like. */
	if (config_setting_type(at) != CONFIG_TYPE_STRING) {
		return config_value_wrong_type(file, at, "an octal text like \"0660\"");
	}
	const char *text = config_setting_get_string(at);
	char *end;
	unsigned long mode = strtoul(text, &end, 8);
	if (text[0] != '0' || *end || mode > 0777) {
		return config_file_wrong(file, at, "%s must be an octal text like \"0660\"",
		                         label_of(at).text);
	}
	*(mode_t *)field = (mode_t)mode;
	return 0;
}

CONFIG_VALUE(log_level)
{
	const char *name = NULL;
	int result = read_text(file, at, &name);
	if (result == 0 && log_level_from_name(name, field) < 0) {
		return config_file_wrong(file, at,
		                         "%s must be error, warning, info or debug, not \"%s\"",
		                         label_of(at).text, name);
	}
	return result;
}

/* The number of the word among @names. */
static int read_word(struct config_file *file, const config_setting_t *at, const char *const *names,
                     unsigned n_names, const char *words, unsigned *word_out)
{
	const char *name = NULL;
	int result = read_text(file, at, &name);
	for (unsigned i = 0; result == 0 && i < n_names; i++) {
		if (strcmp(name, names[i]) == 0) {
			*word_out = i;
			return 0;
		}
	}
	return result < 0 ? result
	                  : config_file_wrong(file, at, "%s must be %s, not \"%s\"",
	                                      label_of(at).text, words, name);
}

/* A value that is one of the words: @list has them as an error names them. */
#define CONFIG_WORDS(key, N, list, ...) \
	const char *const config_##key##_words[N] = {__VA_ARGS__}; \
	CONFIG_VALUE(key) \
	{ \
		return read_word(file, at, config_##key##_words, N, list, field); \
	}

CONFIG_WORDS(pressure, N_CONFIG_PRESSURE,
             "refuse or wait", [CONFIG_PRESSURE_REFUSE] = "refuse", [CONFIG_PRESSURE_WAIT] = "wait")
CONFIG_WORDS(
	on_pressure, N_CONFIG_ON_PRESSURE,
	"none or sleep", [CONFIG_ON_PRESSURE_NONE] = "none", [CONFIG_ON_PRESSURE_SLEEP] = "sleep")
CONFIG_WORDS(dedup, N_CONFIG_DEDUP, "off, auto or observed", [CONFIG_DEDUP_OFF] = "off",
             [CONFIG_DEDUP_AUTO] = "auto", [CONFIG_DEDUP_OBSERVED] = "observed")
CONFIG_WORDS(verify, N_CONFIG_VERIFY, "off, sample or always", [CONFIG_VERIFY_OFF] = "off",
             [CONFIG_VERIFY_SAMPLE] = "sample", [CONFIG_VERIFY_ALWAYS] = "always")

/* ---- numbers ---- */

static bool is_number(const config_setting_t *at)
{
	return config_setting_type(at) == CONFIG_TYPE_INT ||
	       config_setting_type(at) == CONFIG_TYPE_INT64;
}

static int read_number(struct config_file *file, const config_setting_t *at, int64_t min,
                       int64_t max, int64_t *number_out)
{
	if (!is_number(at)) {
		return config_value_wrong_type(file, at, "a whole number");
	}
	int64_t number = config_setting_get_int64(at);
	if (number < min || number > max) {
		return config_file_wrong(file, at,
		                         "%s is %" PRId64 ", must be %" PRId64 " to %" PRId64,
		                         label_of(at).text, number, min, max);
	}
	*number_out = number;
	return 0;
}

CONFIG_VALUE(u64)
{
	int64_t number = 0;
	int result = read_number(file, at, (int64_t)min, (int64_t)max, &number);
	if (result == 0) {
		*(uint64_t *)field = (uint64_t)number;
	}
	return result;
}

/* Not a number is no part either. */
CONFIG_VALUE(part)
{
	bool is_whole = is_number(at);
	if (!is_whole && config_setting_type(at) != CONFIG_TYPE_FLOAT) {
		return config_value_wrong_type(file, at, "a part like 0.1");
	}
	double part = is_whole ? (double)config_setting_get_int64(at)
	                       : config_setting_get_float(at);
	if (!(part >= 0 && part <= 1)) {
		return config_file_wrong(file, at, "%s is %g, must be 0 to 1", label_of(at).text,
		                         part);
	}
	*(double *)field = part;
	return 0;
}

CONFIG_VALUE(flag)
{
	if (config_setting_type(at) != CONFIG_TYPE_BOOL) {
		return config_value_wrong_type(file, at, "true or false");
	}
	*(bool *)field = config_setting_get_bool(at);
	return 0;
}

CONFIG_VALUE(u32)
{
	uint64_t number = 0;
	int result = config_value_u64(file, at, &number, min, max);
	if (result == 0) {
		*(uint32_t *)field = (uint32_t)number;
	}
	return result;
}

CONFIG_VALUE(priority)
{
	int64_t number = 0;
	int result = read_number(file, at, -(int64_t)max, (int64_t)max, &number);
	if (result == 0) {
		*(int32_t *)field = (int32_t)number;
	}
	return result;
}

static int read_size(struct config_file *file, const config_setting_t *at, uint64_t *bytes_out)
{
	if (is_number(at)) {
		return config_value_u64(file, at, bytes_out, 0, INT64_MAX);
	}
	if (config_setting_type(at) != CONFIG_TYPE_STRING) {
		return config_value_wrong_type(file, at, "a size like \"24GiB\"");
	}
	const char *text = config_setting_get_string(at);
	switch (size_parse(text, bytes_out)) {
	case 0:
		return 0;
	case -ERANGE:
		return config_file_wrong(file, at, "%s: \"%s\" does not fit 64 bits",
		                         label_of(at).text, text);
	default:
		return config_file_wrong(file, at, "%s must be a size like \"24GiB\", not \"%s\"",
		                         label_of(at).text, text);
	}
}

CONFIG_VALUE(size)
{
	uint64_t bytes = 0;
	int result = read_size(file, at, &bytes);
	if (result < 0) {
		return result;
	}
	if (bytes < min || bytes > max) {
		return config_file_wrong(file, at,
		                         "%s is %" PRIu64 " bytes, must be %" PRIu64 " to %" PRIu64,
		                         label_of(at).text, bytes, min, max);
	}
	*(uint64_t *)field = bytes;
	return 0;
}

CONFIG_VALUE(chunk_size)
{
	uint64_t bytes = 0;
	int result = config_value_size(file, at, &bytes, min, max);
	if (result < 0) {
		return result;
	}
	if (bytes % GLAKE_CHUNK_GRANULARITY) {
		return config_file_wrong(file, at, "%s is not a multiple of 2 MiB",
		                         label_of(at).text);
	}
	*(uint64_t *)field = bytes;
	return 0;
}

/* ---- members ---- */

static int add_uid(struct config_file *file, struct config_members *members, uid_t uid)
{
	uid_t *grown = reallocarray(members->uids, members->n_uids + 1, sizeof(*grown));
	if (!grown) {
		return no_memory(file);
	}
	members->uids = grown;
	members->uids[members->n_uids++] = uid;
	return 0;
}

static int add_gid(struct config_file *file, struct config_members *members, gid_t gid)
{
	gid_t *grown = reallocarray(members->gids, members->n_gids + 1, sizeof(*grown));
	if (!grown) {
		return no_memory(file);
	}
	members->gids = grown;
	members->gids[members->n_gids++] = gid;
	return 0;
}

typedef int (*member_fn)(struct config_file *file, const config_setting_t *entry,
                         struct config_members *members);

/* An empty list is refused: it looks like "nobody" but would mean "any". */
static int add_all(struct config_file *file, const config_setting_t *at, void *field,
                   const char *expected, member_fn add)
{
	if (!config_setting_is_array(at) && !config_setting_is_list(at)) {
		return config_value_wrong_type(file, at, expected);
	}
	unsigned n_entries = (unsigned)config_setting_length(at);
	if (n_entries == 0) {
		return config_file_wrong(file, at, "%s is empty", label_of(at).text);
	}
	int result = 0;
	for (unsigned i = 0; i < n_entries && result == 0; i++) {
		result = add(file, config_setting_get_elem(at, i), field);
	}
	return result;
}

/* To the kernel, (uid_t)-1 is no uid. */
static int add_uid_entry(struct config_file *file, const config_setting_t *entry,
                         struct config_members *members)
{
	uint32_t uid = 0;
	int result = config_value_u32(file, entry, &uid, 0, UINT32_MAX - 1);
	return result < 0 ? result : add_uid(file, members, uid);
}

static int add_gid_entry(struct config_file *file, const config_setting_t *entry,
                         struct config_members *members)
{
	uint32_t gid = 0;
	int result = config_value_u32(file, entry, &gid, 0, UINT32_MAX - 1);
	return result < 0 ? result : add_gid(file, members, gid);
}

/* Large enough for a group with thousands of members; a larger one is an error with its cause. */
#define ACCOUNT_BYTES (64u * 1024u)

static int no_account(struct config_file *file, const config_setting_t *at, const char *kind,
                      const char *name, int error)
{
	return error ? config_file_wrong(file, at, "cannot look up %s \"%s\": %s", kind, name,
	                                 strerror(error))
	             : config_file_wrong(file, at, "no %s is named \"%s\"", kind, name);
}

static int find_user(struct config_file *file, const config_setting_t *at, const char *name,
                     uid_t *uid_out)
{
	cleanup_free char *buffer = malloc(ACCOUNT_BYTES);
	struct passwd user, *found = NULL;
	int error = buffer ? getpwnam_r(name, &user, buffer, ACCOUNT_BYTES, &found) : ENOMEM;
	if (!found) {
		return no_account(file, at, "user", name, error);
	}
	*uid_out = user.pw_uid;
	return 0;
}

int config_value_find_group(struct config_file *file, const config_setting_t *at, const char *name,
                            gid_t *gid_out)
{
	cleanup_free char *buffer = malloc(ACCOUNT_BYTES);
	struct group group, *found = NULL;
	int error = buffer ? getgrnam_r(name, &group, buffer, ACCOUNT_BYTES, &found) : ENOMEM;
	if (!found) {
		return no_account(file, at, "group", name, error);
	}
	*gid_out = group.gr_gid;
	return 0;
}

static int add_user_entry(struct config_file *file, const config_setting_t *entry,
                          struct config_members *members)
{
	const char *name = NULL;
	uid_t uid = 0;
	int result = read_text(file, entry, &name);
	if (result == 0) {
		result = find_user(file, entry, name, &uid);
	}
	return result < 0 ? result : add_uid(file, members, uid);
}

static int add_group_entry(struct config_file *file, const config_setting_t *entry,
                           struct config_members *members)
{
	const char *name = NULL;
	gid_t gid = 0;
	int result = read_text(file, entry, &name);
	if (result == 0) {
		result = config_value_find_group(file, entry, name, &gid);
	}
	return result < 0 ? result : add_gid(file, members, gid);
}

CONFIG_VALUE(uids)
{
	return add_all(file, at, field, "a list of uids", add_uid_entry);
}

CONFIG_VALUE(gids)
{
	return add_all(file, at, field, "a list of gids", add_gid_entry);
}

CONFIG_VALUE(users)
{
	return add_all(file, at, field, "a list of user names", add_user_entry);
}

CONFIG_VALUE(groups)
{
	return add_all(file, at, field, "a list of group names", add_group_entry);
}
