/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing that somebody outside asks for, by glaked (`glakectl seal`): what looks like weights is sealed in
 * place by the service thread, and glaked is told how far it is and what became of it.
 *
 * Nothing is sealed if a fault or a write could do more harm than in a program that asks itself: a device that
 * writes past the GPU's page tables is open, or the program is a client of MPS.
 *
 * Threads: asking: any; serving: the connection's service thread.
 */
#ifndef GLAKE_SHIM_SEAL_ASK_H
#define GLAKE_SHIM_SEAL_ASK_H

#include "shim/connection.h"

/* The connection's program follows glaked's wishes from now on. Before other threads use it. */
void seal_ask_follow(struct connection *connection);

/* Do what was asked for, if anything was, in a turn. It stops between two batches once the turn is the last. */
void seal_ask_serve(struct connection *connection);

#endif
