/*
 * The kernel backends: TESS_KERNEL(name, built, hint). To add one, write its folder with a
 * `const struct tess_kernel_ops tess_kernel_<name>`, add its line here and its sources in
 * kernels/CMakeLists.txt. `built` is 1, 0, or MODULE: in the loadable module of that name, which is
 * opened on first use. No include guard: the file that includes it defines TESS_KERNEL first.
 *
 * TESS_BUILT_ONEDNN comes from kernels/CMakeLists.txt and is used in this file only.
 */
TESS_KERNEL(ref, 1, "")
TESS_KERNEL(guard, 1, "")
TESS_KERNEL(guard_queue, 1, "")
#ifdef TESS_BUILT_ONEDNN
TESS_KERNEL(cpu, 1, "")
#else
TESS_KERNEL(cpu, 0, "install libdnnl-dev and configure with -DTESS_ONEDNN=ON")
#endif
TESS_KERNEL(cuda, MODULE, "NVIDIA GPUs, in libtessera_cuda.so")
