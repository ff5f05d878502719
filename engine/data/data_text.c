/*
 * Text without a download: what the packages of every Debian machine bring along. Responsible for
 * which files, in which order; the same machine gives the same bytes every time, and so do two
 * machines with the same packages.
 */
#include "data/data_tokens.h"

#include "base/file.h"
#include "tessera/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A quarter of what the licences alone have: with less there is nothing to learn. */
#define TEXT_BYTES_MIN 65536

#define TEXT_NAME     "text of this machine" /* for messages */
#define TEXT_LICENCES "/usr/share/common-licenses"
#define TEXT_DOC      "/usr/share/doc"
#define TEXT_PERL     "/usr/share/perl"

static bool text_is_text(const char *name)
{
    static const char *const end[] = {".pod", ".pm", ".txt"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; i < sizeof(end) / sizeof(*end) && dot != NULL; i++)
        if (strcmp(dot, end[i]) == 0)
            return true;
    return strcmp(name, "copyright") == 0;
}

/* What a walk finds: the names of the files; or, with bytes_max > 0, that many of their bytes at
 * most, which are as many in any order. */
struct text_found {
    struct tess__names names;
    size_t bytes, bytes_max;
    bool tree;       /* folders in folders too */
    int parts, part; /* of the entries of a folder that is walked, every parts-th; 0: all */
    int64_t met;     /* of these so far */
    int depth;       /* of the folder at hand */
    char path[4096]; /* of the folder at hand, and of its entry */
};

static bool text_is_enough(const struct text_found *found)
{
    return found->bytes_max > 0 && found->bytes >= found->bytes_max;
}

/* The file `name` in the open folder. */
static enum tess_status text_take(int folder, const char *name, struct text_found *found)
{
    struct stat about;
    if (found->bytes_max == 0)
        return tess__names_add(&found->names, found->path);
    if (fstatat(folder, name, &about, found->tree ? AT_SYMLINK_NOFOLLOW : 0) == 0 &&
        S_ISREG(about.st_mode) &&
        ((about.st_mode & S_IROTH) != 0 || faccessat(folder, name, R_OK, 0) == 0))
        found->bytes += (size_t)about.st_size;
    return TESS_OK;
}

/* Some file systems do not give the kind of an entry. */
static unsigned char text_kind(int folder, const struct dirent *entry)
{
    struct stat about;
    if (entry->d_type != DT_UNKNOWN ||
        fstatat(folder, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0)
        return entry->d_type;
    return S_ISDIR(about.st_mode)   ? DT_DIR
           : S_ISLNK(about.st_mode) ? DT_LNK
           : S_ISREG(about.st_mode) ? DT_REG
                                    : DT_UNKNOWN;
}

static enum tess_status text_folder(int parent, const char *name, struct text_found *found);

static enum tess_status text_entry(int folder, const struct dirent *entry, struct text_found *found)
{
    const char *name = entry->d_name;
    const unsigned char kind = text_kind(folder, entry);
    const size_t used = strlen(found->path);
    enum tess_status status = TESS_OK;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        used + strlen(name) + 2 > sizeof(found->path))
        return TESS_OK;
    if (found->parts > 0 && found->depth == 1 && found->met++ % found->parts != found->part)
        return TESS_OK;
    found->path[used] = '/';
    strcpy(found->path + used + 1, name);
    if (kind == DT_DIR && found->tree)
        status = text_folder(folder, name, found);
    else if (found->tree ? kind == DT_REG && text_is_text(name) : kind == DT_REG || kind == DT_LNK)
        status = text_take(folder, name, found);
    found->path[used] = '\0';
    return status;
}

/* What cannot be opened is left out. */
static enum tess_status text_folder(int parent, const char *name, struct text_found *found)
{
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    enum tess_status status = TESS_OK;
    if (folder == NULL) {
        if (fd >= 0)
            close(fd);
        return TESS_OK;
    }
    found->depth++;
    for (const struct dirent *entry = readdir(folder);
         entry != NULL && status == TESS_OK && !text_is_enough(found); entry = readdir(folder))
        status = text_entry(fd, entry, found);
    found->depth--;
    closedir(folder);
    return status;
}

/* All files of a tree whose names promise text, or all that lie in the folder itself. Links are
 * taken there only: in a tree they lead to files that are met anyway, or in circles. */
static enum tess_status text_walk(const char *root, const char *folder, bool tree,
                                  struct text_found *found)
{
    found->tree = tree;
    snprintf(found->path, sizeof(found->path), "%s%s", root, folder);
    return text_folder(AT_FDCWD, found->path, found);
}

/* The beginning of a file, up to `bytes`: what can be read of it. Returns the bytes read. */
static size_t text_read(const char *path, uint8_t *target, size_t bytes)
{
    struct stat about;
    size_t got = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode))
        got = tess_file_read(fd, target, bytes, -1);
    close(fd);
    return got;
}

static enum tess_status text_find(const char *root, struct text_found *found)
{
    TESS_TRY(text_walk(root, TEXT_LICENCES, false, found));
    const int32_t licences = found->names.count;
    TESS_TRY(text_walk(root, TEXT_DOC, true, found));
    TESS_TRY(text_walk(root, TEXT_PERL, true, found));
    tess__names_sort(&found->names, 0, licences);
    tess__names_sort(&found->names, licences, found->names.count);
    return TESS_OK;
}

static enum tess_status text_check(const char *root, size_t bytes)
{
    if (bytes < TEXT_BYTES_MIN)
        TESS_FAIL(TESS_ERR_NOT_FOUND,
                  "only %zu bytes of text under %s%s, %s and %s: name a text file with --data FILE",
                  bytes, root, TEXT_LICENCES, TEXT_DOC, TEXT_PERL);
    return TESS_OK;
}

/* Fill the memory and give back the pages that stay empty. */
static enum tess_status text_fill(const struct tess__names *names, const char *root,
                                  uint8_t *memory, size_t bytes_max,
                                  struct tess_token_stream *stream)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = 0;
    for (int32_t i = 0; i < names->count && bytes < bytes_max; i++)
        bytes += text_read(names->name[i], memory + bytes, bytes_max - bytes);
    const size_t used = (bytes + page - 1) / page * page;
    const size_t mapped = (bytes_max + page - 1) / page * page;
    const enum tess_status status = text_check(root, bytes);
    if (status != TESS_OK) {
        munmap(memory, bytes_max);
        return status;
    }
    if (used < mapped)
        munmap(memory + used, mapped - used);
    mprotect(memory, bytes, PROT_READ);
    stream->kind = &tess__token_text;
    return tess__stream_append(
        stream, TEXT_NAME,
        (struct tess__token_piece){
            .token = memory, .count = (int64_t)bytes, .map = memory, .map_bytes = used});
}

enum tess_status tess__text_gather(const char *root, size_t bytes_max,
                                   struct tess_token_stream *stream)
{
    struct text_found found = {.bytes = 0};
    uint8_t *memory = NULL;
    enum tess_status status = text_find(root, &found);
    if (status == TESS_OK)
        status = tess__stream_map(bytes_max, &memory);
    if (status == TESS_OK)
        status = text_fill(&found.names, root, memory, bytes_max, stream);
    tess__names_close(&found.names);
    return status;
}

/* Half of a machine's text: a thread of its own counts it, as there are hundreds of folders. */
struct text_half {
    const char *root;
    enum tess_status status;
    struct text_found found;
};

static void *text_half(void *context)
{
    struct text_half *half = context;
    half->status = text_find(half->root, &half->found);
    return NULL;
}

enum tess_status tess__text_size(const char *root, size_t bytes_max,
                                 struct tess_token_stream *stream)
{
    struct text_half half[] = {{root, TESS_OK, {.bytes_max = bytes_max, .parts = 2}},
                               {root, TESS_OK, {.bytes_max = bytes_max, .parts = 2, .part = 1}}};
    pthread_t thread;
    const bool beside = pthread_create(&thread, NULL, text_half, &half[1]) == 0;
    (void)text_half(&half[0]);
    if (beside)
        pthread_join(thread, NULL);
    else
        (void)text_half(&half[1]);
    TESS_TRY(half[0].status);
    TESS_TRY(half[1].status);
    const size_t all = half[0].found.bytes + half[1].found.bytes;
    TESS_TRY(text_check(root, all));
    const size_t bytes = all < bytes_max ? all : bytes_max;
    stream->kind = &tess__token_text;
    return tess__stream_append(stream, TEXT_NAME,
                               (struct tess__token_piece){.count = (int64_t)bytes});
}
