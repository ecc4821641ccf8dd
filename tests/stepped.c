/* The wall clock of a process, set by a test: loaded before the C library (LD_PRELOAD).

   The file that MUSTERTEST_CLOCK names begins with nanoseconds, a signed number of 64 bits, by which the wall clock is
   ahead. Other clocks are as they were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("MUSTERTEST_CLOCK");
  int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  if (file >= 0) {
    void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    ahead = page == MAP_FAILED ? NULL : page;
  }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int answer = real == NULL ? (int)syscall(SYS_clock_gettime, clock, now) : real(clock, now);
  if (answer == 0 && ahead != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *ahead;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
  }
  return answer;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec time;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &time);
  now->tv_sec = time.tv_sec;
  now->tv_usec = time.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != NULL) *seconds = now.tv_sec;
  return now.tv_sec;
}
