# What is installed, and the Debian packages that it makes:
#
#   cmake --install build/release --prefix DIR       programs, manual, completion
#   cmake --build build/release --target packages    build/release/packages/*.deb
#
# A package is a component. Units, their environment files in /etc and what dpkg
# wants are in packages only: an install of everything leaves them out.

set(version ${PROJECT_VERSION})
find_program(HELP2MAN help2man)

# gshard_installed_program(NAME SECTION)
#
# Installs a program and its manual, which is made of what --help says, as the
# component of its name with '-'.
function(gshard_installed_program name section)
  string(REPLACE _ - component ${name})
  install(TARGETS ${name} RUNTIME DESTINATION bin COMPONENT ${component})
  set(pages ${PROJECT_SOURCE_DIR}/deploy/man/pages.sh)
  set(folder "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/man/man${section}")
  if(HELP2MAN)
    install(CODE "execute_process(
      COMMAND ${pages} $<TARGET_FILE:${name}> ${section} ${version} ${folder}
      COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
  else()
    install(CODE "message(WARNING \"${name}: no help2man, so no manual\")"
      COMPONENT ${component})
  endif()
endfunction()

# gshard_role(NAME UNIT [PURGE folder])
#
# What the package of the server gshard-NAME has besides the program: the unit,
# NAME.env that it reads, and the scripts of dpkg. PURGE is what goes with it.
function(gshard_role name unit)
  cmake_parse_arguments(ARG "" "PURGE" "" ${ARGN})
  install(FILES deploy/systemd/${unit} DESTINATION lib/systemd/system
    COMPONENT gshard-${name} EXCLUDE_FROM_ALL)
  install(FILES deploy/debian/${name}.env DESTINATION /etc/gshard
    COMPONENT gshard-${name} EXCLUDE_FROM_ALL)
  string(REPLACE @ @* UNITS ${unit})
  set(folder ${PROJECT_BINARY_DIR}/debian/${name})
  set(scripts)
  foreach(script postinst prerm postrm)
    configure_file(deploy/debian/${script} ${folder}/${script} @ONLY)
    list(APPEND scripts ${folder}/${script})
  endforeach()
  file(WRITE ${folder}/conffiles "/etc/gshard/${name}.env\n")
  string(TOUPPER gshard-${name} variable)
  set(CPACK_DEBIAN_${variable}_PACKAGE_CONTROL_EXTRA
    ${scripts} ${folder}/conffiles PARENT_SCOPE)
  set(CPACK_DEBIAN_${variable}_PACKAGE_CONTROL_STRICT_PERMISSION ON
    PARENT_SCOPE)
endfunction()

# Isolates SentencePiece from libprotobuf; found from the programs' folder.
install(TARGETS gshard_sentencepiece
  LIBRARY DESTINATION lib/gshard COMPONENT gshard-common)
install(FILES ARCHITECTURE.md CHANGELOG.md README.md THIRD_PARTY.md
  deploy/debian/copyright
  DESTINATION share/doc/gshard-common COMPONENT gshard-common)
install(DIRECTORY docs/
  DESTINATION share/doc/gshard-common COMPONENT gshard-common)
install(DIRECTORY client/python deploy/config deploy/monitoring deploy/tls
  DESTINATION share/doc/gshard-common/examples COMPONENT gshard-common
  USE_SOURCE_PERMISSIONS)
# Programs of others are generated from these, and the examples refer to them.
install(DIRECTORY proto/gshard
  DESTINATION share/gshard/proto COMPONENT gshard-common)
# Debian wants a changelog of its own form.
string(TIMESTAMP DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(MAINTAINER "The authors of gshard <gshard@example.org>")
configure_file(deploy/debian/changelog ${PROJECT_BINARY_DIR}/debian/changelog
  @ONLY)
install(CODE "execute_process(
  COMMAND gzip -9nc ${PROJECT_BINARY_DIR}/debian/changelog
  OUTPUT_FILE \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/doc/gshard-common/changelog.gz
  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT gshard-common)
install(FILES deploy/systemd/hardening.conf
  DESTINATION lib/systemd/system/gshard-.service.d
  COMPONENT gshard-common EXCLUDE_FROM_ALL)

gshard_installed_program(gshard 1)
gshard_installed_program(gshard_coordinator 8)
gshard_installed_program(gshard_router 8)
gshard_installed_program(gshard_expert_worker 8)
set(completions share/bash-completion/completions)
install(FILES deploy/completion/gshard.bash
  DESTINATION ${completions} RENAME gshard COMPONENT gshard-common)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/completion ${PROJECT_BINARY_DIR}/doc)
foreach(name gshard_coordinator gshard_router gshard_expert_worker)
  # A link: bash looks for a file of the command's name.
  file(CREATE_LINK gshard ${PROJECT_BINARY_DIR}/completion/${name} SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/completion/${name}
    DESTINATION ${completions} COMPONENT gshard-common)
endforeach()

# A purge takes the queue of jobs along, but never what they have made.
gshard_role(coordinator gshard-coordinator.service
  PURGE /var/lib/gshard-coordinator)
gshard_role(router gshard-router.service)
gshard_role(expert-worker gshard-expert-worker@.service)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME gshard)
set(CPACK_PACKAGE_CONTACT "${MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENTS_ALL gshard-common gshard gshard-coordinator gshard-router
  gshard-expert-worker)
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} variable)
  set(CPACK_DEBIAN_${variable}_PACKAGE_NAME ${component})
  if(component STREQUAL gshard-common)
    continue()
  endif()
  # Without authorities libcurl trusts no server; it only recommends them.
  set(CPACK_DEBIAN_${variable}_PACKAGE_DEPENDS
    "gshard-common (= ${version}), ca-certificates")
  if(NOT component STREQUAL gshard)
    string(APPEND CPACK_DEBIAN_${variable}_PACKAGE_DEPENDS ", adduser")
  endif()
  # Debian lets packages of one source share their documents.
  file(CREATE_LINK gshard-common ${PROJECT_BINARY_DIR}/doc/${component}
    SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/doc/${component}
    DESTINATION share/doc COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
# spm_train, for the tokenizers of jobs.
string(APPEND CPACK_DEBIAN_GSHARD-COORDINATOR_PACKAGE_DEPENDS ", sentencepiece")
# `gshard up` trains in its own process, and with --processes in the others'.
set(CPACK_DEBIAN_GSHARD_PACKAGE_RECOMMENDS sentencepiece)
set(CPACK_DEBIAN_GSHARD_PACKAGE_SUGGESTS
  "gshard-coordinator, gshard-router, gshard-expert-worker")

# gshard_describe(PACKAGE WHAT TEXT): what `apt show` says.
function(gshard_describe package what text)
  string(TOUPPER ${package} variable)
  set(CPACK_DEBIAN_${variable}_DESCRIPTION
    "Mixture-of-Experts translation: ${what}
Trains Mixture-of-Experts Transformers for translation on several processes
or machines, as in the GShard paper, and serves them over gRPC.
.
${text}" PARENT_SCOPE)
endfunction()

gshard_describe(gshard-common "what all programs share"
  "This package has the library and the documents that the others need, and the
protos from which clients are generated.")
gshard_describe(gshard "the gshard command"
  "This package has the command that trains, translates and looks after systems,
and that runs a whole one on this machine with `gshard up`.")
gshard_describe(gshard-coordinator "coordinator"
  "This package has the process that manages members, jobs and served models.")
gshard_describe(gshard-router "router"
  "This package has the process that runs the dense part of models and answers
translations.")
gshard_describe(gshard-expert-worker "expert worker"
  "This package has the process that holds experts.")
include(CPack)

add_custom_target(packages
  COMMAND ${CMAKE_CPACK_COMMAND} -G DEB
    --config ${PROJECT_BINARY_DIR}/CPackConfig.cmake
  DEPENDS gshard gshard_coordinator gshard_router gshard_expert_worker
    gshard_sentencepiece
  VERBATIM USES_TERMINAL)
