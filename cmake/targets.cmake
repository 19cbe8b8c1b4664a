# gshard_library(NAME [SRCS file...] [DEPS target...] [OPTIONS option...])
#
# Adds the library gshard_NAME. Headers are found from the project root, so an
# include always spells the room it comes from: "services/moe/gating.h".
#
# OPTIONS are compiled with besides those of all. A library that has some shares
# no precompiled headers: GCC would compile its functions with theirs.
function(gshard_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;OPTIONS" ${ARGN})
  if(ARG_SRCS)
    add_library(gshard_${name} STATIC ${ARG_SRCS})
    target_include_directories(gshard_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(gshard_${name} PUBLIC ${ARG_DEPS})
    gshard_compile_options(gshard_${name})
    if(ARG_OPTIONS)
      target_compile_options(gshard_${name} PRIVATE ${ARG_OPTIONS})
    else()
      gshard_share_headers(gshard_${name} gshard)
    endif()
  else()
    add_library(gshard_${name} INTERFACE)
    target_include_directories(gshard_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(gshard_${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# gshard_binary(NAME [SRCS file...] [DEPS target...])
#
# Adds the program NAME, which lands in build/<preset>/bin.
function(gshard_binary name)
  gshard_program(${name} ${ARGN})
  gshard_share_headers(${name} gshard)
endfunction()

# The same without shared headers.
function(gshard_program name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  gshard_compile_options(${name})
endfunction()

# gshard_test(NAME [SRCS file...] [DEPS target...] [TIMEOUT seconds])
#
# Adds the GoogleTest program NAME and registers it with CTest: one for a room,
# and one for each test that has to be alone in its process. It runs in the
# project root, so that tests name their data as "tests/...". Its label is
# "integration" or "fault" if the name begins so, else "fast".
#
# Most of a build is tests, and most of a test is templates: tests are not
# optimized, what they call is, and they share GoogleTest's headers compiled.
function(gshard_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  gshard_program(${name} SRCS ${ARG_SRCS}
    DEPS ${ARG_DEPS} GTest::gtest_main)
  gshard_test_options(${name})
  gshard_share_headers(${name} gshard_test)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name}
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  string(REGEX MATCH "^(integration|fault)" label ${name})
  if(NOT label)
    set(label fast)
  endif()
  # CTest begins with the highest cost: a long one at the end has cores idle.
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} LABELS ${label})
endfunction()

# gshard_benchmark(NAME [SRCS file...] [DEPS target...])
#
# Adds a Google Benchmark program. Built with the tests, run by hand: speed
# never decides whether a test passes. Figures come from the release preset;
# with others it has only to compile, as tests do.
function(gshard_benchmark name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  gshard_program(${name} SRCS ${ARG_SRCS}
    DEPS ${ARG_DEPS} benchmark::benchmark)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    gshard_share_headers(${name} gshard)
  else()
    gshard_test_options(${name})
    gshard_share_headers(${name} gshard_test)
  endif()
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/benchmark)
endfunction()

# Beyond gshard_compile_options(): those of tests and their shared headers. GCC
# collects garbage less often, and gold, of Debian's binutils, links in half the
# time.
find_program(GSHARD_GOLD ld.gold)
function(gshard_test_options target)
  target_compile_options(${target} PRIVATE -O0 -U_FORTIFY_SOURCE
    $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=500000>)
  if(GSHARD_GOLD AND NOT GSHARD_SANITIZE)
    target_link_options(${target} PRIVATE -fuse-ld=gold)
  endif()
endfunction()

# gshard_shared_headers(NAME header...)
#
# Makes the target NAME, which has the headers precompiled. GCC uses them only
# for sources with the same options.
function(gshard_shared_headers name)
  file(CONFIGURE OUTPUT ${name}.cc CONTENT "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  target_precompile_headers(${name} PRIVATE ${ARGN})
  if(CCACHE)
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/without_old_pch.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  gshard_compile_options(${name})
endfunction()

# gshard_share_headers(TARGET KIND)
#
# Has all sources of the target begin with the precompiled headers of the target
# KIND_headers, or KIND_grpc_headers if gRPC is among what it links. They include
# what they use all the same: Clang compiles them without. So do sanitizers,
# whose options differ between folders, but for tests; and -O3, where GCC no
# longer knows which code is of the system's headers, and warns of it.
function(gshard_share_headers target kind)
  set(headers ${kind}_headers)
  get_target_property(links ${target} LINK_LIBRARIES)
  foreach(link ${links})
    set(grpc OFF)
    if(TARGET ${link})
      get_target_property(grpc ${link} GSHARD_LINKS_GRPC)
    endif()
    if(grpc OR link STREQUAL "gRPC::grpc++")
      set(headers ${kind}_grpc_headers)
      set_target_properties(${target} PROPERTIES GSHARD_LINKS_GRPC ON)
    endif()
  endforeach()
  if(kind STREQUAL "gshard_test")
    # GCC compares what GoogleTest's package defines.
    target_link_libraries(${target} PRIVATE GTest::gmock)
  endif()
  if(kind STREQUAL "gshard_test" OR
     NOT (GSHARD_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Release"))
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

function(gshard_compile_options target)
  # GCC 12 takes the empty part of a moved absl::InlinedVector for a mistake;
  # Clang says where it does not vectorize. Clang alone knows what
  # services/base/mutex.h says of locks. Precompiled headers need the same
  # -pthread everywhere; ccache needs to see that they are used.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror -pthread
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety> -g1 -fopenmp-simd)
  if(GSHARD_SANITIZE STREQUAL "address")
    # GCC takes twice the time for tests with UBSan; what they call has it.
    set(sanitizers address,undefined)
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tests")
      set(sanitizers address)
    endif()
    target_compile_options(${target} PRIVATE
      -fsanitize=${sanitizers} -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
    target_compile_definitions(${target} PRIVATE GSHARD_SANITIZED)
  elseif(GSHARD_SANITIZE STREQUAL "fuzzer")
    target_compile_options(${target} PRIVATE
      -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
    target_compile_definitions(${target} PRIVATE GSHARD_SANITIZED)
  elseif(GSHARD_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread
      -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=thread)
    target_compile_definitions(${target} PRIVATE GSHARD_SANITIZED)
  endif()
  gshard_harden(${target})
endfunction()

# What makes a bug in a process that the network reaches harder to use: Debian's
# own set for its packages, and control-flow protection. Position-independent
# programs are GCC's default there. Sanitizers have checks of their own.
function(gshard_harden target)
  if(GSHARD_SANITIZE)
    return()
  endif()
  target_compile_options(${target} PRIVATE -fstack-protector-strong
    $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-fcf-protection=full>
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
    $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
  target_link_options(${target} PRIVATE
    -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endfunction()
