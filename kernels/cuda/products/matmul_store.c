/* The file of matmul_store.h: read whole and checked to the last line before anything of it is
 * believed, and written whole beside the old one. */
#include "cuda/products/matmul_store.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define STORE_HEAD  "tessera-matmul 2\n"
#define STORE_WORDS 8

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
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        *why = errno == ENOENT ? NULL : strerror(errno);
        return NULL;
    }
    struct stat about;
    char *text = NULL;
    *why = NULL;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode))
        *why = "it is not a file";
    else if (about.st_size > MATMUL_FILE_MAX)
        *why = "it is too long";
    else if ((text = calloc(1, (size_t)about.st_size + 1)) == NULL)
        *why = "no memory";
    ssize_t got = 1;
    for (size_t length = 0; text != NULL && got > 0; length += (size_t)got)
        got = read(fd, text + length, (size_t)about.st_size - length);
    close(fd);
    if (text != NULL && (got < 0 || strlen(text) != (size_t)about.st_size)) {
        *why = "it is cut, or holds bytes that are no text";
        free(text);
        return NULL;
    }
    return text;
}

/* FNV-1a. */
static uint32_t store_sum(const char *from, const char *end)
{
    uint32_t sum = 2166136261u;
    for (; from < end; from++)
        sum = (sum ^ (unsigned char)*from) * 16777619u;
    return sum;
}

/* So many digits, as they are written, then `after`; *at moves behind it. */
static bool store_hex(const char **at, int digits, char after, uint64_t *value_out)
{
    uint64_t value = 0;
    for (int i = 0; i < digits; i++) {
        const char c = *(*at)++;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false;
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *value_out = value;
    return *(*at)++ == after;
}

static bool store_is_printable(const char *from, const char *end)
{
    while (from < end && *from >= ' ' && *from <= '~')
        from++;
    return from == end;
}

/* The end of the line, where it is a choice: a printable key, a tab, the numbers. NULL otherwise.
 */
static const char *store_line(const char *line, struct matmul_choice *choice_out)
{
    const char *tab = strchr(line, '\t');
    uint64_t nanoseconds, sum;
    if (tab == NULL || tab == line || tab - line >= MATMUL_KEY_MAX ||
        !store_is_printable(line, tab))
        return NULL;
    const char *at = tab + 1;
    for (int i = 0; i < STORE_WORDS; i++)
        if (!store_hex(&at, 16, ' ', &choice_out->algorithm[i]))
            return NULL;
    if (!store_hex(&at, 8, ' ', &nanoseconds) || nanoseconds > INT32_MAX)
        return NULL;
    choice_out->nanoseconds = (int64_t)nanoseconds;
    const uint32_t expected = store_sum(line, at);
    return store_hex(&at, 8, '\n', &sum) && sum == expected ? at : NULL;
}

/* A whole file's text, to be freed, with its last line cut off; or NULL. */
static char *store_open(const char *path)
{
    const char *why;
    char *text = store_read(path, &why), expected[32];
    if (text == NULL) {
        if (why != NULL)
            tess_log(TESS_LOG_WARN, "measured matmul algorithms in %s are not used: %s", path, why);
        return NULL;
    }
    const size_t head = strlen(STORE_HEAD);
    const char *line = strncmp(text, STORE_HEAD, head) == 0 ? text + head : NULL;
    long long count = 0;
    struct matmul_choice choice;
    for (; line != NULL && strncmp(line, "end ", 4) != 0; count++)
        line = store_line(line, &choice);
    snprintf(expected, sizeof(expected), "end %lld\n", count);
    if (line != NULL && strcmp(line, expected) == 0) {
        text[line - text] = '\0';
        return text;
    }
    tess_log(TESS_LOG_WARN,
             "measured matmul algorithms in %s are not used: it is cut or not of this program",
             path);
    free(text);
    return NULL;
}

/* The newline before the key's line, which every line has one before; NULL where it is not there.
 */
static char *store_search(char *text, const char *key)
{
    const size_t length = strlen(key);
    for (char *at = strchr(text, '\n'); at != NULL; at = strchr(at + 1, '\n'))
        if (strncmp(at + 1, key, length) == 0 && at[1 + length] == '\t')
            return at;
    return NULL;
}

bool tess__matmul_store_find(const char *path, const char *key, struct matmul_choice *choice_out)
{
    char *text = store_open(path);
    const char *at = text != NULL ? store_search(text, key) : NULL;
    const bool found = at != NULL && store_line(at + 1, choice_out) != NULL;
    free(text);
    return found;
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool store_is_fit(const char *key, const struct matmul_choice *choice)
{
    if (choice->nanoseconds < 0 || choice->nanoseconds > INT32_MAX)
        return false;
    /* A key that begins like the last line would be taken for it. */
    return *key && strlen(key) < MATMUL_KEY_MAX && store_is_printable(key, key + strlen(key)) &&
           strncmp(key, "end ", 4) != 0;
}

/* The whole file: the old lines, less the key's, and the new one. */
static bool store_print(FILE *out, char *old, const char *key, const struct matmul_choice *choice)
{
    long long count = 0;
    for (char *at; (at = store_search(old, key)) != NULL;) {
        const char *rest = strchr(at + 1, '\n');
        memmove(at, rest, strlen(rest) + 1);
    }
    for (const char *c = old; *c != '\0'; c++)
        count += *c == '\n'; /* the head stands for the line that is added */
    char line[MATMUL_KEY_MAX + 17 * STORE_WORDS + 10];
    int used = snprintf(line, sizeof(line), "%s\t", key);
    for (int i = 0; i < STORE_WORDS; i++)
        used += snprintf(line + used, sizeof(line) - (size_t)used, "%016" PRIx64 " ",
                         choice->algorithm[i]);
    used +=
        snprintf(line + used, sizeof(line) - (size_t)used, "%08x ", (unsigned)choice->nanoseconds);
    fprintf(out, "%s%s%08x\nend %lld\n", old, line, (unsigned)store_sum(line, line + used), count);
    return fclose(out) == 0;
}

enum tess_status tess__matmul_store_put(const char *path, const char *key,
                                        const struct matmul_choice *choice)
{
    if (!store_is_fit(key, choice))
        TESS_FAIL(TESS_ERR_INTERNAL, "a matmul choice that cannot be written: %s", key);
    char *old = store_open(path), *text = NULL;
    size_t used = 0;
    if (old == NULL)
        old = strdup(STORE_HEAD);
    FILE *out = old != NULL ? open_memstream(&text, &used) : NULL;
    enum tess_status status = TESS_ERR_MEMORY;
    if (out != NULL && store_print(out, old, key, choice))
        status = tess_file_write(path, text, used);
    else
        (void)tess_fail(status, "no memory for matmul choices");
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
