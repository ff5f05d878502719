/* What a run looks like while it runs. Everything shown comes from rank 0's messages. */
#include "run/progress.h"

#include "run/mfu.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_CELLS_MAX   24
#define BAR_CELLS_MIN   4
#define COLUMNS_DEFAULT 80
#define LINE_BYTES      256
#define BUSY_RANKS_MAX  8 /* of them one by one on a line of 100 columns, and beside a bar */
#define BUSY_BAR_RANKS  4

void tess__progress_open(struct tess__progress *progress, const struct tess__run *run)
{
    struct winsize window;
    *progress = (struct tess__progress){
        .words = tess__words_of(run->dataset), .run = run, .columns = COLUMNS_DEFAULT, .loss = NAN};
    progress->terminal = isatty(STDOUT_FILENO) == 1;
    if (progress->terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        progress->columns = window.ws_col;
}

void tess__progress_watch(struct tess__progress *progress, const struct tess_board *board)
{
    if (progress->rank_count < TESS_WORLD_RANKS_MAX)
        progress->board[progress->rank_count++] = board;
}

void tess__progress_opened(struct tess__progress *progress, const struct tess__run_opened *opened)
{
    progress->step_count = opened->step_count;
    progress->steps_per_epoch = opened->steps_per_epoch > 0 ? opened->steps_per_epoch : 1;
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

/* "  scale 65536, 2 skipped", where the loss is scaled at all. */
static void progress_scaling(const struct tess__run_step *step, char text[LINE_BYTES])
{
    text[0] = '\0';
    if (step->loss_scale != 1 || step->skipped > 0)
        snprintf(text, LINE_BYTES, "  scale %g, %lld skipped", step->loss_scale,
                 (long long)step->skipped);
}

/*
 * "  busy 99 97 %", rank by rank, or the least and the greatest of many: shares of the time since a
 * step was shown last in which a rank did not wait for others.
 */
static void progress_busy(struct tess__progress *progress, char text[LINE_BYTES])
{
    const int32_t shown = progress->terminal ? BUSY_BAR_RANKS : BUSY_RANKS_MAX;
    double least = 100, most = 0;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < progress->rank_count; r++) {
        int64_t passed = atomic_load_explicit(&progress->board[r]->passed_us, memory_order_relaxed);
        int64_t busy = atomic_load_explicit(&progress->board[r]->busy_us, memory_order_relaxed);
        double share = passed > progress->passed_us[r]
                           ? 100 * (double)(busy - progress->busy_us[r]) /
                                 (double)(passed - progress->passed_us[r])
                           : 100;
        progress->passed_us[r] = passed;
        progress->busy_us[r] = busy;
        /* The two counters are read one after the other, maybe around the end of a step. */
        share = share < 0 ? 0 : share > 100 ? 100 : share;
        least = share < least ? share : least;
        most = share > most ? share : most;
        if (progress->rank_count <= shown)
            used += (size_t)snprintf(text + used, LINE_BYTES - used, "%s %.0f",
                                     r == 0 ? "  busy" : "", share);
    }
    if (progress->rank_count > shown)
        snprintf(text, LINE_BYTES, "  busy %.0f to %.0f %%", least, most);
    else if (progress->rank_count > 0)
        snprintf(text + used, LINE_BYTES - used, " %%");
}

/* "  MFU 41.2 %", where the peak of the devices is known. */
static void progress_mfu(const struct tess__progress *progress, double samples_per_s,
                         char text[LINE_BYTES])
{
    const double mfu = tess__mfu_at(progress->run, samples_per_s).mfu;
    text[0] = '\0';
    if (!isnan(mfu))
        snprintf(text, LINE_BYTES, "  MFU %.1f %%", 100 * mfu);
}

/* "loss 0.3124  17.3 k images/s  comm 3.1 %  busy 99 97 %  ETA 0:32" */
static void progress_figures(struct tess__progress *progress, const struct tess__run_step *step,
                             const char *rate, char line[LINE_BYTES])
{
    char speed[TESS__TEXT_BYTES], eta[TESS__TEXT_BYTES], scaling[LINE_BYTES], busy[LINE_BYTES];
    char mfu[LINE_BYTES];
    double left = (double)(progress->step_count - step->step) / (double)step->step;
    progress_scaling(step, scaling);
    progress_busy(progress, busy);
    progress_mfu(progress, step->samples_per_s, mfu);
    snprintf(line, LINE_BYTES, "loss %.4f%.60s  %s %s%.20s  comm %.1f %%%.60s  ETA %s",
             progress->loss, scaling,
             tess__words_rate(&progress->words, step->samples_per_s, speed), rate, mfu,
             100 * step->comm_share, busy, tess__text_time(left * step->elapsed_s, eta));
}

/* A bar as long as the line leaves room for; a line that wraps could not be taken back. */
static void progress_draw(struct tess__progress *progress, const struct tess__run_step *step)
{
    int64_t in_epoch = (step->step - 1) % progress->steps_per_epoch + 1;
    int64_t left = progress->step_count - step->epoch * progress->steps_per_epoch;
    int64_t length = left < progress->steps_per_epoch ? left : progress->steps_per_epoch;
    double share = length > 0 && in_epoch < length ? (double)in_epoch / (double)length : 1;
    char figures[LINE_BYTES], head[LINE_BYTES], bar[BAR_CELLS_MAX + 1];
    char line[3 * LINE_BYTES];
    int32_t cells;
    progress_figures(progress, step, progress->words.rate_short, figures);
    snprintf(head, sizeof(head), "epoch %lld/%lld ", (long long)step->epoch + 1,
             (long long)progress_epoch_count(progress));
    cells =
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
    char figures[LINE_BYTES];
    if (step->logged)
        progress->loss = step->loss;
    if (progress->terminal) {
        progress_draw(progress, step);
        return;
    }
    if (!step->logged)
        return;
    progress_figures(progress, step, progress->words.rate, figures);
    printf("step %lld/%lld  epoch %lld/%lld  %s\n", (long long)step->step,
           (long long)progress->step_count, (long long)step->epoch + 1,
           (long long)progress_epoch_count(progress), figures);
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
