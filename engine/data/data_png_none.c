/* In the place of data_png.c where libpng was not there when Tessera was built. */
#include "data/data_images.h"

#include <stdio.h>

enum tess_status tess__png_read(const uint8_t *byte, size_t count, struct tess__picture *picture,
                                uint8_t *pixel, char why[TESS__IMAGE_WHY])
{
    (void)byte, (void)count, (void)picture, (void)pixel;
    snprintf(why, TESS__IMAGE_WHY,
             "a PNG, and this Tessera was built without libpng: install libpng-dev and build "
             "again");
    return TESS_ERR_UNSUPPORTED;
}
