/* What every option of a run has to do with its bits: the one list for runs that continue and for
 * comparisons. */
#ifndef TESSERA_CONFIG_CONFIG_BITS_H
#define TESSERA_CONFIG_CONFIG_BITS_H

#include "config/config.h"

enum tess_option_bits {
    TESS_BITS_DECIDES, /* another value, other bits; an option that is not in the list, too */
    TESS_BITS_PLACE,   /* as well, by what computes them and where they begin: a run that continues
                          may change it */
    TESS_BITS_FIGURE,  /* by batch size, grid, learning rate and parts, as they are resolved, or by
                          the length of a run, and by nothing else */
    TESS_BITS_FREE,    /* never: where and how fast the same numbers are computed, and what is
                          written about them */
};

/* `name`: in full. The options of this run's strategies are free. Pure. */
enum tess_option_bits tess_config_option_bits(const struct tess_config *config, const char *name);

#endif
