/* The program: everything is in the library, so that an outsider's program can be the same. */
#include "tessera/tessera.h"

int main(int argc, char **argv)
{
    return tess_main(argc, argv);
}
