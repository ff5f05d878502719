/* The program: the commands and their options are in command.c and its kin. */
#include "text/command.h"

int main(int argc, char **argv)
{
    return tess__main(argc, argv);
}
