/*
 * Tessera: a parallel training engine. This header brings in all public ones.
 *
 * An outsider's program registers its parts and hands over to the command line:
 *
 *     int main(int argc, char **argv)
 *     {
 *         tess_registry_add_strategy(&my_strategy);
 *         return tess_main(argc, argv);
 *     }
 */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "tessera/check.h"
#include "tessera/comm.h"
#include "tessera/device.h"
#include "tessera/kernel.h"
#include "tessera/log.h"
#include "tessera/memory.h"
#include "tessera/model.h"
#include "tessera/option.h"
#include "tessera/queue.h"
#include "tessera/registry.h"
#include "tessera/status.h"
#include "tessera/strategy.h"
#include "tessera/tensor.h"
#include "tessera/update.h"
#include "tessera/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The program `tessera`: runs argv's command, returns the exit status (0, 1 run, 2 usage, 130). */
int tess_main(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
