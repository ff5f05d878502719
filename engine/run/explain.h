/* --explain: every option with its origin, the plan, and the memory plan of every rank. To stdout.
 */
#ifndef TESSERA_RUN_EXPLAIN_H
#define TESSERA_RUN_EXPLAIN_H

#include "job/run.h"

/* `rank`: whose plan. TESS_ERR_USAGE where there is no such rank. */
enum tess_status tess__explain_print(const struct tess__run *run, int32_t rank);

#endif
