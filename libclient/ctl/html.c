/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/html.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ctl/text.h"

static const char head[] = "<!DOCTYPE html>\n"
			   "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
			   "<meta http-equiv=\"Content-Security-Policy\" "
			   "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
			   "<meta name=\"viewport\" content=\"width=device-width\">\n";

static const char style[] =
	":root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --faint: #626c78; "
	"--grid: #e3e7ec; }\n"
	"@media (prefers-color-scheme: dark) { :root { --back: #14171b; --ink: #e5e8ec; "
	"--faint: #98a3b0; --grid: #2b3138; } }\n"
	"body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;\n"
	"  max-width: 960px; margin: 2em auto; padding: 0 1em; }\n"
	"h1 { font-size: 1.5em; margin: 0; } h2 { font-size: 1.1em; margin: 2em 0 0; }\n"
	"p { margin: .2em 0 .6em; } p, small { color: var(--faint); } "
	"small { font-weight: normal; }\n";

void html_begin(FILE *out, const char *title, const char *css)
{
	fputs(head, out);
	fprintf(out, "<title>%s</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<h1>%s</h1>\n",
	        title, style, css, title);
}

void html_end(FILE *out)
{
	fputs("</body>\n</html>\n", out);
}

void html_text(FILE *out, const char *text)
{
	char *escaped = text_escape(text);
	for (const char *at = escaped; at && *at; at++) {
		switch (*at) {
		case '&':
			fputs("&amp;", out);
			break;
		case '<':
			fputs("&lt;", out);
			break;
		case '>':
			fputs("&gt;", out);
			break;
		case '"':
			fputs("&quot;", out);
			break;
		default:
			fputc(*at, out);
		}
	}
	free(escaped);
}

void html_size(FILE *out, uint64_t bytes)
{
	char text[TEXT_NUMBER_BYTES];
	text_size(bytes, text);
	fputs(text, out);
}

void html_percent(FILE *out, double ratio)
{
	if (ratio < 0) {
		fputs("-", out);
	} else {
		fprintf(out, "%.1f %%", ratio * 100);
	}
}

void html_place(FILE *out, int64_t seconds)
{
	char host[256] = "";
	char when[64] = "";
	time_t time = (time_t)seconds;
	struct tm local;
	gethostname(host, sizeof(host) - 1);
	if (localtime_r(&time, &local)) {
		strftime(when, sizeof(when), "%F %T %Z", &local);
	}
	html_text(out, host);
	fprintf(out, ", %s", when);
}
