/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that glaked needs for manifests: who pays for it, and where it ends. */
#include "tests/harness/model_file.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define LIMIT(bytes) "tenants = ({ name = \"default\"; manifest_bytes = \"" bytes "\"; });"

static int find_model(void *user, const struct glake_model_row *row)
{
	return strcmp(row->name, user) == 0;
}

static bool is_there(const char *path)
{
	return glake_list_models(eye, find_model, (void *)path) == 1;
}

static void load(const char *path, bool pin)
{
	struct glake_model_options options = {.size = sizeof(options), .no_map = 1, .pin = pin};
	struct glake_model *model;
	assert_ok(glake_model_open(eye, path, &options, &model));
	glake_model_close(model);
}

struct manifests {
	const char *tenant;
	uint64_t bytes;
	uint64_t quota_bytes;
};

static int add_manifests(void *user, const struct glake_tenant_row *row)
{
	struct manifests *manifests = user;
	if (strcmp(row->name, manifests->tenant) == 0) {
		manifests->bytes = row->manifest_bytes;
		manifests->quota_bytes = row->quota_manifest_bytes;
	}
	return 0;
}

static struct manifests manifests_of(const char *tenant)
{
	struct manifests manifests = {.tenant = tenant};
	assert_ok(glake_list_tenants(eye, add_manifests, &manifests));
	return manifests;
}

/* A manifest of 60 MiB. */
#define N_WORDY 60000u

/* The device has room for all of them; glaked has not. The least used goes, and nothing else. */
START_TEST(manifests_that_nobody_uses_are_bounded)
{
	char paths[3][512];
	world_begin(.config = WORLD_CONFIG, .devices = "1x512MiB");
	for (unsigned i = 0; i < 3; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%s%u.safetensors", world_path("wordy"), i);
		model_file_write_wordy(paths[i], N_WORDY, 0);
	}
	load(paths[0], true);
	uint64_t n_evicted = world_metric("models_evicted");
	load(paths[1], false);
	load(paths[2], false);
	assert_ok(glake_pin(eye, paths[0], 0));
	while (is_there(paths[1])) {
		harness_sleep_ms(10);
	}
	ck_assert(is_there(paths[0]) && is_there(paths[2]));
	ck_assert_uint_eq(world_metric("models_evicted"), n_evicted + 1);
}
END_TEST

/* While its plan arrives, so that glaked never has much more than the limit. */
START_TEST(a_manifest_beyond_the_limit_is_refused)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG LIMIT("8MiB"), .devices = "1x512MiB");
	const char *path = world_path("wordy.safetensors");
	model_file_write_wordy(path, N_WORDY, 0);
	struct glake_session *session = world_connect_blind();
	struct books before = world_books();
	uint64_t rss_bytes = harness_rss_bytes(&harness);
	assert_fails(GLAKE_E_OVER_QUOTA, "more for manifests: tenant default uses 8.0 of 8.0 MiB",
	             world_open_unmapped(session, path, &model));
	ck_assert(TEST_SANITIZED || harness_rss_bytes(&harness) < rss_bytes + 40 * MIB);
	world_wait_books(&before);
	ck_assert_uint_eq(manifests_of("default").bytes, 0);
	ck_assert_uint_eq(manifests_of("default").quota_bytes, 8 * MIB);
	ck_assert_uint_ge(world_metric("quota_refusals"), 1);
	assert_ok(world_open_unmapped(session, world_write_model("m.safetensors", MIB, 1), &model));
}
END_TEST

/* In use or pinned it is his who keeps it; else the cache's. */
START_TEST(who_keeps_a_model_pays_for_its_manifest)
{
	struct glake_model *model;
	struct glake_model *other;
	char paths[2][512];
	world_begin(.config = WORLD_CONFIG LIMIT("100MiB"), .devices = "1x512MiB");
	for (unsigned i = 0; i < 2; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%s%u.safetensors", world_path("wordy"), i);
		model_file_write_wordy(paths[i], N_WORDY, 0);
	}
	struct glake_session *session = world_connect_blind();
	load(paths[0], false);
	uint64_t bytes = manifests_of("cache").bytes;
	ck_assert_uint_gt(bytes, 60 * MIB);
	ck_assert_uint_eq(manifests_of("default").bytes, 0);
	assert_ok(world_open_unmapped(session, paths[1], &model));
	/* And that it is open. */
	ck_assert_uint_eq(manifests_of("default").bytes, bytes + 256);

	/* The first one is there, and no more than that. */
	struct books before = world_books();
	assert_fails(GLAKE_E_OVER_QUOTA, "more for manifests: tenant default uses",
	             world_open_unmapped(session, paths[0], &other));
	assert_fails(GLAKE_E_OVER_QUOTA, "more for manifests: tenant default uses",
	             glake_pin(eye, paths[0], 1));
	world_wait_books(&before);
	ck_assert_uint_eq(manifests_of("cache").bytes, bytes);

	assert_ok(glake_pin(eye, paths[1], 1));
	glake_model_close(model);
	ck_assert_uint_eq(manifests_of("default").bytes, bytes);
	assert_fails(GLAKE_E_OVER_QUOTA, "more for manifests: tenant default uses",
	             world_open_unmapped(session, paths[0], &other));
	assert_ok(glake_pin(eye, paths[1], 0));
	ck_assert_uint_eq(manifests_of("default").bytes, 0);
	assert_ok(world_open_unmapped(session, paths[0], &other));
	ck_assert_uint_eq(manifests_of("default").bytes, bytes + 256);
}
END_TEST

/* Each open of changed files leaves one such model in the store, and there may be no memory to evict it for. */
START_TEST(a_model_without_tensors_is_charged_for_its_files)
{
	enum { N_FILES = 200, FILE_ID_BYTES = 80 };
	static const char header[16] = "\x08\0\0\0\0\0\0\0{}      ";
	struct glake_model_options options = {.size = sizeof(options), .no_map = 1};
	struct glake_model *model;
	int fds[N_FILES];
	world_begin(.config = WORLD_CONFIG, .devices = "1x512MiB");
	for (unsigned i = 0; i < N_FILES; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%u.safetensors", i);
		FILE *file = fopen(world_path(name), "w+e");
		ck_assert_uint_eq(fwrite(header, sizeof(header), 1, file), 1);
		fclose(file);
		fds[i] = open(world_path(name), O_RDONLY | O_CLOEXEC);
		ck_assert_int_ge(fds[i], 0);
	}
	assert_ok(glake_model_open_fds(eye, fds, NULL, N_FILES, &options, &model));
	for (unsigned i = 0; i < N_FILES; i++) {
		close(fds[i]);
	}
	ck_assert_uint_ge(manifests_of("default").bytes, N_FILES * FILE_ID_BYTES);
	glake_model_close(model);
	ck_assert_uint_ge(manifests_of("cache").bytes, N_FILES * FILE_ID_BYTES);
	ck_assert_uint_eq(manifests_of("default").bytes, 0);
}
END_TEST
