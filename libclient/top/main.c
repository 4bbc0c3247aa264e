/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake-top: `glakectl top` on a terminal. It is glakectl with a screen: the same command line, checked in the same way.
 * glakectl starts it, and has no library for screens itself.
 */
#include "ctl/top.h"
#include "top/screen.h"

int main(int argc, char **argv)
{
	top_screen = screen_run;
	return ctl_run(argc, argv, stdout, stderr);
}
