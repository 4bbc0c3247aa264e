/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jansson's json_loadf(), which nobody calls, compares its file with stdin, by a relocation that only a program can
 * be linked with, not a library. The linker gives it this variable (--wrap=stdin).
 */
__attribute__((visibility("hidden"))) void *__wrap_stdin;
