/*
 * How much static shared memory a kernel has. To the host's compiler its __shared__ arrays are
 * static variables of a function, and the names of those begin with the function's (Itanium C++
 * ABI, section 5.1.7: _ZZ, the function's name without _Z, E, the variable's); their sizes are in
 * the symbol table of the program or module. ptxas has the same sums (kernels/cuda/registers.txt),
 * but for 64 bytes of norms, whose array nvcc makes twice; the address sanitizer of clang adds to
 * each array what it guards it by. Arrays of functions that a kernel calls are not counted:
 * checked.sh of tests/kernels/cuda finds those.
 */
#include "emulate/native.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dlfcn.h>

static std::mutex lock;
static std::map<uintptr_t, size_t> counted; /* by the kernel's address */

[[noreturn]] static void statics_fail(const char *file, const char *what)
{
    fprintf(stderr, "emulate: %s: %s, so a kernel's static shared memory is not known\n", file,
            what);
    abort();
}

/* Add a variable, by its name without _ZZ, to those of its function. */
static void statics_add(std::map<std::string, size_t> &of, const char *name, size_t bytes)
{
    const std::string inner(name);
    for (size_t e = inner.rfind('E'); e != std::string::npos && e > 0;
         e = inner.rfind('E', e - 1)) {
        auto found = of.find(inner.substr(0, e));
        if (found != of.end()) {
            found->second += bytes;
            return;
        }
    }
}

/* The name behind `prefix` of a symbol of that type that begins with it, else NULL. */
static const char *statics_name(const ElfW(Sym) & symbol, const char *names, int type,
                                const char *prefix)
{
    const char *name = names + symbol.st_name;
    const size_t length = strlen(prefix);
    return ELF64_ST_TYPE(symbol.st_info) == type && symbol.st_value != 0 &&
                   strncmp(name, prefix, length) == 0
               ? name + length
               : NULL;
}

static void statics_count(const ElfW(Sym) * symbol, size_t count, const char *names, uintptr_t base)
{
    std::map<std::string, size_t> of; /* by functions' names without _Z */
    for (size_t i = 0; i < count; i++)
        if (const char *name = statics_name(symbol[i], names, STT_FUNC, "_Z"))
            of[name] = 0;
    for (size_t i = 0; i < count; i++)
        if (const char *name = statics_name(symbol[i], names, STT_OBJECT, "_ZZ"))
            statics_add(of, name, symbol[i].st_size);
    for (size_t i = 0; i < count; i++)
        if (const char *name = statics_name(symbol[i], names, STT_FUNC, "_Z")) {
            size_t &bytes = counted[base + symbol[i].st_value]; /* equal functions may be one */
            bytes = of[name] > bytes ? of[name] : bytes;
        }
}

/* Of this process's own file: it is taken for what the linker makes. */
static void statics_read(const char *file, uintptr_t base)
{
    struct stat about;
    const int in = open(file, O_RDONLY | O_CLOEXEC);
    if (in < 0 || fstat(in, &about) != 0)
        statics_fail(file, "it cannot be opened");
    const size_t bytes = (size_t)about.st_size;
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, in, 0);
    (void)close(in);
    if (memory == MAP_FAILED)
        statics_fail(file, "it cannot be read");
    const char *start = static_cast<const char *>(memory);
    const ElfW(Ehdr) *head = reinterpret_cast<const ElfW(Ehdr) *>(start);
    const ElfW(Shdr) *section = reinterpret_cast<const ElfW(Shdr) *>(start + head->e_shoff);
    bool found = false;
    for (int s = 0; s < head->e_shnum; s++) {
        if (section[s].sh_type != SHT_SYMTAB)
            continue;
        statics_count(reinterpret_cast<const ElfW(Sym) *>(start + section[s].sh_offset),
                      section[s].sh_size / sizeof(ElfW(Sym)),
                      start + section[section[s].sh_link].sh_offset, base);
        found = true;
    }
    (void)munmap(memory, bytes);
    if (!found)
        statics_fail(file, "its symbols were stripped");
}

size_t emulate_static_bytes(const void *kernel)
{
    const uintptr_t address = reinterpret_cast<uintptr_t>(kernel);
    std::lock_guard<std::mutex> locked(lock);
    auto found = counted.find(address);
    if (found != counted.end())
        return found->second;
    Dl_info about;
    struct link_map *map = NULL;
    if (dladdr1(kernel, &about, reinterpret_cast<void **>(&map), RTLD_DL_LINKMAP) == 0)
        statics_fail("a kernel", "it is in no file");
    const char *file = map->l_name[0] ? map->l_name : "/proc/self/exe";
    statics_read(file, map->l_addr);
    found = counted.find(address);
    if (found == counted.end())
        statics_fail(file, "it has no name for a kernel");
    return found->second;
}
