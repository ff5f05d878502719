/*
 * Parts by name. Built-in parts are listed once per kind in a list header of their room; an
 * outsider adds its own before the run is opened. Names are unique within a kind.
 */
#ifndef TESSERA_REGISTRY_H
#define TESSERA_REGISTRY_H

#include "tessera/kernel.h"
#include "tessera/model.h"
#include "tessera/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* TESS_ERR_USAGE if the name is taken, the ABI number differs or a required slot is empty. The
 * struct is borrowed and must outlive the process's runs. Call before threads start. */
enum tess_status tess_registry_add_strategy(const struct tess_strategy_ops *ops);
enum tess_status tess_registry_add_model(const struct tess_model_ops *ops);

/* The part of that name; logs the known names, or how to build a part that was left out, and fails
 * with TESS_ERR_USAGE otherwise. */
enum tess_status tess_registry_get_strategy(const char *name,
                                            const struct tess_strategy_ops **ops_out);
enum tess_status tess_registry_get_model(const char *name, const struct tess_model_ops **ops_out);
enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out);

#ifdef __cplusplus
}
#endif
#endif
