/* Tables of memory per rank by kind. To stdout. */
#ifndef TESSERA_CLI_MEMORY_TABLE_H
#define TESSERA_CLI_MEMORY_TABLE_H

#include "cli/run.h"

/*
 * After a run (measured): what every rank allocated, its peak RSS, and whether the plan had
 * predicted it. Before one: what the plan predicts.
 */
void tess__memory_table_print(const struct tess__run *run, bool measured);

#endif
