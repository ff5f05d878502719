# Finds a library that pip installs as well as the CUDA toolkit does. Used by CMakeLists.txt beside and,
# as a script of its own, by a test.
#
#   tess_cuda_find(WORD HEADER LIBRARY PACKAGE ROOTS...)
#
# sets WORD_INCLUDE and WORD_LIBRARY in the cache: the folder of HEADER and the file libLIBRARY.so, or its
# newest libLIBRARY.so.N where a package leaves out the link for developers. Looked for, in this order:
#   ${WORD_ROOT}, the environment's WORD_ROOT       the user's choice
#   ROOTS                                           the toolkit
#   nvidia/PACKAGE, nvidia/cu13, nvidia/cu12        in the site-packages of python3, where there is one
#   the default folders of compilers and linkers
# Both are taken from the first place that has both, so that the header is the library's; only where no place
# has, each from where it is.

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

# The file of the library in one root, `names` the versions to look for; NOTFOUND where there is none.
function(tess_cuda_library root library file_out)
    file(GLOB versioned ${root}/lib/lib${library}.so.* ${root}/lib64/lib${library}.so.*)
    set(names "")
    foreach(file ${versioned})
        get_filename_component(name ${file} NAME)
        list(APPEND names ${name})
    endforeach()
    list(SORT names COMPARE NATURAL ORDER DESCENDING)
    find_library(found NAMES ${library} ${names} NAMES_PER_DIR PATHS ${root}/lib ${root}/lib64
                 NO_DEFAULT_PATH NO_CACHE)
    set(${file_out} "${found}" PARENT_SCOPE)
endfunction()

function(tess_cuda_find word header library package)
    set(roots ${${word}_ROOT} $ENV{${word}_ROOT} ${ARGN})
    tess_cuda_site_packages(sites)
    foreach(site ${sites})
        list(APPEND roots ${site}/nvidia/${package} ${site}/nvidia/cu13 ${site}/nvidia/cu12)
    endforeach()

    # What the user has set stays. Root by root, so that what the user names wins over a newer one elsewhere.
    set(place "")
    foreach(root ${roots})
        tess_cuda_library(${root} ${library} file)
        if(NOT ${word}_INCLUDE AND NOT ${word}_LIBRARY AND file AND EXISTS ${root}/include/${header})
            set(${word}_INCLUDE ${root}/include CACHE PATH "Folder of ${header}" FORCE)
            set(${word}_LIBRARY ${file} CACHE FILEPATH "lib${library}" FORCE)
        elseif(file AND NOT place)
            set(place ${file})
        endif()
    endforeach()
    if(place AND NOT ${word}_LIBRARY)
        set(${word}_LIBRARY ${place} CACHE FILEPATH "lib${library}" FORCE)
    endif()
    find_path(${word}_INCLUDE ${header} HINTS ${roots} PATH_SUFFIXES include
              DOC "Folder of ${header}")
    find_library(${word}_LIBRARY NAMES ${library} HINTS ${roots} PATH_SUFFIXES lib lib64
                 DOC "lib${library}")
    mark_as_advanced(${word}_INCLUDE ${word}_LIBRARY)
endfunction()
