/* The outsider's own parts. */
#ifndef OUTSIDER_H
#define OUTSIDER_H

#include <tessera/tessera.h>

extern const struct tess_strategy_ops outsider_bulk;
extern const struct tess_model_ops outsider_twin;

#endif
