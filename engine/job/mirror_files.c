/* The files of a folder over a connection; see mirror.h. */
#include "job/mirror.h"

#include "base/clock.h"
#include "base/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_NAME      64
#define FILES_MOST      4096
#define FILES_SIZE_MOST (INT64_C(1) << 44)
#define FILES_CHUNK     (INT64_C(1) << 20)

struct files_record {
    enum files_kind { FILES_FILE, FILES_DATA, FILES_END } kind;
    int32_t zero;
    int64_t offset; /* DATA: in the latest file */
    int64_t count;  /* FILE: its length; DATA: bytes that follow this record */
    char name[FILES_NAME];
};

struct files {
    int fd;     /* the connection */
    int folder; /* -1: not open */
    int file;   /* -1: none yet */
    double silent_s;
    int64_t size; /* of the file */
    bool merges;  /* it had bytes of another part before */
    int32_t count;
    unsigned char *room, *other; /* [FILES_CHUNK] each */
    char *why;
    size_t why_bytes;
};

static bool files_fail(const struct files *files, const char *what, int error)
{
    snprintf(files->why, files->why_bytes, "%s%s%s", what, error != 0 ? ": " : "",
             error != 0 ? strerror(error) : "");
    return false;
}

static bool files_open(struct files *files, int fd, const char *folder, double silent_s, char *why,
                       size_t why_bytes)
{
    *files = (struct files){.fd = fd,
                            .folder = -1,
                            .file = -1,
                            .silent_s = silent_s,
                            .why = why,
                            .why_bytes = why_bytes};
    files->room = malloc((size_t)FILES_CHUNK * 2);
    if (files->room == NULL)
        return files_fail(files, "no memory for a copy on its way", 0);
    files->other = files->room + FILES_CHUNK;
    files->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return files->folder >= 0 || files_fail(files, folder, errno);
}

static void files_close(struct files *files)
{
    if (files->file >= 0)
        close(files->file);
    if (files->folder >= 0)
        close(files->folder);
    free(files->room);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool files_put(const struct files *files, const void *bytes, size_t count)
{
    return tess__boot_send(files->fd, bytes, count, tess_clock_s() + files->silent_s, files->why,
                           files->why_bytes);
}

/* Bytes [from, to) of the file, which are no hole. */
static bool files_send_data(const struct files *files, int64_t from, int64_t to)
{
    for (int64_t at = from; at < to;) {
        const int64_t count = to - at < FILES_CHUNK ? to - at : FILES_CHUNK;
        const struct files_record data = {.kind = FILES_DATA, .offset = at, .count = count};
        if (tess_file_read(files->file, files->room, (size_t)count, at) != (size_t)count)
            return files_fail(files, "a file of the copy has become shorter", errno);
        if (!files_put(files, &data, sizeof(data)) || !files_put(files, files->room, (size_t)count))
            return false;
        at += count;
    }
    return true;
}

static bool files_send_file(struct files *files, const char *name)
{
    struct files_record record = {.kind = FILES_FILE};
    struct stat about;
    if (strlen(name) >= sizeof(record.name))
        return files_fail(files, "a file of the copy has too long a name", 0);
    files->file = openat(files->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (files->file < 0 || fstat(files->file, &about) != 0 || !S_ISREG(about.st_mode))
        return files_fail(files, "a file of the copy cannot be read", errno);
    memcpy(record.name, name, strlen(name));
    record.count = about.st_size;
    bool sent = files_put(files, &record, sizeof(record));
    for (int64_t at = 0; sent && at < record.count;) {
        const off_t from = lseek(files->file, at, SEEK_DATA);
        if (from < 0 || from >= record.count)
            break; /* a hole up to the end */
        const off_t hole = lseek(files->file, from, SEEK_HOLE);
        at = hole > from && hole < record.count ? hole : record.count;
        sent = files_send_data(files, from, at);
    }
    close(files->file);
    files->file = -1;
    return sent;
}

bool tess__mirror_send_files(int fd, const char *folder, double silent_s, char *why,
                             size_t why_bytes)
{
    struct files files;
    const struct files_record end = {.kind = FILES_END};
    bool sent = files_open(&files, fd, folder, silent_s, why, why_bytes);
    DIR *list = sent ? opendir(folder) : NULL;
    if (sent && list == NULL)
        sent = files_fail(&files, folder, errno);
    for (const struct dirent *entry; sent && (entry = readdir(list)) != NULL;)
        if (entry->d_name[0] != '.')
            sent = files_send_file(&files, entry->d_name);
    if (list != NULL)
        closedir(list);
    sent = sent && files_put(&files, &end, sizeof(end));
    files_close(&files);
    return sent;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static bool files_get(const struct files *files, void *bytes, size_t count)
{
    return tess__boot_receive(files->fd, bytes, count, tess_clock_s() + files->silent_s, files->why,
                              files->why_bytes);
}

/* Letters, digits, '-', '_' and '.', not the first. */
static bool files_name_is_sound(const char name[FILES_NAME])
{
    const char *end = memchr(name, '\0', FILES_NAME);
    if (end == NULL || end == name || name[0] == '.')
        return false;
    for (const char *at = name; at < end; at++)
        if (!isalnum((unsigned char)*at) && strchr("-_.", *at) == NULL)
            return false;
    return true;
}

static bool files_receive_file(struct files *files, const struct files_record *record)
{
    struct stat about;
    if (files->file >= 0)
        close(files->file);
    files->file = -1;
    if (!files_name_is_sound(record->name) || record->count < 0 ||
        record->count > FILES_SIZE_MOST || ++files->count > FILES_MOST)
        return files_fail(files, "what came is not a copy", 0);
    files->file = openat(files->folder, record->name,
                         O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (files->file < 0 || fstat(files->file, &about) != 0)
        return files_fail(files, "a file of the copy cannot be made", errno);
    if (!S_ISREG(about.st_mode) || (about.st_size > 0 && about.st_size != record->count))
        return files_fail(files, "parts of a copy differ in the length of a file", 0);
    files->size = record->count;
    files->merges = about.st_size > 0;
    const int error = files->merges ? 0 : tess_file_resize(files->file, (size_t)record->count);
    return error == 0 || files_fail(files, "a file of the copy cannot be made", error);
}

static bool files_receive_data(const struct files *files, const struct files_record *record)
{
    const size_t count = (size_t)record->count;
    if (files->file < 0 || record->count < 1 || record->count > FILES_CHUNK || record->offset < 0 ||
        record->offset > files->size - record->count)
        return files_fail(files, "what came is not a copy", 0);
    if (!files_get(files, files->room, count))
        return false;
    if (files->merges) {
        if (tess_file_read(files->file, files->other, count, record->offset) != count)
            return files_fail(files, "a file of the copy cannot be read", errno);
        for (size_t i = 0; i < count; i++)
            files->room[i] |= files->other[i];
    }
    const int error = tess_file_write_at(files->file, files->room, count, record->offset);
    return error == 0 || files_fail(files, "a file of the copy cannot be written", error);
}

bool tess__mirror_receive_files(int fd, const char *folder, double silent_s, char *why,
                                size_t why_bytes)
{
    struct files files;
    struct files_record record;
    bool goes_on = files_open(&files, fd, folder, silent_s, why, why_bytes), complete = false;
    while (goes_on && !complete) {
        goes_on = files_get(&files, &record, sizeof(record));
        if (!goes_on)
            break;
        switch (record.kind) {
        case FILES_FILE:
            goes_on = files_receive_file(&files, &record);
            break;
        case FILES_DATA:
            goes_on = files_receive_data(&files, &record);
            break;
        case FILES_END:
            complete = true;
            break;
        default:
            goes_on = files_fail(&files, "what came is not a copy", 0);
        }
    }
    files_close(&files);
    return complete;
}
