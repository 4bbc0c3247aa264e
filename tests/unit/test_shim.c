/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's parts that stand alone: the list of hooks, small allocations, which programs to run, what
 * the environment may say.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/cudrv.h"
#include "shim/library.h"
#include "shim/policy.h"
#include "shim/run/program.h"
#include "tests/check_glake.h"
#include "tests/harness/harness.h"

/* ---- coverage --------------------------------------------------------------------------------- */

static const char *const names[] = {
#define NAME(symbol, number) #symbol,
#include "shim/names.def"
#undef NAME
};

static const char *const classified[] = {
#define HOOK(symbol, prototype, class, version, flags) #symbol,
#define PASS(symbol, class) #symbol,
#include "shim/hooks.def"
};

static bool is_in(const char *name, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (strcmp(name, list[i]) == 0) {
			return true;
		}
	}
	return false;
}

/* By its name: does it make, free, name, map or pass on memory? Copies and sets do not. */
static bool is_about_memory(const char *name)
{
	static const char *const not [] = {"Memcpy",         "Memset",    "cuStreamBatchMemOp",
	                                   "BatchMemOpNode", "SharedMem", "MemAdviseNode",
	                                   "DynamicSMem"};
	static const char *const about[] = {
		"Mem",           "Alloc",       "Pool",          "Ipc",
		"PointerGet",    "PointerSet",  "Multicast",     "MappedBuffer",
		"MappedPointer", "ArrayCreate", "Array3DCreate", "ArrayDestroy",
		"StreamAttach",  "ModuleLoad",  "LibraryLoad",   "TotalMem"};
	static const char *const neither[] = {"cuLogsDumpToMemory"};
	for (size_t i = 0; i < n_elements(not ); i++) {
		if (strstr(name, not [i]) && !strstr(name, "MemAlloc")) {
			return false;
		}
	}
	for (size_t i = 0; i < n_elements(about); i++) {
		if (strstr(name, about[i]) && !is_in(name, neither, n_elements(neither))) {
			return true;
		}
	}
	return false;
}

/* A new toolkit may bring calls: each has to be thought about, and put into hooks.def. */
START_TEST(every_memory_call_is_classified)
{
	for (size_t i = 0; i < n_elements(names); i++) {
		bool is_about = is_about_memory(names[i]);
		ck_assert_msg(!is_about || is_in(names[i], classified, n_elements(classified)),
		              "%s is not in shim/hooks.def", names[i]);
	}
}
END_TEST

static const char *const handled[] = {
#define HANDLE(symbol) #symbol,
#include "shim/handles.def"
};

static const char *const hooked[] = {
#define HOOK(symbol, prototype, class, version, flags) #symbol,
#include "shim/hooks.def"
};

/* The driver must never see a number, by itself or in a struct. */
START_TEST(every_call_that_takes_a_handle_of_memory_is_hooked)
{
	for (size_t i = 0; i < n_elements(handled); i++) {
		ck_assert_msg(is_in(handled[i], hooked, n_elements(hooked)),
		              "%s takes a handle, and is no HOOK in shim/hooks.def", handled[i]);
	}
	ck_assert(is_in("cuMemMapArrayAsync", handled, n_elements(handled)));
}
END_TEST

START_TEST(nothing_is_classified_twice_or_unknown)
{
	for (size_t i = 0; i < n_elements(classified); i++) {
		ck_assert_msg(
			!is_in(classified[i], classified + i + 1, n_elements(classified) - i - 1),
			"%s is twice in shim/hooks.def", classified[i]);
	}
}
END_TEST

/* The shim is preloaded as a rule; but thread-local memory must suffice for a library that comes later, too. */
START_TEST(the_shim_can_be_opened_late)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/lib/glake/libglake-shim.so", getenv("GLAKE_BUILD"));
	void *shim = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	ck_assert_msg(shim, "%s", dlerror());
	dlclose(shim);
}
END_TEST

static const char *const nvml_names[] = {
#define NAME(symbol, number) #symbol,
#include "shim/nvml/names.def"
#undef NAME
};

static const char *const nvml_classified[] = {
#define HOOK(symbol, prototype) #symbol,
#define PASS(symbol) #symbol,
#include "shim/nvml/hooks.def"
};

/* A newer driver's list of names may bring calls as well. */
START_TEST(every_call_of_nvml_about_memory_is_classified)
{
	unsigned n_about = 0;
	for (size_t i = 0; i < n_elements(nvml_names); i++) {
		bool is_about = strstr(nvml_names[i], "Memory") ||
		                strstr(nvml_names[i], "MemSize") ||
		                strstr(nvml_names[i], "Process");
		n_about += is_about;
		ck_assert_msg(!is_about || is_in(nvml_names[i], nvml_classified,
		                                 n_elements(nvml_classified)),
		              "%s is not in shim/nvml/hooks.def", nvml_names[i]);
	}
	ck_assert_uint_eq(n_about, n_elements(nvml_classified));
}
END_TEST

/* ---- programs to run -------------------------------------------------------------------------- */

START_TEST(programs_are_found_as_execvp_does)
{
	char path[PATH_MAX];
	const char *why = NULL;
	setenv("PATH", "/nowhere:/bin:/usr/bin", 1);
	ck_assert_int_eq(program_find("sh", path), 0);
	ck_assert_str_eq(path, "/bin/sh");
	ck_assert(program_takes_preload(path, &why));
	ck_assert_int_eq(program_find("no-such-program", path), -ENOENT);
	ck_assert_int_eq(program_find("/etc/passwd", path), -EACCES);
	ck_assert_int_eq(program_find("/etc", path), -EACCES);
}
END_TEST

/* ---- the environment -------------------------------------------------------------------------- */

enum {
	OBEYED_BY_CUDRV = 1,
	OBEYED_BY_LIBRARY = 2,
	OBEYED_BY_POLICY = 4,
	OBEYED_BY_ALL = 7,
	NOT_PRIVILEGED = 8,
};

static bool is_given(void *user, const char *path)
{
	return strcmp(path, getenv("GLAKE_LIBCUDA")) == 0;
}

/* Run as `test_shim --environment`: what obeys the variables. */
static int environment(void)
{
	static struct cudrv drv;
	Dl_info driver;
	int obeyed = getauxval(AT_SECURE) ? 0 : NOT_PRIVILEGED;
	if (cudrv_open(&drv, NULL, NULL, 0) == 0 && dladdr((void *)drv.cuInit, &driver) &&
	    is_given(NULL, driver.dli_fname)) {
		obeyed |= OBEYED_BY_CUDRV;
	}
	if (shim_library_find(&shim_library_cuda, is_given, NULL)) {
		obeyed |= OBEYED_BY_LIBRARY;
	}
	return shim_policy()->is_off ? obeyed | OBEYED_BY_POLICY : obeyed;
}

static int run_environment_of(const char *program)
{
	int status;
	fflush(NULL);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		execl(program, program, "--environment", (char *)NULL);
		_exit(127);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(WIFEXITED(status), 1);
	return WEXITSTATUS(status);
}

/* Who starts a program of somebody else's, with his rights, does not choose its libraries. */
START_TEST(a_privileged_program_obeys_no_environment)
{
	const char *base = getenv("TMPDIR");
	const char *build = getenv("GLAKE_BUILD");
	char libcuda[PATH_MAX];
	char program[200];
	char command[800];
	snprintf(libcuda, sizeof(libcuda), "%s/cudasim/libcuda.so.1", build ? build : "build");
	setenv("GLAKE_LIBCUDA", libcuda, 1);
	setenv("GLAKE_SHIM", "off", 1);
	ck_assert_int_eq(run_environment_of("/proc/self/exe"), NOT_PRIVILEGED | OBEYED_BY_ALL);
	if (!harness_is_root()) {
		return;
	}
	snprintf(program, sizeof(program), "%s/privileged.%d", base ? base : "/tmp", getpid());
	snprintf(command, sizeof(command), "cp /proc/%d/exe %s && chown 65534 %s && chmod 4755 %s",
	         getpid(), program, program, program);
	ck_assert_int_eq(system(command), 0);
	int obeyed = run_environment_of(program);
	unlink(program);
	if (obeyed & NOT_PRIVILEGED) {
		printf("SKIP: programs in %s gain no privileges\n", base ? base : "/tmp");
		return;
	}
	ck_assert_int_eq(obeyed, 0);
}
END_TEST

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--environment") == 0) {
		/* A leak sanitizer cannot look at a privileged process, and says so by its status. */
		_exit(environment());
	}
	return tests_run();
}
