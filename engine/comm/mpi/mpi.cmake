# Messages over MPI: one loadable module for each MPI library that is installed, libtessera_mpi_openmpi.so and
# libtessera_mpi_mpich.so, which libtessera.so opens when it is requested (engine/device/device.c). Nothing else
# is linked to MPI, so both may be there side by side, and neither need be.
set(TESS_MPI AUTO CACHE STRING
    "Build the modules for messages over MPI (--comm mpi): AUTO for the libraries that pkg-config finds (Open MPI \
as ompi-c, MPICH as mpich), ON: at least one must be there, OFF")
set_property(CACHE TESS_MPI PROPERTY STRINGS AUTO ON OFF)

set(TESS_MPI_FOLDER ${CMAKE_CURRENT_LIST_DIR})

# tess_mpi_module(NAME TEXT PACKAGE LIBRARY): the module for one MPI library, where it is installed.
function(tess_mpi_module name text package library)
    string(TOUPPER ${name} word)
    pkg_check_modules(TESS_${word} QUIET ${package})
    if(NOT TESS_${word}_FOUND)
        return()
    endif()
    find_library(TESS_${word}_LIBRARY ${library} HINTS ${TESS_${word}_LIBRARY_DIRS})
    mark_as_advanced(TESS_${word}_LIBRARY)
    if(NOT TESS_${word}_LIBRARY)
        return()
    endif()
    add_library(tessera_mpi_${name} MODULE
        ${TESS_MPI_FOLDER}/comm_mpi.c ${TESS_MPI_FOLDER}/comm_mpi_native.c ${TESS_MPI_FOLDER}/comm_mpi_open.c)
    target_compile_options(tessera_mpi_${name} PRIVATE -fvisibility=hidden)
    target_compile_definitions(tessera_mpi_${name} PRIVATE TESS_MPI_NAME="${name}"
        TESS_MPI_TEXT="${text} ${TESS_${word}_VERSION}")
    tess_sees(tessera_mpi_${name} SEES engine/base engine/comm)
    target_include_directories(tessera_mpi_${name} SYSTEM PRIVATE ${TESS_${word}_INCLUDE_DIRS})
    target_link_libraries(tessera_mpi_${name} PRIVATE tessera tessera_static ${TESS_${word}_LIBRARY} Threads::Threads)
    target_link_options(tessera_mpi_${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,--as-needed)
    get_filename_component(folder ${TESS_${word}_LIBRARY} DIRECTORY)
    set_target_properties(tessera_mpi_${name} PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
        BUILD_RPATH "$ORIGIN;${folder}"
        INSTALL_RPATH "$ORIGIN/..;$ORIGIN;${folder}")
    install(TARGETS tessera_mpi_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera COMPONENT mpi)
    set_property(GLOBAL APPEND PROPERTY TESS_MPI_MODULES ${name})
    set_property(GLOBAL APPEND PROPERTY TESS_MPI_TEXTS "${text} ${TESS_${word}_VERSION}")
endfunction()

if(TESS_MPI)
    tess_mpi_module(openmpi "Open MPI" ompi-c mpi)
    tess_mpi_module(mpich "MPICH" mpich mpich)
endif()
get_property(modules GLOBAL PROPERTY TESS_MPI_MODULES)
get_property(texts GLOBAL PROPERTY TESS_MPI_TEXTS)
if(modules)
    list(JOIN texts ", " texts)
    message(STATUS "MPI: modules for ${texts}")
elseif(NOT TESS_MPI)
    message(STATUS "MPI: not built (TESS_MPI is OFF)")
elseif(TESS_MPI STREQUAL "AUTO")
    message(STATUS "MPI: not built: pkg-config finds neither ompi-c (libopenmpi-dev) nor mpich (libmpich-dev)")
else()
    message(FATAL_ERROR "TESS_MPI: pkg-config finds neither ompi-c nor mpich: install libopenmpi-dev or "
                        "libmpich-dev")
endif()
