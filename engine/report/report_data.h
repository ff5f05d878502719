/*
 * What a report is made of, as plain numbers and strings: runs, measurements of scaling, sweeps of
 * the batch size, time lines, and notes about what could not be read. Files give all of it, so
 * every string is untrusted text (UTF-8 at most) and every number is checked: finite, not
 * negative, else NaN.
 */
#ifndef TESSERA_REPORT_REPORT_DATA_H
#define TESSERA_REPORT_REPORT_DATA_H

#include "tessera/memory.h"
#include "tessera/status.h"
#include "text/words.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* X(index, key). The first of each list must be there; the others are NaN when they are absent. */
#define TESS__STEP_FIELDS(X)                                                                       \
    X(TESS__STEP, "step")                                                                          \
    X(TESS__STEP_LOSS, "loss")                                                                     \
    X(TESS__STEP_ACCURACY, "accuracy")                                                             \
    X(TESS__STEP_RATE, "rate")                                                                     \
    X(TESS__STEP_NORM, "grad_norm")                                                                \
    X(TESS__STEP_SPEED, "samples_per_s")                                                           \
    X(TESS__STEP_ELAPSED, "elapsed_s")                                                             \
    X(TESS__STEP_SCALE, "loss_scale")                                                              \
    X(TESS__STEP_SKIPPED, "skipped")                                                               \
    X(TESS__STEP_ZEROS, "zero_share")                                                              \
    X(TESS__STEP_LOSS_ZEROS, "loss_zero_share")                                                    \
    X(TESS__STEP_MFU, "mfu")
#define TESS__EPOCH_FIELDS(X)                                                                      \
    X(TESS__EPOCH, "epoch")                                                                        \
    X(TESS__EPOCH_LOSS, "val_loss")                                                                \
    X(TESS__EPOCH_ACCURACY, "val_accuracy")                                                        \
    X(TESS__EPOCH_SPEED, "samples_per_s")                                                          \
    X(TESS__EPOCH_TIME, "cumulative_s")
#define TESS__TIME_FIELDS(X)                                                                       \
    X(TESS__TIME_RANK, "rank")                                                                     \
    X(TESS__TIME_DATA, "data_s")                                                                   \
    X(TESS__TIME_FORWARD, "forward_s")                                                             \
    X(TESS__TIME_BACKWARD, "backward_s")                                                           \
    X(TESS__TIME_EXPOSED, "exposed_s")                                                             \
    X(TESS__TIME_OPTIM, "optim_s")                                                                 \
    X(TESS__TIME_HIDDEN, "hidden_s")
#define TESS__DEVICE_FIELDS(X)                                                                     \
    X(TESS__DEVICE_TIME, "elapsed_s")                                                              \
    X(TESS__DEVICE_NUMBER, "device")                                                               \
    X(TESS__DEVICE_BUSY, "gpu_percent")                                                            \
    X(TESS__DEVICE_MEMORY, "memory_used_bytes")                                                    \
    X(TESS__DEVICE_POWER, "power_w")                                                               \
    X(TESS__DEVICE_CLOCK, "sm_mhz")                                                                \
    X(TESS__DEVICE_SENT, "link_tx_bytes_per_s")
#define TESS__MEASURED_FIELDS(X)                                                                   \
    X(TESS__MEASURED_RANKS, "ranks")                                                               \
    X(TESS__MEASURED_COMPUTE, "compute_s")                                                         \
    X(TESS__MEASURED_EXPOSED, "exposed_s")                                                         \
    X(TESS__MEASURED_HIDDEN, "hidden_s")                                                           \
    X(TESS__MEASURED_DATA, "data_s")                                                               \
    X(TESS__MEASURED_SPEEDUP, "speedup")
#define TESS__PREDICTED_FIELDS(X)                                                                  \
    X(TESS__PREDICTED_RANKS, "ranks")                                                              \
    X(TESS__PREDICTED_SPEEDUP, "speedup")                                                          \
    X(TESS__PREDICTED_EFFICIENCY, "efficiency")
#define TESS__RING_FIELDS(X)                                                                       \
    X(TESS__RING_BYTES, "bytes")                                                                   \
    X(TESS__RING_TIME, "time_s")
#define TESS__TUNE_FIELDS(X)                                                                       \
    X(TESS__TUNE_BATCH, "batch_size")                                                              \
    X(TESS__TUNE_MEMORY, "memory_bytes")                                                           \
    X(TESS__TUNE_SPEED, "samples_per_s")

#define TESS__FIELD_ENUM(index, key) index,
enum tess__step_field { TESS__STEP_FIELDS(TESS__FIELD_ENUM) TESS__STEP_WIDTH };
enum tess__epoch_field { TESS__EPOCH_FIELDS(TESS__FIELD_ENUM) TESS__EPOCH_WIDTH };
enum tess__time_field { TESS__TIME_FIELDS(TESS__FIELD_ENUM) TESS__TIME_WIDTH };
enum tess__device_field { TESS__DEVICE_FIELDS(TESS__FIELD_ENUM) TESS__DEVICE_WIDTH };
enum tess__measured_field { TESS__MEASURED_FIELDS(TESS__FIELD_ENUM) TESS__MEASURED_WIDTH };
enum tess__predicted_field { TESS__PREDICTED_FIELDS(TESS__FIELD_ENUM) TESS__PREDICTED_WIDTH };
enum tess__ring_field { TESS__RING_FIELDS(TESS__FIELD_ENUM) TESS__RING_WIDTH };
enum tess__tune_field { TESS__TUNE_FIELDS(TESS__FIELD_ENUM) TESS__TUNE_WIDTH };
#undef TESS__FIELD_ENUM

#define TESS__FIELDS_MAX 16

/* The keys of one kind of record. */
struct tess__fields {
    const char *what; /* for messages: "step" */
    int width;
    const char *key[TESS__FIELDS_MAX];
};

extern const struct tess__fields tess__step_fields, tess__epoch_fields, tess__time_fields,
    tess__device_fields, tess__measured_fields, tess__predicted_fields, tess__ring_fields,
    tess__tune_fields;

/* Records of one kind: value[row * fields->width + field]. */
struct tess__rows {
    const struct tess__fields *fields;
    double *value;
    size_t count;
};

static inline double tess__row(const struct tess__rows *rows, size_t row, int field)
{
    return rows->value[row * (size_t)rows->fields->width + (size_t)field];
}

/* Memory of one rank: bytes of each kind. */
struct tess__report_memory {
    double rank;
    double kind[TESS_MEMORY_KIND_COUNT];
};

enum tess__report_state {
    TESS__REPORT_FINISHED,
    TESS__REPORT_FAILED,   /* its loss stopped being a number */
    TESS__REPORT_CUT_SHORT /* no final line */
};

/* A decision of --topology.adapt about a part of the network that stays slow. */
struct tess__report_adapt {
    double step, since; /* after which; from which on the part was slow */
    double elapsed;     /* s, of that step */
    bool renumbers;
    const char *why;
};

/* Strings are NULL and numbers NaN where the files do not give them. */
struct tess__report_run {
    const char *path; /* folder, or FILE/NAME for an entry of compare */
    const char *name; /* unique in the report */
    const char *model, *strategy, *precision, *hash, *goal;
    const char *data, *data_id; /* name of the set that was trained on, and its fingerprint */
    double ranks, batch, rate;
    double epoch_steps;       /* steps of an epoch */
    double tokens;            /* of a sample; 0, NaN: samples are images */
    const char *mesh;         /* "2 x 2 x 2": ranks of the data, tensor and stage axis */
    json_t *options;          /* object, or NULL; a reference */
    json_t *pace;             /* of the latest window of steps, an object, or NULL; a reference */
    struct tess__rows device; /* samples of all devices, by time */
    struct tess__rows step, epoch, times; /* times: sums over all epochs, one row per rank */
    struct tess__report_memory *memory;
    struct tess__report_adapt *adapt;
    size_t memory_count, adapt_count;
    size_t order;         /* of reading */
    bool ambiguous;       /* while names are looked for */
    bool final, compared; /* compared: an entry of compare, without curves */
    double val_loss, val_accuracy, loss, speed, comm_share, time_s;
    double rate_of_row; /* as the report's words; set by tess__report_name_runs */
    double failed_step; /* the step from which on the loss is null; NaN when it ends as a number */
    bool lost;          /* the final loss is null */
    bool shares_cores;  /* more ranks than cores: waiting is also for those */
    size_t task;        /* index in the report's */
};

/* Runs whose losses and speeds can be compared: trained on the same data. */
struct tess__report_task {
    const char *label;   /* "Images of fashion-mnist" */
    size_t first, count; /* its runs are one after the other */
    size_t run;          /* its first one in the order of reading */
    struct tess__words words;
};

struct tess__report_curve {
    const char *name, *link; /* strategy and link; name is NULL for a ring */
    double ranks;
    struct tess__rows rows;
};

struct tess__report_link {
    const char *name;
    double latency_s, bandwidth; /* bytes/s */
};

struct tess__report_scaling {
    const char *path, *strategy, *model, *machine, *mode; /* mode: "strong" or "weak" */
    double batch, amdahl_p;
    struct tess__rows measured;
    struct tess__report_curve *predicted, *ring;
    struct tess__report_link *link;
    size_t predicted_count, ring_count, link_count;
};

struct tess__report_tune {
    const char *path, *model, *strategy;
    double ranks, limit_bytes, best_batch, tokens;
    struct tess__rows cases;
};

/* A layout of a plan; bytes of its fullest rank. */
struct tess__report_layout {
    const char *name, *label, *limited_by; /* label: for pictures */
    double step_s, exposed_s, measured_s;  /* predicted; by --try, not > 0: it was not tried */
    double kind[TESS_MEMORY_KIND_COUNT];
};

struct tess__report_plan {
    const char *path, *model, *cluster;
    double ranks;
    struct tess__report_layout
        *layout; /* [layout_count], at least one; the one first that is predicted fastest */
    size_t layout_count;
};

/* What a rank spends time on. The order is that of the colours, the same in all pictures; gradients
 * and the optimizer have those of their memory. */
enum tess__work {
    TESS__WORK_FORWARD,
    TESS__WORK_BACKWARD,
    TESS__WORK_GRADIENTS,
    TESS__WORK_OPTIMIZER,
    TESS__WORK_LOADING,
    TESS__WORK_COMPUTE, /* all of it together, in sums */
    TESS__WORK_WAITING, /* for a call: exposed communication */
    TESS__WORK_CALL,    /* communication, from queued to complete */
    TESS__WORK_OTHER,
    TESS__WORK_LOSS,
    TESS__WORK_COUNT
};

struct tess__report_span {
    enum tess__work work;
    const char *name, *site; /* site: where a call was made, or NULL */
    double begin, end;       /* ms after the step's begin, cut to the rank's step */
    double bytes;            /* of a call; NaN when it is unknown */
    bool unfinished;         /* the recording ended before it */
    /* Of the picture: 0 for what the rank does, a call's from 1 on, and whether it is drawn over
     * other calls of its row. */
    int row;
    bool crowded;
};

/* One rank's part of the step. */
struct tess__report_lane {
    double rank, begin, end; /* ms */
    struct tess__report_span *span;
    size_t span_count; /* in order of begin */
    size_t left_out;   /* spans beyond what a lane holds */
    double top;        /* of the picture, as rows */
    int rows;
};

/* Kinds of memory, and activations of a pass. */
#define TESS__LIVE_PASS   TESS_MEMORY_KIND_COUNT
#define TESS__LIVE_SERIES (TESS__LIVE_PASS + 1)

/* Bytes that are in use until the next moment; at: ms after the step's begin. */
struct tess__report_moment {
    double at;
    double bytes[TESS__LIVE_SERIES];
};

/* What a rank has in use over a step, and what its arena has room for. */
struct tess__report_live {
    double rank;
    double reserved[TESS__LIVE_SERIES];
    struct tess__report_moment *moment; /* in order of time */
    size_t moment_count;
};

/* More ranks are not drawn. */
#define TESS__TIMELINE_RANKS 8

/* One step of a recording. */
struct tess__report_timeline {
    const char *path, *model, *strategy;
    double step, length;           /* number; ms from the first rank's begin to the last's end */
    size_t step_count, rank_count; /* steps recorded; ranks that recorded this one */
    bool unfinished;               /* there was no finished step to choose */
    bool predicted;                /* by plan, of one rank of each stage */
    struct tess__report_lane lane[TESS__TIMELINE_RANKS];
    int lane_count;
    struct tess__report_live *live; /* of each rank whose memory the file has */
    size_t live_count;
};

/* What a lane's spans add up to, in ms. Calls that overlap count once. */
struct tess__lane_sums {
    double calls;        /* some call is under way */
    double hidden;       /* of that: the rank computes and does not wait */
    double waiting;      /* the rank waits for a call */
    double backward_end; /* NaN: it has no backward pass */
};

struct tess__report_note {
    const char *file;
    size_t line; /* 0: the file as a whole */
    const char *text;
};

struct tess__report {
    /* For the rates of the runs: those of all, or of the task that is being written. Set by
     * tess__report_name_runs. */
    struct tess__words words;
    struct tess__report_run *run; /* all, or those of the task that is being written */
    struct tess__report_task *task;
    struct tess__report_scaling *scaling;
    struct tess__report_tune *tune;
    struct tess__report_plan *plan;
    struct tess__report_timeline *timeline;
    struct tess__report_note *note;
    size_t run_count, task_count, scaling_count, tune_count, plan_count, timeline_count, note_count;
    size_t file_notes;                /* of the file that is being read */
    struct tess__report_block *block; /* memory of all of the above */
};

/* Zeroed memory that lives as long as the report. Without memory the program ends: nothing is
 * written before the whole page is there. */
void *tess__report_alloc(struct tess__report *report, size_t count, size_t bytes);
/* A string that does, too. */
const char *tess__report_text(struct tess__report *report, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void tess__report_close(struct tess__report *report);

/* One more element, zeroed, of an array of the report that grows one by one from NULL: `items`
 * points to the array [*count]. */
void *tess__report_add(struct tess__report *report, void *items, size_t *count, size_t bytes);

/* Where a value stands, for notes. */
struct tess__place {
    struct tess__report *report;
    const char *file;
    size_t line; /* 0: the file as a whole */
};

/* Note what is left out of the report, and why; after some of one file the rest is only counted. */
void tess__report_note(const struct tess__place *place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The last note of a file: how many were not written out. */
void tess__report_notes_end(struct tess__report *report, const char *file);

/*
 * object[key] as a number >= 0. NaN when it is absent or null; also, with a note, when it is of
 * another type, negative or beyond what a picture can show.
 */
double tess__report_number(const struct tess__place *place, const json_t *object, const char *key);
/* object[key] as text, or NULL; with a note when it is of another type. */
const char *tess__report_string(const struct tess__place *place, const json_t *object,
                                const char *key);

/* A member of a struct and the key that gives it. */
struct tess__member {
    const char *key; /* NULL ends a list */
    enum { TESS__MEMBER_TEXT, TESS__MEMBER_NUMBER, TESS__MEMBER_SIGNED } kind;
    size_t offset; /* of a const char * or a double */
};
/* The members that an earlier object did not give: texts that are NULL, numbers not above 0. */
void tess__report_members(const struct tess__place *place, const json_t *object,
                          const struct tess__member *members, void *target);
/* Those of a run, and its mesh. */
void tess__report_run_members(const struct tess__place *place, const json_t *object,
                              struct tess__report_run *run);

/* Append one record. Without its first field it is left out, with a note. */
void tess__report_row(const struct tess__place *place, const json_t *object,
                      const struct tess__fields *fields, struct tess__rows *rows);
/* All records of an array; NULL or another type has none. */
void tess__report_rows(const struct tess__place *place, const json_t *array,
                       const struct tess__fields *fields, struct tess__rows *rows);
void tess__report_memory(const struct tess__place *place, const json_t *array,
                         struct tess__report_run *run);

/* Append an empty run; TESS_ERR_DATA: too many. */
enum tess_status tess__report_add_run(struct tess__report *report, const char *path,
                                      struct tess__report_run **run_out);

/* Forget all but its place in the report. */
void tess__report_clear_run(struct tess__report_run *run);

/*
 * Read one argument of the command: a run folder, its metrics.jsonl, or a JSON file of compare,
 * scaling, tune or plan or a time line of train or plan, recognised by content. What is damaged is
 * left out, with a note; a file with nothing of use is TESS_ERR_DATA.
 */
enum tess_status tess__report_load(struct tess__report *report, const char *path);

/* Lines of metrics.jsonl, `text` [bytes]. */
enum tess_status tess__report_load_lines(struct tess__report *report, const char *folder,
                                         const char *file, const char *text, size_t bytes);
/* The document of a JSON file (borrowed), if it is one of these; *known_out is set. */
enum tess_status tess__report_load_document(struct tess__report *report, const char *file,
                                            json_t *document, bool *known_out);

/*
 * The step of median length out of a file of time lines, `text` [bytes], if it is one; *known_out
 * is set. A file that is cut keeps what is whole. TESS_ERR_DATA above 64 MiB or without a step.
 */
/* The series of a name; TESS__LIVE_SERIES: there is none. */
int tess__report_live_series(const char *name);
enum tess_status tess__report_load_timeline(struct tess__report *report, const char *file,
                                            const char *text, size_t bytes, bool *known_out);
struct tess__lane_sums tess__report_lane_sums(struct tess__report *report,
                                              const struct tess__report_lane *lane);

/* Order the runs (by task, then folders by name, then compare's in their order), give each a unique
 * name, and choose the words for their rates. */
void tess__report_name_runs(struct tess__report *report);

/* The same text, or neither is there. */
bool tess__report_same(const char *a, const char *b);

enum tess__report_state tess__report_state(const struct tess__report_run *run);

#endif
