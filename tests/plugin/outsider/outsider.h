/* The outsider's own parts. */
#ifndef OUTSIDER_H
#define OUTSIDER_H

#include <tessera/tessera.h>

extern const struct tess_strategy_ops outsider_bulk;
extern const struct tess_model_ops outsider_twin;
extern const struct tess_kernel_ops outsider_slope;
extern const struct tess_optimizer_ops outsider_lion;
extern const struct tess_communicator_ops outsider_mail;

enum tess_status tess_plugin(void);

#endif
