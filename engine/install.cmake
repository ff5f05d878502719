# What `cmake --install` gives, and `cpack -G DEB` as packages: the program with its man pages, completion of shells,
# configurations and libtessera (tessera); headers, the static library, a pkg-config file and a CMake package
# (tessera-dev); the modules that need MPI or CUDA (tessera-mpi, tessera-cuda). An outsider writes
# find_package(tessera) and links tessera::tessera, or uses pkg-config.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)

install(TARGETS tessera EXPORT tesseraTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program NAMELINK_COMPONENT dev
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tessera_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera COMPONENT program)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT program)
set(tess_completion ${CMAKE_CURRENT_LIST_DIR}/cli/completion)
install(FILES ${tess_completion}/tessera.bash RENAME tessera
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${tess_completion}/_tessera
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT program)
install(FILES ${tess_completion}/tessera.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT program)
# Printed by the program itself, from its option tables.
add_custom_command(TARGET tessera_program POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/man
    COMMAND tessera_program help --man ${PROJECT_BINARY_DIR}/man)
install(DIRECTORY ${PROJECT_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)

set(tess_package ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${tess_package})
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tesseraConfig.cmake @ONLY CONTENT
"include(\"\${CMAKE_CURRENT_LIST_DIR}/tesseraTargets.cmake\")
")
# Versions below 1.0 promise nothing between minor ones.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
        DESTINATION ${tess_package})

# What the static library needs. hwloc's own file would ask for libraries of its static library (udev ...), which
# Debian does not install with it. Loadable modules use functions of the library: -rdynamic binds them to those of the
# program that it was linked into.
set(tess_libs "-pthread -ldl -lm -rdynamic")
if(TESS_HWLOC AND HWLOC_FOUND)
    string(PREPEND tess_libs "-lhwloc ")
endif()
if(TESS_ONEDNN)
    string(PREPEND tess_libs "-ldnnl ")
endif()
set(tess_requires "yaml-0.1, jansson, nettle, zlib")
foreach(library PNG JPEG)
    if(${library}_FOUND)
        string(TOLOWER "lib${library}" module)
        string(APPEND tess_requires ", ${module}")
    endif()
endforeach()

# Relative to the file itself, so that the prefix of `cmake --install --prefix` counts, not that of
# configuring.
file(RELATIVE_PATH tess_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tessera.pc @ONLY CONTENT
"prefix=\${pcfiledir}/${tess_pc_to_prefix}
libdir=\${prefix}/${CMAKE_INSTALL_LIBDIR}
includedir=\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}

Name: tessera
Description: Parallel training engine
Version: ${PROJECT_VERSION}
Libs: -L\${libdir} -ltessera
Libs.private: ${tess_libs}
Requires.private: ${tess_requires}
Cflags: -I\${includedir}
")
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- packages ----------------------------------------------------------------------------------

set(CPACK_PACKAGE_CONTACT "Tessera developers <tessera@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "parallel training engine")
set(CPACK_PACKAGE_DESCRIPTION "Trains neural networks on several ranks under any parallel strategy, on processors and
NVIDIA GPUs, with the same bits under all of them, and plans memory and time beforehand.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME tessera)
foreach(component dev mpi cuda)
    string(TOUPPER ${component} word)
    set(CPACK_DEBIAN_${word}_PACKAGE_NAME tessera-${component})
    set(CPACK_COMPONENT_${word}_DEPENDS program)
endforeach()
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libyaml-dev, libjansson-dev, nettle-dev, zlib1g-dev")
if(PNG_FOUND)
    string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", libpng-dev")
endif()
if(JPEG_FOUND)
    string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", libjpeg62-turbo-dev")
endif()
include(CPack)
