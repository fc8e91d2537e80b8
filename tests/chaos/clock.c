/* Loaded before all else (LD_PRELOAD) into a process of a drill: its wall clock is ahead by as many seconds as an eight-byte file
 * says. Monotonic time stays right, as with a clock that an administrator sets. The product knows nothing of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
static volatile int64_t *offset;
__attribute__((constructor)) static void load(void) {
  const char *path = getenv("CLOCK_OFFSET_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) offset = mapped;
}
static int64_t ahead(void) { return offset ? *offset : 0; }
typedef int (*gettime_t)(clockid_t, struct timespec *);
int clock_gettime(clockid_t clock, struct timespec *now) {
  static gettime_t real;
  if (!real) real = (gettime_t)dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
  return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec found;
  int result = clock_gettime(CLOCK_REALTIME, &found);
  if (result == 0) { now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000; }
  return result;
}
time_t time(time_t *out) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (out) *out = found.tv_sec;
  return found.tv_sec;
}
