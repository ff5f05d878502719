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

#endif
