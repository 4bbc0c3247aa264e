/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jansson's json_loadf(), which nobody calls, compares its file with stdin in a way that only a program can
 * be linked with, and not a library. The linker gives it this instead (--wrap=stdin).
 */
__attribute__((visibility("hidden"))) void *__wrap_stdin;
