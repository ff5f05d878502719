/* What a run looks like while it runs. Everything shown comes from rank 0's messages. */
#include "run/progress.h"

#include "base/terminal.h"
#include "run/mfu.h"
#include "tessera/check.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_CELLS_MAX   24
#define BAR_CELLS_MIN   4
#define COLUMNS_DEFAULT 80 /* of a bar that is not drawn */
#define LINE_BYTES      256
#define BUSY_RANKS_MAX  8 /* of them one by one on a line of 100 columns, and beside a bar */
#define BUSY_BAR_RANKS  4

enum tess_status tess__progress_open(struct tess__progress *progress, const struct tess__run *run)
{
    *progress = (struct tess__progress){
        .words = tess__words_of(run->dataset), .run = run, .columns = COLUMNS_DEFAULT, .loss = NAN};
    progress->step_count = tess_engine_step_count(run->planned);
    progress->step_first = tess_engine_step_done(run->planned);
    progress->steps_per_epoch = tess_engine_steps_per_epoch(run->planned);
    progress->terminal = tess__is_terminal(STDOUT_FILENO);
    if (progress->terminal)
        progress->columns = tess__terminal_columns(STDOUT_FILENO);
    progress->rank = calloc((size_t)run->rank_count, sizeof(*progress->rank));
    if (progress->rank == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to watch %d ranks", run->rank_count);
    return TESS_OK;
}

void tess__progress_close(struct tess__progress *progress)
{
    free(progress->rank);
    progress->rank = NULL;
}

void tess__progress_watch(struct tess__progress *progress, const struct tess_board *board)
{
    if (progress->rank_count < progress->run->rank_count)
        progress->rank[progress->rank_count++].board = board;
}

void tess__progress_clear(struct tess__progress *progress)
{
    if (!progress->drawn)
        return;
    fputs("\r\033[K", stdout);
    fflush(stdout);
    progress->drawn = false;
}

static int64_t progress_epoch_count(const struct tess__progress *progress)
{
    return (progress->step_count + progress->steps_per_epoch - 1) / progress->steps_per_epoch;
}

/*
 * "  busy 99 97 %", rank by rank, or the least and the greatest of many: shares of the time since a
 * step was shown last in which a rank did not wait for others.
 */
static void progress_busy(struct tess__progress *progress, FILE *out)
{
    const int32_t shown = progress->terminal ? BUSY_BAR_RANKS : BUSY_RANKS_MAX;
    double least = 100, most = 0;
    for (int32_t r = 0; r < progress->rank_count; r++) {
        struct tess__progress_rank *rank = &progress->rank[r];
        int64_t passed = atomic_load_explicit(&rank->board->passed_us, memory_order_relaxed);
        int64_t busy = atomic_load_explicit(&rank->board->busy_us, memory_order_relaxed);
        double share = passed > rank->passed_us ? 100 * (double)(busy - rank->busy_us) /
                                                      (double)(passed - rank->passed_us)
                                                : 100;
        rank->passed_us = passed;
        rank->busy_us = busy;
        /* The two counters are read one after the other, maybe around the end of a step. */
        share = share < 0 ? 0 : share > 100 ? 100 : share;
        least = share < least ? share : least;
        most = share > most ? share : most;
        if (progress->rank_count <= shown)
            fprintf(out, "%s %.0f", r == 0 ? "  busy" : "", share);
    }
    if (progress->rank_count > shown)
        fprintf(out, "  busy %.0f to %.0f %%", least, most);
    else if (progress->rank_count > 0)
        fputs(" %", out);
}

/* "loss 0.3124  17.3 k images/s  comm 3.1 %  busy 99 97 %  ETA 0:32"; with loss scaling its scale,
 * and the MFU where the peak of the devices is known. */
static void progress_figures(struct tess__progress *progress, const struct tess__run_step *step,
                             const char *rate, FILE *out)
{
    char speed[TESS__TEXT_BYTES], eta[TESS__TEXT_BYTES];
    const double done = (double)(step->result.step - progress->step_first);
    const double left = (double)(progress->step_count - step->result.step) / fmax(1, done);
    const double mfu = tess__mfu_at(progress->run, step->samples_per_s).mfu;
    fprintf(out, "loss %.4f", progress->loss);
    if (step->result.loss_scale != 1 || step->result.skipped_count > 0)
        fprintf(out, "  scale %g, %lld skipped", step->result.loss_scale,
                (long long)step->result.skipped_count);
    fprintf(out, "  %s %s", tess__words_rate(&progress->words, step->samples_per_s, speed), rate);
    if (!isnan(mfu))
        fprintf(out, "  MFU %.1f %%", 100 * mfu);
    fprintf(out, "  comm %.1f %%", 100 * step->comm_share);
    progress_busy(progress, out);
    fprintf(out, "  ETA %s", tess__text_time(left * step->elapsed_s, eta));
}

/* A bar as long as the line leaves room for; a line that wraps could not be taken back. */
static void progress_draw(struct tess__progress *progress, const struct tess__run_step *step)
{
    int64_t in_epoch = (step->result.step - 1) % progress->steps_per_epoch + 1;
    int64_t left = progress->step_count - step->result.epoch * progress->steps_per_epoch;
    int64_t length = left < progress->steps_per_epoch ? left : progress->steps_per_epoch;
    double share = length > 0 && in_epoch < length ? (double)in_epoch / (double)length : 1;
    char figures[LINE_BYTES], head[LINE_BYTES], bar[BAR_CELLS_MAX + 1];
    char line[3 * LINE_BYTES];
    FILE *out = fmemopen(figures, sizeof(figures), "w");
    if (!out)
        return;
    progress_figures(progress, step, progress->words.rate_short, out);
    fclose(out);
    snprintf(head, sizeof(head), "epoch %lld/%lld ", (long long)step->result.epoch + 1,
             (long long)progress_epoch_count(progress));
    int32_t cells =
        progress->columns - 1 - (int32_t)(strlen(head) + strlen("[] 100 %  ") + strlen(figures));
    cells = cells < BAR_CELLS_MAX ? cells : BAR_CELLS_MAX;
    cells = cells > BAR_CELLS_MIN ? cells : BAR_CELLS_MIN;
    memset(bar, '.', (size_t)cells);
    memset(bar, '#', (size_t)(share * cells));
    bar[cells] = '\0';
    snprintf(line, sizeof(line), "%s[%s] %3.0f %%  %s", head, bar, 100 * share, figures);
    printf("\r%.*s\033[K", progress->columns - 1, line);
    fflush(stdout);
    progress->drawn = true;
}

void tess__progress_step(struct tess__progress *progress, const struct tess__run_step *step)
{
    if (step->recorded)
        progress->loss = step->result.loss;
    if (progress->terminal) {
        progress_draw(progress, step);
        return;
    }
    if (!step->logged)
        return;
    printf("step %lld/%lld  epoch %lld/%lld  ", (long long)step->result.step,
           (long long)progress->step_count, (long long)step->result.epoch + 1,
           (long long)progress_epoch_count(progress));
    progress_figures(progress, step, progress->words.rate, stdout);
    putchar('\n');
    fflush(stdout);
}

void tess__progress_validation(struct tess__progress *progress,
                               const struct tess__run_validation *validation)
{
    char quality[TESS__TEXT_BYTES];
    tess__progress_clear(progress);
    printf("step %lld/%lld  val loss %.4f  %s\n", (long long)validation->step,
           (long long)progress->step_count, validation->loss,
           tess__words_quality(&progress->words, validation->loss, validation->accuracy, quality));
    fflush(stdout);
}

void tess__progress_epoch(struct tess__progress *progress, const struct tess__run_epoch *epoch)
{
    char speed[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES], total[TESS__TEXT_BYTES];
    char quality[TESS__TEXT_BYTES];
    tess__progress_clear(progress);
    printf("epoch %lld/%lld  loss %.4f", (long long)epoch->epoch + 1,
           (long long)progress_epoch_count(progress), epoch->loss);
    if (!isnan(epoch->val_loss))
        printf(
            "  val loss %.4f  %s", epoch->val_loss,
            tess__words_quality(&progress->words, epoch->val_loss, epoch->val_accuracy, quality));
    printf("  %s %s  %s  total %s\n",
           tess__words_rate(&progress->words, epoch->samples_per_s, speed), progress->words.rate,
           tess__text_time(epoch->time_s + epoch->evaluate_s, time),
           tess__text_time(epoch->cumulative_s, total));
    fflush(stdout);
}
