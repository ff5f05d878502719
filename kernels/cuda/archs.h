/* Which devices code runs on. Needs nothing of CUDA. */
#ifndef KERNELS_CUDA_ARCHS_H
#define KERNELS_CUDA_ARCHS_H

#include <stdbool.h>

/*
 * Does code for `archs` ("80 90a ptx", the words of TESS_CUDA_ARCHS) run on compute capability
 * major.minor? Real code runs on its own major with at least its minor, with an 'f' too, with an
 * 'a' on exactly its own; portable code, which is that of 8.0, on all from there (CUDA C++
 * programming guide, "Binary compatibility", "PTX compatibility", "Family-specific features").
 */
bool tess__cuda_runs_on(const char *archs, int major, int minor);

#endif
