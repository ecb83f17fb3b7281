/* A disk that fails: at the chosen write below a folder there is an error, or the process is killed, before the write
 * or in the middle of it. Preloaded, so that it also meets libraries that write by themselves (GDAL, SQLite). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[4096];
static atomic_long writes;
static long chosen = -1;
static int what; /* an error's number; -1: kill before the write; -2: kill when half of it is done */

void disk_watch(const char *below, long at, int error) {
    strncpy(folder, below, sizeof folder - 1);
    chosen = at;
    what = error;
    atomic_store(&writes, 0);
}

long disk_writes(void) { return atomic_load(&writes); }

static int is_below(int file) {
    char name[64], path[4096];
    ssize_t length;
    struct stat facts;
    if (!folder[0] || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

/* Whether this write is the chosen one; it is counted either way. */
static int strikes(int file) {
    int kept = errno;
    int here = is_below(file) && atomic_fetch_add(&writes, 1) + 1 == chosen;
    errno = kept;
    if (here && what == -1) kill(getpid(), SIGKILL);
    return here;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL_OR_TEAR(half) do { if (what == -2) { half; kill(getpid(), SIGKILL); } errno = what; return -1; } while (0)

ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    if (strikes(file)) FAIL_OR_TEAR((void)!real(file, data, count / 2));
    return real(file, data, count);
}

ssize_t pwrite(int file, const void *data, size_t count, off_t at) {
    REAL(pwrite);
    if (strikes(file)) FAIL_OR_TEAR((void)!real(file, data, count / 2, at));
    return real(file, data, count, at);
}

ssize_t pwrite64(int file, const void *data, size_t count, off64_t at) {
    REAL(pwrite64);
    if (strikes(file)) FAIL_OR_TEAR((void)!real(file, data, count / 2, at));
    return real(file, data, count, at);
}

int fsync(int file) {
    REAL(fsync);
    if (strikes(file)) FAIL_OR_TEAR((void)0);
    return real(file);
}

int fdatasync(int file) {
    REAL(fdatasync);
    if (strikes(file)) FAIL_OR_TEAR((void)0);
    return real(file);
}
