/* Tessera: a parallel training engine. This header includes all public ones. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "tessera/check.h"
#include "tessera/comm.h"
#include "tessera/communicator.h"
#include "tessera/device.h"
#include "tessera/engine.h"
#include "tessera/kernel.h"
#include "tessera/log.h"
#include "tessera/memory.h"
#include "tessera/model.h"
#include "tessera/optimizer.h"
#include "tessera/option.h"
#include "tessera/queue.h"
#include "tessera/registry.h"
#include "tessera/status.h"
#include "tessera/strategy.h"
#include "tessera/tensor.h"
#include "tessera/transport.h"
#include "tessera/update.h"
#include "tessera/version.h"

#endif
