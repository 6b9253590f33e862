# What `cmake --install` writes, in components (cmake --install BUILD --component NAME):
#
#   dev           headers, the kernels and the graph part as static libraries, what links the shared library of the C
#                 interface, and the files for find_package() and pkg-config
#   runtime       the shared library of the C interface, for programs that were linked with it
#   graph_runtime the shared library of the C interface of the graph part, where it is built; it needs that of runtime
#   tools         the command line tool, where it is built, with its manual page and completion for shells
#   onnxruntime   the execution provider for ONNX Runtime, where it is built

include(CMakePackageConfigHelpers)

set(detent_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/detent)

install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "c_api" EXCLUDE PATTERN "onnxruntime" EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT dev)
install(TARGETS detent detent_kernels detent_graph EXPORT detent-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(EXPORT detent-targets NAMESPACE detent:: DESTINATION ${detent_package_folder} COMPONENT dev)

# Libraries that may be missing where only some components are installed have their targets in files of their own:
# a file of targets does not load if one of its libraries is missing.
install(TARGETS detent_c EXPORT detent-c-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(EXPORT detent-c-targets NAMESPACE detent:: DESTINATION ${detent_package_folder} COMPONENT dev)
if(TARGET detent_graph_c)
  install(TARGETS detent_graph_c EXPORT detent-graph_c-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT graph_runtime NAMELINK_COMPONENT dev
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT graph_runtime
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT detent-graph_c-targets NAMESPACE detent:: DESTINATION ${detent_package_folder} COMPONENT dev)
endif()
if(TARGET detent_onnxruntime)
  install(TARGETS detent_onnxruntime EXPORT detent-onnxruntime-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT onnxruntime
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT onnxruntime)
  install(EXPORT detent-onnxruntime-targets NAMESPACE detent:: DESTINATION ${detent_package_folder} COMPONENT onnxruntime)
endif()
if(TARGET detent_cli)
  install(TARGETS detent_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()
if(TARGET detent_shell)
  set(shell_folder ${CMAKE_CURRENT_BINARY_DIR}/examples/shell)
  # Where zsh looks: Debian has a folder of its own for packages.
  set(zsh_folder site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND EXISTS /etc/debian_version)
    set(zsh_folder vendor-completions)
  endif()
  install(FILES ${shell_folder}/detent.bash RENAME detent COMPONENT tools
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${shell_folder}/_detent DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/${zsh_folder} COMPONENT tools)
  install(FILES ${shell_folder}/detent.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT tools)
  install(FILES ${shell_folder}/detent.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
endif()

configure_package_config_file(cmake/detent-config.cmake.in detent-config.cmake
  INSTALL_DESTINATION ${detent_package_folder} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(detent-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/detent-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/detent-config-version.cmake
  DESTINATION ${detent_package_folder} COMPONENT dev)

# pkg-config. A folder below the prefix is written relative to it, so that the prefix may be moved.
foreach(folder INCLUDEDIR LIBDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${folder}}")
    set(pkgconfig_${folder} ${CMAKE_INSTALL_${folder}})
  else()
    set(pkgconfig_${folder} "\${prefix}/${CMAKE_INSTALL_${folder}}")
  endif()
endforeach()
set(pkgconfig_definitions "-DDETENT_WITH_HIGHWAY=${DETENT_WITH_HIGHWAY} -DDETENT_WITH_XSIMD=${DETENT_WITH_XSIMD} -DDETENT_WITH_EIGEN=${DETENT_WITH_EIGEN}")
set(pkgconfig_requires "")
if(DETENT_WITH_EIGEN)
  set(pkgconfig_requires eigen3) # the one whose headers lie in a folder of their own
endif()
# detent_pkgconfig(name description requires definitions libraries)
function(detent_pkgconfig name description requires definitions libraries)
  configure_file(cmake/detent.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endfunction()
detent_pkgconfig(detent "${PROJECT_DESCRIPTION}; header-only" "${pkgconfig_requires}" "${pkgconfig_definitions} -pthread" "-pthread")
detent_pkgconfig(detent-kernels "The kernels of detent, compiled" "detent = ${PROJECT_VERSION}"
  "-DDETENT_SEPARATE_COMPILATION" "-ldetent_kernels")
detent_pkgconfig(detent-graph "ONNX models: the graph part of detent, compiled" "detent-kernels = ${PROJECT_VERSION}"
  "-DDETENT_GRAPH_SEPARATE_COMPILATION" "-ldetent_graph")
detent_pkgconfig(detent-c "The C interface of detent" "" "" "-ldetent_c")
if(TARGET detent_graph_c)
  detent_pkgconfig(detent-graph-c "The C interface of detent for ONNX models" "detent-c = ${PROJECT_VERSION}" "" "-ldetent_graph_c")
endif()
