/* Around declarations: the functions are C's, in C++ too. */
#ifndef TESSERA_LINKAGE_H
#define TESSERA_LINKAGE_H

#ifdef __cplusplus
#define TESS_BEGIN_DECLS extern "C" {
#define TESS_END_DECLS   }
#else
#define TESS_BEGIN_DECLS
#define TESS_END_DECLS
#endif

/* Of inline functions that kernels of a device call, too. */
#ifdef __CUDACC__
#define TESS_ANYWHERE __host__ __device__
#else
#define TESS_ANYWHERE
#endif

#endif
