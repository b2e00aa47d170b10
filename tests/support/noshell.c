/* The only file of an image without a shell: `tool echo WORDS…`, `tool exit N`, `tool env`,
 * `tool wait`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "echo";
    if (strcmp(what, "exit") == 0 && argc > 2)
        return atoi(argv[2]);
    if (strcmp(what, "wait") == 0)
        pause();
    if (strcmp(what, "env") == 0)
        for (char **entry = environ; *entry != NULL; entry++)
            puts(*entry);
    if (strcmp(what, "echo") == 0) {
        for (int i = 2; i < argc; i++)
            printf(i == 2 ? "%s" : " %s", argv[i]);
        puts("");
    }
    return 0;
}
