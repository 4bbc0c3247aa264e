/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a planned model can come to fit, asked once, before anything is evicted for it.
 *
 * Which of its blocks are known is seen only when they are loaded. So as many as there are blocks in use
 * of the same size in the realm count as known already, and the model is refused only if the rest is too
 * much: for the device, for the tenant's bytes, or for fds. Equal blocks inside one model are not
 * reckoned with. Where requests wait for memory (`pressure = "wait"`) blocks in use may go meanwhile,
 * and only what is larger than the device or the quota is refused here.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LOAD_ROOM_H
#define GLAKE_DAEMON_LOAD_ROOM_H

#include "daemon/memory/alloc.h"
#include "daemon/base/status.h"
#include "daemon/store/store.h"

/*
 * @model has its whole plan and no block yet; @payer is to pay. Returns STATUS_OK, or why not, with one
 * line in @error.
 */
enum status load_check_room(const struct store *store, const struct allocator *allocator,
                            const struct model *model, const struct tenant *payer, char *error,
                            size_t n_error);

#endif
