/* Hashes: of parameter arrays (order-free, so that shards can be hashed apart) and of bytes. */
#ifndef TESSERA_BASE_HASH_H
#define TESSERA_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Mixes all 64 bits (the finaliser of SplitMix64, Steele et al. 2014). */
uint64_t tess_hash_mix(uint64_t x);

/* FNV-1a with a final mix. */
uint64_t tess_hash_bytes(const void *bytes, size_t count);

/*
 * Sum (mod 2^64) over i of mix(first + i, bits of x[i]): sums of parts add up to the hash of the
 * whole on every layout. `first` is the number of x[0] among all elements of the model.
 */
uint64_t tess_hash_f32(const float *x, size_t count, uint64_t first);

/* Fast, and it depends on the order: whether an array, or the next piece of one after `before`
 * (first 0), has the same bits as another that was cut alike. A change of one 8-byte word alone is
 * always seen. */
uint64_t tess_hash_run(const void *bytes, size_t count, uint64_t before);

#endif
