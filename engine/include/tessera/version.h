/* Version of the library, and of the structs that parts are made of. */
#ifndef TESSERA_VERSION_H
#define TESSERA_VERSION_H

#define TESS_VERSION "0.1.0"

/* Every ops struct opens with this number; the registry refuses another one. */
#define TESS_ABI 19u

#endif
