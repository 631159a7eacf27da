/* What a disk and a clock may do to Sluice, for `make chaos`: preloaded into Sluice alone, it does what the file
   that CHAOS_CONTROL names says. Four 64-bit numbers: seconds that the clock is ahead; milliseconds that a sync of the
   audit log takes longer, and under 0 until it is another number; 1 for a disk that is full in the middle of a record
   of it; 1 for one whose syncs fail. A write to what was opened with O_DSYNC is a sync, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control { int64_t ahead, slow, full, broken; };
static volatile struct control none, *control = &none;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHAOS_CONTROL");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) control = at;
    if (fd >= 0) close(fd);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t id, struct timespec *at) {
    REAL(clock_gettime);
    int said = real(id, at);
    if (!said && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += control->ahead;
    return said;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    REAL(gettimeofday);
    int said = real(at, zone);
    if (!said) at->tv_sec += control->ahead;
    return said;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static int is_log(int fd) {
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, ".jsonl") != NULL;
}

/* After what the system did, which said `said`. */
static ssize_t synced(int fd, ssize_t said) {
    if (said < 0 || !(control->slow || control->broken) || !is_log(fd)) return said;
    if (control->slow > 0) usleep(control->slow * 1000);
    while (control->slow < 0) usleep(1000);
    if (!control->broken) return said;
    errno = EIO;
    return -1;
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real(fd));
}

int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real(fd));
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if ((control->slow || control->broken) && fcntl(fd, F_GETFL) & O_DSYNC) return synced(fd, real(fd, data, size));
    if (!control->full || !is_log(fd)) return real(fd, data, size);
    if (control->full == 1 && size > 1) { /* as a disk does: what fits is written, and the rest is not */
        control->full = 2;
        return real(fd, data, size / 2);
    }
    errno = ENOSPC;
    return -1;
}
