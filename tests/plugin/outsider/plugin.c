/* The outsider's plugin: what `tessera --plugin` calls. */
#include "outsider.h"

enum tess_status tess_plugin(void)
{
    TESS_TRY(tess_registry_add_strategy(&outsider_bulk));
    TESS_TRY(tess_registry_add_model(&outsider_twin));
    TESS_TRY(tess_registry_add_kernel(&outsider_slope));
    TESS_TRY(tess_registry_add_optimizer(&outsider_lion));
    return tess_registry_add_communicator(&outsider_mail);
}
