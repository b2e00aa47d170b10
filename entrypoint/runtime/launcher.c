/* Starts the runtime's interpreter in any image.
 *
 * Static, because nothing of the image may be loaded first. Variables that would steer our loader,
 * interpreter, TLS or locale are hidden as FAIRLEAD_ORIG_<NAME>, not dropped: they belong to the
 * user's commands, which get them back under their own names. What the image itself calls
 * FAIRLEAD_ORIG_* is dropped, so that it cannot be taken for a hidden one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HIDDEN "FAIRLEAD_ORIG_"

static const char *const disturbing[] = {
    "LD_", "PYTHON", "GLIBC_TUNABLES=", "MALLOC_", "OPENSSL_", "SSL_CERT_", "SSLKEYLOGFILE=",
    "LC_", "LANG=", "LANGUAGE=", "LOCPATH=", "GCONV_PATH=", "RES_OPTIONS=", "LOCALDOMAIN=",
    "HOSTALIASES=", "NLSPATH=", "TZDIR=",
};

static const char *const interpreter[] = {
    PYTHON, "-I", "-S", "-X", "utf8=1", "-c",
    "from entrypoint import module_file; module_file.use(); from entrypoint.main import main; main()",
};

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static int starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int is_disturbing(const char *variable)
{
    for (size_t i = 0; i < COUNT(disturbing); i++)
        if (starts_with(variable, disturbing[i]))
            return 1;
    return 0;
}

static void *allocate(size_t size)
{
    void *memory = malloc(size);
    if (memory == NULL) {
        fputs("fairlead-entrypoint: out of memory\n", stderr);
        exit(127);
    }
    return memory;
}

static char *hidden(const char *variable)
{
    size_t length = strlen(variable) + 1;
    char *renamed = allocate(sizeof HIDDEN - 1 + length);
    memcpy(renamed, HIDDEN, sizeof HIDDEN - 1);
    memcpy(renamed + sizeof HIDDEN - 1, variable, length);
    return renamed;
}

static char **interpreter_environment(char **image)
{
    size_t count = 0, used = 0;
    while (image[count] != NULL)
        count++;
    char **ours = allocate((count + 2) * sizeof *ours);
    for (size_t i = 0; i < count; i++)
        if (!starts_with(image[i], HIDDEN))
            ours[used++] = is_disturbing(image[i]) ? hidden(image[i]) : image[i];
    /* glibc gives threads arenas of their own, memory that a small process does not need. */
    ours[used++] = "MALLOC_ARENA_MAX=1";
    ours[used] = NULL;
    return ours;
}

int main(int argc, char **argv, char **image_environment)
{
    char **arguments = allocate((COUNT(interpreter) + (size_t)argc + 1) * sizeof *arguments);
    memcpy(arguments, interpreter, sizeof interpreter);
    size_t used = COUNT(interpreter);
    for (int i = 1; i < argc; i++)
        arguments[used++] = argv[i];
    arguments[used] = NULL;
    execve(PYTHON, arguments, interpreter_environment(image_environment));
    fprintf(stderr, "fairlead-entrypoint: cannot start %s: %s\n", PYTHON, strerror(errno));
    return 127;
}
