/* Parts by name, unique within a kind: those of the list headers, and those that are added before
 * the run is opened. */
#ifndef TESSERA_REGISTRY_H
#define TESSERA_REGISTRY_H

#include "tessera/communicator.h"
#include "tessera/kernel.h"
#include "tessera/model.h"
#include "tessera/optimizer.h"
#include "tessera/strategy.h"

TESS_BEGIN_DECLS

/* TESS_ERR_USAGE if the name is taken, the ABI number differs or a required slot is empty. The
 * struct is borrowed and must outlive the process's runs. Call before threads start. */
enum tess_status tess_registry_add_strategy(const struct tess_strategy_ops *ops);
enum tess_status tess_registry_add_model(const struct tess_model_ops *ops);
enum tess_status tess_registry_add_kernel(const struct tess_kernel_ops *ops);
enum tess_status tess_registry_add_optimizer(const struct tess_optimizer_ops *ops);
enum tess_status tess_registry_add_communicator(const struct tess_communicator_ops *ops);

/*
 * Open the shared object `path` and call its function
 *
 *     enum tess_status tess_plugin(void);
 *
 * which adds parts by the functions above. What it returns is returned. The object stays open for
 * the process's life. TESS_ERR_USAGE if it cannot be opened or exports no such function.
 */
enum tess_status tess_registry_add_plugin(const char *path);

/* The part of that name; else TESS_ERR_USAGE with the known names, or how to build a part. */
enum tess_status tess_registry_get_strategy(const char *name,
                                            const struct tess_strategy_ops **ops_out);
enum tess_status tess_registry_get_model(const char *name, const struct tess_model_ops **ops_out);
enum tess_status tess_registry_get_kernel(const char *name, const struct tess_kernel_ops **ops_out);
enum tess_status tess_registry_get_optimizer(const char *name,
                                             const struct tess_optimizer_ops **ops_out);
enum tess_status tess_registry_get_communicator(const char *name,
                                                const struct tess_communicator_ops **ops_out);

TESS_END_DECLS
#endif
