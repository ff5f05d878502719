/* A libcudnn.so.9 that is none. FAKE_OLD: it has all the names, and an older version's number. */
#include <stddef.h>

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return 8907;
}

#ifdef FAKE_OLD
#define FAKE_FUNCTION(name)                                                                        \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 1;                                                                                  \
    }
FAKE_FUNCTION(cudnnGetErrorString)
FAKE_FUNCTION(cudnnGetLastErrorString)
FAKE_FUNCTION(cudnnCreate)
FAKE_FUNCTION(cudnnDestroy)
FAKE_FUNCTION(cudnnSetStream)
FAKE_FUNCTION(cudnnBackendCreateDescriptor)
FAKE_FUNCTION(cudnnBackendDestroyDescriptor)
FAKE_FUNCTION(cudnnBackendFinalize)
FAKE_FUNCTION(cudnnBackendSetAttribute)
FAKE_FUNCTION(cudnnBackendGetAttribute)
FAKE_FUNCTION(cudnnBackendExecute)
#endif
