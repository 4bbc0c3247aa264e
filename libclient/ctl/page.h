/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page of the memory map, map_page.html, which is a part of the program. It may run the script that is in it and ask the server
 * that it came from; a number that nobody can guess (a nonce) tells the browser which script and style are ours.
 *
 * Threads: any.
 */
#ifndef GLAKE_CTL_PAGE_H
#define GLAKE_CTL_PAGE_H

#include <jansson.h>
#include <stdio.h>

/*
 * Write it with @document in it (borrowed): then it needs nothing else; or with NULL: then it asks its server, again and again.
 * Returns 0, or CTL_E_OUTPUT: no memory, or no random numbers. Errors of @out stay there.
 */
int page_write(const json_t *document, FILE *out);

#endif
