/* Tessera: a parallel training engine. This header includes all public ones. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "tessera/check.h"
#include "tessera/engine.h"
#include "tessera/registry.h" /* which includes the headers of all kinds of parts */
#include "tessera/transport.h"
#include "tessera/version.h"

#endif
