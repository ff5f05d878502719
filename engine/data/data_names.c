/* Names of files, from the words on the command line: lists joined by commas, and patterns, in an
 * order that does not depend on the machine's settings. */
#include "data/data_tokens.h"

#include "tessera/check.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void tess__names_close(struct tess__names *names)
{
    for (int32_t i = 0; i < names->count; i++)
        free(names->name[i]);
    free(names->name);
}

enum tess_status tess__names_add(struct tess__names *names, const char *name)
{
    if ((names->count & (names->count - 1)) == 0) { /* full at every power of two */
        const size_t room = names->count > 0 ? 2 * (size_t)names->count : 1;
        char **more = realloc(names->name, room * sizeof(*more));
        if (more == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a list of %zu files", room);
        names->name = more;
    }
    names->name[names->count] = strdup(name);
    if (names->name[names->count] == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the name of a file");
    names->count++;
    return TESS_OK;
}

static int names_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void tess__names_sort(struct tess__names *names, int32_t first)
{
    if (names->count > first) /* by their bytes, in any locale */
        qsort(names->name + first, (size_t)(names->count - first), sizeof(*names->name),
              names_compare);
}

static enum tess_status names_add_pattern(struct tess__names *names, const char *pattern)
{
    glob_t found;
    enum tess_status status = TESS_OK;
    const int32_t first = names->count;
    /* glob's own order depends on the locale. */
    const int code = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (code == GLOB_NOMATCH)
        TESS_FAIL(TESS_ERR_NOT_FOUND, "no file matches %s", pattern);
    if (code != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the files that match %s", pattern);
    for (size_t i = 0; i < found.gl_pathc && status == TESS_OK; i++)
        status = tess__names_add(names, found.gl_pathv[i]);
    globfree(&found);
    if (status == TESS_OK)
        tess__names_sort(names, first);
    return status;
}

/* A file of that very name comes before any other reading of it, list or pattern. */
enum tess_status tess__names_expand(struct tess__names *names, const char *source)
{
    struct stat about;
    enum tess_status status = TESS_OK;
    if (lstat(source, &about) == 0)
        return tess__names_add(names, source);
    char *words = strdup(source), *rest = words;
    if (words == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of the files");
    while (rest != NULL && status == TESS_OK) {
        const char *word = strsep(&rest, ",");
        if (word[0] == '\0')
            status = tess_fail(TESS_ERR_USAGE,
                               "an empty name in '%s': expected files joined by commas", source);
        else if (lstat(word, &about) != 0 && strpbrk(word, "*?[") != NULL)
            status = names_add_pattern(names, word);
        else
            status = tess__names_add(names, word);
    }
    free(words);
    return status;
}
