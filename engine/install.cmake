# What `cmake --install` gives: the program, libtessera, the public headers, a pkg-config file and a CMake
# package. An outsider writes find_package(tessera) and links tessera::tessera, or asks pkg-config.
include(CMakePackageConfigHelpers)

# The program finds its library wherever the prefix is moved to.
file(RELATIVE_PATH tess_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(tessera_program PROPERTIES INSTALL_RPATH "$ORIGIN/${tess_bin_to_lib}")

install(TARGETS tessera EXPORT tesseraTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
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
Cflags: -I\${includedir}
")
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
