/* The file of matmul_store.h: read whole and checked to the last line before anything of it is
 * believed, and written whole beside the old one. */
#include "cuda/products/matmul_store.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STORE_HEAD "tessera-matmul 1\n"

/* A longest line: key, tab, numbers of ten digits with spaces, newline. */
#define STORE_LINE_MAX (MATMUL_KEY_MAX + 11 * MATMUL_FIELD_COUNT + 2)

void tess__matmul_key_clean(char *key)
{
    for (; *key; key++)
        if (*key < ' ' || *key > '~')
            *key = '_';
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The file as a string, or NULL: *why is the reason, and is NULL where there is no file. */
static char *store_read(const char *path, const char **why)
{
    *why = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        *why = errno == ENOENT ? NULL : strerror(errno);
        return NULL;
    }
    struct stat about;
    char *text = NULL;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        *why = "it is not a file";
    else if (about.st_size > MATMUL_FILE_MAX)
        *why = "it is too long";
    else if ((text = malloc((size_t)about.st_size + 1)) == NULL)
        *why = "no memory";
    if (*why != NULL) {
        close(fd);
        return NULL;
    }
    size_t length = 0;
    ssize_t got;
    while (length < (size_t)about.st_size &&
           (got = read(fd, text + length, (size_t)about.st_size - length)) > 0)
        length += (size_t)got;
    close(fd);
    text[length] = '\0';
    if (strlen(text) != (size_t)about.st_size) {
        *why = "it is cut, or holds bytes that are no text";
        free(text);
        return NULL;
    }
    return text;
}

/* MATMUL_FIELD_COUNT numbers up to the end of the line. */
static bool store_numbers(const char *text, struct matmul_choice *choice)
{
    for (int i = 0; i < MATMUL_FIELD_COUNT; i++) {
        if (*text < '0' || *text > '9')
            return false;
        char *end;
        errno = 0;
        long long value = strtoll(text, &end, 10);
        if (errno != 0 || value > INT32_MAX)
            return false;
        if (*end != (i == MATMUL_FIELD_COUNT - 1 ? '\n' : ' '))
            return false;
        choice->field[i] = value;
        text = end + 1;
    }
    return true;
}

/* The end of the line, where it is a choice: a printable key, a tab, the numbers. NULL otherwise.
 */
static const char *store_line(const char *line, size_t *key_length, struct matmul_choice *choice)
{
    const char *end = strchr(line, '\n');
    const char *tab = strchr(line, '\t');
    if (end == NULL || tab == NULL || tab > end || tab == line || tab - line >= MATMUL_KEY_MAX)
        return NULL;
    for (const char *c = line; c < tab; c++)
        if (*c < ' ' || *c > '~')
            return NULL;
    if (!store_numbers(tab + 1, choice))
        return NULL;
    *key_length = (size_t)(tab - line);
    return end + 1;
}

/* The first line of the body, or NULL where the text is no whole file; *end_out is its end. */
static const char *store_body(const char *text, const char **end_out)
{
    if (strncmp(text, STORE_HEAD, strlen(STORE_HEAD)) != 0)
        return NULL;
    const char *body = text + strlen(STORE_HEAD);
    const char *line = body;
    long long count = 0;
    while (strncmp(line, "end ", 4) != 0) {
        size_t key_length;
        struct matmul_choice choice;
        line = store_line(line, &key_length, &choice);
        if (line == NULL)
            return NULL;
        count++;
    }
    char expected[32];
    snprintf(expected, sizeof(expected), "end %lld\n", count);
    *end_out = line;
    return strcmp(line, expected) == 0 ? body : NULL;
}

/* A whole file's text, to be freed, with where its lines begin and end; or NULL. */
static char *store_open(const char *path, const char **body_out, const char **end_out)
{
    const char *why;
    char *text = store_read(path, &why);
    if (text != NULL && (*body_out = store_body(text, end_out)) == NULL) {
        why = "it is cut or not of this program";
        free(text);
        text = NULL;
    }
    if (why != NULL)
        tess_log(TESS_LOG_WARN, "measured matmul algorithms in %s are not used: %s", path, why);
    return text;
}

bool tess__matmul_store_find(const char *path, const char *key, struct matmul_choice *choice_out)
{
    const char *line, *end;
    char *text = store_open(path, &line, &end);
    bool found = false;
    while (text != NULL && line < end && !found) {
        const char *start = line;
        size_t length;
        struct matmul_choice choice;
        line = store_line(line, &length, &choice);
        found = strlen(key) == length && strncmp(start, key, length) == 0;
        if (found)
            *choice_out = choice;
    }
    free(text);
    return found;
}

/* ---- writing --------------------------------------------------------------------------------- */

static size_t store_print(char *line, const char *key, const struct matmul_choice *choice)
{
    int length = snprintf(line, STORE_LINE_MAX, "%s\t", key);
    for (int i = 0; i < MATMUL_FIELD_COUNT; i++)
        length += snprintf(line + length, (size_t)(STORE_LINE_MAX - length), "%lld%c",
                           (long long)choice->field[i], i == MATMUL_FIELD_COUNT - 1 ? '\n' : ' ');
    return (size_t)length;
}

static bool store_is_fit(const char *key, const struct matmul_choice *choice)
{
    for (int i = 0; i < MATMUL_FIELD_COUNT; i++)
        if (choice->field[i] < 0 || choice->field[i] > INT32_MAX)
            return false;
    for (const char *c = key; *c; c++)
        if (*c < ' ' || *c > '~')
            return false;
    /* A key that begins like the last line would be taken for it. */
    return *key && strlen(key) < MATMUL_KEY_MAX && strncmp(key, "end ", 4) != 0;
}

enum tess_status tess__matmul_store_put(const char *path, const char *key,
                                        const struct matmul_choice *choice)
{
    if (!store_is_fit(key, choice))
        TESS_FAIL(TESS_ERR_INTERNAL, "a matmul choice that cannot be written: %s", key);
    const char *line = "", *end = line;
    char *old = store_open(path, &line, &end);
    if (old == NULL)
        end = line;
    const size_t room = (size_t)(end - line) + strlen(STORE_HEAD) + STORE_LINE_MAX + 32;
    char *text = malloc(room);
    if (text == NULL) {
        free(old);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu bytes of matmul choices", room);
    }
    size_t used = strlen(STORE_HEAD);
    memcpy(text, STORE_HEAD, used);
    long long count = 1;
    while (line < end) {
        const char *start = line;
        size_t length;
        struct matmul_choice other;
        line = store_line(line, &length, &other);
        if (strlen(key) == length && strncmp(start, key, length) == 0)
            continue;
        memcpy(text + used, start, (size_t)(line - start));
        used += (size_t)(line - start);
        count++;
    }
    used += store_print(text + used, key, choice);
    used += (size_t)snprintf(text + used, room - used, "end %lld\n", count);
    enum tess_status status = tess_file_write(path, text, used);
    free(text);
    free(old);
    return status;
}

/* ---- one at a time --------------------------------------------------------------------------- */

int tess__matmul_store_lock(const char *path)
{
    char name[4096 + 8];
    snprintf(name, sizeof(name), "%s.lock", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int failed = fd < 0;
    while (fd >= 0 && (failed = flock(fd, LOCK_EX)) != 0 && errno == EINTR)
        continue;
    if (!failed)
        return fd;
    tess_log(TESS_LOG_WARN,
             "cannot lock %s: %s; ranks that measure at the same time may choose differently", name,
             strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

void tess__matmul_store_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}
