/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models whose bytes are known, in files of the test's world, and loads that last.
 *
 * Owner: one Check test. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_MODELS_H
#define GLAKE_TESTS_HARNESS_MODELS_H

#include "tests/harness/model_file.h"
#include "tests/harness/world.h"

/* Write a model with one tensor "w" of @n_bytes, whose content follows from @seed. */
const char *world_write_model(const char *name, uint64_t n_bytes, uint64_t seed);

/* Are the @n_bytes at @ptr the content of @seed, from @offset on? */
bool world_is_content(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes, uint64_t seed,
                      uint64_t offset);

struct glake_tensor world_tensor(const struct glake_model *model, const char *name);
struct glake_model_info world_info(const struct glake_model *model);

/* Load a model into the store and open it, but map it nowhere; needs no driver. */
int world_open_unmapped(struct glake_session *session, const char *path,
                        struct glake_model **model_out);
/* Another process does so, and ends. */
void world_load(const char *path);

/*
 * These let something happen in the middle of a load, however late: with WORLD_SMALL_STEPS as
 * glaked's environment and WORLD_STOP_AND_GO as the driver's faults, a model of
 * world_write_layers() has its first block at once, one more each second, and the last 20 s later. As
 * soon as the faults are gone, the rest comes at once.
 */
#define WORLD_SMALL_STEPS \
	((const char *const[]){"GLAKE_MOVER_READERS=1", "GLAKE_MOVER_SLOT_KIB=256", NULL})
#define WORLD_STOP_AND_GO "glake-mover/cuMemcpyHtoDAsync_v2:10+:slow=120"
#define WORLD_N_LAYERS 20
#define WORLD_LAYER_BYTES (2 * MIB)
#define WORLD_MODEL_BYTES (WORLD_N_LAYERS * WORLD_LAYER_BYTES)

/* Write a model of many blocks, whose content follows from @seed. */
const char *world_write_layers(const char *name, uint64_t seed);

/* Is @model, which is mapped, the model of @seed? */
bool world_has_layers(struct glake_session *session, const struct glake_model *model,
                      uint64_t seed);

#endif
