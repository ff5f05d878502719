/* The parts of a report's page. Each appends its figures, or nothing when the report has no data.
 */
#ifndef TESSERA_REPORT_REPORT_SECTION_H
#define TESSERA_REPORT_REPORT_SECTION_H

#include "report/report_data.h"
#include "report/report_figure.h"

/* Loss, accuracy, learning rate, loss scale of the runs that were recorded step by step. */
void tess__report_curves(struct tess__report *report, struct tess__html *html);
/* The same for what is set or decided on the way: rate, loss scale, gradients. */
void tess__report_controls(struct tess__report *report, struct tess__html *html);
/* What the driver reported about devices during the runs. */
void tess__report_devices(struct tess__report *report, struct tess__html *html);
/* Memory of every rank by kind. */
void tess__report_memories(struct tess__report *report, struct tess__html *html);
/* Throughput, efficiency and where the time goes. */
void tess__report_speeds(struct tess__report *report, struct tess__html *html);
/* The latest pace of ranks and links of every run. */
void tess__report_pace(struct tess__report *report, struct tess__html *html);
/* What scaling --json and tune batch --json measured. */
void tess__report_scalings(struct tess__report *report, struct tess__html *html);
void tess__report_tunes(struct tess__report *report, struct tess__html *html);
/* What plan --json found. */
void tess__report_plans(struct tess__report *report, struct tess__html *html);
/* One step of every time line, as a picture. */
void tess__report_timelines(struct tess__report *report, struct tess__html *html);

/* Below it, where the file has it, the memory in use. */
void tess__report_lives(struct tess__report *report, const struct tess__report_timeline *timeline,
                        struct tess__html *html);
/* Its two drawings; places the lanes and their spans first. */
void tess__report_draw_timeline(struct tess__report_timeline *timeline,
                                const struct tess__lane_sums *sums,
                                const struct tess__html *alternative, struct tess__html *html);

/* Tables: the overview, and the options of every run. */
void tess__report_overview(struct tess__report *report, struct tess__html *html);
void tess__report_options(struct tess__report *report, struct tess__html *html);

/* What pictures call each kind of work. */
extern const char *const tess__work_name[TESS__WORK_COUNT];

/* The whole page; TESS_ERR_MEMORY. */
enum tess_status tess__report_page(struct tess__report *report, const char *title,
                                   struct tess__html *html);

/* Constant parts of the page: styles, the theme button's script and its SHA-256 in base 64. */
extern const char tess__report_css[], tess__report_script[], tess__report_script_hash[];

/* Of a run's last epoch and last step, where the file was cut before the final line. The speed is
 * in what the report's words count. */
double tess__report_speed(const struct tess__report_run *run);
double tess__report_val_loss(const struct tess__report_run *run);
double tess__report_val_accuracy(const struct tess__report_run *run);

/* A bar of the seconds in a record: those of the fields [kind_count], times `factor`; beside them
 * those of `hidden`, which end with the first `before` kinds. */
void tess__report_add_times(struct tess__bars *bars, const char *label,
                            const struct tess__rows *rows, size_t row, const int *field, int hidden,
                            int before, double factor);

/* Bytes of the rank that has most; NaN when none is known. */
double tess__report_fullest(const struct tess__report_run *run);

#endif
