/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/models.h"

const char *world_write_model(const char *name, uint64_t n_bytes, uint64_t seed)
{
	struct model_tensor tensor = {"w", "U8", 1, {n_bytes}, seed};
	const char *path = world_path(name);
	model_file_write(path, &tensor, 1);
	return path;
}

bool world_is_content(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes, uint64_t seed,
                      uint64_t offset)
{
	struct model_tensor tensor = {.seed = seed};
	uint8_t *got = malloc(n_bytes);
	uint8_t *want = malloc(n_bytes);
	ck_assert(got && want);
	model_tensor_fill(&tensor, offset, want, n_bytes);
	assert_ok(glake_read(session, 0, got, ptr, n_bytes));
	bool is_equal = same_bytes(got, want, n_bytes);
	free(got);
	free(want);
	return is_equal;
}

struct glake_tensor world_tensor(const struct glake_model *model, const char *name)
{
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	assert_ok(glake_model_tensor(model, name, &tensor));
	return tensor;
}

struct glake_model_info world_info(const struct glake_model *model)
{
	struct glake_model_info info = {.size = sizeof(info)};
	assert_ok(glake_model_info(model, &info));
	return info;
}

int world_open_unmapped(struct glake_session *session, const char *path,
                        struct glake_model **model_out)
{
	struct glake_model_options options = {.size = sizeof(options), .no_map = 1};
	return glake_model_open(session, path, &options, model_out);
}

static void load_and_leave(void *path)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	glake_model_close(model);
	world_disconnect(session);
}

void world_load(const char *path)
{
	world_join(world_client(load_and_leave, (void *)path));
}

static struct model_tensor *layers_of(uint64_t seed)
{
	static char names[WORLD_N_LAYERS][8];
	static struct model_tensor layers[WORLD_N_LAYERS];
	for (unsigned i = 0; i < WORLD_N_LAYERS; i++) {
		snprintf(names[i], sizeof(names[i]), "w%02u", i);
		layers[i] = (struct model_tensor){
			names[i], "U8", 1, {WORLD_LAYER_BYTES}, seed * WORLD_N_LAYERS + i};
	}
	return layers;
}

const char *world_write_layers(const char *name, uint64_t seed)
{
	const char *path = world_path(name);
	model_file_write(path, layers_of(seed), WORLD_N_LAYERS);
	return path;
}

bool world_has_layers(struct glake_session *session, const struct glake_model *model, uint64_t seed)
{
	const struct model_tensor *layers = layers_of(seed);
	bool is_equal = true;
	for (unsigned i = 0; i < WORLD_N_LAYERS; i++) {
		is_equal = is_equal &&
		           world_is_content(session, world_tensor(model, layers[i].name).ptr,
		                            WORLD_LAYER_BYTES, layers[i].seed, 0);
	}
	return is_equal;
}
