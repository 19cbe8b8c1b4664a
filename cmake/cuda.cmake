# CUDA and NCCL, which Debian does not package and nothing requires: kernels of
# GPUs (services/cuda) are built where there is CUDA, gshard_nccl exists only if
# both are found.
set(GSHARD_CUDA AUTO CACHE STRING
    "Build what needs CUDA: ON, OFF, or AUTO where there is a compiler for it")
set_property(CACHE GSHARD_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT GSHARD_CUDA)
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  find_package(CUDAToolkit 12.0)  # the first with C++20
endif()
if(NOT CUDAToolkit_FOUND)
  if(GSHARD_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "GSHARD_CUDA is ON, but there is no CUDA toolkit of version 12 or newer")
  endif()
  return()
endif()

# Sanitizers do not know what nvcc compiles.
if(NOT GSHARD_SANITIZE)
  # Ampere and Hopper, and what comes after by just-in-time compilation.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(GSHARD_CUDA_KERNELS ON)
endif()

find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NCCL_LIBRARY AND NCCL_INCLUDE_DIR)
  add_library(gshard_nccl INTERFACE)
  target_include_directories(gshard_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  # The same runtime as the kernels': a program with two has two current devices.
  target_link_libraries(gshard_nccl INTERFACE
    ${NCCL_LIBRARY} CUDA::cudart_static)
elseif(GSHARD_CUDA STREQUAL "ON")
  message(FATAL_ERROR "GSHARD_CUDA is ON, but there is no NCCL")
endif()
