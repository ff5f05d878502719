/*
 * The communicators by name: TESS_COMMUNICATOR(name, built, hint). Each built one is a
 * `const struct tess_communicator_ops tess_communicator_<name>` (tessera/communicator.h); `hint`
 * explains how to get one that is known but not built. --comm auto takes the first that fits the
 * ranks, so the order counts. No include guard: the registry includes this several times with other
 * meanings.
 */
TESS_COMMUNICATOR(self, 1, "")
TESS_COMMUNICATOR(local, 1, "")
TESS_COMMUNICATOR(mpi, 1, "")
TESS_COMMUNICATOR(tcp, 1, "")
TESS_COMMUNICATOR(nccl, 1, "")
