# The rooms of the house: which folders each one is, and which headers it may include. A room is
# compiled with a folder of links to just these headers, so that any other include does not compile.
#
# tess_room(NAME [PROGRAM] FOLDERS f... [EXCEPT regex] [SOURCES s...] [SEES path...] [KERNELS path...]
#           [LINKS l...])
#   PROGRAM  the room is part of the program only, not of the library
#   FOLDERS  every .c file in them is the room's, less those whose name matches EXCEPT
#   SEES     folders and headers of the source tree; "engine/base" is included as "base/..."
#   KERNELS  the same below kernels/: "ref" is included as "ref/..."
# The public headers, engine/include, are seen by all.
function(tess_room name)
    cmake_parse_arguments(ROOM "PROGRAM" "EXCEPT" "FOLDERS;SOURCES;SEES;KERNELS;LINKS" ${ARGN})
    set(sources ${ROOM_SOURCES})
    foreach(folder ${ROOM_FOLDERS})
        file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.c)
        list(APPEND sources ${found})
        # For TESS_JOINED: all but those that give a name of the folder another meaning.
        list(FILTER found EXCLUDE REGEX "/(${names_twice})\\.c$")
        set_source_files_properties(${found} PROPERTIES UNITY_GROUP ${folder})
    endforeach()
    if(ROOM_EXCEPT)
        list(FILTER sources EXCLUDE REGEX "/(${ROOM_EXCEPT})\\.c$")
    endif()
    add_library(tess_${name} OBJECT ${sources})
    tess_sees(tess_${name} SEES ${ROOM_SEES} KERNELS ${ROOM_KERNELS})
    target_link_libraries(tess_${name} PRIVATE ${ROOM_LINKS})
    set(part TESS_LIBRARY_OBJECTS)
    if(ROOM_PROGRAM)
        set(part TESS_PROGRAM_OBJECTS)
    endif()
    # Sanitizers check what waits, decides and draws as well without the optimiser, and it is compiled in a third of the
    # time. gcc's warnings of texts that are cut need the optimiser: the other presets have them.
    if(TESS_SANITIZE AND NOT name MATCHES "^(base|comm|core|data|optim|kernels.*|topology_(machine|rings|map))$")
        target_compile_options(tess_${name} PRIVATE -O0 $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
        # Half of the rest of it is spent on headers.
        set_target_properties(tess_${name} PROPERTIES UNITY_BUILD ${TESS_JOINED} UNITY_BUILD_MODE GROUP)
    endif()
    set_property(GLOBAL APPEND PROPERTY ${part} $<TARGET_OBJECTS:tess_${name}>)
endfunction()

# The include directories of a target: the public headers, and a folder of links to what it may see.
function(tess_sees target)
    cmake_parse_arguments(ROOM "" "" "SEES;KERNELS" ${ARGN})
    set(view ${PROJECT_BINARY_DIR}/sees/${target})
    file(REMOVE_RECURSE ${view})
    file(MAKE_DIRECTORY ${view})
    foreach(path ${ROOM_SEES})
        string(REGEX REPLACE "^engine/" "" link ${path})
        tess_link(${PROJECT_SOURCE_DIR}/${path} ${view}/${link})
    endforeach()
    foreach(path ${ROOM_KERNELS})
        tess_link(${PROJECT_SOURCE_DIR}/kernels/${path} ${view}/${path})
    endforeach()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/engine/include ${view})
endfunction()

function(tess_link path link)
    get_filename_component(folder ${link} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${path} ${link} SYMBOLIC)
endfunction()

set(names_twice device job_rank memory_table registry scaling_measure write_nccl)
list(JOIN names_twice "|" names_twice)
set(base engine/base)
set(machines topology/machine topology/formats topology/hwloc topology/rings topology/map)
set(engine ${base} engine/comm engine/data engine/device engine/state engine/optim engine/config
           engine/core)

tess_room(base FOLDERS engine/base SEES ${base} LINKS PkgConfig::YAML)

# ---- beside each other: communication, topology, kernels ----
# Communicators over MPI and NCCL are modules: engine/comm/mpi/mpi.cmake, kernels/cuda.
tess_room(comm
    FOLDERS engine/comm engine/comm/local engine/comm/net engine/comm/boot
    SOURCES ${PROJECT_SOURCE_DIR}/engine/comm/mpi/comm_mpi_load.c
            ${PROJECT_SOURCE_DIR}/engine/comm/nccl/nccl_load.c
    SEES ${base} engine/comm
    LINKS Threads::Threads PkgConfig::NETTLE)

tess_room(topology_machine FOLDERS topology/machine SEES ${base} topology/machine)
tess_room(topology_formats FOLDERS topology/formats
    SEES ${base} topology/machine topology/formats topology/hwloc
    LINKS PkgConfig::YAML)
# hwloc's files, this machine and binding where libhwloc is; files that do without where it is not.
if(TESS_HWLOC AND HWLOC_FOUND)
    set(other "bind_none|live_none|read_hwloc_none")
    set(library PkgConfig::HWLOC)
else()
    set(other "bind_hwloc|hwloc_load|hwloc_machine|live_hwloc|read_hwloc")
    set(library)
endif()
tess_room(topology_hwloc FOLDERS topology/hwloc EXCEPT ${other}
    SEES ${base} topology/machine topology/formats topology/hwloc
    LINKS ${library} Threads::Threads)
tess_room(topology_rings FOLDERS topology/rings SEES ${base} topology/machine topology/formats topology/rings)
tess_room(topology_map FOLDERS topology/map SEES ${base} topology/machine topology/rings topology/map)

# ---- the engine, each room on those before it ----
tess_room(device FOLDERS engine/device
    SEES ${base} engine/device topology/machine topology/hwloc
    LINKS ${CMAKE_DL_LIBS})
target_compile_definitions(tess_device PRIVATE TESS_LIBDIR="${CMAKE_INSTALL_LIBDIR}")
# Formats of images: a file that decodes them, or one that names the missing library.
set(other "")
set(libraries "")
foreach(format png jpeg)
    string(TOUPPER ${format} library)
    if(${library}_FOUND)
        list(APPEND other data_${format}_none)
        list(APPEND libraries PkgConfig::${library})
    else()
        list(APPEND other data_${format})
    endif()
endforeach()
list(JOIN other "|" other)
tess_room(data FOLDERS engine/data EXCEPT ${other} SEES ${base} engine/data
    LINKS ZLIB::ZLIB Threads::Threads ${libraries})
tess_room(state FOLDERS engine/state SEES ${base} engine/state LINKS PkgConfig::JANSSON)
tess_room(optim FOLDERS engine/optim SEES ${base} engine/state engine/optim)
# The registry expands the lists of parts; nothing else of their rooms is seen.
tess_room(config FOLDERS engine/config
    SEES ${base} engine/comm engine/data engine/device engine/state engine/optim engine/config
         engine/models/list.h strategies/list.h kernels/list.h
    KERNELS needs/planned.h)
tess_room(core FOLDERS engine/core SEES ${engine} KERNELS kernel_open.h LINKS Threads::Threads)

# Models and strategies see the public headers only, like an outsider's; and their own folder.
tess_room(models FOLDERS engine/models)
tess_room(strategies FOLDERS strategies)

tess_room(job FOLDERS engine/job SEES ${engine} engine/job ${machines} LINKS Threads::Threads)

# ---- the program ----
tess_room(text PROGRAM FOLDERS engine/text SEES ${base} engine/data engine/text
    LINKS PkgConfig::JANSSON)
if(SENTENCEPIECE_FOUND)
    set(other sentence_none)
    set(sources ${PROJECT_SOURCE_DIR}/engine/tokenizer/sentence.cpp)
else()
    set(other "")
    set(sources "")
endif()
tess_room(tokenizer PROGRAM FOLDERS engine/tokenizer EXCEPT ${other} SOURCES ${sources}
    SEES ${base} engine/tokenizer
    LINKS PkgConfig::JANSSON PkgConfig::PCRE2 PkgConfig::UTF8PROC)
target_include_directories(tess_tokenizer SYSTEM PRIVATE $<$<BOOL:${SENTENCEPIECE_FOUND}>:${SENTENCEPIECE_INCLUDE}>)
set_target_properties(tess_tokenizer PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
if(TESS_SANITIZE)
    # Checks of C++ classes need a run-time library of their own, which a program in C is not linked to.
    set_source_files_properties(${PROJECT_SOURCE_DIR}/engine/tokenizer/sentence.cpp
        PROPERTIES COMPILE_OPTIONS "-fno-sanitize=vptr")
endif()
tess_room(prepare PROGRAM FOLDERS engine/prepare
    SEES ${base} engine/data engine/text engine/tokenizer engine/prepare
    LINKS PkgConfig::JANSSON ZLIB::ZLIB PkgConfig::ZSTD)
tess_room(draw PROGRAM FOLDERS topology/draw SEES ${base} engine/text ${machines} topology/draw
    LINKS PkgConfig::JANSSON)
if(PROTOBUF_C_FOUND AND PROTOC_C)
    set(other tensorboard_none)
else()
    set(other tensorboard)
endif()
tess_room(run PROGRAM FOLDERS engine/run EXCEPT ${other}
    SEES ${engine} engine/job engine/text engine/predict engine/run ${machines}
    LINKS PkgConfig::JANSSON Threads::Threads)
if(PROTOBUF_C_FOUND AND PROTOC_C)
    set(proto ${PROJECT_BINARY_DIR}/proto)
    file(MAKE_DIRECTORY ${proto})
    add_custom_command(OUTPUT ${proto}/tensorboard.pb-c.c ${proto}/tensorboard.pb-c.h
        COMMAND ${PROTOC_C} --c_out=${proto} --proto_path=${PROJECT_SOURCE_DIR}/engine/run tensorboard.proto
        DEPENDS ${PROJECT_SOURCE_DIR}/engine/run/tensorboard.proto)
    target_sources(tess_run PRIVATE ${proto}/tensorboard.pb-c.c)
    target_include_directories(tess_run PRIVATE ${proto})
    target_link_libraries(tess_run PRIVATE PkgConfig::PROTOBUF_C)
    # Generated: not held to our warnings.
    set_source_files_properties(${proto}/tensorboard.pb-c.c PROPERTIES COMPILE_OPTIONS "-w")
endif()
tess_room(predict PROGRAM FOLDERS engine/predict SEES ${engine} engine/predict ${machines}
    KERNELS kernel_open.h
    LINKS Threads::Threads)
tess_room(study PROGRAM FOLDERS engine/study
    SEES ${engine} engine/job engine/text engine/run engine/predict engine/study
         topology/machine/rates.h
    LINKS PkgConfig::JANSSON Threads::Threads)
tess_room(report PROGRAM FOLDERS engine/report SEES ${base} engine/text engine/report LINKS PkgConfig::JANSSON)
tess_room(bench PROGRAM FOLDERS bench bench/comm bench/kernels bench/step bench/gpu
    SEES ${engine} engine/job engine/text engine/run engine/study bench
    KERNELS kernel_open.h cpu/best.h
    LINKS PkgConfig::JANSSON Threads::Threads)
tess_room(cli PROGRAM FOLDERS engine/cli EXCEPT main
    SEES ${engine} engine/job engine/text engine/tokenizer engine/prepare engine/run engine/study engine/report
         engine/cli
         ${machines} topology/draw
    LINKS PkgConfig::JANSSON)
