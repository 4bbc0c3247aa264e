/* SPDX-License-Identifier: Apache-2.0 */
/* glake readers: check tables of readers (shim/readers.h), because programs under the shim ignore wrong tables silently. */
#ifndef GLAKE_RUN_READERS_H
#define GLAKE_RUN_READERS_H

/* @argv[0]: the verb. Returns the exit code: 0; 1: a file does not count; 125: wrong usage. */
int readers_main(int argc, char **argv);

#endif
