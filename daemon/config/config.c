/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"
#include "daemon/config/config_value.h"
#include "proto/cleanup.h"

/* Sections that are lists of groups, and what holds a list of something. Defined below. */
static CONFIG_VALUE(admin_group);
static CONFIG_VALUE(devices);
static CONFIG_VALUE(sizes);
static CONFIG_VALUE(pool);
static CONFIG_VALUE(realms);
static CONFIG_VALUE(tenants);

/* The default of the key below: the only one of a list's entries that is not 0. */
#define MANIFEST_BYTES (256ull * 1024 * 1024)

static const struct config_key keys[] = {
#define KEY_PUBLIC(section, type, name, fallback, value, field, min, max) \
	{section, #name, fallback},
	CONFIG_KEYS(KEY_PUBLIC)
#undef KEY_PUBLIC
};

static const struct {
	config_value_fn value;
	size_t offset;
	uint64_t min;
	uint64_t max;
} rules[] = {
#define KEY_RULE(section, type, name, fallback, value, field, min, max) \
	{config_value_##value, offsetof(struct type, field), min, max},
	CONFIG_KEYS(KEY_RULE)
#undef KEY_RULE
};

const struct config_key *config_keys(size_t *n_keys_out)
{
	*n_keys_out = n_elements(keys);
	return keys;
}

/* ---- groups of keys, and lists of groups ---- */

static int read_key(struct config_file *file, const config_setting_t *at, const char *section,
                    void *object)
{
	for (size_t i = 0; i < n_elements(keys); i++) {
		if (strcmp(keys[i].section, section) == 0 &&
		    strcmp(keys[i].name, config_setting_name(at)) == 0) {
			return rules[i].value(file, at, (char *)object + rules[i].offset,
			                      rules[i].min, rules[i].max);
		}
	}
	return config_file_wrong(file, at, "unknown key %s%s%s", config_setting_name(at),
	                         *section ? " in " : "", section);
}

static int read_group(struct config_file *file, const config_setting_t *group, const char *section,
                      void *object)
{
	int result = 0;
	for (unsigned i = 0; result == 0 && i < (unsigned)config_setting_length(group); i++) {
		result = read_key(file, config_setting_get_elem(group, i), section, object);
	}
	return result;
}

/* A list whose entries must all be groups, as `array_out`: zeroed, one element more than needed. */
static int open_list(struct config_file *file, const config_setting_t *at, size_t element_bytes,
                     void *array_out)
{
	unsigned n_entries = (unsigned)config_setting_length(at);
	if (!config_setting_is_list(at)) {
		return config_value_wrong_type(file, at, "a list ( { ... }, ... )");
	}
	for (unsigned i = 0; i < n_entries; i++) {
		const config_setting_t *entry = config_setting_get_elem(at, i);
		if (!config_setting_is_group(entry)) {
			return config_value_wrong_type(file, entry, "a group { ... }");
		}
	}
	void *array = calloc(n_entries + 1, element_bytes);
	if (!array) {
		return -ENOMEM;
	}
	*(void **)array_out = array;
	return 0;
}

static int require(struct config_file *file, const config_setting_t *group, const char *key)
{
	if (config_setting_get_member(group, key)) {
		return 0;
	}
	return config_file_wrong(file, group, "%s is missing in an entry of %s", key,
	                         config_setting_name(config_setting_parent(group)));
}

/* ---- keys of the top ---- */

static CONFIG_VALUE(admin_group)
{
	struct config *config = container_of(field, struct config, admin_group);
	int result = config_value_text(file, at, field, 0, 0);
	if (result == 0) {
		result = config_value_find_group(file, at, config->admin_group, &config->admin_gid);
	}
	return result;
}

static CONFIG_VALUE(devices)
{
	struct config *config = container_of(field, struct config, devices);
	if (!config_setting_is_array(at) && !config_setting_is_list(at)) {
		return config_value_wrong_type(file, at, "a list of device numbers");
	}
	size_t n_devices = (size_t)config_setting_length(at);
	if (n_devices == 0) {
		return config_file_wrong(file, at, "devices is empty");
	}
	uint32_t *devices = calloc(n_devices, sizeof(*devices));
	if (!devices) {
		return -ENOMEM;
	}
	config->devices = devices;
	for (; config->n_devices < n_devices; config->n_devices++) {
		size_t i = config->n_devices;
		const config_setting_t *entry = config_setting_get_elem(at, (unsigned)i);
		int result = config_value_u32(file, entry, &devices[i], min, max);
		if (result < 0) {
			return result;
		}
		for (size_t j = 0; j < i; j++) {
			if (devices[j] == devices[i]) {
				return config_file_wrong(file, entry, "device %u is given twice",
				                         devices[i]);
			}
		}
	}
	return 0;
}

static CONFIG_VALUE(pool)
{
	struct config *config = container_of(field, struct config, stock);
	struct config_stock *stock;
	int result = open_list(file, at, sizeof(*stock), &stock);
	if (result < 0) {
		return result;
	}
	if (config_setting_length(at) > (int)CONFIG_MAX_STOCK_SIZES) {
		free(stock);
		return config_file_wrong(file, at, "pool has more than %u entries",
		                         CONFIG_MAX_STOCK_SIZES);
	}
	free(config->stock);
	config->stock = stock;
	config->n_stock = 0;
	for (unsigned i = 0; i < (unsigned)config_setting_length(at); i++) {
		const config_setting_t *entry = config_setting_get_elem(at, i);
		result = require(file, entry, "chunk_bytes");
		if (result == 0) {
			result = require(file, entry, "n_chunks");
		}
		if (result == 0) {
			result = read_group(file, entry, "pool", &stock[i]);
		}
		if (result < 0) {
			return result;
		}
		for (unsigned j = 0; j < i; j++) {
			if (stock[j].chunk_bytes == stock[i].chunk_bytes) {
				return config_file_wrong(
					file, config_setting_get_member(entry, "chunk_bytes"),
					"two entries of pool have the same chunk_bytes");
			}
		}
		config->n_stock++;
	}
	return 0;
}

/* ---- realms and tenants ---- */

static int name_taken(struct config_file *file, const config_setting_t *entry, const char *name)
{
	return config_file_wrong(file, config_setting_get_member(entry, "name"),
	                         "the name \"%s\" is given twice", name);
}

static bool names_somebody(const struct config_members *members)
{
	return members->n_uids > 0 || members->n_gids > 0;
}

static int read_realm(struct config_file *file, const config_setting_t *entry,
                      struct config *config, struct config_realm *realm)
{
	int result = require(file, entry, "name");
	if (result == 0) {
		result = read_group(file, entry, "realms", realm);
	}
	if (result < 0) {
		return result;
	}
	if (!names_somebody(&realm->members)) {
		return config_file_wrong(file, entry, "realm \"%s\" has no members", realm->name);
	}
	for (const struct config_realm *other = config->realms; other < realm; other++) {
		if (strcmp(other->name, realm->name) == 0) {
			return name_taken(file, entry, realm->name);
		}
	}
	return 0;
}

static CONFIG_VALUE(realms)
{
	struct config *config = container_of(field, struct config, realms);
	struct config_realm *realms;
	int result = open_list(file, at, sizeof(*realms), &realms);
	if (result < 0) {
		return result;
	}
	free(config->realms);
	config->realms = realms;
	config->n_realms = (size_t)config_setting_length(at);
	for (unsigned i = 0; result == 0 && i < config->n_realms; i++) {
		result = read_realm(file, config_setting_get_elem(at, i), config, &realms[i]);
	}
	return result;
}

static CONFIG_VALUE(sizes)
{
	struct config_sizes *sizes = field;
	bool is_list = config_setting_is_list(at) || config_setting_is_array(at);
	size_t n_sizes = is_list ? (size_t)config_setting_length(at) : 1;
	if (n_sizes == 0) {
		return config_file_wrong(file, at, "%s is empty", config_setting_name(at));
	}
	uint64_t *bytes = calloc(n_sizes, sizeof(bytes[0]));
	if (!bytes) {
		return -ENOMEM;
	}
	/* The default, or nothing. */
	free(sizes->bytes);
	sizes->bytes = bytes;
	sizes->n = n_sizes;
	int result = 0;
	for (unsigned i = 0; result == 0 && i < n_sizes; i++) {
		result = config_value_size(file, is_list ? config_setting_get_elem(at, i) : at,
		                           &sizes->bytes[i], min, max);
	}
	return result;
}

static int check_who(struct config_file *file, const config_setting_t *entry,
                     const struct config_tenant *tenant)
{
	bool is_default = strcmp(tenant->name, CONFIG_DEFAULT_TENANT) == 0;
	bool matches = names_somebody(&tenant->members) || tenant->cgroup;
	if (strcmp(tenant->name, CONFIG_CACHE_TENANT) == 0) {
		return config_file_wrong(file, config_setting_get_member(entry, "name"),
		                         "the name \"%s\" is glaked's own", tenant->name);
	}
	if (is_default && matches) {
		return config_file_wrong(file, entry,
		                         "tenant \"%s\" is for everyone else: it names nobody",
		                         tenant->name);
	}
	if (!is_default && !matches) {
		return config_file_wrong(file, entry,
		                         "tenant \"%s\" names nobody: give uids, users, gids, "
		                         "groups or a cgroup",
		                         tenant->name);
	}
	return 0;
}

static int read_tenant(struct config_file *file, const config_setting_t *entry,
                       struct config *config, struct config_tenant *tenant)
{
	int result = require(file, entry, "name");
	tenant->manifest_bytes = MANIFEST_BYTES;
	if (result == 0) {
		result = read_group(file, entry, "tenants", tenant);
	}
	if (result == 0) {
		result = check_who(file, entry, tenant);
	}
	for (struct config_tenant *other = config->tenants; result == 0 && other < tenant;
	     other++) {
		if (strcmp(other->name, tenant->name) == 0) {
			result = name_taken(file, entry, tenant->name);
		}
	}
	return result;
}

/* The default tenant comes after the rules: open_list() left room in case the file has none. */
static void put_default_last(struct config *config)
{
	size_t last = config->n_tenants;
	for (size_t i = 0; i < config->n_tenants; i++) {
		if (strcmp(config->tenants[i].name, CONFIG_DEFAULT_TENANT) == 0) {
			struct config_tenant given = config->tenants[i];
			last = config->n_tenants - 1;
			memmove(&config->tenants[i], &config->tenants[i + 1],
			        (last - i) * sizeof(given));
			config->tenants[last] = given;
			return;
		}
	}
	strcpy(config->tenants[last].name, CONFIG_DEFAULT_TENANT);
	config->tenants[last].manifest_bytes = MANIFEST_BYTES;
	config->n_tenants++;
}

static CONFIG_VALUE(tenants)
{
	struct config *config = container_of(field, struct config, tenants);
	struct config_tenant *tenants;
	int result = open_list(file, at, sizeof(*tenants), &tenants);
	if (result < 0) {
		return result;
	}
	free(config->tenants); /* the built-in default one, which owns nothing */
	config->tenants = tenants;
	config->n_tenants = (size_t)config_setting_length(at);
	for (unsigned i = 0; result == 0 && i < config->n_tenants; i++) {
		result = read_tenant(file, config_setting_get_elem(at, i), config, &tenants[i]);
	}
	if (result == 0) {
		put_default_last(config);
	}
	return result;
}

/* ---- loading ---- */

/* Checks across keys. */
static int check_together(struct config_file *file, const config_setting_t *root,
                          const struct config *config)
{
	const config_setting_t *pressure = config_setting_get_member(root, "pressure");
	const config_setting_t *wait_ms = config_setting_get_member(root, "wait_ms");
	if (config->pressure == CONFIG_PRESSURE_WAIT && config->wait_ms == 0) {
		return config_file_wrong(file, wait_ms ? wait_ms : pressure,
		                         "pressure \"wait\" needs a wait_ms above 0");
	}
	if (config->pressure == CONFIG_PRESSURE_REFUSE && config->wait_ms > 0) {
		return config_file_wrong(file, wait_ms, "wait_ms needs pressure = \"wait\"");
	}
	return 0;
}

static int read_parsed(struct config_file *file, struct config *config)
{
	const config_setting_t *root = config_root_setting(&file->parsed);
	int result = read_group(file, root, "", config);
	return result < 0 ? result : check_together(file, root, config);
}

static int read_defaults(struct config *config, char *error_out, size_t error_bytes)
{
	char text[2048];
	size_t n_bytes = 0;
	for (size_t i = 0; i < n_elements(keys); i++) {
		if (*keys[i].section == '\0' && *keys[i].fallback) {
			n_bytes += (size_t)snprintf(text + n_bytes, sizeof(text) - n_bytes,
			                            "%s = %s;\n", keys[i].name, keys[i].fallback);
		}
	}
	struct config_file file;
	config_file_init(&file, "built-in defaults", error_out, error_bytes);
	int result = config_file_parse(&file, text, n_bytes);
	if (result == 0) {
		result = read_parsed(&file, config);
	}
	config_file_deinit(&file);
	return result;
}

static int read_file(struct config *config, const char *path, char *error_out, size_t error_bytes)
{
	struct config_file file;
	config_file_init(&file, path, error_out, error_bytes);
	int result = config_file_read(&file);
	if (result == 0) {
		result = read_parsed(&file, config);
	}
	config_file_deinit(&file);
	config->path = strdup(path);
	return result == 0 && !config->path ? -ENOMEM : result;
}

/* glake-mover lies beside glaked, installed or in a build tree. */
static int find_mover(char **path_out)
{
	char path[PATH_MAX];
	ssize_t n_bytes = readlink("/proc/self/exe", path, sizeof(path));
	if (n_bytes < 0 || n_bytes == sizeof(path)) {
		return n_bytes < 0 ? -errno : -ENAMETOOLONG;
	}
	path[n_bytes] = '\0';
	*strrchr(path, '/') = '\0';
	return asprintf(path_out, "%s/glake-mover", path) < 0 ? -ENOMEM : 0;
}

int config_load(const char *path, struct config **config_out, char *error_out, size_t error_bytes)
{
	struct config *config = calloc(1, sizeof(*config));
	if (config) {
		config->reader_tables.fd = -1;
	}
	/* Errors in the file have their own text; others get one here. */
	snprintf(error_out, error_bytes, "%s: out of memory", path ? path : "built-in defaults");
	int result = config ? read_defaults(config, error_out, error_bytes) : -ENOMEM;
	if (result == 0 && path) {
		result = read_file(config, path, error_out, error_bytes);
	}
	if (result == 0 && !config->mover_path) {
		result = find_mover(&config->mover_path);
	}
	if (result == 0 && config->readers) {
		result = reader_tables_load(config->readers, &config->reader_tables);
	}
	if (result < 0) {
		config_free(config);
		return result;
	}
	*config_out = config;
	return 0;
}

static void members_deinit(struct config_members *members)
{
	free(members->uids);
	free(members->gids);
}

void config_free(struct config *config)
{
	if (!config) {
		return;
	}
	for (size_t i = 0; i < config->n_realms; i++) {
		members_deinit(&config->realms[i].members);
	}
	for (size_t i = 0; i < config->n_tenants; i++) {
		members_deinit(&config->tenants[i].members);
		free(config->tenants[i].cgroup);
		free(config->tenants[i].device_bytes.bytes);
		free(config->tenants[i].host_bytes.bytes);
	}
	reader_tables_close(&config->reader_tables);
	free(config->readers);
	free(config->realms);
	free(config->tenants);
	free(config->stock);
	free(config->host_bytes.bytes);
	free(config->host_ready_bytes.bytes);
	free(config->devices);
	free(config->path);
	free(config->socket_path);
	free(config->state_path);
	free(config->mover_path);
	free(config->libcuda);
	free(config->admin_group);
	free(config);
}
