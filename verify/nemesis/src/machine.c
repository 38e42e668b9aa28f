// A library that is preloaded into one process, and simulates a machine whose wall clock can be
// moved and whose disk can be slowed down. The file NEMESIS_MACHINE holds two numbers of 8 bytes:
// the microseconds by which the wall clock is ahead, and the additional microseconds of each flush
// to disk.
//
// All other times and results come from the kernel by raw system calls, because an allocator may
// ask for the time before the library is set up.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const long long *machine;
static volatile int flushing = -1;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NEMESIS_MACHINE");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
    void *page = fd < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) machine = page;
    if (fd >= 0) close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = (int)syscall(SYS_clock_gettime, clock, t);
    if (failed || !machine) return failed;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return 0;
    long long ns = t->tv_sec * 1000000000LL + t->tv_nsec + machine[0] * 1000;
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

int fdatasync(int fd) {
    long long late = machine ? machine[1] : 0;
    if (late > 0) {
        flushing = fd;
        usleep((useconds_t)late);
    }
    int failed = (int)syscall(SYS_fdatasync, fd);
    flushing = -1;
    return failed;
}

// While a file is flushed to disk, each write to the file waits, as on a real disk.
ssize_t write(int fd, const void *from, size_t bytes) {
    while (fd == flushing && fd >= 0) usleep(1000);
    return syscall(SYS_write, fd, from, bytes);
}
