# Does tess_cuda_find find a library in all three places, in their order? Trees of empty files stand in for
# a toolkit, for a folder that the user names and for the site-packages of a python3.
cmake_minimum_required(VERSION 3.25)
include(${FIND})
file(REMOVE_RECURSE ${WORK})

# plant(ROOT FILE...): the header and these libraries below ROOT.
function(plant root)
    file(WRITE ${root}/include/found.h "")
    foreach(file ${ARGN})
        file(WRITE ${root}/${file} "")
    endforeach()
endfunction()

# expect(INCLUDE LIBRARY ROOT...): what tess_cuda_find must answer.
function(expect include library)
    unset(FOUND_INCLUDE CACHE)
    unset(FOUND_LIBRARY CACHE)
    tess_cuda_find(FOUND found.h tessfound package ${ARGN})
    if(NOT FOUND_INCLUDE STREQUAL "${include}" OR NOT FOUND_LIBRARY STREQUAL "${library}")
        message(SEND_ERROR "found ${FOUND_INCLUDE} and ${FOUND_LIBRARY}, not ${include} and ${library}")
    endif()
endfunction()

# A python3 that searches one folder.
file(WRITE ${WORK}/python3 "#!/bin/sh\necho ${WORK}/site\n")
file(CHMOD ${WORK}/python3 PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(TESS_PYTHON3 ${WORK}/python3)

expect(FOUND_INCLUDE-NOTFOUND FOUND_LIBRARY-NOTFOUND ${WORK}/toolkit)

# pip's packages leave out the link for developers; of two versions the newer one is meant.
set(site ${WORK}/site/nvidia/package)
plant(${site} lib/libtessfound.so.9 lib/libtessfound.so.10)
expect(${site}/include ${site}/lib/libtessfound.so.10 ${WORK}/toolkit)

# CUDA 13's packages share one folder.
file(REMOVE_RECURSE ${site})
plant(${WORK}/site/nvidia/cu13 lib/libtessfound.so.2)
expect(${WORK}/site/nvidia/cu13/include ${WORK}/site/nvidia/cu13/lib/libtessfound.so.2 ${WORK}/toolkit)

# A header by itself, which a system may have of another version, does not go with it.
plant(${WORK}/toolkit)
expect(${WORK}/site/nvidia/cu13/include ${WORK}/site/nvidia/cu13/lib/libtessfound.so.2 ${WORK}/toolkit)

# The toolkit goes before python's, even with an older version.
plant(${WORK}/toolkit lib64/libtessfound.so.1)
expect(${WORK}/toolkit/include ${WORK}/toolkit/lib64/libtessfound.so.1 ${WORK}/toolkit)

# And what the user names before both.
plant(${WORK}/named lib/libtessfound.so)
set(FOUND_ROOT ${WORK}/named)
expect(${WORK}/named/include ${WORK}/named/lib/libtessfound.so ${WORK}/toolkit)
unset(FOUND_ROOT)
set(ENV{FOUND_ROOT} ${WORK}/named)
expect(${WORK}/named/include ${WORK}/named/lib/libtessfound.so ${WORK}/toolkit)
