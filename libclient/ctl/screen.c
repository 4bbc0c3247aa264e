/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

unsigned screen_width(FILE *out)
{
	struct winsize size;
	int fd = fileno(out);
	return fd >= 0 && isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}
