/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A terminal as a screen: drawn anew as a whole, with keys read one by one. Plain ANSI sequences.
 *
 * Owner: whoever has the struct. Lifetime: screen_open() to screen_close(), which gives the terminal back as it
 * was; so it must come, also after a signal. Threads: one.
 */
#ifndef GLAKE_CTL_SCREEN_H
#define GLAKE_CTL_SCREEN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <termios.h>

enum screen_key {
	KEY_NONE, /* the time is over, the size has changed, or the fd can be read */
	KEY_QUIT, /* also a signal that asks to end */
	KEY_SORT,
	KEY_REVERSE,
	KEY_VIEW,
	KEY_UP,
	KEY_DOWN,
	KEY_PAGE_UP,
	KEY_PAGE_DOWN,
	KEY_HOME,
	KEY_END,
	KEY_OTHER,
};

struct screen {
	FILE *out; /* borrowed */
	struct termios before;
	unsigned rows;
	unsigned columns;
	char typed[32]; /* and not looked at yet */
	size_t n_typed;
};

/* Columns of the terminal that @out is; 0: it is none. */
unsigned screen_width(FILE *out);

/* Returns false if @out or standard input is no terminal: then it is not open. */
bool screen_open(struct screen *screen, FILE *out);
void screen_close(struct screen *screen);

/* Lines of @text, as many and as much of each as the screen has room for. */
void screen_draw(struct screen *screen, const char *text);

/* The next key; KEY_NONE after @ms, or when @fd can be read. */
enum screen_key screen_wait(struct screen *screen, int fd, int ms);

#endif
