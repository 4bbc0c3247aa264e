/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another clock for a program it is preloaded into: $CLOCKSIM_SPEED seconds pass in $CLOCKSIM_SLOWNESS.
 * The monotonic clocks run by it, and so does what waits, by them or by a timeout. With speed a test
 * sees what comes after ten seconds of silence in one. With slowness no time limit of glaked passes
 * while the machine is busy. No product code knows of it.
 *
 * All processes with one speed and one slowness have one time: it is the machine's, multiplied.
 *
 * The calendar jumps: the file $CLOCKSIM_CALENDAR has the seconds that it is ahead of the machine's, or behind, and is read each time.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* Later than any monotonic time, and long ago by the calendar. */
#define CALENDAR_S 1000000000

/* A sanitizer of threads has calls of its own in between, without a version: it must see waits. */
#ifdef __SANITIZE_THREAD__
#define FIND(name, version) dlsym(RTLD_NEXT, #name)
#else
#define FIND(name, version) dlvsym(RTLD_NEXT, #name, version)
#endif

#define REAL(name, version) \
	static _Atomic(__typeof__(&name)) found; \
	__typeof__(&name) real = found; \
	if (!real) { \
		real = (__typeof__(&name))FIND(name, version); \
		found = real; \
	}

static uint64_t number_of(const char *name, _Atomic uint64_t *known)
{
	if (*known == 0) {
		const char *text = getenv(name);
		long number = text ? atol(text) : 1;
		*known = number > 0 ? (uint64_t)number : 1;
	}
	return *known;
}

static uint64_t speed(void)
{
	static _Atomic uint64_t known;
	return number_of("CLOCKSIM_SPEED", &known);
}

static uint64_t slowness(void)
{
	static _Atomic uint64_t known;
	return number_of("CLOCKSIM_SLOWNESS", &known);
}

/* How long the machine takes, rounded up. */
static uint64_t real_of(uint64_t time)
{
	return (time * slowness() + speed() - 1) / speed();
}

static uint64_t ns_of(const struct timespec *time)
{
	return (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

static struct timespec time_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / 1000000000),
	                         .tv_nsec = (long)(ns % 1000000000)};
}

static struct timespec real_time(const struct timespec *time)
{
	return time_of(real_of(ns_of(time)));
}

static int real_ms(int ms)
{
	uint64_t real = ms <= 0 ? 0 : real_of((uint64_t)ms);
	return ms <= 0 ? ms : real < INT_MAX ? (int)real : INT_MAX;
}

static time_t ahead(void)
{
	char text[32] = "";
	const char *path = getenv("CLOCKSIM_CALENDAR");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0) {
		return 0;
	}
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	return n > 0 ? (time_t)atoll(text) : 0;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec *time)
{
	REAL(clock_gettime, "GLIBC_2.17");
	int r = real(clock, time);
	if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
		time->tv_sec += ahead();
	}
	if (r == 0 && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
	               clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME)) {
		*time = time_of(ns_of(time) * speed() / slowness());
	}
	return r;
}

EXPORT time_t time(time_t *time_out)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (time_out) {
		*time_out = now.tv_sec;
	}
	return now.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	*time = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
	return 0;
}

EXPORT int poll(struct pollfd *fds, nfds_t n_fds, int ms)
{
	REAL(poll, "GLIBC_2.2.5");
	return real(fds, n_fds, real_ms(ms));
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n_fds, const struct timespec *wait,
                 const sigset_t *mask)
{
	REAL(ppoll, "GLIBC_2.4");
	struct timespec real_wait = wait ? real_time(wait) : (struct timespec){0};
	return real(fds, n_fds, wait ? &real_wait : NULL, mask);
}

EXPORT int epoll_wait(int fd, struct epoll_event *events, int n_events, int ms)
{
	REAL(epoll_wait, "GLIBC_2.3.2");
	return real(fd, events, n_events, real_ms(ms));
}

EXPORT int epoll_pwait(int fd, struct epoll_event *events, int n_events, int ms,
                       const sigset_t *mask)
{
	REAL(epoll_pwait, "GLIBC_2.6");
	return real(fd, events, n_events, real_ms(ms), mask);
}

EXPORT int nanosleep(const struct timespec *wait, struct timespec *left)
{
	REAL(nanosleep, "GLIBC_2.2.5");
	struct timespec real_wait = real_time(wait);
	return real(&real_wait, left);
}

EXPORT int usleep(useconds_t us)
{
	struct timespec wait = time_of((uint64_t)us * 1000);
	return nanosleep(&wait, NULL);
}

static struct timespec real_end(const struct timespec *end)
{
	return end->tv_sec < CALENDAR_S ? real_time(end) : *end;
}

EXPORT int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *end)
{
	REAL(pthread_cond_timedwait, "GLIBC_2.3.2");
	struct timespec real_wait = real_end(end);
	return real(cond, mutex, &real_wait);
}

EXPORT int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *end)
{
	REAL(pthread_cond_clockwait, "GLIBC_2.30");
	struct timespec real_wait = clock == CLOCK_MONOTONIC ? real_end(end) : *end;
	return real(cond, mutex, clock, &real_wait);
}
