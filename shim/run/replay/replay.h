/* SPDX-License-Identifier: Apache-2.0 */
/* glake replay: an allocation trace against glake's allocator and models of others. */
#ifndef GLAKE_SHIM_RUN_REPLAY_REPLAY_H
#define GLAKE_SHIM_RUN_REPLAY_REPLAY_H

/* The command, with its own name as argv[0]. Returns the exit status. Threads: one. */
int replay_main(int argc, char **argv);

#endif
