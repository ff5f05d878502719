# Whether CUDA's kernels can be compiled for the emulator (emulate.h): TESS_EMULATED. That needs a C++ compiler and
# CUDA's headers (TESS_CUDA_HEADERS), not nvcc; the switch of fibers is written for x86-64.
option(TESS_EMULATE "Run the CUDA kernels on the CPU in tests (by default where they are built)" ${TESS_CUDA})
set(TESS_EMULATED OFF)
if(NOT TESS_EMULATE)
    return()
endif()
include(CheckLanguage)
check_language(CXX)
find_path(TESS_CUDA_HEADERS cuda_runtime_api.h
    HINTS $ENV{CUDA_HOME} /usr/local/cuda PATH_SUFFIXES include targets/x86_64-linux/include)
mark_as_advanced(TESS_CUDA_HEADERS)
string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(NOT CMAKE_CXX_COMPILER OR NOT EXISTS "${TESS_CUDA_HEADERS}/cublasLt.h" OR NOT processor MATCHES "^(x86_64|amd64)$")
    return()
endif()
enable_language(CXX)
set(TESS_EMULATED ON)
# cuDNN's headers, for tests of what is made of its plans.
find_path(TESS_CUDNN_HEADERS cudnn_graph.h HINTS ${CUDNN_INCLUDE} ${TESS_CUDA_HEADERS} $ENV{CUDNN_ROOT}/include)
mark_as_advanced(TESS_CUDNN_HEADERS)

# fmaf() as an instruction, where this processor has it: else each is a call.
set(emulate_fma "")
file(STRINGS /proc/cpuinfo fma REGEX "^flags.* fma " LIMIT_COUNT 1)
if(fma)
    set(emulate_fma -mfma)
endif()

# Files compiled as C++ with what kernels see. Own options instead of the project's, some of which are C's alone.
function(emulate_library name)
    set(options -O1 ${emulate_fma} -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra
        -Wno-unknown-pragmas -Wno-unused-function)
    if(TESS_WERROR)
        list(APPEND options -Werror)
    endif()
    if(TESS_SANITIZE)
        # Left out are checks whose run-time part is C++'s, which a program in C does not bring for its module.
        list(APPEND options -fsanitize=${TESS_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all
            -fno-omit-frame-pointer -g1)
        if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
            list(APPEND options -fno-sanitize=function)
        endif()
    endif()
    add_library(${name} OBJECT ${ARGN})
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/engine/include ${PROJECT_SOURCE_DIR}/engine
        ${PROJECT_SOURCE_DIR}/kernels ${PROJECT_SOURCE_DIR}/tests/kernels ${PROJECT_SOURCE_DIR}/tests)
    target_include_directories(${name} SYSTEM PRIVATE ${TESS_CUDA_HEADERS})
    set_target_properties(${name} PROPERTIES COMPILE_OPTIONS "${options}"
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS ON)
endfunction()
