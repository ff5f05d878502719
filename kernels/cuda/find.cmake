# Finds a library that pip installs as well as the CUDA toolkit does. Used by CMakeLists.txt beside and,
# as a script of its own, by a test.
#
#   tess_cuda_find(WORD HEADER LIBRARY PACKAGE ROOTS...)
#
# sets WORD_INCLUDE and WORD_LIBRARY in the cache: the folder of HEADER and the file libLIBRARY.so, or its
# newest libLIBRARY.so.N where a package leaves out the link for developers. Looked for, in this order:
#   ${WORD_ROOT}, the environment's WORD_ROOT       where the user says
#   ROOTS                                           the toolkit
#   nvidia/PACKAGE, nvidia/cu13, nvidia/cu12        in the site-packages of python3, where there is one
#   where compilers and linkers look anyway

# The site-packages folders of the python3 on the path; empty where there is none.
function(tess_cuda_site_packages folders_out)
    find_program(TESS_PYTHON3 NAMES python3 python DOC "For its site-packages alone")
    mark_as_advanced(TESS_PYTHON3)
    set(folders "")
    if(TESS_PYTHON3)
        execute_process(
            COMMAND ${TESS_PYTHON3} -c
                "import site, sysconfig; p = sysconfig.get_paths(); print(';'.join(dict.fromkeys([p['purelib'], p['platlib'], site.getusersitepackages()])))"
            OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    set(${folders_out} "${folders}" PARENT_SCOPE)
endfunction()

function(tess_cuda_find word header library package)
    set(roots ${${word}_ROOT} $ENV{${word}_ROOT} ${ARGN})
    tess_cuda_site_packages(sites)
    foreach(site ${sites})
        list(APPEND roots ${site}/nvidia/${package} ${site}/nvidia/cu13 ${site}/nvidia/cu12)
    endforeach()

    set(versioned "")
    foreach(root ${roots})
        file(GLOB found ${root}/lib/lib${library}.so.* ${root}/lib64/lib${library}.so.*)
        list(APPEND versioned ${found})
    endforeach()
    set(names "")
    foreach(file ${versioned})
        get_filename_component(name ${file} NAME)
        list(APPEND names ${name})
    endforeach()
    list(SORT names COMPARE NATURAL ORDER DESCENDING)

    find_path(${word}_INCLUDE ${header} HINTS ${roots} PATH_SUFFIXES include
              DOC "Folder of ${header}")
    # Root by root, so that what the user names wins over a newer one elsewhere.
    find_library(${word}_LIBRARY NAMES ${library} ${names} NAMES_PER_DIR HINTS ${roots}
                 PATH_SUFFIXES lib lib64 DOC "lib${library}")
    mark_as_advanced(${word}_INCLUDE ${word}_LIBRARY)
endfunction()
