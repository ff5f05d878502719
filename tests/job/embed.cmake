# Installs Tessera into a folder of its own, builds the examples of embedding against it by CMake, by pkg-config and
# with the static library, runs them, and compares what they print. Run by CTest: BUILD, WORK, SOURCE (of the
# examples), CC, CXX (empty: no C++ compiler), FLAGS, BUILD_TYPE and GENERATOR are given.

include(${CMAKE_CURRENT_LIST_DIR}/../plugin/step.cmake)

# Runs a program of the examples; its hash, and the memory of its ranks, are those of the one before.
set(expected "")
function(run program)
    step(${program})
    string(REGEX MATCHALL "(rank|hash) [^\n]*" lines "${step_output}")
    list(LENGTH lines count)
    if(NOT count EQUAL 5 OR NOT step_output MATCHES "step 30: loss ")
        message(FATAL_ERROR "${program} printed:\n${step_output}")
    endif()
    if(expected AND NOT lines STREQUAL expected)
        message(FATAL_ERROR "${program} printed:\n${lines}\nexpected:\n${expected}")
    endif()
    set(expected "${lines}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(GLOB library ${WORK}/prefix/*/libtessera.so ${WORK}/prefix/*/*/libtessera.so)
get_filename_component(folder ${library} DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${folder}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${folder})

foreach(example embed embed_cpp)
    set(compiler ${CC})
    set(standard -std=c11)
    set(language C)
    if(example STREQUAL embed_cpp)
        set(compiler ${CXX})
        set(standard -std=c++17)
        set(language CXX)
    endif()
    if(NOT compiler)
        continue()
    endif()
    step(${CMAKE_COMMAND} -G "${GENERATOR}" -S ${SOURCE}/${example} -B ${WORK}/${example}
         -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
         -DCMAKE_${language}_COMPILER=${compiler} "-DCMAKE_${language}_FLAGS=${FLAGS}")
    step(${CMAKE_COMMAND} --build ${WORK}/${example})
    run(${WORK}/${example}/${example})

    file(GLOB source ${SOURCE}/${example}/embed.c ${SOURCE}/${example}/embed.cpp)
    set(compile "${compiler} ${standard} ${FLAGS} -Wall -Wextra -Werror ${source} -o ${WORK}/${example}")
    step(sh -c "${compile}_shared $(pkg-config --cflags --libs tessera)")
    run(${WORK}/${example}_shared)
    # The linker prefers a shared library of the same name.
    step(sh -c "${compile}_static $(pkg-config --cflags --libs --static tessera | sed s/-ltessera/-l:libtessera.a/)")
    run(${WORK}/${example}_static)
endforeach()

file(STRINGS ${SOURCE}/embed/embed.c lines)
list(LENGTH lines count)
if(count GREATER 80)
    message(FATAL_ERROR "examples/embed/embed.c has ${count} lines, allowed are 80")
endif()
file(REMOVE_RECURSE ${WORK})
