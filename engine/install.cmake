# What `cmake --install` gives: the program, libtessera shared and static, the public headers, a pkg-config file and
# a CMake package. An outsider writes find_package(tessera) and links tessera::tessera, or uses pkg-config.
include(CMakePackageConfigHelpers)

install(TARGETS tessera EXPORT tesseraTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tessera_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

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
Requires.private: yaml-0.1, jansson, nettle, zlib
Cflags: -I\${includedir}
")
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
