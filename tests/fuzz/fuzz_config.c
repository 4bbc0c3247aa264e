/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A config file. It is taken, and then every lookup works; or it is refused with one line that
 * names the file.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "tests/fuzz/must.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);
const char *__lsan_default_suppressions(void);

/* libconfig 1.5 forgets the text it had just read when it meets a syntax error. */
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig\n";
}

static void look_up(const struct config *config)
{
	static gid_t gids[] = {0, 5, 1000};
	char realm[CONFIG_NAME_BYTES];
	for (uid_t uid = 0; uid < 3; uid++) {
		const struct peer peer = {.uid = uid,
		                          .owner = uid,
		                          .gids = gids,
		                          .n_gids = 3,
		                          .cgroup = (char *)"/system.slice/x.service"};
		config_realm_of(config, &peer, realm, sizeof(realm));
		must(realm[0] != '\0');
		const struct config_tenant *tenant = config_tenant_of(config, &peer);
		must(tenant->name[0] != '\0');
		config_sizes_at(&tenant->device_bytes, uid);
	}
	must(strcmp(config->tenants[config->n_tenants - 1].name, CONFIG_DEFAULT_TENANT) == 0);
	must(config_fd_budget(config) > 0);
	must(config->load_window_bytes >= 64 * 1024 * 1024);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
	char path[64];
	char error[512] = "";
	struct config *config = NULL;
	int fd = memfd_create("config", MFD_CLOEXEC);
	must(fd >= 0 && write(fd, bytes, n_bytes) == (ssize_t)n_bytes);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int result = config_load(path, &config, error, sizeof(error));
	close(fd);
	if (result == 0) {
		look_up(config);
		config_free(config);
		return 0;
	}
	must(result == -EINVAL && config == NULL);
	must(strncmp(error, path, strlen(path)) == 0 && strlen(error) < sizeof(error) - 1);
	return 0;
}
