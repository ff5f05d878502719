/* Steps of a comparison's runs as they were predicted, beside what was measured. */
#include "study/compare.h"

#include "text/table.h"
#include "text/text.h"

#include <stdio.h>

static void steps_add_pair(struct tess__table *table, double predicted_s, double measured_s)
{
    char text[TESS__TEXT_BYTES];
    tess__table_add(table, "%s", tess__predicted_ms(predicted_s, text));
    tess__table_add(table, "%s", tess__predicted_ms(measured_s, text));
}

static void steps_add_run(struct tess__table *table, const struct tess__compared *run)
{
    const struct tess__phases *predicted = &run->predicted.phases;
    const struct tess__phases measured = tess__predicted_measured(&run->trial.run);
    tess__table_add(table, "%s", run->variant->name);
    steps_add_pair(table, predicted->step_s, measured.step_s);
    tess__table_add(table, "%.2f", predicted->step_s / measured.step_s);
    steps_add_pair(table, predicted->forward_s, measured.forward_s);
    steps_add_pair(table, predicted->backward_s, measured.backward_s);
    steps_add_pair(table, predicted->optim_s, measured.optim_s);
    steps_add_pair(table, predicted->exposed_s, measured.exposed_s);
}

void tess__comparison_print_steps(const struct tess__comparison *comparison)
{
    static const struct tess__column column[] = {
        {.title = "run", .left = true, .key = true},
        {.title = "step", .width = 7},
        {.title = "meas.", .width = 7},
        {.title = "ratio", .width = 5},
        {.title = "forward", .brief = "fwd", .width = 7},
        {.title = "meas.", .width = 7},
        {.title = "backward", .brief = "bwd", .width = 8},
        {.title = "meas.", .width = 7},
        {.title = "optimizer", .brief = "optim", .width = 9},
        {.title = "meas.", .width = 7},
        {.title = "waiting", .brief = "wait", .width = 7},
        {.title = "meas.", .width = 7},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    bool guessed = false;
    int known = 0;
    for (int i = 0; i < comparison->count; i++) {
        const struct tess__predicted *predicted = &comparison->run[i].predicted;
        guessed = guessed || tess__predicted_guessed(predicted);
        if (!predicted->known)
            continue;
        known++;
        steps_add_run(&table, &comparison->run[i]);
    }
    printf("\nstep in ms, predicted and measured%s\n",
           guessed ? "; not calibrated (tessera plan --calibrate FILE)" : "");
    if (known > 0)
        tess__table_print(&table, stdout);
    for (int i = 0; i < comparison->count; i++)
        if (!comparison->run[i].predicted.known)
            printf("%s: %s\n", comparison->run[i].variant->name, comparison->run[i].predicted.why);
}
