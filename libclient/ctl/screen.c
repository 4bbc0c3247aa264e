/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/screen.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The other screen, without a cursor; and back. */
#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

static volatile sig_atomic_t is_ended;

static void end(int number)
{
	(void)number;
	is_ended = 1;
}

/* It only interrupts the wait. */
static void wake(int number)
{
	(void)number;
}

static void set_handlers(void (*ending)(int), void (*resized)(int))
{
	struct sigaction action = {.sa_handler = ending};
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	action.sa_handler = resized;
	sigaction(SIGWINCH, &action, NULL);
}

unsigned screen_width(FILE *out)
{
	struct winsize size;
	int fd = fileno(out);
	return fd >= 0 && isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static void measure(struct screen *screen)
{
	struct winsize size = {.ws_row = 0};
	ioctl(fileno(screen->out), TIOCGWINSZ, &size);
	screen->rows = size.ws_row > 0 ? size.ws_row : 24;
	screen->columns = size.ws_col > 0 ? size.ws_col : 80;
}

bool screen_open(struct screen *screen, FILE *out)
{
	*screen = (struct screen){.out = out};
	int fd = fileno(out);
	if (fd < 0 || !isatty(fd) || tcgetattr(STDIN_FILENO, &screen->before) < 0) {
		return false;
	}
	struct termios raw = screen->before;
	/* Ctrl-C is a key, too. */
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	is_ended = 0;
	set_handlers(end, wake);
	tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	fputs(ENTER, out);
	measure(screen);
	return true;
}

void screen_close(struct screen *screen)
{
	fputs(LEAVE, screen->out);
	fflush(screen->out);
	tcsetattr(STDIN_FILENO, TCSANOW, &screen->before);
	set_handlers(SIG_DFL, SIG_DFL);
}

/* Of a line, what fits. Sequences that set colours take no room. Returns its length in bytes. */
static size_t fitting(const char *line, size_t n_bytes, unsigned columns)
{
	size_t i = 0;
	unsigned width = 0;
	while (i < n_bytes) {
		if (line[i] == '\033') {
			size_t n = strcspn(line + i, "m") + 1;
			i = i + n < n_bytes ? i + n : n_bytes;
			continue;
		}
		bool is_start = ((unsigned char)line[i] & 0xc0) != 0x80;
		if (is_start && width == columns) {
			break;
		}
		width += is_start;
		i++;
	}
	return i;
}

void screen_draw(struct screen *screen, const char *text)
{
	measure(screen);
	fputs("\033[H", screen->out);
	for (unsigned row = 0; row < screen->rows && *text; row++) {
		size_t n_bytes = strcspn(text, "\n");
		fprintf(screen->out, "%s%.*s\033[0m\033[K", row > 0 ? "\r\n" : "",
		        (int)fitting(text, n_bytes, screen->columns), text);
		text += n_bytes + (text[n_bytes] == '\n');
	}
	fputs("\033[J", screen->out);
	fflush(screen->out);
}

/* Takes the first key of what was typed. */
static enum screen_key take_key(struct screen *screen)
{
	static const struct {
		const char *bytes;
		enum screen_key key;
	} keys[] = {
		{"q", KEY_QUIT},
		{"\003", KEY_QUIT},
		{"s", KEY_SORT},
		{"r", KEY_REVERSE},
		{"m", KEY_VIEW},
		{"\t", KEY_VIEW},
		{"\033[A", KEY_UP},
		{"\033OA", KEY_UP},
		{"k", KEY_UP},
		{"\033[B", KEY_DOWN},
		{"\033OB", KEY_DOWN},
		{"j", KEY_DOWN},
		{"\033[5~", KEY_PAGE_UP},
		{"\033[6~", KEY_PAGE_DOWN},
		{"\033[H", KEY_HOME},
		{"\033OH", KEY_HOME},
		{"\033[1~", KEY_HOME},
		{"\033[F", KEY_END},
		{"\033OF", KEY_END},
		{"\033[4~", KEY_END},
	};
	enum screen_key key = KEY_OTHER;
	size_t n_bytes = 1;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		size_t n = strlen(keys[i].bytes);
		if (screen->n_typed >= n && memcmp(screen->typed, keys[i].bytes, n) == 0) {
			key = keys[i].key;
			n_bytes = n;
		}
	}
	screen->n_typed -= n_bytes;
	memmove(screen->typed, screen->typed + n_bytes, screen->n_typed);
	return key;
}

enum screen_key screen_wait(struct screen *screen, int fd, int ms)
{
	struct pollfd inputs[] = {
		{.fd = STDIN_FILENO, .events = POLLIN},
		{.fd = fd, .events = POLLIN},
	};
	if (is_ended) {
		return KEY_QUIT;
	}
	if (screen->n_typed > 0) {
		return take_key(screen);
	}
	int n = poll(inputs, 2, ms);
	if (is_ended) {
		return KEY_QUIT;
	}
	if (n <= 0 || !inputs[0].revents) {
		return KEY_NONE;
	}
	ssize_t n_bytes = read(STDIN_FILENO, screen->typed, sizeof(screen->typed));
	if (n_bytes <= 0) {
		/* The terminal has gone. */
		return KEY_QUIT;
	}
	screen->n_typed = (size_t)n_bytes;
	return take_key(screen);
}
