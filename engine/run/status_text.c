/* What a run does, for people and programs. */
#include "run/status.h"

#include "base/file.h"
#include "comm/call.h"
#include "run/fold.h"
#include "run/record.h"
#include "tessera/check.h"
#include "text/json.h"
#include "text/table.h"
#include "text/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define STATUS_TEXT 320

static const char *const status_life_text[] = {
    [TESS__LIFE_NONE] = "no record",  [TESS__LIFE_RUNNING] = "running",
    [TESS__LIFE_STOPPED] = "stopped", [TESS__LIFE_DEAD] = "dead",
    [TESS__LIFE_DISTANT] = "distant", [TESS__LIFE_ENDED] = "ended",
    [TESS__LIFE_FAILED] = "failed",   [TESS__LIFE_ABORTED] = "aborted",
};

static const char *status_axis(int32_t axis)
{
    return axis < 0 ? "all ranks" : tess__record_axis_name[axis];
}

static int32_t status_call_axis(const struct tess__status_rank *rank,
                                const struct tess_flight_call *call)
{
    return call->group < TESS_FLIGHT_GROUPS ? rank->file->now.group[call->group].axis : -1;
}

/* The rank of the world that has this place in the call's group; -1: not known. */
static int32_t status_peer(const struct tess__status *status, int32_t r,
                           const struct tess_flight_call *call)
{
    if (call->peer < 0 || call->group >= TESS_FLIGHT_GROUPS)
        return -1;
    const uint32_t id = status->rank[r].file->now.group[call->group].id;
    int32_t end;
    for (int32_t i = tess__status_members(status, id, &end); i < end; i++)
        if (status->group[i].group->rank == call->peer)
            return status->group[i].rank;
    return -1;
}

/* "14:03:22.417", of CLOCK_REALTIME. */
static const char *status_clock(double real_s, char text[TESS__TEXT_BYTES])
{
    struct tm local;
    const time_t whole = (time_t)real_s;
    char time[16];
    if (real_s < 0 || real_s > 1e11 || localtime_r(&whole, &local) == NULL ||
        strftime(time, sizeof(time), "%H:%M:%S", &local) == 0)
        snprintf(text, TESS__TEXT_BYTES, "-");
    else
        snprintf(text, TESS__TEXT_BYTES, "%s.%03d", time, (int)(1e3 * (real_s - floor(real_s))));
    return text;
}

static double status_real_s(const struct tess__status_rank *rank, double clock_s)
{
    return clock_s + rank->file->head.clock_offset_s;
}

/* "all_reduce 35 of 4.0 KiB (data) at ddp.c:99", "recv of 1.0 KiB from rank 3 (stage) at ...". */
static void status_call_text(const struct tess__status *status, int32_t r,
                             const struct tess_flight_call *call, char text[STATUS_TEXT])
{
    char bytes[TESS__TEXT_BYTES], number[24] = "", peer[32] = "";
    const int32_t whom = status_peer(status, r, call);
    if (call->number > 0)
        snprintf(number, sizeof(number), " %" PRIu64, call->number);
    if (whom >= 0)
        snprintf(peer, sizeof(peer), " %s %d",
                 call->collective == TESS_COLLECTIVE_SEND   ? "to rank"
                 : call->collective == TESS_COLLECTIVE_RECV ? "from rank"
                                                            : "with root",
                 (int)whom);
    snprintf(text, STATUS_TEXT, "%s%s of %s%s (%s)%s%s",
             tess_collective_name((enum tess_collective)call->collective), number,
             tess__text_bytes((double)call->bytes, bytes), peer,
             status_axis(status_call_axis(&status->rank[r], call)),
             call->site[0] != '\0' ? " at " : "", call->site);
}

/* What the rank is at: "in backward of unit 2 (fc2)"; `step`: with the step. */
static void status_doing(const struct tess__status_rank *rank, bool step, char text[STATUS_TEXT])
{
    const struct tess_flight_head *head = &rank->file->head;
    const char *unit_name[TESS_FLIGHT_UNITS];
    struct tess_board board = rank->file->now.board;
    for (int32_t u = 0; u < head->unit_count; u++)
        unit_name[u] = head->unit_name[u];
    atomic_init(&board.collective, -1);
    if (!step)
        atomic_init(&board.step, 0);
    tess_board_describe(&board, unit_name, head->unit_count, text, STATUS_TEXT);
}

/* "rank 2", "ranks 0, 2-4": those in status->in. */
static const char *status_ranks_in(const struct tess__status *status, char text[STATUS_TEXT])
{
    int32_t count = 0;
    for (int32_t r = 0; r < status->rank_count; r++)
        count += status->in[r];
    const int length = snprintf(text, STATUS_TEXT, "%s ", count == 1 ? "rank" : "ranks");
    tess__name_ranks(status->in, status->rank_count, text + length, (size_t)(STATUS_TEXT - length));
    return text;
}

static const char *status_ranks(const struct tess__status *status,
                                const struct tess__status_set *set, char text[STATUS_TEXT])
{
    memset(status->in, 0, (size_t)status->rank_count * sizeof(*status->in));
    for (int32_t i = 0; i < set->count; i++)
        status->in[set->rank[i]] = true;
    return status_ranks_in(status, text);
}

/* ---- table ----------------------------------------------------------------------------------- */

enum {
    COLUMN_RANK,
    COLUMN_STATE,
    COLUMN_STEP,
    COLUMN_DOING,
    COLUMN_WAITS,
    COLUMN_SINCE,
    COLUMN_EXPOSED,
    COLUMN_HOST,
    COLUMN_COUNT
};

struct status_row {
    char text[COLUMN_COUNT][STATUS_TEXT];
};

static void status_fill_waits(const struct tess__status *status, int32_t r, struct status_row *row)
{
    const struct tess__status_rank *rank = &status->rank[r];
    char whom[STATUS_TEXT] = "", clock[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES];
    if (rank->waits == NULL)
        return;
    if (rank->waits_for != NULL)
        status_ranks(status, rank->waits_for, whom);
    snprintf(row->text[COLUMN_WAITS], STATUS_TEXT, "%.80s%s%s", whom, whom[0] != '\0' ? ": " : "",
             tess_collective_name((enum tess_collective)rank->waits->collective));
    const double since_s = status_real_s(rank, rank->file->now.since_s);
    const int length =
        snprintf(row->text[COLUMN_SINCE], STATUS_TEXT, "%s", status_clock(since_s, clock));
    if (status->live || status->ending)
        snprintf(row->text[COLUMN_SINCE] + length, (size_t)(STATUS_TEXT - length), " (%s)",
                 tess__text_time(fmax(0, status->now_s - since_s), time));
}

static void status_fill(const struct tess__status *status, int32_t r, struct status_row *row)
{
    const struct tess__status_rank *rank = &status->rank[r];
    char time[TESS__TEXT_BYTES];
    for (int c = 0; c < COLUMN_COUNT; c++)
        snprintf(row->text[c], STATUS_TEXT, "-");
    snprintf(row->text[COLUMN_RANK], STATUS_TEXT, "%d", (int)r);
    snprintf(row->text[COLUMN_STATE], STATUS_TEXT, "%s", status_life_text[rank->life]);
    if (rank->file == NULL)
        return;
    const struct tess_board *board = &rank->file->now.board;
    const double passed_s = 1e-6 * (double)board->passed_us;
    const double exposed_s = passed_s - 1e-6 * (double)board->busy_us;
    snprintf(row->text[COLUMN_STEP], STATUS_TEXT, "%" PRId64, board->step);
    status_doing(rank, false, row->text[COLUMN_DOING]);
    status_fill_waits(status, r, row);
    if (passed_s > 0)
        snprintf(row->text[COLUMN_EXPOSED], STATUS_TEXT, "%s (%.0f %%)",
                 tess__text_time(fmax(0, exposed_s), time), 100 * exposed_s / passed_s);
    snprintf(row->text[COLUMN_HOST], STATUS_TEXT, "%.64s, pid %d", rank->file->head.host,
             (int)board->pid);
}

/* Have two ranks the same row, but for times and processes? */
static bool status_alike(const void *context, int32_t a, int32_t b)
{
    const struct tess__status *status = context;
    const struct tess__status_rank *left = &status->rank[a], *right = &status->rank[b];
    if (left->life != right->life || left->file == NULL || right->file == NULL)
        return left->life == right->life && left->file == right->file;
    const struct tess_board *one = &left->file->now.board, *other = &right->file->now.board;
    return one->step == other->step && one->doing == other->doing && one->unit == other->unit &&
           left->waits_for == right->waits_for && (left->waits == NULL) == (right->waits == NULL) &&
           (left->waits == NULL || left->waits->collective == right->waits->collective);
}

/* The row of a group: that of its first rank, with what the others have in place of its own. */
static void status_fill_group(const struct tess__status *status, const struct tess__fold *fold,
                              int32_t g, struct status_row *row)
{
    const struct tess__fold_group *group = &fold->group[g];
    const struct tess_flight_file *first = status->rank[group->first].file;
    const struct tess_flight_file *last = status->rank[group->last].file;
    char name[TESS__FOLD_NAME_BYTES];
    double least = INFINITY, most = 0;
    status_fill(status, group->first, row);
    snprintf(row->text[COLUMN_RANK], STATUS_TEXT, "%s", tess__fold_name(fold, g, name));
    if (group->ranks == 1 || first == NULL)
        return;
    for (int32_t r = group->first; r <= group->last; r++) {
        const struct tess_board *board = fold->of[r] == g ? &status->rank[r].file->now.board : NULL;
        if (board == NULL || board->passed_us <= 0)
            continue;
        const double share = 100 - 100 * (double)board->busy_us / (double)board->passed_us;
        least = fmin(least, share);
        most = fmax(most, share);
    }
    if (least <= most)
        snprintf(row->text[COLUMN_EXPOSED], STATUS_TEXT, "%.0f to %.0f %%", fmax(0, least), most);
    snprintf(row->text[COLUMN_HOST], STATUS_TEXT, "%.64s%s%.64s", first->head.host,
             strcmp(first->head.host, last->head.host) != 0 ? " ... " : "",
             strcmp(first->head.host, last->head.host) != 0 ? last->head.host : "");
}

/* What a person has to look at. */
static enum tess__colour status_colour(const struct tess__status *status, int32_t rank)
{
    switch (status->rank[rank].life) {
    case TESS__LIFE_DEAD:
    case TESS__LIFE_FAILED:
    case TESS__LIFE_ABORTED:
        return TESS__COLOUR_BAD;
    case TESS__LIFE_STOPPED:
        return TESS__COLOUR_WARNING;
    case TESS__LIFE_NONE:
    case TESS__LIFE_RUNNING:
    case TESS__LIFE_DISTANT:
    case TESS__LIFE_ENDED:
        break;
    }
    return rank == status->late ? TESS__COLOUR_WARNING : TESS__COLOUR_PLAIN;
}

static void status_table(const struct tess__status *status, FILE *stream)
{
    static const struct tess__column column[] = {
        {.title = "rank", .left = true, .key = true},
        {.title = "state", .left = true, .key = true},
        {.title = "step", .left = true},
        {.title = "doing", .left = true},
        {.title = "waits for", .left = true},
        {.title = "since", .left = true},
        {.title = "exposed", .left = true},
        {.title = "host", .left = true},
    };
    _Static_assert(sizeof(column) / sizeof(column[0]) == COLUMN_COUNT, "all columns have titles");
    struct tess__table table = {.column = column, .count = COLUMN_COUNT, .gap = 2};
    struct tess__fold fold;
    struct status_row row;
    if (tess__fold_open(&fold, status->rank_count, status_alike, status) != TESS_OK) {
        tess__fold_close(&fold);
        return;
    }
    const int32_t late = status->late >= 0 ? fold.of[status->late] : -1;
    for (int32_t g = 0; g < fold.count; g++) {
        if (g >= TESS__FOLD_ROWS && g != late)
            continue;
        status_fill_group(status, &fold, g, &row);
        for (int c = 0; c < COLUMN_COUNT; c++)
            tess__table_add_colour(&table,
                                   c == COLUMN_STATE ? status_colour(status, fold.group[g].first)
                                                     : TESS__COLOUR_PLAIN,
                                   "%s", row.text[c]);
    }
    tess__table_print(&table, stream);
    if (fold.count > TESS__FOLD_ROWS)
        fprintf(stream, "and %d more kinds of ranks; --json has all\n",
                (int)(fold.count - TESS__FOLD_ROWS - (late >= TESS__FOLD_ROWS)));
    tess__fold_close(&fold);
}

/* ---- sentences ------------------------------------------------------------------------------- */

/* The latest call that a record still has; NULL: none. */
static const struct tess_flight_call *status_latest(const struct tess__status_rank *rank)
{
    const struct tess_flight_call *latest = NULL;
    for (int32_t i = 0; rank->file != NULL && i < TESS_FLIGHT_CALLS; i++) {
        const struct tess_flight_call *call = &rank->file->call[i];
        if (rank->whole[i] && (latest == NULL || call->sequence > latest->sequence))
            latest = call;
    }
    return latest;
}

/* Who is late, in one sentence without its end. */
static void status_late(const struct tess__status *status, char *text, size_t bytes)
{
    char who[STATUS_TEXT], doing[STATUS_TEXT] = "", last[STATUS_TEXT], after[2 * STATUS_TEXT] = "";
    if (status->in_turns != NULL) {
        bool orders = true;
        for (int32_t i = 0; i < status->in_turns->count; i++)
            orders = orders && status->rank[status->in_turns->rank[i]].calls_missing;
        snprintf(text, bytes, "%s wait for each other%s",
                 status_ranks(status, status->in_turns, who),
                 orders ? ": they make their calls in different orders" : "");
        return;
    }
    if (status->late < 0 || status->waiting == NULL) {
        snprintf(text, bytes, "no rank %s for another%s", status->live ? "waits" : "waited",
                 status->live ? " for longer than a second" : "");
        return;
    }
    const struct tess__status_rank *late = &status->rank[status->late];
    const struct tess_flight_call *call = status_latest(late);
    if (late->file != NULL)
        status_doing(late, true, doing);
    if (call != NULL) {
        status_call_text(status, status->late, call, last);
        snprintf(after, sizeof(after), "; its latest call is %s, which has %s", last,
                 call->end_s > 0 ? "ended" : "not ended");
    }
    const int count = status->waiting->count;
    snprintf(text, bytes, "%s%s wait%s for rank %d (%s), which is %s%s%s",
             count == status->rank_count - 1 && count > 1 ? "all others: " : "",
             status_ranks(status, status->waiting, who), count == 1 ? "s" : "", (int)status->late,
             late->file != NULL ? late->file->head.host : "host not known",
             status_life_text[late->life], doing[0] != '\0' ? ", " : "", doing);
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s", after);
}

/* Each different call with the ranks that made it. */
static void status_print_differs(const struct tess__status *status, FILE *stream)
{
    const struct tess__status_differs *differs = &status->differs;
    bool *named = differs->number != 0 ? calloc((size_t)status->rank_count, sizeof(*named)) : NULL;
    int32_t lines = 0;
    if (named == NULL)
        return;
    fprintf(stream, "call %" PRIu64 " (%s) is the first that is not the same on all ranks:\n",
            differs->number, status_axis(differs->axis));
    for (int32_t i = 0; i < differs->rank_count; i++) {
        const struct tess_flight_call *call = differs->of[i].call;
        char text[STATUS_TEXT], who[STATUS_TEXT];
        if (named[differs->of[i].rank] || lines++ >= TESS__FOLD_ROWS)
            continue;
        memset(status->in, 0, (size_t)status->rank_count * sizeof(*status->in));
        for (int32_t k = i; k < differs->rank_count; k++)
            if (differs->of[k].call->collective == call->collective &&
                differs->of[k].call->bytes == call->bytes &&
                differs->of[k].call->dtype == call->dtype &&
                differs->of[k].call->peer == call->peer)
                status->in[differs->of[k].rank] = named[differs->of[k].rank] = true;
        status_call_text(status, differs->of[i].rank, call, text);
        fprintf(stream, "  %s: %s, %s, step %" PRId64 "\n", status_ranks_in(status, who), text,
                tess_dtype_name((enum tess_dtype)call->dtype), call->step);
    }
    if (lines > TESS__FOLD_ROWS)
        fprintf(stream, "  ...\n");
    free(named);
}

/* The last calls of a rank, oldest first. */
static void status_print_calls(const struct tess__status *status, int32_t r, int32_t calls,
                               FILE *stream)
{
    const struct tess__status_rank *rank = &status->rank[r];
    const struct tess_flight_call *latest = status_latest(rank);
    if (latest == NULL)
        return;
    const uint64_t last = latest->sequence / 2;
    fprintf(stream, "\nrank %d\n", (int)r);
    for (uint64_t n = last > (uint64_t)calls ? last - (uint64_t)calls + 1 : 1; n <= last; n++) {
        const uint64_t i = (n - 1) % TESS_FLIGHT_CALLS;
        const struct tess_flight_call *call = &rank->file->call[i];
        char text[STATUS_TEXT], begin[TESS__TEXT_BYTES], took[TESS__TEXT_BYTES] = "not ended";
        char unit[24] = "";
        if (!rank->whole[i] || call->sequence != 2 * n)
            continue;
        if (call->end_s > 0)
            snprintf(took, sizeof(took), "%.3f ms", 1e3 * (call->end_s - call->begin_s));
        status_call_text(status, r, call, text);
        if (call->unit >= 0)
            snprintf(unit, sizeof(unit), ", unit %d", (int)call->unit);
        fprintf(stream, "  %s  %12s  step %" PRId64 "%s: %s\n",
                status_clock(status_real_s(rank, call->begin_s), begin), took, call->step, unit,
                text);
    }
}

void tess__status_print(const struct tess__status *status, int32_t calls, FILE *to)
{
    char late[4 * STATUS_TEXT];
    FILE *stream = tess__screen_open(to);
    static const char *const life[] = {
        [TESS__FOLDER_LEFT] = "no process runs it; the last was ",
        [TESS__FOLDER_LIVE] = "the run is live, ",
        [TESS__FOLDER_UNKNOWN] = "it may be live: its file system has no locks; the last was ",
    };
    const char *text = life[status->life];
    const int length = (int)(status->owner[0] != '\0' ? strlen(text) : strcspn(text, ",;"));
    if (!status->ending)
        fprintf(stream, "%s: %.*s%s\n\n", status->run, length, text, status->owner);
    status_table(status, stream);
    status_late(status, late, sizeof(late));
    fprintf(stream, "\n%s\n", late);
    status_print_differs(status, stream);
    json_t *pace = tess__status_pace(status->run);
    tess__status_print_pace(pace, stream);
    json_decref(pace);
    for (int32_t r = 0; calls > 0 && r < status->rank_count; r++)
        status_print_calls(status, r, calls, stream);
    tess__screen_close(stream, to);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *status_json_ranks(const struct tess__status_set *set)
{
    json_t *list = json_array();
    for (int32_t i = 0; set != NULL && i < set->count; i++)
        json_array_append_new(list, json_integer(set->rank[i]));
    return list;
}

static json_t *status_json_call(const struct tess__status *status, int32_t r,
                                const struct tess_flight_call *call)
{
    const struct tess__status_rank *rank = &status->rank[r];
    const int32_t axis = status_call_axis(rank, call), peer = status_peer(status, r, call);
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:s, s:s, s:I, s:i, s:o, s:f, s:o}", "operation",
        tess_collective_name((enum tess_collective)call->collective), "axis",
        axis < 0 ? "all" : tess__record_axis_name[axis], "number", (json_int_t)call->number,
        "bytes", (json_int_t)call->bytes, "dtype", tess_dtype_name((enum tess_dtype)call->dtype),
        "site", call->site, "step", (json_int_t)call->step, "unit", (int)call->unit, "peer",
        peer >= 0 ? json_integer(peer) : json_null(), "begin_s", status_real_s(rank, call->begin_s),
        "end_s", call->end_s > 0 ? json_real(status_real_s(rank, call->end_s)) : json_null());
}

static json_t *status_json_calls(const struct tess__status *status, int32_t r, int32_t calls)
{
    const struct tess__status_rank *rank = &status->rank[r];
    const struct tess_flight_call *latest = status_latest(rank);
    const uint64_t last = latest != NULL ? latest->sequence / 2 : 0;
    json_t *list = json_array();
    for (uint64_t n = last > (uint64_t)calls ? last - (uint64_t)calls + 1 : 1; n <= last; n++) {
        const uint64_t i = (n - 1) % TESS_FLIGHT_CALLS;
        if (rank->whole[i] && rank->file->call[i].sequence == 2 * n)
            json_array_append_new(list, status_json_call(status, r, &rank->file->call[i]));
    }
    return list;
}

static json_t *status_json_rank(const struct tess__status *status, int32_t r, int32_t calls)
{
    const struct tess__status_rank *rank = &status->rank[r];
    json_t *object = json_pack("{s:i, s:s}", "rank", (int)r, "state", status_life_text[rank->life]);
    if (rank->file == NULL || object == NULL)
        return object;
    const struct tess_board *board = &rank->file->now.board;
    char doing[STATUS_TEXT];
    status_doing(rank, false, doing);
    json_object_set_new(object, "host", json_string(rank->file->head.host));
    json_object_set_new(object, "pid", json_integer(board->pid));
    json_object_set_new(object, "step", json_integer((json_int_t)board->step));
    json_object_set_new(object, "doing", json_string(doing));
    json_object_set_new(object, "unit", json_integer(board->unit));
    json_object_set_new(object, "passed_s", json_real(1e-6 * (double)board->passed_us));
    json_object_set_new(object, "exposed_s",
                        json_real(1e-6 * ((double)board->passed_us - (double)board->busy_us)));
    json_object_set_new(object, "waits_in",
                        rank->waits != NULL ? status_json_call(status, r, rank->waits)
                                            : json_null());
    json_object_set_new(object, "waits_for", status_json_ranks(rank->waits_for));
    json_object_set_new(object, "waits_since_s",
                        rank->waits != NULL
                            ? json_real(status_real_s(rank, rank->file->now.since_s))
                            : json_null());
    if (calls > 0)
        json_object_set_new(object, "calls", status_json_calls(status, r, calls));
    return object;
}

json_t *tess__status_json(const struct tess__status *status, int32_t calls)
{
    char late[4 * STATUS_TEXT];
    json_t *ranks = json_array(), *differs = json_array();
    json_t *run = json_string(status->run); /* NULL: not UTF-8 */
    for (int32_t r = 0; r < status->rank_count; r++)
        json_array_append_new(ranks, status_json_rank(status, r, calls));
    for (int32_t i = 0; i < status->differs.rank_count; i++) {
        const int32_t r = status->differs.of[i].rank;
        json_t *call = status_json_call(status, r, status->differs.of[i].call);
        json_object_set_new(call, "rank", json_integer(r));
        json_array_append_new(differs, call);
    }
    status_late(status, late, sizeof(late));
    return json_pack("{s:o, s:o, s:s, s:f, s:o, s:o, s:o, s:s, s:o, s:o*}", "run",
                     run != NULL ? run : json_null(), "live",
                     status->life == TESS__FOLDER_UNKNOWN ? json_null()
                                                          : json_boolean(status->live),
                     "owner", status->owner, "time_s", status->now_s, "late",
                     status->late >= 0 ? json_integer(status->late) : json_null(), "waiting",
                     status_json_ranks(status->waiting), "differs", differs, "summary", late,
                     "ranks", ranks, "pace", tess__status_pace(status->run));
}

/* ---- reports --------------------------------------------------------------------------------- */

static void status_head(const struct tess__status *status, const char *why, FILE *stream)
{
    char time[64] = "";
    struct tm local;
    const time_t now = (time_t)status->now_s;
    if (localtime_r(&now, &local) != NULL)
        (void)strftime(time, sizeof(time), "%Y-%m-%d %H:%M:%S", &local);
    fprintf(stream, "---- %s: %s\n", time, why);
}

static void status_keep(const struct tess__status *status, const char *why)
{
    struct tess_file_log log = {.part = "reports", .within = "a report", .option = "--run"};
    char *text = NULL;
    size_t bytes = 0;
    struct stat about;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL)
        return;
    status_head(status, why, stream);
    tess__status_print(status, 0, stream);
    fputc('\n', stream);
    fclose(stream);
    const int length = snprintf(log.path, sizeof(log.path), "%s/failures.txt", status->run);
    long long kept = stat(log.path, &about) == 0 ? (long long)about.st_size : 0;
    if (length < (int)sizeof(log.path) && tess_file_log_open(&log, kept) == TESS_OK) {
        (void)tess_file_log_append(&log, text, bytes);
        (void)tess_file_log_close(&log);
    }
    free(text);
}

void tess__status_report_failure(const char *run, const char *why)
{
    struct tess__status status;
    if (tess__status_read(run, &status) == TESS_OK || status.rank_count > 0) {
        status.live = false; /* its launcher, which has the lock, is about to end */
        status.ending = true;
        tess__status_find(&status);
        fflush(stdout);
        fprintf(stderr, "---- what the ranks did (%s/failures.txt):\n", run);
        tess__status_print(&status, 0, stderr);
        status_keep(&status, why);
    }
    tess__status_close(&status);
}
