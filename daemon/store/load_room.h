/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks once, before anything is evicted for it, whether a planned model can fit.
 *
 * Only the load shows which of its blocks are known. So as many blocks count as known as the realm
 * has blocks in use of the same size. The model is refused only if the rest is too much for the
 * device, for the tenant's bytes, or for fds. Equal blocks inside one model are ignored. If
 * requests wait for memory (`pressure = "wait"`), blocks in use may go meanwhile, so only models
 * larger than the device or the quota are refused.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LOAD_ROOM_H
#define GLAKE_DAEMON_LOAD_ROOM_H

#include "daemon/memory/alloc.h"
#include "daemon/base/status.h"
#include "daemon/store/store.h"

/*
 * @model has its complete plan and no block yet; @payer will pay. Returns STATUS_OK, or another
 * status, the bound, and one line in @error.
 */
enum status load_check_room(const struct store *store, const struct allocator *allocator,
                            const struct model *model, struct tenant *payer,
                            struct refusal *refusal_out, char *error, size_t n_error);

#endif
