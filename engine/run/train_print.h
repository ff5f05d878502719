/* What a training prints before its first step and after its last. */
#ifndef TESSERA_RUN_TRAIN_PRINT_H
#define TESSERA_RUN_TRAIN_PRINT_H

#include "run/predicted.h"

/* What is trained, on what, in which order of ranks. */
void tess__train_print_start(const struct tess__run *run);

/* Mistakes that are easily made and hard to see in a curve; what is cut in a short run. */
void tess__train_print_notes(const struct tess__run *run);

/* The result, and what it has cost. saved: the weights' file is complete. */
void tess__train_print_end(const struct tess__run *run, const struct tess__predicted *predicted,
                           bool saved);

#endif
