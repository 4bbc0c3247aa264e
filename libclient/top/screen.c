/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each time something changes, all is drawn anew: ncurses sends the terminal only what differs. All texts that are foreign
 * have gone through text_escape().
 *
 * The screen, from above: a line that says what is shown and how it is sorted, glaked's numbers, the GPUs, the meaning of their
 * bars, and the rows. A narrow screen leaves columns out, the last ones first, but never the very last, which is the name. With many
 * GPUs several of them share a line, so that half of the screen is left for rows.
 */
#include "top/screen.h"

#include <curses.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl/table.h"
#include "ctl/text.h"

/* Pairs of colours: parts of bars, in their order, then tenants. */
#define PAIR_PARTS 1
#define PAIR_TENANTS ((short)(PAIR_PARTS + TOP_N_PARTS))
#define PAIR_TROUBLE ((short)(PAIR_TENANTS + N_TENANT_COLOURS))
#define N_TENANT_COLOURS 6

#define MIN_GPU_COLUMNS 38
#define MIN_NAME_COLUMNS 12
#define ESCAPE 27
#define CTRL_C 3

static volatile sig_atomic_t is_ended;

struct view {
	struct top *top;
	size_t first;   /* row that is shown */
	size_t n_rows;  /* that there are */
	size_t n_page;  /* that have room */
	bool is_typing; /* the filter */
};

static void end(int number)
{
	(void)number;
	is_ended = 1;
}

/* ---- the terminal ----------------------------------------------------------------------------- */

static void choose_colours(void)
{
	static const short parts[TOP_N_PARTS] = {COLOR_BLUE,   COLOR_GREEN,  COLOR_CYAN,
	                                         COLOR_WHITE,  COLOR_YELLOW, COLOR_RED,
	                                         COLOR_MAGENTA};
	static const short tenants[N_TENANT_COLOURS] = {COLOR_CYAN,    COLOR_GREEN, COLOR_YELLOW,
	                                                COLOR_MAGENTA, COLOR_BLUE,  COLOR_RED};
	const char *none = getenv("NO_COLOR");
	if ((none && *none) || !has_colors() || start_color() == ERR) {
		return;
	}
	use_default_colors();
	for (short i = 0; i < (short)TOP_N_PARTS; i++) {
		init_pair((short)(PAIR_PARTS + i), parts[i], -1);
	}
	for (short i = 0; i < N_TENANT_COLOURS; i++) {
		init_pair((short)(PAIR_TENANTS + i), tenants[i], -1);
	}
	init_pair(PAIR_TROUBLE, COLOR_RED, -1);
}

/* 0 where there are no colours. */
static attr_t colour(short pair)
{
	return COLOR_PAIRS > pair && has_colors() ? (attr_t)COLOR_PAIR(pair) : 0;
}

/* A tenant has the same colour at all times, by its name. */
static attr_t tenant_colour(const char *tenant)
{
	uint32_t hash = 2166136261u;
	for (; *tenant; tenant++) {
		hash = (hash ^ (unsigned char)*tenant) * 16777619u;
	}
	return colour((short)(PAIR_TENANTS + (short)(hash % N_TENANT_COLOURS)));
}

/* NULL: there is no description of the terminal, or it cannot do it. */
static SCREEN *open_terminal(FILE *out)
{
	struct sigaction action = {.sa_handler = end};
	is_ended = 0;
	SCREEN *screen = newterm(NULL, out, stdin);
	/* One that cannot go back to a place is good for lines only. */
	const char *move_to = screen ? tigetstr("cup") : NULL;
	if (screen && (!move_to || move_to == (char *)-1)) {
		endwin();
		delscreen(screen);
		screen = NULL;
	}
	if (!screen) {
		return NULL;
	}
	/* In place of ncurses' own, which end the process. */
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	choose_colours();
	raw();
	noecho();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	set_escdelay(50);
	curs_set(0);
	return screen;
}

static void close_terminal(SCREEN *screen)
{
	endwin();
	delscreen(screen);
	signal(SIGTERM, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	signal(SIGINT, SIG_DFL);
}

/*
 * Text at the cursor, as much as fits: ncurses would go on in the next line. So the cursor never leaves the line but at its very end,
 * and the last column stays empty.
 */
static void __attribute__((format(printf, 1, 2))) put(const char *format, ...)
{
	char text[1024];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	int left = COLS - 1 - getcurx(stdscr);
	if (left > 0) {
		addnstr(text, (int)text_fitting(text, (size_t)left));
	}
}

static void begin_line(int y)
{
	move(y, 0);
	clrtoeol();
}

/* ---- what stands above the rows --------------------------------------------------------------- */

static void draw_title(const struct view *view)
{
	const struct top *top = view->top;
	const char *trouble = top_trouble(top);
	begin_line(0);
	attron(A_REVERSE);
	put(" %s by %s%s, %zu of %zu ", top_view_name(top->view), top_order_name(top),
	    top->is_reverse[top->view] ? " up" : "", view->n_rows > 0 ? view->first + 1 : 0,
	    view->n_rows);
	attroff(A_REVERSE);
	if (top->gpu != TOP_ALL_GPUS) {
		put(" on GPU %" PRIu32, top->gpu);
	}
	if (view->is_typing || top->filter[0]) {
		char *filter = text_escape(top->filter);
		attron(A_BOLD);
		put(" with '%s%s'", filter ? filter : "", view->is_typing ? "_" : "");
		attroff(A_BOLD);
		free(filter);
	}
	if (trouble) {
		attron(colour(PAIR_TROUBLE) | A_BOLD);
		put("  %s; trying again", trouble);
		attroff(colour(PAIR_TROUBLE) | A_BOLD);
	} else if (view->is_typing) {
		put("  Enter keeps it, Esc drops it");
	} else {
		put("  q quit  s sort  r turn  m %s  / filter  g GPU",
		    top_view_name((top->view + 1) % TOP_N_VIEWS));
	}
}

/* Returns the next line. */
static int draw_numbers(const struct top *top)
{
	char daemon[TOP_LINE_BYTES];
	char rates[TOP_LINE_BYTES];
	top_numbers(top, daemon, rates);
	begin_line(1);
	put("%s", daemon);
	begin_line(2);
	put("%s", rates);
	return 3;
}

/* One GPU, in @n_columns from @x on: "12 H200 [PPPB...] 81.4 GiB of 139.8 GiB". */
static void draw_gpu(const struct top *top, const struct glake_device_status *device, int y, int x,
                     int n_columns)
{
	struct top_part parts[TOP_N_PARTS];
	unsigned ends[TOP_N_PARTS];
	unsigned column = 0;
	char used[2 * TEXT_NUMBER_BYTES + 16];
	top_parts(device, parts);
	top_used(device, used, sizeof(used));
	int n_bar = n_columns - 7 - (int)strlen(used);
	char *name = text_escape(device->name);
	move(y, x);
	attron(top->gpu == device->index ? A_REVERSE : 0);
	put("%2" PRIu32, device->index);
	attroff(A_REVERSE);
	if (name && n_bar > 48) {
		text_shorten(name, 14);
		put(" %-14s", name);
		n_bar -= 15;
	}
	free(name);
	n_bar = n_bar > 4 ? n_bar : 4;
	top_ends(parts, device->total_bytes, (unsigned)n_bar, ends);
	put(" [");
	for (unsigned i = 0; i < TOP_N_PARTS; i++) {
		attron(colour((short)(PAIR_PARTS + (short)i)));
		for (; column < ends[i]; column++) {
			put("%c", parts[i].letter);
		}
		attroff(colour((short)(PAIR_PARTS + (short)i)));
	}
	for (; column < (unsigned)n_bar; column++) {
		put(".");
	}
	put("] %s", used);
}

/* Returns the next line. */
static int draw_gpus(const struct top *top, int y)
{
	size_t n = top->now.devices.n;
	size_t n_lines = LINES > 12 ? (size_t)(LINES - 8) / 2 : 2;
	size_t n_side = (n + n_lines - 1) / n_lines;
	size_t most = COLS > MIN_GPU_COLUMNS ? (size_t)COLS / MIN_GPU_COLUMNS : 1;
	n_side = n_side < most ? n_side : most;
	n_side = n_side > 0 ? n_side : 1;
	int width = COLS / (int)n_side;
	size_t rows = (n + n_side - 1) / n_side;
	for (size_t i = 0; i < rows; i++) {
		begin_line(y + (int)i);
	}
	for (size_t i = 0; i < n; i++) {
		draw_gpu(top, rows_at(&top->now.devices, i), y + (int)(i % rows),
		         (int)(i / rows) * width, width - (n_side > 1 ? 2 : 0));
	}
	y += (int)rows;
	if (n > 0) {
		struct top_part parts[TOP_N_PARTS];
		top_parts(rows_at(&top->now.devices, 0), parts);
		begin_line(y++);
		for (unsigned i = 0; i < TOP_N_PARTS; i++) {
			attron(colour((short)(PAIR_PARTS + (short)i)) | A_BOLD);
			put("%c", parts[i].letter);
			attroff(colour((short)(PAIR_PARTS + (short)i)) | A_BOLD);
			put(" %s  ", parts[i].name);
		}
	}
	return y;
}

/* ---- the rows --------------------------------------------------------------------------------- */

/* How many columns fit before the last, which gets the rest. */
static size_t fitting(const struct table *table, const size_t *widths)
{
	size_t last = table->n_columns - 1;
	size_t n_last = widths[last] < MIN_NAME_COLUMNS ? widths[last] : MIN_NAME_COLUMNS;
	size_t used = 0;
	size_t n = 0;
	while (n < last && used + widths[n] + 2 + n_last < (size_t)COLS) {
		used += widths[n++] + 2;
	}
	return n;
}

static void draw_cell(const char *text, size_t width, bool right)
{
	int padding = (int)(width > text_width(text) ? width - text_width(text) : 0);
	if (right) {
		put("%*s%s  ", padding, "", text);
	} else {
		put("%s%*s  ", text, padding, "");
	}
}

static void draw_row(const struct table *table, const size_t *widths, size_t row, size_t n_fit,
                     attr_t tenant)
{
	char **cells = table->cells + row * table->n_columns;
	size_t last = table->n_columns - 1;
	for (size_t i = 0; i < n_fit; i++) {
		bool is_tenant = strcmp(table->cells[i], "TENANT") == 0;
		attron(is_tenant ? tenant : 0);
		draw_cell(cells[i], widths[i], table->right[i]);
		attroff(is_tenant ? tenant : 0);
	}
	int x = getcurx(stdscr);
	if (x + 6 <= COLS) {
		text_shorten(cells[last], (size_t)(COLS - 1 - x));
		attron(tenant | (row > 0 ? A_BOLD : 0));
		put("%s", cells[last]);
		attroff(tenant | A_BOLD);
	}
}

static int draw_rows(struct view *view, int y)
{
	struct top *top = view->top;
	struct rows rows = {.n = 0};
	struct table table;
	size_t n_fields;
	const struct field *fields = top_fields(top, &n_fields);
	int err = top_list(top, &rows);
	view->n_rows = rows.n;
	view->n_page = LINES > y + 1 ? (size_t)(LINES - y - 1) : 1;
	if (view->first >= rows.n) {
		view->first = rows.n > 0 ? rows.n - 1 : 0;
	}
	table_init(&table);
	field_columns(&table, fields, n_fields);
	size_t n = 0;
	for (; view->first + n < rows.n && n < view->n_page; n++) {
		field_cells(&table, fields, n_fields, rows_at(&rows, view->first + n),
		            top->ctl->exact);
	}
	size_t *widths = table_widths(&table);
	if (err == 0 && !widths) {
		err = CTL_E_OUTPUT;
	}
	if (err == 0) {
		size_t n_fit = fitting(&table, widths);
		for (size_t i = 0; i <= n; i++) {
			begin_line(y + (int)i);
			attron(i == 0 ? A_BOLD | A_UNDERLINE : 0);
			draw_row(&table, widths, i, n_fit,
			         i == 0 ? 0
			                : tenant_colour(top_tenant_of(
						  top, rows_at(&rows, view->first + i - 1))));
			attroff(A_BOLD | A_UNDERLINE);
		}
	}
	free(widths);
	table_deinit(&table);
	rows_deinit(&rows);
	return err;
}

static int draw(struct view *view)
{
	erase();
	int y = draw_numbers(view->top);
	y = draw_gpus(view->top, y);
	int err = draw_rows(view, y + 1);
	/* The title counts rows, so it is drawn last. */
	draw_title(view);
	refresh();
	return err;
}

/* ---- keys ------------------------------------------------------------------------------------- */

static void scroll_by(struct view *view, long by)
{
	long first = (long)view->first + by;
	long last = view->n_rows > 0 ? (long)view->n_rows - 1 : 0;
	view->first = (size_t)(first < 0 ? 0 : first > last ? last : first);
}

static void next_gpu(struct top *top)
{
	const struct rows *devices = &top->now.devices;
	size_t i = 0;
	if (top->gpu != TOP_ALL_GPUS) {
		while (i < devices->n &&
		       ((struct glake_device_status *)rows_at(devices, i))->index != top->gpu) {
			i++;
		}
		i++;
	}
	top->gpu = i < devices->n ? ((struct glake_device_status *)rows_at(devices, i))->index
	                          : TOP_ALL_GPUS;
}

/* A key while the filter is typed: bytes, so that any text of UTF-8 can be. */
static void type(struct view *view, int key)
{
	char *filter = view->top->filter;
	size_t n = strlen(filter);
	if (key == '\r' || key == '\n' || key == KEY_ENTER) {
		view->is_typing = false;
	} else if (key == ESCAPE) {
		view->is_typing = false;
		filter[0] = '\0';
	} else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
		while (n > 0 && ((unsigned char)filter[--n] & 0xc0) == 0x80) {
		}
		filter[n] = '\0';
	} else if (key >= ' ' && key < 256 && n + 1 < sizeof(view->top->filter)) {
		filter[n] = (char)key;
		filter[n + 1] = '\0';
	}
	view->first = 0;
}

/* Returns whether it goes on. */
static bool follow_key(struct view *view, int key)
{
	struct top *top = view->top;
	long page = view->n_page > 0 ? (long)view->n_page : 1;
	if (key == CTRL_C) {
		return false;
	}
	if (view->is_typing) {
		type(view, key);
		return true;
	}
	switch (key) {
	case 'q':
		return false;
	case 's':
		top_next_order(top);
		break;
	case 'r':
		top->is_reverse[top->view] ^= true;
		break;
	case 'm':
	case '\t':
		top->view = (top->view + 1) % TOP_N_VIEWS;
		view->first = 0;
		break;
	case 'g':
		next_gpu(top);
		view->first = 0;
		break;
	case '/':
		view->is_typing = true;
		break;
	case ESCAPE:
		top->filter[0] = '\0';
		top->gpu = TOP_ALL_GPUS;
		break;
	case 'k':
	case KEY_UP:
		scroll_by(view, -1);
		break;
	case 'j':
	case KEY_DOWN:
		scroll_by(view, 1);
		break;
	case KEY_PPAGE:
		scroll_by(view, -page);
		break;
	case KEY_NPAGE:
		scroll_by(view, page);
		break;
	case KEY_HOME:
		view->first = 0;
		break;
	case KEY_END:
		/* The last page, full. */
		view->first = view->n_rows;
		scroll_by(view, -page);
		break;
	default:
		break;
	}
	return true;
}

/* Until a key, the end of a look, or for @ms. False: the terminal has gone. */
static bool wait_for_any(const struct top *top, int ms)
{
	struct pollfd inputs[] = {
		{.fd = STDIN_FILENO, .events = POLLIN},
		{.fd = looker_fd(top->looker), .events = POLLIN},
	};
	/* A signal interrupts it: one that ends us, or a new size. */
	poll(inputs, 2, ms);
	return !(inputs[0].revents & (POLLHUP | POLLERR | POLLNVAL));
}

static bool follow_keys(struct view *view)
{
	int key;
	while ((key = getch()) != ERR) {
		if (!follow_key(view, key)) {
			return false;
		}
	}
	return true;
}

static int run(struct view *view)
{
	struct top *top = view->top;
	uint64_t next_ms = ctl_now_ms() + TOP_PERIOD_MS;
	int err = draw(view);
	while (err == 0 && !is_ended) {
		uint64_t now = ctl_now_ms();
		if (!wait_for_any(top, now < next_ms ? (int)(next_ms - now) : 0) ||
		    !follow_keys(view)) {
			break;
		}
		if (ctl_now_ms() >= next_ms) {
			top_begin_look(top);
			next_ms = ctl_now_ms() + TOP_PERIOD_MS;
		}
		top_see(top, 0);
		err = draw(view);
	}
	return err;
}

int screen_run(struct top *top)
{
	struct view view = {.top = top};
	SCREEN *screen = open_terminal(top->ctl->out);
	if (!screen) {
		const char *name = getenv("TERM");
		return ctl_usage(
			top->ctl,
			"no terminal of the kind TERM=%s is known; --once and --seconds N work "
			"without one",
			name ? name : "");
	}
	int err = run(&view);
	close_terminal(screen);
	return err;
}
