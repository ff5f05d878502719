/* Steps of a comparison's runs as they were predicted, beside what was measured. */
#include "study/compare.h"

#include <stdio.h>

static void steps_print_pair(double predicted_s, double measured_s)
{
    char text[2][TESS__TEXT_BYTES];
    printf(" %7s %7s", tess__predicted_ms(predicted_s, text[0]),
           tess__predicted_ms(measured_s, text[1]));
}

static void steps_print_row(const struct tess__comparison *comparison, int i)
{
    const struct tess__compared *run = &comparison->run[i];
    const struct tess__phases *predicted = &run->predicted.phases;
    const struct tess__phases measured = tess__predicted_measured(&run->trial.run);
    printf("%-*s", comparison->name_width, run->variant->name);
    if (!run->predicted.known) {
        printf(" %.*s\n", 118 - comparison->name_width, run->predicted.why);
        return;
    }
    steps_print_pair(predicted->step_s, measured.step_s);
    printf(" %5.2f", predicted->step_s / measured.step_s);
    steps_print_pair(predicted->forward_s, measured.forward_s);
    steps_print_pair(predicted->backward_s, measured.backward_s);
    steps_print_pair(predicted->optim_s, measured.optim_s);
    steps_print_pair(predicted->exposed_s, measured.exposed_s);
    putchar('\n');
}

void tess__comparison_print_steps(const struct tess__comparison *comparison)
{
    bool guessed = false;
    for (int i = 0; i < comparison->count; i++)
        guessed = guessed || tess__predicted_guessed(&comparison->run[i].predicted);
    printf("\nstep in ms, predicted and measured%s\n%-*s %15s %5s %15s %15s %15s %15s\n",
           guessed ? "; not calibrated (tessera plan --calibrate FILE)" : "",
           comparison->name_width, "", "step", "ratio", "forward", "backward", "optimizer",
           "waiting");
    for (int i = 0; i < comparison->count; i++)
        steps_print_row(comparison, i);
}
