/*
 * When to save. Which ranks write what is core/save.h's. Steps that are due by their number need no
 * agreement; what the clock, a signal or the thread that writes decides is exchanged between the
 * ranks ten times a second at most: one all-reduce of four numbers after a step.
 */
#include "job/saving.h"

#include "base/clock.h"
#include "base/options.h"
#include "config/config_resume.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

#define SAVING_EXCHANGE_S 0.1
#define SAVING_STEPS_MOST 1000 /* between two exchanges */

/* What a rank brings to an exchange; the greatest of all ranks counts. */
enum { SAVING_SAVE, SAVING_STOP, SAVING_WRITING, SAVING_STEPS, SAVING_WORDS };
/* Of SAVING_STOP: the run goes on under other numbers; it ends. */
enum { SAVING_RENUMBERS = 1, SAVING_ENDS };

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status saving_describe(struct tess__saving *saving)
{
    const struct tess_config *config = saving->run->config;
    struct tess_checkpoint_state *about = &saving->about;
    about->options = tess_config_bits(config);
    about->model = strdup(config->model->name);
    if (about->options == NULL || about->model == NULL ||
        asprintf(&about->layout, "%s on %d rank%s", config->run.strategy, saving->run->rank_count,
                 saving->run->rank_count > 1 ? "s" : "") < 0) {
        about->layout = NULL;
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the state");
    }
    about->model_id = tess_engine_model_id(saving->engine);
    about->data_id = tess_dataset_id(saving->run->dataset, &saving->run->dataset->train);
    about->batch_size = config->run.batch_size;
    about->grid = tess_engine_plan_of(saving->engine)->grid;
    about->learning_rate = config->optim.learning_rate;
    about->warmup_start = config->optim.warmup_start;
    return TESS_OK;
}

static bool saving_push(void *context, int64_t step, char *why, size_t why_bytes)
{
    struct tess__saving *saving = context;
    char text[BOOT_WHY_BYTES + BOOT_TEXT_BYTES];
    if (tess__mirror_push(&saving->partner, saving->plan->copies, step, text, sizeof(text)))
        return true;
    snprintf(why, why_bytes, "the other host does not take it (%s)", text);
    return false;
}

static enum tess_status saving_open_copies(struct tess__saving *saving)
{
    const struct tess_config *config = saving->run->config;
    const struct tess_started *started = &config->started;
    struct tess_saver_setup setup = {
        .run = saving->plan->copies, .keep = 1, .copies = true, .context = saving};
    setup.maker = (started->starter != NULL ? started->local_rank : saving->rank->rank) == 0;
    if (setup.run[0] == '\0')
        return TESS_OK;
    if (setup.maker && saving->plan->mirrored)
        tess__mirror_from_environment(config->run.timeout / 2, &saving->partner);
    if (saving->partner.port > 0)
        setup.push = saving_push;
    return tess_saver_open(saving->engine, &setup, &saving->copies);
}

enum tess_status tess__saving_open(struct tess__saving *saving, const struct tess__run *run,
                                   const struct tess__rank *rank, struct tess_engine *engine)
{
    const struct tess_run_options *options = &run->config->run;
    *saving = (struct tess__saving){
        .run = run, .rank = rank, .engine = engine, .saved_step = tess_engine_step_done(engine)};
    saving->exchange_step = saving->next_exchange = saving->saved_step;
    if (!run->config->saves)
        return TESS_OK;
    const struct tess_saver_setup setup = {.run = options->run,
                                           .keep = options->keep,
                                           .bytes_per_s = run->config->save.bytes_per_s,
                                           .maker = rank->rank == 0};
    saving->plan = &run->config->save;
    TESS_TRY(saving_describe(saving));
    TESS_TRY(tess_saver_open(engine, &setup, &saving->saver));
    saving->step_s = tess_clock_s();
    saving->due_s = saving->step_s + saving->plan->every_s;
    return saving_open_copies(saving);
}

/* What is being pushed now is of no use: the run is over, or has failed here. */
static void saving_close_copies(struct tess__saving *saving)
{
    tess__mirror_cut(&saving->partner);
    tess_saver_close(saving->copies);
    saving->copies = NULL;
    tess__mirror_close(&saving->partner);
}

void tess__saving_close(struct tess__saving *saving)
{
    tess_saver_close(saving->saver);
    saving_close_copies(saving);
    tess_checkpoint_state_fini(&saving->about);
    saving->saver = NULL;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static enum tess_status saving_report(const struct tess__saving *saving, bool saved,
                                      const char *why)
{
    const struct tess_saver_cost cost = tess_saver_cost(saving->saver);
    struct tess__run_saved message = {.step = saving->saved_step,
                                      .saved = saved,
                                      .copy_s = cost.copy_s,
                                      .write_s = cost.write_s,
                                      .bytes = cost.bytes};
    if (saving->rank->rank != 0)
        return TESS_OK;
    if (!saved && saving->run->config->run.save_required)
        TESS_FAIL(TESS_ERR_IO, "step %lld is not saved, which --save-required demands: %s",
                  (long long)saving->saved_step, why);
    const size_t room = sizeof(message.why), length = strlen(why);
    snprintf(message.why, room, "%s%s", length < room ? "" : "...",
             length < room ? why : why + length - (room - sizeof("...")));
    return tess__rank_send(saving->rank, TESS__RUN_SAVED, &message, sizeof(message));
}

/* Waits for the thread that writes. */
static enum tess_status saving_finish(struct tess__saving *saving)
{
    char why[TESS_SAVER_WHY];
    bool saved;
    if (!tess_saver_busy(saving->saver))
        return TESS_OK;
    TESS_TRY(tess_saver_end(saving->saver, &saving->about, &saved, why));
    return saving_report(saving, saved, why);
}

static enum tess_status saving_begin(struct tess__saving *saving, int64_t number)
{
    char why[TESS_SAVER_WHY];
    bool begun;
    TESS_TRY(saving_finish(saving));
    saving->saved_step = number;
    saving->due_s = tess_clock_s() + saving->plan->every_s;
    TESS_TRY(tess_saver_begin(saving->saver, &begun, why));
    if (!begun)
        return saving_report(saving, false, why);
    return saving->plan->memory_bytes > 0 ? TESS_OK : saving_finish(saving);
}

/* Is the launcher of rank 0 for other numbers of ranks? */
static bool saving_is_asked(const struct tess__saving *saving)
{
    return saving->rank->rank == 0 && saving->run->renumber != NULL &&
           *saving->run->renumber == TESS__RENUMBER_ASKED;
}

/* What the ranks want; the same on all of them afterwards. */
static enum tess_status saving_exchange(struct tess__saving *saving, int64_t number,
                                        int32_t word[SAVING_WORDS])
{
    const double now_s = tess_clock_s();
    const int64_t steps = number - saving->exchange_step;
    const double each_s = steps > 0 ? (now_s - saving->step_s) / (double)steps : 0;
    const double fits = each_s > 0 ? SAVING_EXCHANGE_S / each_s : 1;
    const enum tess_world_request request = tess_world_requested(saving->rank->world);
    word[SAVING_SAVE] =
        request != TESS_WORLD_GO_ON ||
        (saving->rank->rank == 0 && saving->plan->every_s > 0 && now_s >= saving->due_s);
    word[SAVING_STOP] = request == TESS_WORLD_SAVE_AND_END ? SAVING_ENDS
                        : saving_is_asked(saving)          ? SAVING_RENUMBERS
                                                           : 0;
    word[SAVING_WRITING] = tess_saver_busy(saving->saver) && !tess_saver_written(saving->saver);
    word[SAVING_STEPS] = saving->rank->rank != 0 || fits < 1 ? 1
                         : fits > SAVING_STEPS_MOST          ? SAVING_STEPS_MOST
                                                             : (int32_t)fits;
    TESS_TRY(tess_engine_greatest(saving->engine, word, SAVING_WORDS));
    saving->step_s = now_s;
    saving->exchange_step = number;
    saving->next_exchange = number + word[SAVING_STEPS];
    if (word[SAVING_SAVE] && !word[SAVING_STOP])
        tess_world_answer(saving->rank->world);
    return TESS_OK;
}

/* A copy of the state in memory, complete when this returns; then it is pushed. After one that
 * fails there are no more: training goes on without, and the copies before stay. */
static enum tess_status saving_copy(struct tess__saving *saving, int64_t number)
{
    char why[TESS_SAVER_WHY];
    bool saved = false;
    TESS_TRY(tess_saver_begin(saving->copies, &saved, why));
    if (saved && tess_saver_busy(saving->copies))
        TESS_TRY(tess_saver_end(saving->copies, &saving->about, &saved, why));
    if (saved)
        return TESS_OK;
    if (saving->rank->rank == 0 || why[0] != '\0')
        tess_log(TESS_LOG_WARN, "step %lld is not copied, and no later one (--redundancy): %s",
                 (long long)number, why[0] != '\0' ? why : "another host reports why");
    saving_close_copies(saving);
    return TESS_OK;
}

enum tess_status tess__saving_after_step(struct tess__saving *saving, int64_t number)
{
    int32_t word[SAVING_WORDS] = {0};
    if (saving->saver == NULL)
        return TESS_OK;
    if (saving->copies != NULL && number % saving->plan->copy_steps == 0)
        TESS_TRY(saving_copy(saving, number));
    const bool due = saving->plan->every_steps > 0 && number % saving->plan->every_steps == 0;
    if (number >= saving->next_exchange) {
        TESS_TRY(saving_exchange(saving, number, word));
        if (tess_saver_busy(saving->saver) && !word[SAVING_WRITING])
            TESS_TRY(saving_finish(saving));
        saving->stop = word[SAVING_STOP] != 0;
        if (word[SAVING_STOP] == SAVING_RENUMBERS && saving->run->renumber != NULL)
            *saving->run->renumber = TESS__RENUMBER_AGREED;
    }
    if ((due || word[SAVING_SAVE]) && !saving->stop)
        return saving_begin(saving, number);
    return TESS_OK;
}

enum tess_status tess__saving_end(struct tess__saving *saving, int64_t number)
{
    if (saving->saver == NULL)
        return TESS_OK;
    TESS_TRY(saving_finish(saving));
    if (saving->saved_step == number)
        return TESS_OK;
    TESS_TRY(saving_begin(saving, number));
    return saving_finish(saving);
}
