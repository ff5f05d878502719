/* The outsider's program: tessera with a strategy and a model more. */
#include "outsider.h"

int main(int argc, char **argv)
{
    if (tess_registry_add_strategy(&outsider_bulk) != TESS_OK ||
        tess_registry_add_model(&outsider_twin) != TESS_OK)
        return tess_status_exit_code(TESS_ERR_USAGE);
    /* A name that is taken is refused, and nothing else is harmed by it. */
    if (tess_registry_add_strategy(&outsider_bulk) != TESS_ERR_USAGE)
        return tess_status_exit_code(TESS_ERR_INTERNAL);
    return tess_main(argc, argv);
}
