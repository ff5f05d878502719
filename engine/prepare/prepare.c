/*
 * From files of text to a folder of shards: processes take one shard after the other, and each
 * shard is under its name only when it is whole. So a run that was ended anywhere goes on by the
 * same command, and the result is the same for any number of processes.
 */
#include "prepare/prepare.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/terminal.h"
#include "data/data_tokens.h"
#include "prepare/index.h"
#include "prepare/shard_write.h"
#include "tessera/check.h"
#include "text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PREPARE_PERIOD_NS 50000000 /* between two looks at the processes */
#define PREPARE_LOCK_S    5.0
#define PREPARE_BAR       24

/* What the processes share. */
struct prepare_shared {
    atomic_int next; /* shard to be taken */
    atomic_int failed;
    atomic_llong bytes; /* of the files, read or left out as done */
};

struct prepare {
    const struct tess__prepare_options *options;
    struct tess__tokenizer *tokenizer;
    const struct prepare_template *of; /* of chats; NULL: texts */
    const char *key;
    struct prepare_plan plan;
    struct tess__shard_header about;
    struct prepare_shared *shared;
    int lock;
    int32_t kept; /* shards that were there */
    double start_s;
};

/* ---- one shard ---------------------------------------------------------------------------------
 */

/* A chat is cut where what is learnt begins and ends, as it will be where a model answers. */
static enum tess_status prepare_document(struct prepare *prepare,
                                         const struct prepare_document *document,
                                         struct shard_writer *writer, struct tess__ids *ids)
{
    size_t *cut = malloc((document->cut_count + 1) * sizeof(*cut)), at = 0;
    enum tess_status status = TESS_OK;
    if (cut == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a document");
    ids->count = 0;
    for (size_t c = 0; c <= document->cut_count && status == TESS_OK; c++) {
        const size_t end = c < document->cut_count ? document->cut[c] : document->bytes;
        status =
            prepare->of == NULL
                ? tess__tokenizer_encode(prepare->tokenizer, document->text + at, end - at, ids)
                : tess__tokenizer_encode_chat(prepare->tokenizer, document->text + at, end - at,
                                              c == 0, ids);
        cut[c] = ids->count;
        at = end;
    }
    if (status == TESS_OK && ids->count > 0)
        status = tess__shard_add(writer, ids, cut, document->cut_count);
    free(cut);
    return status;
}

static enum tess_status prepare_piece(struct prepare *prepare, const struct prepare_piece *piece,
                                      struct shard_writer *writer, struct tess__ids *ids)
{
    struct prepare_source *source;
    struct prepare_document document;
    int64_t counted = 0;
    TESS_TRY(tess__source_open_piece(&prepare->plan.file[piece->file], piece, prepare->key,
                                     prepare->of, &source));
    enum tess_status status;
    while ((status = tess__source_next(source, &document)) == TESS_OK && document.text != NULL &&
           !atomic_load(&prepare->shared->failed)) {
        status = prepare_document(prepare, &document, writer, ids);
        if (status != TESS_OK)
            break;
        writer->header.text_bytes += (int64_t)document.bytes;
        /* A piece's last line is read beyond its end. */
        const int64_t most = piece->end - piece->first, read = tess__source_read(source);
        atomic_fetch_add(&prepare->shared->bytes, (read < most ? read : most) - counted);
        counted = read < most ? read : most;
    }
    atomic_fetch_add(&prepare->shared->bytes, piece->end - piece->first - counted);
    tess__source_close_piece(source);
    return status;
}

static enum tess_status prepare_shard(struct prepare *prepare, int32_t shard, struct tess__ids *ids)
{
    const struct prepare_plan *plan = &prepare->plan;
    struct shard_writer writer;
    char path[PATH_MAX];
    TESS_TRY(tess__index_shard_path(prepare->options->out, shard, path));
    TESS_TRY(tess__shard_create(&writer, path, &prepare->about));
    enum tess_status status = TESS_OK;
    for (int32_t p = plan->shard[shard]; p < plan->shard[shard + 1] && status == TESS_OK; p++)
        status = prepare_piece(prepare, &plan->piece[p], &writer, ids);
    if (status == TESS_OK && atomic_load(&prepare->shared->failed))
        status = TESS_ERR_ABORTED;
    return tess__shard_commit(&writer, status);
}

/* Is the shard there, of this very plan? */
static bool prepare_has(const struct prepare *prepare, int32_t shard)
{
    struct tess__shard_header header;
    char path[PATH_MAX];
    return tess__index_shard_path(prepare->options->out, shard, path) == TESS_OK &&
           tess__shard_look(path, &header) && header.plan == prepare->plan.id;
}

/* ---- processes ---------------------------------------------------------------------------------
 */

/* Returns the exit status of a process. */
static int prepare_work(struct prepare *prepare)
{
    struct tess__ids ids = {0};
    enum tess_status status = TESS_OK;
    while (status == TESS_OK && !atomic_load(&prepare->shared->failed)) {
        const int32_t shard = atomic_fetch_add(&prepare->shared->next, 1);
        if (shard >= prepare->plan.shard_count)
            break;
        if (!prepare_has(prepare, shard))
            status = prepare_shard(prepare, shard, &ids);
    }
    if (status != TESS_OK)
        atomic_store(&prepare->shared->failed, 1);
    free(ids.id);
    return status == TESS_OK ? 0 : 1;
}

static void prepare_draw(const struct prepare *prepare, bool live)
{
    char rate[TESS__TEXT_BYTES], left[TESS__TEXT_BYTES], bar[PREPARE_BAR + 1];
    const double all = (double)prepare->plan.bytes;
    const double done = fmin((double)atomic_load(&prepare->shared->bytes) / all, 1);
    const double spent = tess_clock_s() - prepare->start_s;
    if (!live)
        return;
    for (int i = 0; i < PREPARE_BAR; i++)
        bar[i] = i < done * PREPARE_BAR ? '#' : '.';
    bar[PREPARE_BAR] = '\0';
    printf("\r[%s] %3.0f %%, %s/s, %s left \033[K", bar, 100 * done,
           tess__text_bytes(done * all / fmax(spent, 1e-9), rate),
           done > 0 ? tess__text_time(spent / done - spent, left) : "?");
    fflush(stdout);
}

/* Waits for all; 0 or the number of processes that failed. */
static enum tess_status prepare_wait(struct prepare *prepare, int running)
{
    const struct timespec period = {.tv_nsec = PREPARE_PERIOD_NS};
    const bool live = tess__is_terminal(STDOUT_FILENO);
    enum tess_status status = TESS_OK;
    while (running > 0) {
        int code;
        const pid_t ended = waitpid(-1, &code, WNOHANG);
        if (ended > 0) {
            running--;
            if (WIFSIGNALED(code)) {
                atomic_store(&prepare->shared->failed, 1);
                TESS_KEEP(status, tess_fail(TESS_ERR_ABORTED,
                                            "a process was killed by signal %d (%s); the same "
                                            "command goes on with what is left",
                                            WTERMSIG(code), strsignal(WTERMSIG(code))));
            } else if (WEXITSTATUS(code) != 0 && status == TESS_OK) {
                status = TESS_ERR_DATA; /* it has said why */
            }
            continue;
        }
        prepare_draw(prepare, live);
        nanosleep(&period, NULL);
    }
    if (live)
        printf("\r\033[K");
    return status;
}

static enum tess_status prepare_run(struct prepare *prepare)
{
    int64_t count = prepare->options->processes > 0 ? prepare->options->processes : tess_cores();
    const int32_t left = prepare->plan.shard_count - prepare->kept;
    int running = 0;
    count = count < left ? count : left;
    fflush(stdout); /* or each process would have the buffer */
    for (int64_t i = 0; i < count; i++) {
        const pid_t parent = getpid(), child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? prepare_work(prepare) : 1);
        }
        if (child < 0 && running == 0)
            TESS_FAIL(TESS_ERR_MEMORY, "cannot start a process: %s", strerror(errno));
        running += child > 0;
    }
    return prepare_wait(prepare, running);
}

/* ---- the folder --------------------------------------------------------------------------------
 */

/* One command at a time writes to the folder. Processes of one that was killed may be there for a
 * moment. */
static enum tess_status prepare_lock(struct prepare *prepare)
{
    const char *out = prepare->options->out;
    char path[PATH_MAX];
    TESS_TRY(tess_file_make_folders(out, "--out"));
    if (snprintf(path, sizeof(path), "%s/.lock", out) >= (int)sizeof(path))
        TESS_FAIL(TESS_ERR_USAGE, "the name of --out is too long");
    prepare->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (prepare->lock < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    const int error = tess_file_lock(prepare->lock, PREPARE_LOCK_S);
    if (error == EWOULDBLOCK)
        TESS_FAIL(TESS_ERR_USAGE, "--out %s: another tessera data prepare writes to it", out);
    if (error == ENOTSUP)
        tess_log(TESS_LOG_WARN,
                 "the file system of %s has no locks: nothing prevents that another tessera data "
                 "prepare writes there",
                 out);
    else if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot lock %s: %s", path, strerror(error));
    return TESS_OK;
}

/* Shards of other files or options are an error, or removed. */
static enum tess_status prepare_look(struct prepare *prepare)
{
    struct tess__shard_header header;
    char path[PATH_MAX];
    if (prepare->options->overwrite)
        TESS_TRY(tess__index_clear(prepare->options->out, true));
    TESS_TRY(tess__index_clear(prepare->options->out, false));
    for (int32_t shard = 0; shard < prepare->plan.shard_count; shard++) {
        TESS_TRY(tess__index_shard_path(prepare->options->out, shard, path));
        if (!tess__shard_look(path, &header))
            continue;
        if (header.plan != prepare->plan.id)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--out %s has shards of other texts or options (or the texts have changed): "
                      "choose another folder, or give --overwrite to replace them",
                      prepare->options->out);
        prepare->kept++;
        for (int32_t p = prepare->plan.shard[shard]; p < prepare->plan.shard[shard + 1]; p++)
            atomic_fetch_add(&prepare->shared->bytes,
                             prepare->plan.piece[p].end - prepare->plan.piece[p].first);
    }
    if (prepare->kept > 0)
        printf("%d of %d shards are there already\n", prepare->kept, prepare->plan.shard_count);
    return TESS_OK;
}

/* ---- options -----------------------------------------------------------------------------------
 */

/* The token that ends a document: what --end says. */
static enum tess_status prepare_choose_end(struct prepare *prepare, int32_t *end_out)
{
    const char *end = prepare->options->end;
    *end_out = -1;
    /* What an assistant says has an end of its own. */
    if (strcmp(end, "none") == 0 || (prepare->of != NULL && strcmp(end, "auto") == 0))
        return TESS_OK;
    const bool chosen = strcmp(end, "auto") == 0;
    *end_out = chosen ? tess__tokenizer_end(prepare->tokenizer)
                      : tess__tokenizer_find(prepare->tokenizer, end);
    if (*end_out < 0 && chosen)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s does not say which token ends a document: name it, --end '<|endoftext|>', or "
                  "--end none",
                  tess__tokenizer_file(prepare->tokenizer));
    if (*end_out < 0)
        TESS_FAIL(TESS_ERR_USAGE, "--end: the tokenizer has no token %s", end);
    return TESS_OK;
}

static enum tess_status prepare_open(struct prepare *prepare)
{
    const struct tess__prepare_options *options = prepare->options;
    struct tess__shard_header *about = &prepare->about;
    TESS_TRY(tess__tokenizer_open(options->tokenizer, &prepare->tokenizer));
    about->vocabulary = tess__tokenizer_vocabulary(prepare->tokenizer);
    about->width = about->vocabulary <= 65536 ? 2 : 4;
    about->tokenizer = tess__tokenizer_id(prepare->tokenizer);
    TESS_TRY(tess__chat_choose(options->chat, prepare->tokenizer, &prepare->of));
    about->masked = prepare->of != NULL;
    prepare->key = options->key[0] ? options->key : prepare->of != NULL ? "messages" : "text";
    TESS_TRY(prepare_choose_end(prepare, &about->end));
    const uint64_t seed = tess_hash_mix(about->tokenizer + tess_hash_mix((uint64_t)about->end)) +
                          tess_hash_bytes(prepare->key, strlen(prepare->key));
    const char *chat = tess__chat_name(prepare->of);
    TESS_TRY(tess__prepare_plan(&prepare->plan, options->text,
                                prepare->of != NULL ? seed + tess_hash_bytes(chat, strlen(chat))
                                                    : seed));
    about->plan = prepare->plan.id;
    uint8_t *memory;
    TESS_TRY(tess__stream_map(sizeof(*prepare->shared), &memory));
    prepare->shared = (struct prepare_shared *)(void *)memory;
    return prepare_lock(prepare);
}

enum tess_status tess__prepare(const struct tess__prepare_options *options)
{
    struct prepare prepare = {.options = options, .lock = -1, .start_s = tess_clock_s()};
    enum tess_status status = prepare_open(&prepare);
    if (status == TESS_OK)
        status = prepare_look(&prepare);
    if (status == TESS_OK)
        status = prepare_run(&prepare);
    if (status == TESS_OK)
        status = tess__index_write(options->out, prepare.plan.shard_count, prepare.tokenizer,
                                   tess_clock_s() - prepare.start_s);
    tess__prepare_plan_fini(&prepare.plan);
    tess__tokenizer_close(prepare.tokenizer);
    if (prepare.shared != NULL)
        munmap(prepare.shared, sizeof(*prepare.shared));
    if (prepare.lock >= 0)
        close(prepare.lock);
    return status;
}
