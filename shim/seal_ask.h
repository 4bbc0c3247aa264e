/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing that somebody outside asks for, by glaked (`glakectl seal`). The service thread seals memory that looks like weights
 * in place, and tells glaked its progress and the result.
 *
 * Nothing is sealed if a fault or a write could do more harm than in a program that seals by its own call: if a device that
 * writes past the GPU's page tables is open, or the program is a client of MPS.
 *
 * Threads: asking: any; serving: the connection's service thread.
 */
#ifndef GLAKE_SHIM_SEAL_ASK_H
#define GLAKE_SHIM_SEAL_ASK_H

#include "shim/connection.h"

/* From now on the process follows glaked's wishes to seal. Called before other threads use @connection. */
void seal_ask_follow(struct connection *connection);

/* Seal if glaked has asked, in a turn. Stops between two batches once the turn is the last. */
void seal_ask_serve(struct connection *connection);

#endif
