/* A library that a module was linked to and that is not there when it is loaded. */
int fake_library(void);
int fake_library(void)
{
    return 0;
}
