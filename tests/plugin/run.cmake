# Installs Tessera into a folder of its own, builds the outsider's project against it in both ways, trains
# with it and looks at what came out. Run by CTest: BUILD, WORK, SOURCE, HEADERS, COMPILER, FLAGS,
# BUILD_TYPE and GENERATOR are given.

include(${CMAKE_CURRENT_LIST_DIR}/step.cmake)

# The final record, and the first and last loss of a run's metrics.
function(read_metrics folder hash_out first_out last_out)
    file(STRINGS ${folder}/metrics.jsonl lines)
    set(losses "")
    foreach(line IN LISTS lines)
        string(JSON loss ERROR_VARIABLE none GET "${line}" loss)
        string(JSON number ERROR_VARIABLE none GET "${line}" step)
        if(NOT loss MATCHES "NOTFOUND" AND NOT number MATCHES "NOTFOUND")
            list(APPEND losses ${loss})
        endif()
    endforeach()
    list(LENGTH losses count)
    if(count LESS 5)
        message(FATAL_ERROR "${folder}: ${count} losses logged, 10 expected")
    endif()
    list(GET losses 0 first)
    list(GET losses -1 last)
    list(GET lines -1 line)
    string(JSON hash GET "${line}" final hash)
    set(${hash_out} ${hash} PARENT_SCOPE)
    set(${first_out} ${first} PARENT_SCOPE)
    set(${last_out} ${last} PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
step(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
set(tessera ${WORK}/prefix/bin/tessera)
step(${tessera} --version)
if(NOT step_output MATCHES "^tessera [0-9]+\\.[0-9]+\\.[0-9]+\n$")
    message(FATAL_ERROR "the installed program prints '${step_output}'")
endif()
# Public headers and nothing beside them.
file(GLOB_RECURSE headers RELATIVE ${WORK}/prefix/include ${WORK}/prefix/include/*)
file(GLOB public RELATIVE ${HEADERS} ${HEADERS}/tessera/*.h)
if(NOT headers STREQUAL public)
    message(FATAL_ERROR "installed headers: ${headers}; expected: ${public}")
endif()

file(GLOB pc ${WORK}/prefix/*/pkgconfig ${WORK}/prefix/*/*/pkgconfig)
set(ENV{PKG_CONFIG_PATH} "${pc}")
foreach(way cmake pkg_config)
    set(pkg_config OFF)
    set(prefix ${WORK}/prefix)
    if(way STREQUAL pkg_config)
        set(pkg_config ON)
        set(prefix ${WORK}/no_prefix)
    endif()
    step(${CMAKE_COMMAND} -G "${GENERATOR}" -S ${SOURCE} -B ${WORK}/${way}
         -DCMAKE_PREFIX_PATH=${prefix}
         -DCMAKE_BUILD_TYPE=${BUILD_TYPE} -DCMAKE_C_COMPILER=${COMPILER}
         "-DCMAKE_C_FLAGS=${FLAGS}" -DOUTSIDER_PKG_CONFIG=${pkg_config})
    step(${CMAKE_COMMAND} --build ${WORK}/${way})
    step(${tessera} --plugin ${WORK}/${way}/liboutsider.so train ${SOURCE}/twin.yaml --strategy bulk --ranks 2
         --run ${WORK}/${way}_bulk)
    read_metrics(${WORK}/${way}_bulk hash first last)
    if(NOT last LESS first)
        message(FATAL_ERROR "the loss went from ${first} to ${last}")
    endif()
    list(APPEND hashes ${hash})
endforeach()

# Our strategies train the outsider's model, theirs cut in pieces too, and all get the same bits.
foreach(choice "fsdp;--ranks;4" "ddp;--ranks;2" "single;--ranks;1" "bulk;--ranks;2;--bulk.pieces;3"
        "fsdp;--ranks;2;--comm;mail;--comm.mail.folder;${WORK}")
    string(MAKE_C_IDENTIFIER "${choice}" folder)
    step(${tessera} --plugin ${WORK}/cmake/liboutsider.so train ${SOURCE}/twin.yaml --strategy ${choice}
         --run ${WORK}/${folder})
    read_metrics(${WORK}/${folder} hash first last)
    list(APPEND hashes ${hash})
endforeach()
list(REMOVE_DUPLICATES hashes)
list(LENGTH hashes count)
if(NOT count EQUAL 1)
    message(FATAL_ERROR "parameter hashes differ: ${hashes}")
endif()

# Their kernel operation gives the bits of the reference, which computes the others.
set(hashes "")
foreach(kernel ref slope)
    step(${tessera} --plugin ${WORK}/cmake/liboutsider.so train ${SOURCE}/twin.yaml --kernel ${kernel}
         --run ${WORK}/kernel_${kernel})
    read_metrics(${WORK}/kernel_${kernel} hash first last)
    list(APPEND hashes ${hash})
endforeach()
list(REMOVE_DUPLICATES hashes)
list(LENGTH hashes count)
if(NOT count EQUAL 1)
    message(FATAL_ERROR "parameter hashes of kernels differ: ${hashes}")
endif()

# Their optimizer learns, with the same bits on whole and cut parameters, with and without masters.
foreach(precision "f32" "bf16;--master-weights;off;--rounding;stochastic")
    set(hashes "")
    foreach(choice "single;--ranks;1" "fsdp;--ranks;4" "bulk;--ranks;2")
        list(GET choice 0 folder)
        step(${tessera} --plugin ${WORK}/cmake/liboutsider.so train ${SOURCE}/twin.yaml --optimizer lion --lion.mix 0.95
             --learning-rate 0.002 --precision ${precision} --strategy ${choice}
             --run ${WORK}/lion_${folder} --overwrite)
        read_metrics(${WORK}/lion_${folder} hash first last)
        if(NOT last LESS first)
            message(FATAL_ERROR "lion: the loss went from ${first} to ${last}")
        endif()
        list(APPEND hashes ${hash})
    endforeach()
    list(REMOVE_DUPLICATES hashes)
    list(LENGTH hashes count)
    if(NOT count EQUAL 1)
        message(FATAL_ERROR "parameter hashes of lion differ: ${hashes}")
    endif()
endforeach()

# fails(STATUS TEXT COMMAND...): the command ends with that status and its message holds the text.
function(fails status text)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result ERROR_VARIABLE error OUTPUT_QUIET)
    if(NOT result EQUAL ${status} OR NOT error MATCHES "${text}")
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${result}, expected ${status} and '${text}':\n${error}")
    endif()
endfunction()

set(ENV{TESSERA_PLUGIN} ${WORK}/cmake/liboutsider.so)
fails(2 "bulk.pieces" ${tessera} train ${SOURCE}/twin.yaml --strategy bulk --bulk.pieces 0 --ranks 2)
fails(1 "slope computes in f32 only" ${tessera} train ${SOURCE}/twin.yaml --kernel slope --precision bf16)
fails(2 "there is a strategy 'bulk' already" ${tessera} --plugin ${WORK}/pkg_config/liboutsider.so help)
unset(ENV{TESSERA_PLUGIN})
fails(2 "No such file.*give the path" ${tessera} --plugin liboutsider.so help)
fails(2 "is followed by the path" ${tessera} --plugin)
fails(2 "is damaged" ${tessera} --plugin=${SOURCE}/plugin.c help)
file(GLOB library ${WORK}/prefix/*/libtessera.so ${WORK}/prefix/*/*/libtessera.so)
fails(2 "exports no function tess_plugin" ${tessera} --plugin ${library} help)
file(REMOVE_RECURSE ${WORK})
