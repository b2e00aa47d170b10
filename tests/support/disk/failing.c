/* A disk that breaks when a test says so, for one folder: LD_PRELOADed into a daemon, since most
 * kernels here have no device-mapper to make a real one break.
 *
 * While the file $FAIRLEAD_DISK_STATE is there, each change below $FAIRLEAD_DISK_FOLDER fails with
 * the error number that the file holds. Where its second word is a function's name (fsync, rename,
 * unlink, write, open), only that one fails. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

static int is_below(const char *path)
{
    const char *folder = getenv("FAIRLEAD_DISK_FOLDER");
    return folder && path && !strncmp(path, folder, strlen(folder));
}

static int names_below(int fd)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

/* The state is read with calls that are not ours. */
static int breaks(const char *function, int concerned)
{
    static __typeof__(&fopen) open_file;
    const char *state = getenv("FAIRLEAD_DISK_STATE");
    char only[32] = "";
    int number = 0;
    if (!concerned || !state) return 0;
    if (!open_file) open_file = dlsym(RTLD_NEXT, "fopen");
    FILE *file = open_file(state, "re");
    if (!file) return 0;
    int found = fscanf(file, "%d %31s", &number, only);
    fclose(file);
    if (found < 1 || (found == 2 && strcmp(only, function))) return 0;
    errno = number;
    return 1;
}

int fsync(int fd)
{
    REAL(fsync);
    return breaks("fsync", names_below(fd)) ? -1 : real(fd);
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(write);
    return breaks("write", names_below(fd)) ? -1 : real(fd, data, size);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    return breaks("rename", is_below(to)) ? -1 : real(from, to);
}

int unlink(const char *path)
{
    REAL(unlink);
    return breaks("unlink", is_below(path)) ? -1 : real(path);
}

#define OPEN(name) \
int name(const char *path, int flags, ...) \
{ \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    int makes = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; \
    mode_t mode = makes ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return breaks("open", makes && is_below(path)) ? -1 : real(path, flags, mode); \
}
OPEN(open)
OPEN(open64)
