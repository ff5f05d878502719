/*
 * Options with which a run that needs too much memory would fit: each is planned as a user would
 * give it, alone, and all of them together where none of them is enough.
 */
#ifndef TESSERA_RUN_FIT_H
#define TESSERA_RUN_FIT_H

#include "config/config.h"
#include "data/data.h"
#include "text/command.h"

struct tess__fit {
    const struct tess__args *args;         /* of the run that does not fit */
    const struct tess_config_table *table; /* of the command; its target is overwritten */
    const struct tess_config *config;
    const struct tess_dataset *dataset;
};

/* The end of a sentence: "--recompute full would need 3.1 GiB (0.8 GiB a rank)". */
void tess__fit_advise(const struct tess__fit *fit, char *text, size_t bytes);

#endif
