/* Files that are there completely or not at all, and errors that name them. */
#ifndef TESSERA_BASE_FILE_H
#define TESSERA_BASE_FILE_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Write `bytes` [count] as the whole file `path`: into a temporary file beside it that is renamed
 * once it is safe on the disk, so that no reader sees a part and an older file stays until then.
 * Behind a symbolic link the file is replaced, not the link; the new file has the mode of the old
 * one. Terminals and pipes (/dev/stdout) are written to directly, a pipe that nobody reads is an
 * error. TESS_ERR_IO, with a message.
 */
enum tess_status tess_file_write(const char *path, const void *bytes, size_t count);

/*
 * The same, piece by piece: create, any number of tess_file_append(writer.fd, ...), commit. commit
 * takes the errno of what went wrong so far (0: nothing) and ends the writer in any case: the file
 * is there under its name, or nothing is left behind and TESS_ERR_IO is logged with the reason.
 * Regular files only: a device, a pipe, a folder or a link to nothing is TESS_ERR_IO and stays.
 */
struct tess_file_writer {
    int fd;
    const char *name; /* as given, for messages; borrowed until commit */
    char path[4096], temporary[4096 + 32];
};
enum tess_status tess_file_create(const char *path, struct tess_file_writer *writer);
enum tess_status tess_file_commit(struct tess_file_writer *writer, int error);

/*
 * A file that grows by whole records (lines, events) and is written at once, for programs that
 * follow it. A failed append is a warning: the file ends with the last whole record, every later
 * append returns the same status without another message, and the close is an error. `part` and
 * `within` name a record ("lines", "a line"), `option` the option that chose the place; borrowed.
 */
struct tess_file_log {
    int fd;
    long long whole_bytes; /* up to the end of the last whole record */
    enum tess_status status;
    const char *part, *within, *option;
    char path[4096];
};
/* Create, or cut to its first `keep` bytes, log->path, which with the three words is the caller's
 * to set. */
enum tess_status tess_file_log_open(struct tess_file_log *log, long long keep);
enum tess_status tess_file_log_append(struct tess_file_log *log, const void *bytes, size_t count);
/* The first failure of any append or of the close itself. */
enum tess_status tess_file_log_close(struct tess_file_log *log);

/* mkdir -p. TESS_ERR_IO with a message: `what` ("the run folder") and the path. */
enum tess_status tess_file_make_folders(const char *path, const char *what);

/*
 * The path of file `name` in the user's cache, by the XDG base directory specification, whose
 * folders are made where `make`. False: the user has none, or the path does not fit.
 */
bool tess_file_cache(const char *name, bool make, char *path, size_t bytes);

/* Flush to the disk, where the descriptor is of a kind that has one and `error` is 0, and close.
 * Returns `error`, else errno or 0. */
int tess_file_close(int fd, int error);

/*
 * Lock an open file (flock(2)) until the last of its descriptors is closed; waits for wait_s at
 * most. For writing, which NFS asks for. 0; EWOULDBLOCK: another process has it; ENOTSUP: the file
 * system has no locks, as Lustre mounted without `flock` and NFS without its lock service; else
 * errno.
 */
int tess_file_lock(int fd, double wait_s);

/* Flush a folder: names that were made, changed or removed in it are on the disk. errno or 0. */
int tess_file_sync_folder(const char *path);

/* Write all bytes to a descriptor, through interruptions and short writes; a file size limit is an
 * error here, not a signal. Returns errno, 0 when done. */
int tess_file_append(int fd, const void *bytes, size_t count);

/* The same at byte `at` of its file, wherever the descriptor stands. By several threads at a time.
 */
int tess_file_write_at(int fd, const void *bytes, size_t count, int64_t at);

/*
 * Read `bytes` from a descriptor at byte `at` of its file (-1: from where it stands), through
 * interruptions and short reads. Returns what there was: less at the end of the file, where errno
 * is 0, or after an error.
 */
size_t tess_file_read(int fd, void *target, size_t bytes, int64_t at);

/* ftruncate; a file size limit is an error here, not a signal. Returns errno or 0. */
int tess_file_resize(int fd, size_t bytes);

/*
 * Can `path` be written at the end of long work, by tess_file_write or tess_file_create? Creates a
 * file beside it and removes it. Of pipes only what this process has open already will do
 * (/dev/stdout, /dev/fd/63): any other may have no reader then. TESS_ERR_IO with a message: `what`
 * ("--json") and the path.
 */
enum tess_file_use { TESS_FILE_TEXT, TESS_FILE_WHOLE };
enum tess_status tess_file_check(const char *path, enum tess_file_use use, const char *what);

/*
 * Open a file that a user has named, to read it. Never waits: of what is not a regular file only
 * what this process has open already is read (/dev/stdin, /dev/fd/3), and /dev/null. NULL, and
 * *why_out says why: a text that the next call may change.
 */
FILE *tess_file_open_input(const char *path, const char **why_out);

#endif
