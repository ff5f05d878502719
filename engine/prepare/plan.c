/* Which files there are, of which kind each is, and what every shard is made of. */
#include "prepare/prepare.h"

#include "base/array.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/data_tokens.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Text of a shard: a sixty-fourth of all, so that a resumed run loses little and many processes
 * have work; but no shard is tiny, and none is large. */
#define PLAN_SHARDS    64
#define PLAN_BYTES_MIN ((int64_t)1 << 20)
#define PLAN_BYTES_MAX ((int64_t)256 << 20)

/* How much text compressed bytes are, for the size of shards only. */
#define PLAN_PACKED 4

/* ---- files -------------------------------------------------------------------------------------
 */

static bool plan_has_ending(const char *name, enum prepare_packing packing, const char *ending)
{
    char pattern[64];
    snprintf(pattern, sizeof(pattern), "*%s%s", ending,
             packing == PREPARE_GZIP   ? ".gz"
             : packing == PREPARE_ZSTD ? ".zst"
                                       : "");
    return fnmatch(pattern, name, 0) == 0;
}

static bool plan_is_lines(const char *name, enum prepare_packing packing)
{
    return plan_has_ending(name, packing, ".jsonl") || plan_has_ending(name, packing, ".ndjson") ||
           plan_has_ending(name, packing, ".json");
}

/* By its first bytes: a name may be wrong. */
static enum tess_status plan_look(struct prepare_file *file, struct stat *about)
{
    uint8_t head[512];
    const int fd = open(file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, about) != 0) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        TESS_FAIL(error == ENOENT || error == ENOTDIR ? TESS_ERR_NOT_FOUND : TESS_ERR_IO,
                  "--text: cannot open %s: %s", file->name, strerror(error));
    }
    const bool regular = S_ISREG(about->st_mode);
    const size_t count = regular ? tess_file_read(fd, head, sizeof(head), 0) : 0;
    close(fd);
    if (!regular)
        TESS_FAIL(TESS_ERR_DATA,
                  "--text: %s is not a regular file; for a folder's files: '%s/*.txt'", file->name,
                  file->name);
    file->bytes = about->st_size;
    if (count >= 2 && memcmp(head, "\x1f\x8b", 2) == 0)
        file->packing = PREPARE_GZIP;
    else if (count >= 4 && memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0)
        file->packing = PREPARE_ZSTD;
    else
        TESS_TRY(tess__format_check_magic(file->name, head, count));
    file->lines = plan_is_lines(file->name, file->packing);
    return TESS_OK;
}

static void plan_hash(struct prepare_plan *plan, const void *bytes, size_t count)
{
    plan->id = tess_hash_mix(plan->id + tess_hash_bytes(bytes, count));
}

static enum tess_status plan_add_file(struct prepare_plan *plan, const char *name)
{
    struct stat about;
    struct prepare_file *file = &plan->file[plan->file_count++];
    file->name = strdup(name);
    if (file->name == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the names of the files");
    TESS_TRY(plan_look(file, &about));
    plan->bytes += file->bytes;
    const int64_t facts[3] = {about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec};
    plan_hash(plan, name, strlen(name));
    plan_hash(plan, facts, sizeof(facts));
    return TESS_OK;
}

/* ---- shards ------------------------------------------------------------------------------------
 */

static enum tess_status plan_add_piece(struct prepare_plan *plan, struct prepare_piece piece)
{
    struct prepare_piece *more =
        tess__array_grow(plan->piece, (size_t)plan->piece_count, sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan of the shards");
    plan->piece = more;
    plan->piece[plan->piece_count++] = piece;
    return TESS_OK;
}

/* The next piece begins a shard. */
static enum tess_status plan_begin_shard(struct prepare_plan *plan)
{
    int32_t *more = tess__array_grow(plan->shard, (size_t)plan->shard_count + 1, sizeof(*more));
    if (more == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan of the shards");
    plan->shard = more;
    plan->shard[plan->shard_count++] = plan->piece_count;
    return TESS_OK;
}

/* Plain JSON Lines are cut into pieces; any other file is read from its beginning to its end. */
static enum tess_status plan_divide(struct prepare_plan *plan, int64_t target)
{
    int64_t filled = target; /* of the last shard */
    for (int32_t f = 0; f < plan->file_count; f++) {
        const struct prepare_file *file = &plan->file[f];
        const bool cut = file->lines && file->packing == PREPARE_PLAIN;
        const int64_t weight = file->packing == PREPARE_PLAIN ? 1 : PLAN_PACKED;
        for (int64_t at = 0; at < file->bytes;) {
            const int64_t end = cut && file->bytes - at > target ? at + target : file->bytes;
            if (filled >= target) {
                TESS_TRY(plan_begin_shard(plan));
                filled = 0;
            }
            TESS_TRY(plan_add_piece(plan, (struct prepare_piece){f, at, end}));
            filled += (end - at) * weight;
            at = end;
        }
    }
    if (plan->shard_count == 0)
        TESS_FAIL(TESS_ERR_DATA, "--text: all files are empty");
    plan->shard[plan->shard_count] = plan->piece_count;
    return TESS_OK;
}

enum tess_status tess__prepare_plan(struct prepare_plan *plan, const char *text, uint64_t seed)
{
    struct tess__names names = {0};
    plan->id = seed;
    enum tess_status status = tess__names_expand(&names, text);
    plan->file = calloc((size_t)names.count + 1, sizeof(*plan->file));
    plan->shard = calloc(16, sizeof(*plan->shard)); /* from where tess__array_grow doubles */
    if (status == TESS_OK && (!plan->file || !plan->shard))
        status = tess_fail(TESS_ERR_MEMORY, "no memory for %d files", names.count);
    for (int32_t i = 0; i < names.count && status == TESS_OK; i++)
        status = plan_add_file(plan, names.name[i]);
    tess__names_close(&names);
    TESS_TRY(status);
    int64_t target = plan->bytes / PLAN_SHARDS;
    target = target < PLAN_BYTES_MIN ? PLAN_BYTES_MIN : target;
    return plan_divide(plan, target > PLAN_BYTES_MAX ? PLAN_BYTES_MAX : target);
}

void tess__prepare_plan_fini(struct prepare_plan *plan)
{
    for (int32_t i = 0; i < plan->file_count; i++)
        free(plan->file[i].name);
    free(plan->file);
    free(plan->piece);
    free(plan->shard);
}
