/* Words of a command line. */
#include "text/command.h"

#include "tessera/check.h"

#include <string.h>

enum tess_status tess__args_init(struct tess__args *args, int argc, char **argv)
{
    if (argc > TESS__ARGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "%d words on the command line: the limit is %d", argc,
                  TESS__ARGS_MAX);
    *args = (struct tess__args){.count = argc};
    for (int i = 0; i < argc; i++)
        args->word[i] = argv[i];
    return TESS_OK;
}

enum tess_status tess__args_add(struct tess__args *args, const char *word)
{
    if (args->count == TESS__ARGS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "more than %d words on the command line", TESS__ARGS_MAX);
    args->word[args->count++] = (char *)word; /* as main's argv: not const, and not written */
    return TESS_OK;
}

enum tess_status tess__list_split(const char *option, char *text, const char *item[TESS__LIST_MAX],
                                  int *count_out)
{
    int count = 0;
    for (char *word; (word = strsep(&text, ","));) {
        if (!*word)
            TESS_FAIL(TESS_ERR_USAGE, "--%s: an item of the list is empty; expected a,b,c", option);
        if (count == TESS__LIST_MAX)
            TESS_FAIL(TESS_ERR_USAGE, "--%s has more than %d items", option, TESS__LIST_MAX);
        item[count++] = word;
    }
    *count_out = count;
    return TESS_OK;
}
