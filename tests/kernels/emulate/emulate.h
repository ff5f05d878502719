/*
 * The kernels of kernels/cuda on the CPU: the same .cu files, compiled by a host compiler against
 * an emulator of blocks, warps and shared memory, so that their arithmetic and indexing are checked
 * against `ref` where there is no GPU. Tests call the launchers, with ordinary memory and a stream
 * of NULL. This is no mock of the backend: nothing here stands in for the CUDA library, the module
 * libtessera_cuda.so is never linked to it, and what it cannot know (timing, memory order between
 * blocks, code generation, instructions only a device has) stays for the device's own tests.
 *
 * Every thread of a block is a fiber with a stack of its own; blocks run one after the other, on
 * one thread of the host. A fiber runs until its threads must meet, at __syncthreads() or at an
 * operation of the warp; such an operation happens when all lanes of its mask that have not
 * returned are there. What is found, and ends the program with a message:
 *
 *   a meeting that never happens (threads that wait at different places, or for each other)
 *   threads of a block at different __syncthreads()
 *   a lane that is not in its own mask
 *   16-byte copies and rows of tiles that are not aligned, or beyond the shared memory
 *   writes beyond dynamic shared memory, and beyond the arrays of emulate_array()
 *   more threads, blocks, shared memory (static and dynamic) or parameters than a device takes
 *
 * What makes results wrong instead, as NaN or as a difference: dynamic shared memory is filled with
 * 0xff bytes before each block; an asynchronous copy fills its target with them until it is waited
 * for; a shuffle from a lane that is not there gives them. Blocks take turns in
 * four ways: thread by thread or each warp as far as it comes alone, forwards or backwards; so a
 * missing barrier is met from several sides. The order of the blocks changes with the launch.
 * Static __shared__ keeps what the block before left.
 */
#ifndef TESTS_KERNELS_EMULATE_H
#define TESTS_KERNELS_EMULATE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Host memory as a kernel's array: 16-byte aligned, filled with 0xff, unreadable from the 16-byte
 * boundary after its end on. `offset` 0 to 15 bytes: only aligned to that much from a boundary of
 * 16. Ends the program when there is none. */
void *emulate_array(size_t bytes, size_t offset);
/* The same with the contents of `source` [bytes]. */
void *emulate_copy_of(const void *source, size_t bytes);
/* Free all arrays; the program ends with a message when something was written beyond one. */
void emulate_free_all(void);

#ifdef __cplusplus
}
#endif
#endif
