/* What a training prints before its first step and after its last; see train_print.h. */
#include "run/train_print.h"

#include "core/engine.h"
#include "job/place.h"
#include "run/bubble.h"
#include "run/memory_table.h"
#include "run/mfu.h"
#include "tessera/log.h"
#include "text/text.h"
#include "text/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void tess__train_print_start(const struct tess__run *run)
{
    const struct tess_config *config = run->config;
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    const struct tess__words words = tess__words_of(run->dataset);
    char parameters[TESS__TEXT_BYTES], mesh[TESS__MESH_TEXT_BYTES];
    char data[TESS__DATA_BYTES];
    printf("%s, %s parameters, %s, under %s on %d rank%s", config->model->name,
           tess__text_count((double)tess_engine_model_size(run->planned), parameters),
           tess_dtype_name(tess_run_dtype(&config->run)), config->run.strategy, run->rank_count,
           run->rank_count > 1 ? "s" : "");
    if (config->threads > 1)
        printf(" x %d threads", config->threads);
    if (tess__run_has_mesh(run))
        printf(" (%s)", tess__mesh_text(config->mesh.count, mesh));
    printf("%s%" PRId64 " %s", tess__run_has_mesh(run) ? ";\n  " : "; ", run->dataset->train.count,
           words.rows);
    if (words.tokens)
        printf(" of %.0f tokens", words.rate_of_row);
    printf(", batch %" PRId64 ", grid %d, %" PRId64 " steps\n", config->run.batch_size, plan->grid,
           tess_engine_step_count(run->planned));
    printf("%s\n", tess__data_text(run->dataset, data));
    if (config->checkpoint[0])
        printf("continues after step %" PRId64 ", from %s\n", tess_engine_step_done(run->planned),
               config->checkpoint);
    if (run->placed->line[0] && !run->placed->imagined)
        printf("order: %s\n", run->placed->line);
}

/* What is cut in a run that is shorter than its options are made for. */
static void train_print_short(const struct tess__run *run)
{
    const struct tess_optim_options *optim = &run->config->optim;
    const int64_t steps = tess_engine_step_count(run->planned);
    const double epoch = (double)tess_engine_steps_per_epoch(run->planned);
    const double warmup = tess_schedule_warmup(optim, steps, epoch);
    const int64_t samples = tess_engine_test_count(run->planned);
    if (warmup < optim->warmup * epoch)
        tess_log(TESS_LOG_WARN,
                 "--warmup %g is longer than the run of %g epochs: shortened to half of the run, "
                 "%g steps",
                 optim->warmup, (double)steps / epoch, warmup);
    if (run->evaluate && samples > 0 && samples < run->dataset->test.count)
        printf("note: validation uses %" PRId64 " of %" PRId64
               " %s, as many as are trained on between two validations;\n      runs of an epoch "
               "and more "
               "use all\n",
               samples, run->dataset->test.count, tess__words_of(run->dataset).rows);
}

void tess__train_print_notes(const struct tess__run *trained)
{
    const struct tess_config *config = trained->config;
    const struct tess_run_options *run = &config->run;
    const int32_t ranks = config->mesh.count[TESS_AXIS_DATA];
    if (run->batch_per_rank > 0 && ranks > 1 && config->optim.base_rate == 0)
        printf("note: the batch grows with the ranks (%d x %" PRId64
               ") and the learning rate %g does not;\n      --base-lr %g --lr-scale linear would "
               "make it %g\n",
               ranks, run->batch_per_rank, config->optim.learning_rate, config->optim.learning_rate,
               config->optim.learning_rate * ranks);
    if (!config->loader.shuffle && (run->steps > 0 || run->epochs > 1))
        printf("note: every epoch sees the %s in the same order (--data.shuffle off)\n",
               tess__words_of(trained->dataset).rows);
    train_print_short(trained);
}

void tess__train_print_end(const struct tess__run *run, const struct tess__predicted *predicted,
                           bool saved)
{
    const struct tess__run_final *final = &run->final;
    const struct tess__words words = tess__words_of(run->dataset);
    char first[TESS__TEXT_BYTES], time[TESS__TEXT_BYTES], text[TESS__TEXT_BYTES];
    printf("\n%" PRId64 " steps in %s, %s %s, first step after %s", final->steps,
           tess__text_time(final->time_s, time),
           tess__words_rate(&words, final->samples_per_s, text), words.rate,
           tess__text_time(final->first_step_s, first));
    if (!isnan(final->val_loss))
        printf("; val loss %.4f, %s", final->val_loss,
               tess__words_quality(&words, final->val_loss, final->val_accuracy, text));
    if (run->config->run.precision != 0) {
        putchar('\n');
        if (!isnan(final->loss_zero_share)) /* unknown for a model that computes its loss */
            printf("%.1f %% of the gradient by the logits are zeros; ",
                   100 * final->loss_zero_share);
        printf("loss scale %g, %" PRId64 " steps skipped", final->loss_scale, final->skipped);
    }
    putchar('\n');
    tess__mfu_print_end(run);
    tess__predicted_print(run, predicted);
    printf("hash of all parameters %016" PRIx64 "\n", final->hash);
    if (saved && run->config->run.run[0] && run->config->run.save_weights)
        printf("weights in %s/weights.safetensors\n", run->config->run.run);
    tess__bubble_print(run);
    tess__memory_table_print(run, true);
}
